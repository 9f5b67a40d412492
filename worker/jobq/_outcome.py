"""How a run ended, as the members of a `jobq.settle` element, and how an error becomes text."""

import json
import math
import traceback
from threading import Lock

from jobq.context import Cancel, CurrentJob, Fatal, Snooze
from jobq.payload import PayloadMismatch, json_text

ERROR_BYTES = 32 * 1024
RESULT_BYTES = 16 * 1024 * 1024
FORMATTING_SECONDS = 2.0

_OURS = ("jobq._executor", "jobq._executor_async")
_formatting = Lock()

SUCCEEDED = '"outcome":"succeeded"'
RELEASED = '"outcome":"released"'
UNCOMMITTED = "uncommitted"  # ended by its handler; whether that was committed is not known yet


def returned(job: CurrentJob, result: object) -> None:
    """The handler returned: a success, unless its result cannot be stored.

    One that ended the job in its own transaction is taken at its word by sending a failure: if
    that was committed the claim is over and this is refused; if not, all it did is to be redone.
    """
    if job._finishing:
        _failed(job, "the handler ended the job in a transaction that was not committed")
        job._ended = UNCOMMITTED
        return
    if result is None:
        job._ended, job._outcome = "succeeded", SUCCEEDED
        return
    try:
        text = json_text(result)
        if len(text.encode()) > RESULT_BYTES:
            raise ValueError(f"more than {RESULT_BYTES} bytes")
    except Exception as exc:  # noqa: BLE001 - a result can hold objects that raise anything
        # The work is done and would be done again: not retryable.
        _failed(job, f"the result cannot be stored: {_headline(exc)}", retryable=False)
    else:
        job._ended, job._outcome = "succeeded", f'{SUCCEEDED},"result":{text}'


def raised(job: CurrentJob, exc: BaseException) -> None:
    """The handler raised: a failure, or one of the exceptions that say what to do. Never raises."""
    try:
        _raised(job, exc)
    except BaseException as why:  # noqa: BLE001 - an exception's own attributes can be anything
        _failed(job, f"{error_text(exc)}\n(raised, and not usable: {_headline(why)})")


def _raised(job: CurrentJob, exc: BaseException) -> None:
    if isinstance(exc, Snooze):
        seconds = float(exc.seconds)
        if not (seconds >= 0 and math.isfinite(seconds)):
            raise ValueError(f"a delay of {seconds!r} s")
        job._outcome = f'"outcome":"snoozed","delay_seconds":{seconds!r}'
        job._ended = "snoozed"
    elif isinstance(exc, Cancel):
        job._ended = "cancelled"
        job._outcome = f'"outcome":"cancelled","error":{json.dumps(clean(_headline(exc)))}'
    elif isinstance(exc, PayloadMismatch):
        _failed(job, f"the payload does not fit the handler: {exc}")
    else:
        _failed(job, error_text(exc), retryable=not isinstance(exc, Fatal))


def refused(job: CurrentJob, reason: str) -> None:
    """The database refused the outcome as it was; this one it will take."""
    _failed(job, f"the outcome cannot be stored: {reason}", retryable=job._ended != "succeeded")


def released(job: CurrentJob) -> None:
    """The job did not start here; its attempt is given back."""
    job._ended, job._outcome = "released", RELEASED


def element(job: CurrentJob) -> str:
    """The whole element for `jobq.settle`."""
    return f'{{"job_id":{job.id},"lease_token":"{job._token}",{job._outcome}}}'


def error_text(exc: BaseException) -> str:
    """The traceback, as text that PostgreSQL takes: no NUL, no surrogate, at most 32 KiB.

    What is too long keeps its head and its tail.
    """
    frames = exc.__traceback__
    while frames is not None and frames.tb_frame.f_globals.get("__name__") in _OURS:
        frames = frames.tb_next
    held: list[bool] = []
    try:
        # Asks the exception for its text, which may never come: not under the lock.
        told = traceback.TracebackException(
            type(exc), exc, frames, lookup_lines=False, compact=True
        )
        # One at a time: Python 3.11 parses the lines it shows, and its parser is not thread-safe.
        # In one call: an exception thrown into this thread must not come between lock and list.
        held.extend(map(_formatting.acquire, (True,), (FORMATTING_SECONDS,)))
        # A note can block as well; then the others go without their tracebacks.
        text = "".join(told.format()) if True in held else f"{type(exc).__name__}: {told}"
    except BaseException:  # noqa: BLE001 - an exception's own methods can raise anything
        text = f"{type(exc).__name__}: {_headline(exc)}"
    finally:
        if True in held:
            _formatting.release()
    return clean(text.rstrip())


def _failed(job: CurrentJob, error: str, *, retryable: bool = True) -> None:
    final = "" if retryable else ',"retryable":false'
    job._ended = "failed"
    job._error_line = error.rstrip().rpartition("\n")[2][:500]
    job._outcome = f'"outcome":"failed","error":{json.dumps(clean(error))}{final}'


def clean(text: str, limit: int = ERROR_BYTES) -> str:
    if len(text) > limit:  # cut before encoding: it may be gigabytes
        text = f"{text[:limit]}{text[-limit:]}"
        cut = True
    else:
        cut = False
    data = text.replace("\0", "\\x00").encode("utf-8", "backslashreplace")
    if cut or len(data) > limit:
        mark = b"\n[... cut ...]\n"
        half = (limit - len(mark)) // 2
        data = data[:half] + mark + data[-half:]
    return data.decode("utf-8", "ignore")


def _headline(exc: BaseException) -> str:
    try:
        return str(exc) or type(exc).__name__
    except BaseException:  # noqa: BLE001 - an exception's own methods can raise anything
        return type(exc).__name__
