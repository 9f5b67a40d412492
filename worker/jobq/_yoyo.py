"""The yoyo backend behind `database = jobq://` in yoyo.ini.

It differs from yoyo's own PostgreSQL backend in these ways:

- the database comes from DATABASE_URL, in any form that libpq takes (a URI or `key=value` pairs);
- yoyo's tables live in a schema of their own, made on first use;
- the lock is a session advisory lock, which ends with its process (yoyo's row outlives it);
- a transactional migration and the note that it was applied commit together;
- a migration that cannot get its table locks steps back and tries again;
- functions and views are loaded even when no migration was pending.
"""

import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import psycopg
from psycopg import errors
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from yoyo.backends.core.postgresql import PostgresqlPsycopgBackend
from yoyo.connections import DatabaseURI
from yoyo.migrations import default_migration_table
from yoyo.scripts.main import InvalidArgument

from jobq.errors import JobqError

SCHEMA = "jobq_migrations"
TABLE = default_migration_table
LOCK_KEY = int.from_bytes(b"jobqmigr", "big")
LOCK_SECONDS = 60.0

# A role's or a database's own defaults must neither cut a migration short nor change its meaning.
# lock_timeout: a DDL statement that waits for a lock makes all that come after it wait too.
_SESSION_SETTINGS = {
    "client_min_messages": "warning",
    "default_transaction_isolation": "read committed",
    "default_transaction_read_only": "off",
    "idle_in_transaction_session_timeout": "0",
    "lock_timeout": "5s",
    "search_path": SCHEMA,
    "statement_timeout": "0",
}

T = TypeVar("T")


class MigrationError(JobqError):
    """A migration or a source file could not be applied; nothing of it was kept."""


class MigrationLocked(MigrationError):
    """Another process migrates this database, or holds its tables, and did not finish in time."""


class JobqBackend(PostgresqlPsycopgBackend):
    """A connection that migrates; `jobq://?dsn=…` names a database other than DATABASE_URL."""

    schema = SCHEMA
    _is_locked: bool = False

    @classmethod
    def open(cls, dsn: str) -> "JobqBackend":
        """Connect to `dsn`; raises psycopg.OperationalError where that fails."""
        uri = DatabaseURI("jobq", None, None, None, None, None, {"dsn": dsn})
        return cls(uri, TABLE)

    def connect(self, dburi: Any) -> psycopg.Connection[Any]:
        if "dsn" in dburi.args:
            return _connect(dburi.args["dsn"])
        dsn = os.environ.get("DATABASE_URL")
        if not dsn:
            raise InvalidArgument(
                "DATABASE_URL is not set: export DATABASE_URL=postgresql://user@host/database"
            )
        try:
            return _connect(dsn)
        except psycopg.OperationalError as error:
            raise InvalidArgument(f"cannot connect to DATABASE_URL: {error}") from error

    def init_connection(self, connection: psycopg.Connection[Any]) -> None:
        """Nothing to do: the settings made by `connect` are the session's, not a transaction's."""

    def init_database(self) -> None:
        """Nothing to do: there is no lock table, and PostgreSQL's DDL is transactional."""

    def break_lock(self) -> None:
        """Nothing to do: the lock ends with the session that holds it."""

    @contextmanager
    def lock(self, timeout: float = LOCK_SECONDS) -> Iterator[None]:
        """Hold the migration lock; raises MigrationLocked after `timeout` seconds."""
        if self._is_locked:
            yield
            return
        # Polled: a backend that waits inside pg_advisory_lock holds a snapshot, for which the
        # holder's `create index concurrently` would wait in turn.
        deadline = time.monotonic() + timeout
        while not self._scalar("select pg_try_advisory_lock(%s)", LOCK_KEY):
            if time.monotonic() > deadline:
                raise MigrationLocked(self._lock_message(timeout))
            time.sleep(0.1)
        self._is_locked = True
        try:
            yield
        finally:
            self._is_locked = False
            if not self.connection.broken:
                self._scalar("select pg_advisory_unlock(%s)", LOCK_KEY)

    def _lock_message(self, waited: float) -> str:
        holder = self._scalar(
            "select min(pid) from pg_catalog.pg_locks where locktype = 'advisory' and granted"
            " and database = (select oid from pg_catalog.pg_database"
            " where datname = current_database())"
            " and objsubid = 1 and (classid::bigint << 32 | objid::bigint) = %s",
            LOCK_KEY,
        )
        return (
            f"another migration of this database still runs after {waited:g} s (server process"
            f" {holder}): wait for it, or end it with"
            f" `select pg_terminate_backend({holder})`, then run this again"
        )

    def _scalar(self, query: str, *args: object) -> Any:
        return self.connection.execute(query, args).fetchone()[0]

    def apply_migrations(self, migrations: Any, force: bool = False) -> None:
        self.apply_migrations_only(migrations, force=force)
        self.run_post_apply(migrations, force=force)

    def apply_one(self, migration: Any, force: bool = False, mark: bool = True) -> None:
        migration.load()
        if not (mark and migration.use_transactions):
            super().apply_one(migration, force=force, mark=mark)
            return
        self.ensure_internal_schema_updated()
        retrying(lambda: self._run(migration, "apply", force))

    def rollback_one(self, migration: Any, force: bool = False) -> None:
        migration.load()
        if not migration.use_transactions:
            super().rollback_one(migration, force=force)
            return
        self.ensure_internal_schema_updated()
        retrying(lambda: self._run(migration, "rollback", force))

    def _run(self, migration: Any, direction: str, force: bool) -> None:
        with self.transaction():
            migration.process_steps(self, direction, force=force)
            self.log_migration(migration, direction)
            if direction == "apply":
                self.mark_one(migration, log=False)
            else:
                self.unmark_one(migration, log=False)


