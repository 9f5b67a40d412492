"""Fixtures: one PostgreSQL and one migrated template per run, a clone of it per test.

TEST_DATABASE_URL names a running server whose role may create databases and roles.
Else a server is started: the one in JOBQ_TEST_PG_BINDIR, or the one that jobq finds itself.
"""

import contextlib
import fcntl
import gc
import itertools
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zlib import crc32

import psycopg
import pytest
from helpers import Connection
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from pytest_postgresql.factories import postgresql_noproc

from command import end_all
from jobq import _binaries, embedded
from jobq.migrate import migrate

# They hold fixtures, and are imported by the tests that use those.
pytest.register_assert_rewrite("browser", "dashboards", "screens")

SHARED_MEMORY = Path("/dev/shm")
PREFIX = "jobq-test-"
SETTINGS = {
    "max_connections": "200",
    "max_wal_size": "512MB",
    "log_lock_waits": "on",
    "log_line_prefix": "%m [%p] %q%a %d ",
}
# Nothing of it is ever recovered.
LITTLE_LOG = {"wal_level": "minimal", "max_wal_senders": "0", "full_page_writes": "off"}

_numbers = itertools.count(1)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Among several processes: what may take long first, then what waits and what works, mixed."""
    if not hasattr(config, "workerinput"):
        return

    def key(item: pytest.Item) -> tuple[float, int]:
        longest = max((mark.args[0] for mark in item.iter_markers("timeout")), default=0)
        return -longest, crc32(item.nodeid.encode())

    items.sort(key=key)


def pytest_collection_finish() -> None:
    """Spare the garbage collector what stays anyway: half a million objects of modules."""
    gc.collect()
    gc.freeze()


@dataclass(frozen=True)
class PgServer:
    """A running server; the first seven fields are what pytest-postgresql asks for."""

    host: str
    port: int
    user: str
    password: str
    options: str
    maintenance_dbname: str
    template_dbname: str | None
    bindir: Path
    log_path: Path | None

    def dsn(self, dbname: str | None = None) -> str:
        """Return the connection string for a database of this server."""
        return make_conninfo(
            host=self.host,
            port=self.port,
            user=self.user,
            password=self.password,
            dbname=dbname or self.maintenance_dbname,
        )

    def log_text(self) -> str:
        """Return the server's log so far; skips where the server is not ours."""
        if self.log_path is None:
            pytest.skip("the log of a server that the tests did not start cannot be read")
        return self.log_path.read_text("utf-8", "replace")


def chosen_binaries() -> embedded.Binaries:
    """Return the PostgreSQL that the tests run on."""
    named = os.environ.get("JOBQ_TEST_PG_BINDIR")
    if not named:
        return embedded.find_binaries()
    found = _binaries.inspect_bindir(Path(named))
    if found is None:
        pytest.exit(f"JOBQ_TEST_PG_BINDIR={named} holds no PostgreSQL server", returncode=3)
    return found


@pytest.fixture(scope="session")
def pg_server() -> Iterator[PgServer]:
    """The run's server: in memory where there is room, and without fsync."""
    url = os.environ.get("TEST_DATABASE_URL")
    if url:
        yield _describe(url, embedded.find_binaries().bindir, None)
        return
    binaries = chosen_binaries()
    with _server_folder() as folder:
        settings = SETTINGS | LITTLE_LOG
        server = embedded.server(folder, durable=False, settings=settings, binaries=binaries)
        with server as running:
            _log_in_cheaply(running.dsn)
            yield _describe(running.dsn, binaries.bindir, running.log_path)


def _log_in_cheaply(dsn: str) -> None:
    # A password is hashed 4,096 times by whoever gives it: 6 ms of each connection.
    with psycopg.connect(dsn, autocommit=True) as conn:
        if conn.info.server_version >= 160000:
            conn.execute("alter system set scram_iterations = 1")
            conn.execute("set scram_iterations = 1")
            login = sql.SQL("alter role {} password {}")
            role = sql.Identifier(conn.info.user)
            conn.execute(login.format(role, sql.Literal(conn.info.password)))
            conn.execute("select pg_reload_conf()")


def _migrate_template(**parameters: Any) -> None:
    parameters.pop("autocommit", None)
    migrate(make_conninfo("", **parameters))


jobq_template = postgresql_noproc(
    depends_on="pg_server", dbname=f"jobq_{os.getpid()}", load=[_migrate_template]
)


@pytest.fixture(scope="session")
def admin(pg_server: PgServer) -> Iterator[Connection]:
    """A superuser's connection to the maintenance database."""
    with psycopg.connect(pg_server.dsn(), autocommit=True) as connection:
        yield connection


