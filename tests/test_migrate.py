"""Migrations: safe to run twice, at the same time and after a kill; functions never stay stale."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from conftest import PgServer
from helpers import ROOT, Checkout, Connection, dump, scalar, wait_for_activity
from psycopg import sql

from jobq import migrate as module
from jobq.migrate import (
    SCHEMA_VERSION,
    MigrationError,
    MigrationLocked,
    SchemaError,
    SchemaTooNew,
    SchemaTooOld,
    check_compatible,
    migrate,
    rollback,
    status,
)

MIGRATIONS = sorted(
    file.stem
    for file in (ROOT / "db" / "migrations").glob("*.sql")
    if not file.name.endswith(".rollback.sql")
)
#: What stands in db/functions/version.sql.
VERSION = f"'select {SCHEMA_VERSION}'"
MIGRATE = "import sys; from jobq.migrate import migrate; print(migrate(sys.argv[1]))"


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


@pytest.fixture
def expected(pg_server: PgServer, dsn: str) -> str:
    """The dump of a database that one undisturbed run migrated."""
    return dump(pg_server.bindir, dsn)


def test_it_applies_everything_and_a_second_run_nothing(empty_dsn: str) -> None:
    first = migrate(empty_dsn)
    assert first.migrations == MIGRATIONS
    assert len(first.sources) == len(list((ROOT / "db").glob("[fv]*/*.sql")))
    assert first.schema_version == SCHEMA_VERSION
    second = migrate(empty_dsn)
    assert (second.migrations, second.sources) == ([], [])


def test_the_schema_holds_exactly_two_tables(conn: Connection) -> None:
    tables = conn.execute(
        "select relname from pg_class where relnamespace = 'jobq'::regnamespace"
        " and relkind in ('r', 'p', 'm', 'f') order by 1"
    ).fetchall()
    assert tables == [("job_events",), ("jobs",)]


def test_no_function_is_overloaded(conn: Connection) -> None:
    overloaded = conn.execute(
        "select proname from pg_proc where pronamespace = 'jobq'::regnamespace"
        " group by proname having count(*) > 1"
    ).fetchall()
    assert overloaded == []


def test_five_at_once_make_one_complete_schema(
    checkout: Checkout, pg_server: PgServer, empty_dsn: str, expected: str
) -> None:
    processes = [checkout.start(MIGRATE, empty_dsn) for _ in range(5)]
    results = [(p.communicate(timeout=100), p.returncode) for p in processes]
    assert [code for _, code in results] == [0] * 5, results
    assert sum("migrations=[]" not in out for (out, _), _ in results) == 1
    assert dump(pg_server.bindir, empty_dsn) == expected


def test_killed_in_a_migration_the_next_run_completes_it(
    checkout: Checkout,
    pg_server: PgServer,
    empty_dsn: str,
    expected: str,
    connect: Callable[..., Connection],
) -> None:
    victim = checkout.root / "db" / "migrations" / f"{MIGRATIONS[-1]}.sql"
    text = victim.read_text()
    victim.write_text(text + "\nselect pg_sleep(600);\n")
    process = checkout.start(MIGRATE, empty_dsn)
    watcher = connect(empty_dsn)
    server_process = wait_for_activity(watcher, "wait_event = 'PgSleep'")
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert scalar(watcher, "select pg_terminate_backend(%s, 10000)", server_process)
    assert status(empty_dsn).pending == MIGRATIONS[-1:]
    victim.write_text(text)
    checkout.migrate(empty_dsn)
    assert dump(pg_server.bindir, empty_dsn) == expected


def test_killed_while_loading_functions_the_next_run_completes_it(
    checkout: Checkout,
    pg_server: PgServer,
    empty_dsn: str,
    expected: str,
    connect: Callable[..., Connection],
) -> None:
    last = checkout.root / "db" / "views" / "zzz.sql"
    last.parent.mkdir(exist_ok=True)
    last.write_text("select pg_catalog.pg_sleep(600);\n")
    process = checkout.start(MIGRATE, empty_dsn)
    watcher = connect(empty_dsn)
    server_process = wait_for_activity(watcher, "wait_event = 'PgSleep'")
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert scalar(watcher, "select pg_terminate_backend(%s, 10000)", server_process)
    found = status(empty_dsn)
    assert found.pending == []
    assert found.schema_version is None
    last.unlink()
    checkout.migrate(empty_dsn)
    assert dump(pg_server.bindir, empty_dsn) == expected


def yoyo(dsn: str | None, *arguments: str, cwd: Path = ROOT) -> "subprocess.CompletedProcess[str]":
    env = {name: value for name, value in os.environ.items() if name != "DATABASE_URL"}
    if dsn:
        env["DATABASE_URL"] = dsn
    command = [str(Path(sys.executable).with_name("yoyo")), *arguments]
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True)


def test_yoyo_apply_gives_the_same_schema(
    pg_server: PgServer, empty_dsn: str, expected: str
) -> None:
    result = yoyo(empty_dsn, "apply", "--batch")
    assert result.returncode == 0, result.stderr
    assert dump(pg_server.bindir, empty_dsn) == expected
    assert status(empty_dsn).current
    assert migrate(empty_dsn).sources == []


def test_yoyo_apply_loads_a_function_that_changed(dsn: str, conn: Connection) -> None:
    conn.execute("create or replace function jobq.schema_version() returns int return 77")
    result = yoyo(dsn, "apply")
    assert result.returncode == 0, result.stderr
    assert scalar(conn, "select jobq.schema_version()") == SCHEMA_VERSION


def test_yoyo_without_a_database_says_what_to_set() -> None:
    result = yoyo(None, "apply")
    assert result.returncode == 2
    assert "DATABASE_URL is not set: export DATABASE_URL=" in result.stderr


def test_yoyo_takes_key_value_pairs(empty_dsn: str, pg_server: PgServer) -> None:
    assert "://" not in empty_dsn
    assert yoyo(empty_dsn, "list").returncode == 0


def test_each_rollback_gives_back_what_was_there_before(
    checkout: Checkout, pg_server: PgServer, empty_dsn: str
) -> None:
    migrations = checkout.root / "db" / "migrations"
    hidden = checkout.root / "hidden"
    hidden.mkdir()
    for source in checkout.root.glob("db/[fv]*/*.sql"):
        source.unlink()
    for name in MIGRATIONS:
        for file in migrations.glob(f"{name}.*"):
            file.rename(hidden / file.name)
    dumps = []
    code = "import sys; from jobq.migrate import rollback; print(rollback(sys.argv[1]))"
    ignored = ["--exclude-schema=jobq_migrations"]
    for name in MIGRATIONS:
        dumps.append(_without_record(dump(pg_server.bindir, empty_dsn, *ignored)))
        for file in hidden.glob(f"{name}.*"):
            file.rename(migrations / file.name)
        checkout.migrate(empty_dsn)
    for name, before in reversed(list(zip(MIGRATIONS, dumps, strict=True))):
        assert checkout.run(code, empty_dsn) == f"['{name}']\n"
        assert _without_record(dump(pg_server.bindir, empty_dsn, *ignored)) == before


def _without_record(text: str) -> str:
    return re.sub(r"(?s)--\n-- Name: (FUNCTION )?_sources\(\).*?(?=\n--\n-- |\Z)", "", text)


def test_all_can_be_rolled_back_and_applied_again(
    pg_server: PgServer, dsn: str, expected: str
) -> None:
    assert rollback(dsn, count=None) == MIGRATIONS[::-1]
    assert "jobq." not in dump(pg_server.bindir, dsn, "--exclude-schema=jobq_migrations")
    assert status(dsn).pending == MIGRATIONS
    migrate(dsn)
    assert dump(pg_server.bindir, dsn) == expected


def test_a_role_with_create_on_the_database_only_can_install(
    empty_dsn: str,
    admin: Connection,
    connect: Callable[..., Connection],
    make_role: Callable[..., str],
) -> None:
    role = make_role("nosuperuser nocreatedb nocreaterole")
    target = psycopg.conninfo.conninfo_to_dict(empty_dsn)["dbname"]
    database, grantee = sql.Identifier(str(target)), sql.Identifier(role)
    admin.execute(sql.SQL("revoke all on database {} from public").format(database))
    admin.execute(sql.SQL("grant connect, create on database {} to {}").format(database, grantee))
    own = psycopg.conninfo.make_conninfo(empty_dsn, user=role, password="test")
    migrate(own)
    assert status(own).current
    connection = connect(own)
    extensions = connection.execute("select extname from pg_extension").fetchall()
    assert extensions == [("plpgsql",)]
    # What is installed stays maintainable without that right.
    admin.execute(sql.SQL("revoke create on database {} from {}").format(database, grantee))
    connection.execute("create or replace function jobq.schema_version() returns int return 77")
    assert migrate(own).schema_version == SCHEMA_VERSION


def test_a_role_that_may_not_create_schemas_is_told_which_right_it_lacks(
    empty_dsn: str, make_role: Callable[..., str]
) -> None:
    own = psycopg.conninfo.make_conninfo(empty_dsn, user=make_role(), password="test")
    with pytest.raises(MigrationError, match="grant create on database"):
        migrate(own)


def test_a_source_file_that_changed_is_loaded_alone(
    checkout: Checkout, dsn: str, conn: Connection
) -> None:
    file = checkout.root / "db" / "functions" / "version.sql"
    file.write_text(file.read_text().replace(VERSION, "'select 41'"))
    assert "sources=['functions/version.sql']" in checkout.migrate(dsn)
    assert scalar(conn, "select jobq.schema_version()") == 41
    assert "sources=[]" in checkout.migrate(dsn)


def test_an_edit_by_hand_is_reported_and_mended(
    pg_server: PgServer, dsn: str, conn: Connection, expected: str
) -> None:
    conn.execute("create or replace function jobq.schema_version() returns int return 77")
    conn.execute("drop function jobq.compatible_from()")
    found = status(dsn)
    assert not found.current
    assert found.drift.edited == ["function compatible_from()", "function schema_version()"]
    migrate(dsn)
    assert status(dsn).current
    assert dump(pg_server.bindir, dsn) == expected


def test_views_that_another_version_of_postgresql_printed_are_loaded_again(
    dsn: str, conn: Connection
) -> None:
    record = scalar(conn, "select jobq._sources()")
    record["server"] = 14
    views = [label for label in record["objects"] if label.startswith("view ")]
    record["objects"].update(dict.fromkeys(views, "of the text that it printed"))
    text = sql.SQL("select {}::jsonb").format(json.dumps(record)).as_string(conn)
    replace = "create or replace function jobq._sources() returns jsonb language sql as {}"
    conn.execute(sql.SQL(replace).format(text))
    files = [f"views/{file.name}" for file in sorted((ROOT / "db" / "views").glob("*.sql"))]
    drift = status(dsn).drift
    assert (drift.changed, drift.edited) == (files, [])
    assert migrate(dsn).sources == files
    assert status(dsn).current


def test_a_disabled_trigger_is_reported_and_enabled_again(dsn: str, conn: Connection) -> None:
    conn.execute("alter table jobq.jobs disable trigger all")
    edited = status(dsn).drift.edited
    assert edited
    assert all(label.endswith(" on jobs") for label in edited)
    migrate(dsn)
    disabled = "select count(*) from pg_trigger where tgenabled = 'D' and not tgisinternal"
    assert scalar(conn, disabled) == 0


def test_a_function_that_no_source_makes_is_reported_and_left_alone(
    dsn: str, conn: Connection
) -> None:
    conn.execute("create function jobq.leftover(x int) returns int return x")
    found = status(dsn)
    assert found.drift.unknown == ["function leftover(x integer)"]
    assert found.current
    migrate(dsn)
    assert scalar(conn, "select jobq.leftover(3)") == 3


def test_status_changes_nothing(pg_server: PgServer, empty_dsn: str) -> None:
    before = dump(pg_server.bindir, empty_dsn)
    found = status(empty_dsn)
    assert found.pending == MIGRATIONS
    assert found.applied == []
    assert found.schema_version is None
    assert dump(pg_server.bindir, empty_dsn) == before


def test_an_error_in_a_source_file_names_file_and_line_and_keeps_nothing(
    checkout: Checkout, pg_server: PgServer, dsn: str, expected: str
) -> None:
    broken = checkout.root / "db" / "functions" / "zzz.sql"
    broken.write_text("create function jobq.zzz() returns int return 1;\n\nselect nonsense;\n")
    version = checkout.root / "db" / "functions" / "version.sql"
    version.write_text(version.read_text().replace(VERSION, "'select 77'"))
    process = checkout.start(MIGRATE, dsn)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert re.search(r"MigrationError: db/functions/zzz\.sql, line 3: .*nonsense", err)
    assert dump(pg_server.bindir, dsn) == expected


def test_a_changed_signature_without_a_drop_is_refused(
    checkout: Checkout, pg_server: PgServer, dsn: str, expected: str
) -> None:
    file = checkout.root / "db" / "functions" / "version.sql"
    old, new = (
        "replace function jobq.schema_version()",
        "replace function jobq.schema_version(x int)",
    )
    text = file.read_text().replace(old, new)
    file.write_text(text)
    process = checkout.start(MIGRATE, dsn)
    _, err = process.communicate(timeout=60)
    assert "jobq.schema_version would have 2 signatures" in err
    assert "drop the old one in a numbered migration" in err
    assert dump(pg_server.bindir, dsn) == expected


def test_an_error_in_a_migration_names_it_and_keeps_nothing(
    checkout: Checkout, pg_server: PgServer, dsn: str, expected: str
) -> None:
    broken = checkout.root / "db" / "migrations" / "9999.broken.sql"
    broken.write_text("create table jobq.third (x int);\n\nselect nonsense;\n")
    process = checkout.start(MIGRATE, dsn)
    _, err = process.communicate(timeout=60)
    assert re.search(r"MigrationError: migration 9999\.broken: .*nonsense", err)
    assert dump(pg_server.bindir, dsn) == expected


def test_another_migration_is_waited_for_and_then_named(
    dsn: str, connect: Callable[..., Connection]
) -> None:
    holder = connect()
    key = int.from_bytes(b"jobqmigr", "big")
    holder.execute("select pg_advisory_lock(%s)", (key,))
    pid = holder.info.backend_pid
    with pytest.raises(MigrationLocked, match=rf"after 0\.3 s \(server process {pid}\)"):
        migrate(dsn, lock_timeout=0.3)


def test_functions_are_loaded_once_a_table_lock_is_gone(
    checkout: Checkout, dsn: str, connect: Callable[..., Connection]
) -> None:
    file = checkout.root / "db" / "functions" / "zzz.sql"
    file.write_text("comment on table jobq.jobs is 'changed';\n")
    holder = connect(autocommit=False)
    holder.execute("lock table jobq.jobs in access exclusive mode")
    process = checkout.start(MIGRATE, dsn)
    watcher = connect()
    first = wait_for_activity(watcher, "wait_event_type = 'Lock'")
    # The migrator steps back by itself, so that nobody has to queue behind it.
    wait_for_activity(watcher, f"pid = {first} and state like 'idle%'")
    holder.rollback()
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert "sources=['functions/zzz.sql']" in out


def test_hostile_defaults_of_the_role_do_not_matter(
    empty_dsn: str, admin: Connection, make_role: Callable[..., str]
) -> None:
    role = make_role("superuser")
    for setting in (
        "statement_timeout = '1ms'",
        "default_transaction_read_only = on",
        "default_transaction_isolation = 'serializable'",
        "search_path = nowhere",
        "idle_in_transaction_session_timeout = '1ms'",
    ):
        admin.execute(f"alter role {role} set {setting}".encode())
    own = psycopg.conninfo.make_conninfo(
        empty_dsn, user=role, password="test", options="-c statement_timeout=10s"
    )
    assert migrate(own).migrations == MIGRATIONS


def test_it_waits_for_a_database_that_is_not_up_yet(empty_dsn: str) -> None:
    nowhere = psycopg.conninfo.make_conninfo(empty_dsn, port=1)
    with pytest.raises(psycopg.OperationalError):
        migrate(nowhere, wait=0.5)


class TestCompatible:
    def test_the_schema_of_this_package_is(self, conn: Connection) -> None:
        check_compatible(conn)

    def test_a_missing_schema_is_too_old(
        self, empty_dsn: str, connect: Callable[..., Connection]
    ) -> None:
        with pytest.raises(SchemaTooOld, match="no jobq schema: create it with `jobq migrate`"):
            check_compatible(connect(empty_dsn))

    def test_an_older_schema_is_refused(
        self, conn: Connection, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(module, "SCHEMA_VERSION", SCHEMA_VERSION + 1)
        with pytest.raises(SchemaTooOld, match=r"older than this package needs.*`jobq migrate`"):
            check_compatible(conn)

    @pytest.mark.parametrize("autocommit", [True, False])
    def test_a_newer_one_is_refused_only_if_it_says_so(
        self, connect: Callable[..., Connection], autocommit: bool
    ) -> None:
        conn = connect(autocommit=autocommit)
        self.set(conn, "schema_version", SCHEMA_VERSION + 5)
        check_compatible(conn)
        self.set(conn, "compatible_from", SCHEMA_VERSION + 1)
        with pytest.raises(SchemaTooNew, match="pip install --upgrade jobq"):
            check_compatible(conn)

    def test_a_role_without_access_is_told_whom_to_ask(
        self, dsn: str, connect: Callable[..., Connection], make_role: Callable[..., str]
    ) -> None:
        conn = connect(user=make_role())
        with pytest.raises(SchemaError, match=r"select jobq\.grant_access"):
            check_compatible(conn)

    @staticmethod
    def set(conn: Connection, function: str, value: Any) -> None:
        query = "create or replace function jobq.{}() returns int return {}"
        conn.execute(sql.SQL(query).format(sql.Identifier(function), sql.Literal(value)))
        conn.commit()


def test_a_schema_dropped_by_hand_is_installed_again(
    dsn: str, connect: Callable[..., Connection]
) -> None:
    conn = connect(dsn)
    conn.execute("drop schema jobq cascade")
    assert migrate(dsn).migrations == MIGRATIONS
    assert scalar(conn, "select created from jobq.enqueue('k')") is True


@pytest.mark.parametrize("schema", ["jobq", "jobq_migrations"])
def test_a_superuser_runs_no_strangers_code(
    empty_dsn: str,
    connect: Callable[..., Connection],
    make_role: Callable[..., str],
    schema: str,
) -> None:
    stranger = make_role()
    connect(empty_dsn).execute(f"create schema {schema} authorization {stranger}".encode())
    with pytest.raises(MigrationError, match=f"schema {schema} belongs to role {stranger}"):
        migrate(empty_dsn)
