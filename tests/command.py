"""Running the command line: in this process, in its own, and in a terminal."""

import fcntl
import io
import json
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import pytest
from helpers import ROOT

from jobq.cli import main

_started: "list[subprocess.Popen[str]]" = []


@dataclass(frozen=True)
class Result:
    """How a command ended and what it wrote."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        """What it wrote as JSON; fails unless the command did what was asked."""
        assert self.code == 0, self.err
        return json.loads(self.out)


class Jobq:
    """Runs `jobq …` in this process, against one database, standard output not being a terminal."""

    def __init__(
        self,
        dsn: str | None,
        capsys: pytest.CaptureFixture[str],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        self._capsys = capsys
        self._monkeypatch = monkeypatch
        for name in [n for n in os.environ if n.startswith("JOB_") or n == "DATABASE_URL"]:
            monkeypatch.delenv(name)
        if dsn is not None:
            monkeypatch.setenv("DATABASE_URL", dsn)

    def __call__(self, *args: object, stdin: str = "") -> Result:
        """Run a command to its end."""
        text = io.TextIOWrapper(io.BytesIO(stdin.encode()), encoding="utf-8")
        self._monkeypatch.setattr(sys, "stdin", text)
        self._capsys.readouterr()
        with pytest.raises(SystemExit) as exit_:
            main([str(arg) for arg in args])
        out, err = self._capsys.readouterr()
        assert isinstance(exit_.value.code, int)
        assert "Traceback" not in err
        return Result(exit_.value.code, out, err)


def environment(dsn: str | None, **env: str) -> dict[str, str]:
    """The environment of a command of its own: no settings but these."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("JOB_", "DATABASE_URL"))}
    if dsn is not None:
        kept["DATABASE_URL"] = dsn
    return {**kept, "PYTHONPATH": str(ROOT / "worker"), **env}


def start(
    args: Sequence[object], dsn: str | None, cwd: object = None, **env: str
) -> "subprocess.Popen[str]":
    """Start `jobq …` in a process of its own, in a group of its own; `end_all` ends it."""
    with _heeding_ctrl_c():
        process = subprocess.Popen(
            [sys.executable, "-m", "jobq", *(str(arg) for arg in args)],
            cwd=None if cwd is None else str(cwd),
            env=environment(dsn, **env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
    _started.append(process)
    return process


@contextmanager
def _heeding_ctrl_c() -> Iterator[None]:
    """Let a child heed SIGINT though we ignore it, as what a shell runs in the background does."""
    before = signal.getsignal(signal.SIGINT)
    if before is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def end_all() -> None:
    """End what `start` started and a failed test left: asked first, as a demo has a server."""
    while _started:
        process = _started.pop()
        if process.poll() is None:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(10)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()
        process.wait()


def run(args: Sequence[object], dsn: str | None, cwd: object = None, **env: str) -> Result:
    """Run `jobq …` in a process of its own to its end."""
    process = start(args, dsn, cwd, **env)
    out, err = process.communicate(timeout=110)
    return Result(process.returncode, out, err)


def in_terminal(
    args: Sequence[object], dsn: str, columns: int = 100, typed: str = "", **env: str
) -> tuple[int, str]:
    """Run `jobq …` in a terminal so wide; return its exit code and all that reached the screen."""
    main_end, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    settings = {"TERM": "xterm-256color", "COLUMNS": str(columns), **env}
    process = subprocess.Popen(
        [sys.executable, "-m", "jobq", *(str(arg) for arg in args)],
        env=environment(dsn, **settings),
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        start_new_session=True,
    )
    os.close(terminal)
    os.write(main_end, typed.encode())
    screen = b""
    while True:
        try:
            data = os.read(main_end, 65536)
        except OSError:  # the terminal is gone with its last user
            break
        if not data:
            break
        screen += data
    os.close(main_end)
    return process.wait(timeout=30), screen.decode(errors="replace").replace("\r\n", "\n")
