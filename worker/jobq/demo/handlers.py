"""The demo's jobs. Each run of the demo has a name, which its jobs carry in their payload.

A worker process of the demo is told by JOBQ_DEMO_PARENT whose it is, and ends with it; the one that
is to be killed is told by JOBQ_DEMO_VICTIM for which run.
"""
# ruff: noqa: ARG001 - every payload names its run

import hashlib
import mimetypes
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

from jobq import App, Cancel, Fatal, current_job

__all__ = ["LONG_STEPS", "PARENT", "VICTIM", "app"]

PARENT = "JOBQ_DEMO_PARENT"
VICTIM = "JOBQ_DEMO_VICTIM"
LONG_STEPS = 20
_CHUNK = 1 << 20
_LONGEST_WAIT = 60.0

app = App()


@app.job("demo.file")
def read_file(run: str, path: str) -> dict[str, Any]:
    """Read a file, and return its SHA-256, bytes, lines and MIME type."""
    digest, size, lines = hashlib.sha256(), 0, 0
    try:
        with Path(path).open("rb") as file:
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
                size += len(chunk)
                lines += chunk.count(b"\n")
    except OSError as error:
        raise Fatal(f"cannot read {path}: {error.strerror}") from error
    mime, _ = mimetypes.guess_type(path)
    return {"sha256": digest.hexdigest(), "bytes": size, "lines": lines, "mime": mime}


@app.job("demo.flaky", max_attempts=5, retry_base_seconds=1)
def succeed_on_third_try(run: str) -> dict[str, int]:
    """Fail twice."""
    attempt = current_job().attempt
    if attempt < 3:
        raise ConnectionError(f"try {attempt} was bound to fail")
    return {"succeeded_on_attempt": attempt}


@app.job("demo.long")
def outlive_the_lease(run: str, seconds: float) -> dict[str, float]:
    """Take longer than the lease lasts, reporting progress; the worker renews it meanwhile."""
    job, started = current_job(), time.monotonic()
    for step in range(LONG_STEPS):
        job.progress(step / LONG_STEPS, f"step {step + 1} of {LONG_STEPS}")
        time.sleep(seconds / LONG_STEPS)
    return {"ran_seconds": round(time.monotonic() - started, 3)}


@app.job("demo.crash", retry_base_seconds=1)
def kill_the_worker(run: str) -> dict[str, int]:
    """In the worker process that is this run's victim: kill it. In any other: return."""
    if os.environ.get(VICTIM) == run:
        os.kill(os.getpid(), signal.SIGKILL)
    return {"finished_by_process": os.getpid()}


@app.job("demo.endless")
def wait_to_be_cancelled(run: str) -> None:
    """Work until somebody cancels the job."""
    job, deadline = current_job(), time.monotonic() + _LONGEST_WAIT
    job.progress(0, "waiting to be cancelled")
    while not job.cancelled:
        if time.monotonic() > deadline:
            raise Fatal(f"nobody cancelled it within {_LONGEST_WAIT:g} s")
        time.sleep(0.05)
    raise Cancel("stopped half-way, as asked")


@app.job("demo.note")
def take_note(run: str, text: str) -> str:
    """Return the text."""
    return text


@app.job("demo.ping")
def ping(run: str) -> None:
    """Do nothing: what is measured is how soon it starts."""


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.2)
    os.kill(os.getpid(), signal.SIGTERM)


if os.environ.get(PARENT):
    threading.Thread(target=_end_with, args=(int(os.environ[PARENT]),), daemon=True).start()
