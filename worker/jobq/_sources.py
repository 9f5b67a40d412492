"""Load db/functions/*.sql and db/views/*.sql, each again when its text or its effect changed.

What was loaded is kept in the database itself, in one generated function:
`jobq._sources()` returns {"files": {file name: sha256 of its text},
"objects": {"function claim(…)": md5 of its definition, …}, "server": PostgreSQL's major version}.
Views are printed differently from version to version, so those that came with a dump from another
one are unknown, and loaded again.
"""

import hashlib
import json
import re
from dataclasses import dataclass, field
from typing import Any

import psycopg
from psycopg import errors, sql

from jobq._yoyo import MigrationError, retrying
from jobq.paths import db_dir

Connection = psycopg.Connection[Any]

_RETRYABLE = (errors.LockNotAvailable, errors.DeadlockDetected, errors.SerializationFailure)
_RECORD = "_sources"
_CREATED = re.compile(
    r"^\s*create\s+(?:or\s+replace\s+)?(?:constraint\s+)?"
    r"(?:function|procedure|view|trigger)\s+(?:jobq\.)?(\w+)",
    re.IGNORECASE | re.MULTILINE,
)

# `language sql` bodies are validated when they are created, so they would need an order.
_SETTINGS = """
set local search_path = '';
set local check_function_bodies = off;
set local lock_timeout = '5s';
"""

_OBJECTS = """
select p.proname,
  pg_catalog.format('function %%s(%%s)', p.proname,
    pg_catalog.pg_get_function_identity_arguments(p.oid)),
  pg_catalog.md5(pg_catalog.pg_get_functiondef(p.oid))
from pg_catalog.pg_proc p
where p.pronamespace = pg_catalog.to_regnamespace('jobq')
  and p.prokind in ('f', 'p')
  and p.proname <> %(record)s
  and not exists (
    select from pg_catalog.pg_depend d
    where d.classid = 'pg_catalog.pg_proc'::pg_catalog.regclass and d.objid = p.oid
      and d.deptype = 'e')
union all
select c.relname, 'view ' || c.relname,
  pg_catalog.md5(pg_catalog.pg_get_viewdef(c.oid) || coalesce(c.reloptions::text, ''))
from pg_catalog.pg_class c
where c.relnamespace = pg_catalog.to_regnamespace('jobq') and c.relkind = 'v'
union all
select t.tgname, pg_catalog.format('trigger %%s on %%s', t.tgname, c.relname),
  pg_catalog.md5(pg_catalog.pg_get_triggerdef(t.oid) || t.tgenabled::text)
from pg_catalog.pg_trigger t
join pg_catalog.pg_class c on c.oid = t.tgrelid
where c.relnamespace = pg_catalog.to_regnamespace('jobq') and not t.tgisinternal
"""


@dataclass(frozen=True, slots=True)
class Drift:
    """How the functions, views and triggers in a database differ from the source files."""

    #: Source files that were never loaded, or in another version.
    changed: list[str] = field(default_factory=list)
    #: Source files that were loaded once and are gone.
    removed: list[str] = field(default_factory=list)
    #: Objects that were replaced, disabled or dropped by hand since they were loaded.
    edited: list[str] = field(default_factory=list)
    #: Objects that no source file creates; they are left alone.
    unknown: list[str] = field(default_factory=list)

    @property
    def outdated(self) -> bool:
        """Whether loading the sources would change something."""
        return bool(self.changed or self.removed or self.edited)


def apply_sources(connection: Connection) -> list[str]:
    """Load what changed in one transaction and return the names of the files loaded.

    `connection` is in autocommit mode. Raises MigrationError; then nothing was changed.
    """
    return retrying(lambda: _apply(connection))


