"""The data folder of an embedded PostgreSQL: making it, starting its server, cleaning up after one.

    DIR/postgres/       the cluster, owned by the server's user
    DIR/postgres.log    what initdb and the server say
    DIR/dsn             how to connect, mode 0600
    DIR/lock            locked by the process that owns the server

The cluster asks for a password: without one, any user of the machine could be its superuser, and
so run programs as the server's user.
"""

import contextlib
import hashlib
import logging
import os
import secrets
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from jobq._binaries import Binaries, EmbeddedError, Owner, system_dir

_log = logging.getLogger("jobq.embedded")

START_SECONDS = 60.0
_STOP_SECONDS = 15.0
_POLL_SECONDS = 0.02
_LOG_BYTES = 10_000_000
_SECRET = "jobq.password"  # noqa: S105 (the name of a file)


@dataclass(frozen=True, slots=True)
class Pidfile:
    """What `postmaster.pid` says of a server that runs, or was killed."""

    pid: int
    port: int
    ready: bool


def usable_folder(path: Path, owner: Owner) -> Path:
    """Make `path`, or where the server's user cannot enter it, one under /var/lib/jobq."""
    existing = next(p for p in (path, *path.parents) if p.exists())
    if not owner.may_enter(existing):
        key = hashlib.sha256(str(path).encode()).hexdigest()[:12]
        chosen = system_dir() / f"data-{key}"
        _log.info("the server's user cannot enter %s: the data is in %s", existing, chosen)
        path = chosen
    try:
        if not path.exists():
            path.mkdir(parents=True)
            path.chmod(0o711 if owner.uid else 0o700)
            (path / ".gitignore").write_text("*\n")
        (path / "lock").touch(mode=0o600)
    except OSError as error:
        raise EmbeddedError(
            f"cannot write to {path} ({error.strerror}): run this in a folder of your own,"
            " or set DATABASE_URL"
        ) from error
    if not owner.may_enter(path):
        raise EmbeddedError(
            f"the server's user (uid {owner.uid}) cannot enter {path}: `chmod o+x` it and the"
            " folders above, or set DATABASE_URL"
        )
    return path


def init_cluster(binaries: Binaries, owner: Owner, cluster: Path, *, sync: bool) -> None:
    """Make a cluster with a fresh random password; killed midway it leaves nothing behind."""
    scratch = cluster.with_name("postgres.new")
    pwfile = cluster.with_name("pwfile")
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(mode=0o700)
    owner.own(scratch)
    password = secrets.token_urlsafe(18)
    pwfile.unlink(missing_ok=True)
    pwfile.touch(mode=0o600)
    pwfile.write_text(password)
    owner.own(pwfile)
    options = ["-D", str(scratch), "-U", "postgres", "-E", "UTF8", "--locale=C"]
    try:
        result = subprocess.run(
            owner.command(
                binaries.bindir / "initdb",
                *options,
                "--auth=scram-sha-256",
                f"--pwfile={pwfile}",
                *([] if sync else ["--no-sync"]),
            ),
            cwd="/",
            env=_environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if result.returncode != 0:
            raise EmbeddedError(f"initdb failed: {result.stderr.strip() or result.stdout.strip()}")
        pwfile.rename(scratch / _SECRET)
        scratch.rename(cluster)
    finally:
        pwfile.unlink(missing_ok=True)


def write_dsn(cluster: Path, port: int) -> str:
    """Write and return the connection URI."""
    password = (cluster / _SECRET).read_text()
    dsn = f"postgresql://postgres:{password}@127.0.0.1:{port}/postgres"
    scratch = cluster.with_name("dsn.new")
    scratch.touch(mode=0o600)
    scratch.write_text(f"{dsn}\n")
    scratch.replace(cluster.with_name("dsn"))
    return dsn


def launch(
    command: list[str], cluster: Path, log_path: Path, stopping: threading.Event
) -> subprocess.Popen[bytes]:
    """Start the server and return once it takes connections; raises EmbeddedError."""
    full = log_path.exists() and log_path.stat().st_size > _LOG_BYTES
    with log_path.open("wb" if full else "ab") as log:
        start = log.tell()
        process = subprocess.Popen(
            command,
            cwd="/",
            env=_environment(),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,  # Ctrl-C in a terminal must not reach the server
        )
    deadline = time.monotonic() + START_SECONDS
    while True:
        pidfile = read_pidfile(cluster)
        if pidfile and pidfile.ready and pidfile.pid == process.pid:
            return process
        if stopping.is_set() or time.monotonic() > deadline:
            process.send_signal(signal.SIGINT)
        if process.poll() is not None:
            with log_path.open("rb") as log:
                log.seek(start)
                lines = log.read().decode(errors="replace").strip().splitlines()
            raise EmbeddedError("\n".join([f"the server did not start, {log_path}:", *lines[-5:]]))
        time.sleep(_POLL_SECONDS)


def stop_orphan(cluster: Path) -> None:
    """End a server that nobody owns any more; the caller holds the folder's lock.

    A pid file left by a killed server may name a process that has nothing to do with it.
    """
    pidfile = read_pidfile(cluster)
    if pidfile is None:
        return
    deadline = time.monotonic() + _STOP_SECONDS
    while _serves(pidfile.pid, cluster):
        late = time.monotonic() > deadline
        with contextlib.suppress(ProcessLookupError):
            os.kill(pidfile.pid, signal.SIGQUIT if late else signal.SIGINT)
        time.sleep(_POLL_SECONDS * 5)
    (cluster / "postmaster.pid").unlink(missing_ok=True)


def read_pidfile(cluster: Path) -> Pidfile | None:
    """Read `postmaster.pid`; None if there is none, or it is being written."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        lines = (cluster / "postmaster.pid").read_text().splitlines()
        ready = len(lines) > 7 and lines[7].strip() == "ready"
        return Pidfile(pid=int(lines[0]), port=int(lines[3]), ready=ready)
    return None


def port_is_free(port: int) -> bool:
    """Whether a server could listen there now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def any_port() -> int:
    """Return a port that the kernel says is free."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def server_options(port: int, settings: Mapping[str, str]) -> list[str]:
    """Return the server's command line after `-D …`: loopback only, no socket files."""
    fixed = {"port": str(port), "listen_addresses": "127.0.0.1", "unix_socket_directories": ""}
    return [part for item in {**settings, **fixed}.items() for part in ("-c", "=".join(item))]


def _serves(pid: int, cluster: Path) -> bool:
    """Whether process `pid` is the server of this cluster."""
    proc = Path(f"/proc/{pid}/cmdline")
    if Path("/proc/self").exists():
        try:
            command = proc.read_text().replace("\0", " ")
        except OSError:
            return False
    else:
        arguments = ["ps", "-ww", "-o", "command=", "-p", str(pid)]
        command = subprocess.run(arguments, capture_output=True, text=True, check=False).stdout
    return "postgres" in command.split(" -D ")[0] and f" -D {cluster} " in command


def _environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
    return {**kept, "LC_ALL": "C"}
