"""What the benchmarks' workers run: typed no-ops, in threads and on an event loop."""

from jobq import App

app = App()
async_app = App()


@app.job("noop")
def noop(n: int, to: str = "") -> None:
    """Do nothing, in a thread."""


@async_app.job("noop")
async def async_noop(n: int, to: str = "") -> None:
    """Do nothing, on the event loop."""
