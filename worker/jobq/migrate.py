"""Bring a database's `jobq` schema to what this package needs.

Numbered migrations (types, tables, indexes) are yoyo's. Functions, triggers and views have one
source file each and are loaded again whenever their text, or what stands in the database, changed.
One session at a time migrates; a killed one leaves nothing half done, so running it again is safe.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from glob import escape
from typing import Any, TypeVar

import psycopg
from psycopg import errors, sql
from yoyo import read_migrations

from jobq._sources import Drift, apply_sources, drift
from jobq._yoyo import LOCK_SECONDS, SCHEMA, TABLE, JobqBackend, MigrationError, MigrationLocked
from jobq.errors import JobqError
from jobq.paths import db_dir

__all__ = [
    "SCHEMA_VERSION",
    "MigrationError",
    "MigrationLocked",
    "Report",
    "SchemaError",
    "SchemaTooNew",
    "SchemaTooOld",
    "Status",
    "apply_sources",
    "check_compatible",
    "migrate",
    "rollback",
    "status",
]

#: The `jobq.schema_version()` that this package was written for.
SCHEMA_VERSION = 2

_OLDEST_SERVER = 150000

T = TypeVar("T")


class SchemaError(JobqError):
    """The database's schema does not fit this package."""


class SchemaTooOld(SchemaError):
    """The schema is missing, or older than this package needs."""


class SchemaTooNew(SchemaError):
    """The schema is newer and says that a package this old cannot work with it."""


@dataclass(frozen=True, slots=True)
class Report:
    """What one run of `migrate` did; both lists are empty when nothing was left to do."""

    migrations: list[str]
    sources: list[str]
    schema_version: int | None
    seconds: float


@dataclass(frozen=True, slots=True)
class Status:
    """How a database stands to this package."""

    applied: list[str]
    pending: list[str]
    drift: Drift
    schema_version: int | None
    package_version: int
    server_version: int

    @property
    def current(self) -> bool:
        """Whether `migrate` has nothing to do."""
        return not self.pending and not self.drift.outdated


def migrate(dsn: str, *, wait: float = 0.0, lock_timeout: float = LOCK_SECONDS) -> Report:
    """Apply pending migrations, then load the functions, triggers and views that changed.

    `wait`: seconds to keep trying while the database cannot be reached. `lock_timeout`: seconds
    to wait for another migration. Raises MigrationLocked, MigrationError, psycopg.OperationalError.
    """
    started = time.monotonic()
    with _open(dsn, wait) as backend, backend.lock(lock_timeout):
        connection: psycopg.Connection[Any] = backend.connection
        _check_server(connection)
        migrations = _read_migrations()
        if not _has_tables(connection):  # somebody dropped the schema; yoyo's marks are elsewhere
            backend.unmark_migrations(backend.to_rollback(migrations))
        applied = []
        for migration in backend.to_apply(migrations):
            try:
                backend.apply_one(migration)
            except psycopg.Error as error:
                raise MigrationError(f"migration {migration.id}: {error}") from error
            applied.append(migration.id)
        sources = apply_sources(connection)
        version = _schema_version(connection)
    return Report(applied, sources, version, time.monotonic() - started)


def rollback(dsn: str, *, count: int | None = 1, lock_timeout: float = LOCK_SECONDS) -> list[str]:
    """Undo the last `count` migrations (None: all) and return their names, newest first.

    Functions and views stay as they are: run `migrate` of the package to go back to afterwards.
    """
    with _open(dsn, 0.0) as backend, backend.lock(lock_timeout):
        done = []
        for migration in backend.to_rollback(_read_migrations())[:count]:
            try:
                backend.rollback_one(migration)
            except psycopg.Error as error:
                raise MigrationError(f"rollback of {migration.id}: {error}") from error
            done.append(migration.id)
    return done


def status(dsn: str, *, wait: float = 0.0) -> Status:
    """Compare the database with this package without changing anything."""
    connection = _retry_connect(lambda: psycopg.connect(dsn, autocommit=True), wait)
    with connection, connection.transaction():
        connection.execute("set transaction read only")
        done = _applied(connection)
        names = [migration.id for migration in _read_migrations()]
        return Status(
            applied=[name for name in names if name in done],
            pending=[name for name in names if name not in done],
            drift=drift(connection),
            schema_version=_schema_version(connection),
            package_version=SCHEMA_VERSION,
            server_version=connection.info.server_version,
        )


def check_compatible(connection: psycopg.Connection[Any]) -> None:
    """Raise SchemaTooOld or SchemaTooNew unless this package can work with the database."""
    try:
        with connection.transaction():
            version = _schema_version(connection)
            if version is not None and version > SCHEMA_VERSION:
                row = connection.execute("select jobq.compatible_from()").fetchone()
                if row and row[0] > SCHEMA_VERSION:
                    raise SchemaTooNew(
                        f"the schema (version {version}) no longer works with this package"
                        f" (version {SCHEMA_VERSION}): upgrade it with"
                        " `pip install --upgrade jobq`"
                    )
    except errors.InsufficientPrivilege as error:
        raise SchemaError(
            f"role {connection.info.user} may not use schema jobq: have its owner run"
            f" `select jobq.grant_access('{connection.info.user}', 'worker')`"
        ) from error
    if version is None:
        raise SchemaTooOld("this database has no jobq schema: create it with `jobq migrate`")
    if version < SCHEMA_VERSION:
        raise SchemaTooOld(
            f"the schema (version {version}) is older than this package needs"
            f" (version {SCHEMA_VERSION}): bring it up to date with `jobq migrate`"
        )


def _open(dsn: str, wait: float) -> JobqBackend:
    return _retry_connect(lambda: JobqBackend.open(dsn), wait)


def _retry_connect(connect: Callable[[], T], wait: float) -> T:
    deadline = time.monotonic() + wait
    while True:
        try:
            return connect()
        except psycopg.OperationalError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.5)


def _check_server(connection: psycopg.Connection[Any]) -> None:
    version = connection.info.server_version
    if version < _OLDEST_SERVER:
        raise MigrationError(
            f"jobq needs PostgreSQL 15 or newer, and this server is {version // 10000}:"
            " upgrade it, or name another one in DATABASE_URL"
        )
    encoding = connection.info.parameter_status("server_encoding")
    if encoding != "UTF8":
        raise MigrationError(
            f"jobq needs a database in UTF8, and this one is in {encoding}: create one with"
            " `create database … encoding 'UTF8' template template0`"
        )


def _read_migrations() -> Any:
    return read_migrations(escape(str(db_dir() / "migrations")))


def _applied(connection: psycopg.Connection[Any]) -> set[str]:
    row = connection.execute("select to_regclass(%s) is not null", (f"{SCHEMA}.{TABLE}",))
    if row.fetchone() != (True,):
        return set()
    query = sql.SQL("select migration_id from {}").format(sql.Identifier(SCHEMA, TABLE))
    return {name for (name,) in connection.execute(query)}


def _has_tables(connection: psycopg.Connection[Any]) -> bool:
    found = connection.execute("select to_regclass('jobq.jobs') is not null").fetchone()
    return found == (True,)


def _schema_version(connection: psycopg.Connection[Any]) -> int | None:
    found = connection.execute("select to_regprocedure('jobq.schema_version()') is not null")
    if found.fetchone() != (True,):
        return None
    row = connection.execute("select jobq.schema_version()").fetchone()
    return int(row[0]) if row else None