@pytest.fixture
def make_role(admin: Connection) -> Iterator[Callable[..., str]]:
    """Make a login role for this test: `make_role("createdb")`; connect(user=…) knows its password.

    The roles go after the test's databases, so what they own there does not matter.
    """
    names: list[str] = []

    def make(options: str = "") -> str:
        name = f"jobq_role_{os.getpid()}_{next(_numbers)}"
        query = f"create role {name} login password 'test' {options}"
        admin.execute(query.encode())
        names.append(name)
        return name

    yield make
    for name in names:
        admin.execute(sql.SQL("drop role {}").format(sql.Identifier(name)))


@pytest.fixture
def make_database(
    pg_server: PgServer, admin: Connection, make_role: Callable[..., str]
) -> Iterator[Callable[..., str]]:
    """Make a database for this test and return its DSN: `make_database(template=…, owner=…)`."""
    names: list[str] = []

    def make(template: str = "template0", owner: str | None = None) -> str:
        name = f"jobq_test_{os.getpid()}_{next(_numbers)}"
        # Copied as files: the server writes no log for that, a quarter of the work.
        query = sql.SQL("create database {} template {} owner {} strategy file_copy").format(
            sql.Identifier(name), sql.Identifier(template), sql.Identifier(owner or pg_server.user)
        )
        admin.execute(query)
        names.append(name)
        return pg_server.dsn(name)

    yield make
    for name in names:
        admin.execute(sql.SQL("drop database {} with (force)").format(sql.Identifier(name)))


@pytest.fixture(autouse=True)
def _no_process_is_left() -> Iterator[None]:
    yield
    end_all()


@pytest.fixture(autouse=True)
def _main_stays_main() -> Iterator[None]:
    # Streamlit's tests put the app in its place, and processes forked later would import that.
    main = sys.modules["__main__"]
    yield
    sys.modules["__main__"] = main


@pytest.fixture
def empty_dsn(make_database: Callable[..., str]) -> str:
    """A database of this test's own, without jobq."""
    return make_database()


@pytest.fixture
def dsn(make_database: Callable[..., str], jobq_template: Any) -> str:
    """A freshly migrated database of this test's own."""
    return make_database(template=jobq_template.template_dbname)


@pytest.fixture
def connect(request: pytest.FixtureRequest) -> Iterator[Callable[..., Connection]]:
    """Open connections to the test's database: `connect(user=…, autocommit=False, dsn=…)`.

    Autocommit unless told otherwise. All are closed at the end.
    """
    opened: list[Connection] = []

    def open_one(dsn: str | None = None, **options: Any) -> Connection:
        if "user" in options:
            options.setdefault("password", "test")
        target = dsn or request.getfixturevalue("dsn")
        connection = psycopg.connect(target, **{"autocommit": True, **options})
        opened.append(connection)
        return connection

    yield open_one
    for connection in opened:
        connection.close()


@pytest.fixture
def conn(connect: Callable[..., Connection]) -> Connection:
    """An autocommit connection to the test's database, as the owner of everything in it."""
    return connect()


@pytest.fixture
def durable_server() -> Iterator[embedded.Server]:
    """A server of this test's own with fsync on, on disk; `.pid` is the server's process."""
    with (
        _folder(Path(tempfile.gettempdir())) as folder,
        embedded.server(folder, settings=SETTINGS, binaries=chosen_binaries()) as running,
    ):
        yield running


def _describe(dsn: str, bindir: Path, log_path: Path | None) -> PgServer:
    parts = conninfo_to_dict(dsn)
    return PgServer(
        host=str(parts.get("host") or "127.0.0.1"),
        port=int(parts.get("port") or 5432),
        user=str(parts.get("user") or "postgres"),
        password=str(parts.get("password") or ""),
        options="",
        maintenance_dbname=str(parts.get("dbname") or "postgres"),
        template_dbname=None,
        bindir=bindir,
        log_path=log_path,
    )


def _server_folder() -> contextlib.AbstractContextManager[Path]:
    writable = SHARED_MEMORY.is_dir() and os.access(SHARED_MEMORY, os.W_OK)
    if writable and shutil.disk_usage(SHARED_MEMORY).free > 2**30:
        return _folder(SHARED_MEMORY)
    return _folder(Path(tempfile.gettempdir()))


@contextlib.contextmanager
def _folder(parent: Path) -> Iterator[Path]:
    """Make a folder that the server's user may enter, and remove it and its likes at the end."""
    _remove_abandoned(parent)
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
    folder.chmod(0o711)
    yield folder
    shutil.rmtree(folder)


def _remove_abandoned(parent: Path) -> None:
    # A killed run leaves its folder in memory; the lock in it went with the run.
    for folder in parent.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            if folder.stat().st_mtime > time.time() - 60:
                continue
            with (folder / "lock").open("a") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
