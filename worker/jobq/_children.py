"""Processes that run beside this one and end with it."""

import contextlib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from types import FrameType
from typing import IO

__all__ = ["Child", "sigterm_as_ctrl_c", "stop_all"]

_STOP_SECONDS = 3.0
_TAIL_LINES = 15


class Child:
    """A process of ours. Its log is kept for when something goes wrong, or else goes to ours.

    Its standard input ends when we do, in whatever way, and carries nothing.
    """

    def __init__(
        self, name: str, command: Sequence[str], env: Mapping[str, str], *, keep_log: bool = True
    ) -> None:
        self.name = name
        # Kept open for the process's life.
        self._log: IO[bytes] | None = tempfile.TemporaryFile() if keep_log else None  # noqa: SIM115
        self._process = subprocess.Popen(
            command,
            env=env,
            stdin=subprocess.PIPE,
            stdout=self._log or subprocess.DEVNULL,
            stderr=self._log,
            start_new_session=True,  # Ctrl-C is ours to pass on, once
        )

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """How the process ended (a negative signal number if by one); None while it runs."""
        return self._process.poll()

    def wait(self, seconds: float) -> int | None:
        """Wait for the end and return the exit code; None if it does not come in time."""
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def terminate(self) -> None:
        """Ask the process to stop."""
        self._process.terminate()

    def kill(self) -> None:
        """End the process now."""
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """Let go of it; its log is gone then."""
        if self._process.stdin:
            self._process.stdin.close()
        if self._log:
            self._log.close()

    def log_tail(self) -> str:
        """The last lines of its log."""
        if self._log is None:
            return "see above"
        # Not by seeking: the place in the file is the process's too.
        size = os.fstat(self._log.fileno()).st_size
        text = os.pread(self._log.fileno(), size, 0).decode(errors="replace")
        return "\n".join(text.splitlines()[-_TAIL_LINES:])


def stop_all(children: Sequence[Child]) -> None:
    """Stop the processes: all asked at once, those that are still there in 3 s killed."""
    for child in children:
        child.terminate()
    deadline = time.monotonic() + _STOP_SECONDS
    for child in children:
        if child.wait(max(deadline - time.monotonic(), 0)) is None:
            child.kill()
        child.close()


@contextlib.contextmanager
def sigterm_as_ctrl_c() -> Iterator[None]:
    """Let SIGTERM stop what runs here in order, as Ctrl-C does."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    old = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, old)
