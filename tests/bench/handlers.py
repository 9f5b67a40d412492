"""What the benchmarks' workers run."""

from jobq import App

app = App()


@app.job("noop")
def noop(n: int, to: str = "") -> None:
    """Do nothing, with typed arguments."""
