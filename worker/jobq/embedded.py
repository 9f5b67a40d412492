"""A PostgreSQL of one's own, for trying jobq and for tests: no installation, no root.

    with embedded.server(".jobq") as server:
        psycopg.connect(server.dsn)

The folder may be used by several processes at once. The first one starts the server and owns it;
the others attach to it. When the owner ends, in whatever way, the server ends with it, and one of
the others starts it again on the same port: their connections break once, and can be made again
within about a second. So the server runs as long as anybody uses it, and no longer.
"""

import contextlib
import fcntl
import logging
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import urlsplit

from jobq import _cluster
from jobq._binaries import Binaries, EmbeddedError, find_binaries, reachable, server_owner

__all__ = ["Binaries", "EmbeddedError", "Server", "find_binaries", "server"]

_log = logging.getLogger("jobq.embedded")

_STOP_SECONDS = 20.0
_TAKEOVER_SECONDS = 0.2
_FAST = {"fsync": "off", "full_page_writes": "off", "synchronous_commit": "off"}


@contextlib.contextmanager
def server(
    data_dir: Path | str = ".jobq",
    *,
    durable: bool = True,
    settings: Mapping[str, str] | None = None,
    binaries: Binaries | None = None,
) -> Iterator["Server"]:
    """Run (or attach to) the server whose data lies in `data_dir`, and let go of it at the end.

    `durable=False` trades safety against a power cut for speed. `settings` are PostgreSQL's own;
    they count for the process that starts the server. Raises EmbeddedError.
    """
    running = Server(data_dir, durable=durable, settings=settings, binaries=binaries)
    try:
        running.start()
        yield running
    finally:
        running.stop()


class Server:
    """One process's hold on the server of a data folder: `start()`, `dsn`, `stop()`."""

    def __init__(
        self,
        data_dir: Path | str = ".jobq",
        *,
        durable: bool = True,
        settings: Mapping[str, str] | None = None,
        binaries: Binaries | None = None,
    ) -> None:
        self._owner = server_owner()
        self.data_dir = _cluster.usable_folder(Path(data_dir).absolute(), self._owner)
        self.log_path = self.data_dir / "postgres.log"
        self._cluster = self.data_dir / "postgres"
        self._dsn_path = self.data_dir / "dsn"
        self._durable = durable
        self._settings = {**({} if durable else _FAST), **(settings or {})}
        self._binaries = binaries
        self._dsn: str | None = None
        self._error: Exception | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._ready = threading.Event()
        self._stopping = threading.Event()
        self._keeper = threading.Thread(target=self._keep, name="jobq-postgres", daemon=True)

    @property
    def dsn(self) -> str:
        """The connection URI, password included; it stands in the folder's file `dsn` as well."""
        if self._dsn is None:
            raise EmbeddedError("the server is not running: call start() first")
        return self._dsn

    @property
    def pid(self) -> int | None:
        """The server's process id if this process started it, else None."""
        return self._process.pid if self._process else None

    def start(self) -> None:
        """Return once the server takes connections; raises EmbeddedError."""
        self._keeper.start()
        if not self._ready.wait(_cluster.START_SECONDS):
            raise EmbeddedError(
                f"{self.data_dir} is in use by a process whose server does not answer"
                f" (see {self.log_path}): end that process, then run this again"
            )
        if self._error:
            raise self._error

    def stop(self) -> None:
        """Let go: the server ends unless another process uses it. May be called twice."""
        self._stopping.set()
        process = self._process
        if process:
            process.send_signal(signal.SIGINT)
        if self._keeper.ident:
            self._keeper.join(_STOP_SECONDS)
        if process and process.poll() is None:
            process.send_signal(signal.SIGQUIT)
            self._keeper.join()

    # The kernel stops the server when the thread that started it ends, so this one stays.
    def _keep(self) -> None:
        with (self.data_dir / "lock").open("a") as lock:
            while not self._stopping.is_set():
                try:
                    if _try_lock(lock.fileno()):
                        self._own()
                    else:
                        self._attach()
                except (EmbeddedError, OSError, ValueError) as error:
                    if self._dsn is None:
                        self._error = error
                        self._ready.set()
                        return
                    _log.warning("the embedded server did not start again: %s", error)
                fcntl.flock(lock.fileno(), fcntl.LOCK_UN)
                self._stopping.wait(_TAKEOVER_SECONDS)

    def _attach(self) -> None:
        pidfile = _cluster.read_pidfile(self._cluster)
        if self._dsn is None and pidfile and pidfile.ready:
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", pidfile.port), timeout=1).close()
                self._publish(self._dsn_path.read_text().strip())

    def _own(self) -> None:
        """Run the server until it ends; the caller holds the folder's lock."""
        binaries = self._ensure_cluster()
        _cluster.stop_orphan(self._cluster)
        # A start may fail because the port was taken meanwhile, or a killed server's children
        # have not quite ended.
        for last in (False, False, True):
            dsn = _cluster.write_dsn(self._cluster, port := self._choose_port())
            options = _cluster.server_options(port, self._settings)
            program = binaries.bindir / "postgres"
            command = self._owner.command(program, "-D", str(self._cluster), *options)
            try:
                process = _cluster.launch(command, self._cluster, self.log_path, self._stopping)
                break
            except EmbeddedError:
                if last or self._stopping.wait(0.5):
                    raise
        self._process = process
        self._publish(dsn)
        if self._stopping.is_set():
            process.send_signal(signal.SIGINT)
        code = process.wait()
        self._process = None
        if not self._stopping.is_set():
            _log.warning("the embedded server ended (exit code %s): starting it again", code)

    def _publish(self, dsn: str) -> None:
        self._dsn = dsn
        self._ready.set()

    def _ensure_cluster(self) -> Binaries:
        """Return the binaries that fit the data, having made the data if there was none."""
        version_file = self._cluster / "PG_VERSION"
        made_by = int(version_file.read_text()) if version_file.exists() else None
        try:
            binaries = self._binaries or find_binaries(made_by)
        except EmbeddedError:
            binaries = find_binaries()
        if made_by not in (None, binaries.major):
            raise EmbeddedError(
                f"the data in {self.data_dir} was made by PostgreSQL {made_by}, which"
                f" {binaries.major} cannot read: install PostgreSQL {made_by}, or delete that"
                " folder to start afresh"
            )
        binaries = reachable(binaries, self._owner)
        if made_by is None:
            _cluster.init_cluster(binaries, self._owner, self._cluster, sync=self._durable)
        return binaries

    def _choose_port(self) -> int:
        last = urlsplit(self._dsn_path.read_text()).port if self._dsn_path.exists() else None
        if last and _cluster.port_is_free(last):
            return last
        if self._dsn is not None:
            raise EmbeddedError(f"another program listens on port {last} now: stop it")
        return _cluster.any_port()


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