def retrying(action: Callable[[], T], attempts: int = 6) -> T:
    """Run a transaction again when it lost a race for locks.

    With a lock_timeout of 5 s and waits of 0.5 to 8 s in between this takes at most about 50 s;
    then it raises MigrationLocked.
    """
    for attempt in range(1, attempts + 1):
        try:
            return action()
        except (
            errors.LockNotAvailable,
            errors.DeadlockDetected,
            errors.SerializationFailure,
        ) as error:
            if attempt == attempts:
                raise MigrationLocked(
                    f"gave up after {attempts} attempts ({str(error).splitlines()[0]}): something"
                    " holds the tables of jobq; look in pg_stat_activity for a long transaction,"
                    " end it, then run this again"
                ) from error
            time.sleep(0.25 * 2**attempt * random.uniform(0.75, 1.25))
    raise AssertionError("unreachable")


def _connect(dsn: str) -> psycopg.Connection[Any]:
    options = {"connect_timeout": 10, **conninfo_to_dict(dsn), "application_name": "jobq migrate"}
    connection = psycopg.connect(make_conninfo("", **options), autocommit=True)
    try:
        for name, value in _SESSION_SETTINGS.items():
            connection.execute("select set_config(%s, %s, false)", (name, value))
        _check_owner(connection)
        # `create schema if not exists` would demand CREATE on the database even when it exists.
        found = connection.execute("select to_regnamespace(%s) is not null", (SCHEMA,)).fetchone()
        if found != (True,):
            _create_schema(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def _check_owner(connection: psycopg.Connection[Any]) -> None:
    # Whoever owns the schemas owns code that a migration runs, and a superuser would run.
    row = connection.execute(
        "select n.nspname, pg_get_userbyid(n.nspowner) from pg_catalog.pg_namespace n"
        " where n.nspname in ('jobq', %s) and n.nspowner <> current_user::regrole"
        " and ((select r.rolsuper from pg_catalog.pg_roles r where r.rolname = current_user)"
        " or not pg_has_role(n.nspowner, 'USAGE'))",
        (SCHEMA,),
    ).fetchone()
    if row is not None:
        raise MigrationError(
            f"schema {row[0]} belongs to role {row[1]}: run this as {row[1]}, or, if it is not"
            " yours, drop the schema first"
        )


def _create_schema(connection: psycopg.Connection[Any]) -> None:
    try:
        connection.execute(f"create schema {SCHEMA}")
    except (errors.DuplicateSchema, errors.UniqueViolation):
        return  # another process was faster
    except errors.InsufficientPrivilege as error:
        raise MigrationError(
            "this role may not create schemas here: have the database's owner run"
            " `grant create on database … to …`, then run this again"
        ) from error