def drift(connection: Connection) -> Drift:
    """Compare the database with the source files, in the caller's transaction."""
    connection.execute("set local search_path = ''")
    texts = _read_sources()
    recorded = _recorded(connection)
    objects = _objects(connection)
    known = _known()
    current = {label: md5 for name, label, md5 in objects if name in known}
    loaded: dict[str, str] = recorded["objects"]
    files: dict[str, str] = recorded["files"]
    if recorded["server"] != _major_version(connection):
        loaded = {label: md5 for label, md5 in loaded.items() if not label.startswith("view ")}
        files = {name: sha256 for name, sha256 in files.items() if not name.startswith("views/")}
    return Drift(
        changed=[name for name, text in texts.items() if files.get(name) != _sha256(text)],
        removed=sorted(recorded["files"].keys() - texts.keys()),
        edited=sorted(label for label, md5 in loaded.items() if current.get(label) != md5),
        unknown=sorted(label for name, label, _ in objects if name not in known),
    )


def _apply(connection: Connection) -> list[str]:
    with connection.transaction():
        connection.execute(_SETTINGS)
        found = drift(connection)
        if not found.outdated:
            return []
        texts = _read_sources()
        # An edited object does not tell its file; loading all of them again is always right.
        names = list(texts) if found.edited else found.changed
        for name in names:
            _execute(connection, name, texts[name])
        known = _known()
        _refuse_overloads(connection, known)
        if _function_exists(connection, "_apply_grants"):
            connection.execute("select jobq._apply_grants()")
        _record(connection, texts, known)
        return names


def _read_sources() -> dict[str, str]:
    root = db_dir()
    files = [*sorted(root.glob("functions/*.sql")), *sorted(root.glob("views/*.sql"))]
    return {file.relative_to(root).as_posix(): file.read_text("utf-8") for file in files}


def _known() -> set[str]:
    """Names of all functions, views and triggers that any file under db/ creates."""
    texts = (file.read_text("utf-8") for file in db_dir().glob("*/*.sql"))
    return {name for text in texts for name in _CREATED.findall(text)}


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _execute(connection: Connection, name: str, text: str) -> None:
    try:
        connection.execute(text.encode())
    except _RETRYABLE:
        raise
    except psycopg.Error as error:
        position = error.diag.statement_position
        line = text.count("\n", 0, int(position)) + 1 if position else 1
        raise MigrationError(f"db/{name}, line {line}: {error}") from error


def _recorded(connection: Connection) -> dict[str, Any]:
    empty: dict[str, Any] = {"files": {}, "objects": {}, "server": None}
    if not _function_exists(connection, _RECORD):
        return empty
    row = connection.execute("select jobq._sources()").fetchone()
    return {**empty, **row[0]} if row else empty


def _major_version(connection: Connection) -> int:
    return connection.info.server_version // 10000


def _function_exists(connection: Connection, name: str) -> bool:
    query = (
        "select exists (select from pg_catalog.pg_proc where proname = %s"
        " and pronamespace = pg_catalog.to_regnamespace('jobq'))"
    )
    row = connection.execute(query, (name,)).fetchone()
    return bool(row and row[0])


def _objects(connection: Connection) -> list[tuple[str, str, str]]:
    return connection.execute(_OBJECTS, {"record": _RECORD}).fetchall()


def _refuse_overloads(connection: Connection, known: set[str]) -> None:
    signatures: dict[str, list[str]] = {}
    for name, label, _ in _objects(connection):
        if name in known and label.startswith("function "):
            signatures.setdefault(name, []).append(label.removeprefix("function "))
    for name, labels in signatures.items():
        if len(labels) > 1:
            raise MigrationError(
                f"jobq.{name} would have {len(labels)} signatures, {' and '.join(labels)}: "
                "drop the old one in a numbered migration"
            )


def _record(connection: Connection, texts: dict[str, str], known: set[str]) -> None:
    record = {
        "files": {name: _sha256(text) for name, text in texts.items()},
        "objects": {label: md5 for name, label, md5 in _objects(connection) if name in known},
        "server": _major_version(connection),
    }
    literal = sql.Literal(json.dumps(record, indent=1, sort_keys=True)).as_string(connection)
    connection.execute(
        sql.SQL(
            "create or replace function jobq._sources() returns jsonb"
            " language sql immutable parallel safe set search_path = pg_catalog, pg_temp as {};"
            "revoke all on function jobq._sources() from public;"
            "comment on function jobq._sources() is"
            " 'Generated by migrate: which source files were loaded, and what they made.'"
        ).format(sql.Literal(f"select {literal}::jsonb"))
    )
