"""Which database a command talks to, and the options by which it is told."""

import functools
import inspect
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Annotated, Any

import psycopg
import typer
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import dict_row

from jobq import embedded
from jobq._access import grant_command
from jobq._connection import connect
from jobq.cli.exits import FAILED, USAGE, CommandError
from jobq.cli.output import JsonTextLoader
from jobq.migrate import SchemaError, SchemaTooOld, check_compatible, migrate

__all__ = ["Connection", "Row", "Target", "query", "with_connection", "with_target"]

Connection = psycopg.Connection[Any]
Row = dict[str, Any]

DatabaseUrl = Annotated[
    str | None,
    typer.Option(
        "--database-url", metavar="URL", help="The database; else the one in DATABASE_URL."
    ),
]
Embedded = Annotated[
    bool,
    typer.Option("--embedded", help="Use jobq's own PostgreSQL, its data in ./.jobq (the demo's)."),
]

NO_DATABASE_GIVEN = (
    "no database: set DATABASE_URL=postgresql://user@host/database (or use --database-url),\n"
    "or use --embedded for a PostgreSQL of jobq's own, the one of `jobq demo`"
)


@dataclass(frozen=True, slots=True)
class Target:
    """The database of a command: an URL, or (None) the embedded server."""

    url: str | None

    @property
    def embedded(self) -> bool:
        """Whether the server is jobq's own."""
        return self.url is None

    @contextmanager
    def serving(self) -> Iterator[str]:
        """Yield a connection string, with the embedded server running meanwhile if it is that."""
        if self.url is not None:
            yield self.url
            return
        with embedded.server() as server:
            yield server.dsn

    @contextmanager
    def connection(self, level: str) -> Iterator[Connection]:
        """Yield a connection whose schema fits; the embedded database gets its schema as needed.

        `level` is the access that what is done with it needs, for whoever lacks it.
        """
        with self.serving() as dsn, connect_cli(dsn) as conn:
            grant = grant_command(conn.info.user, level)
            try:
                check_compatible(conn)
            except SchemaTooOld:
                if not self.embedded:
                    raise
                migrate(dsn)
            except SchemaError as error:
                if not isinstance(error.__cause__, psycopg.errors.InsufficientPrivilege):
                    raise
                raise SchemaError(
                    f"role {conn.info.user} may not use schema jobq: have its owner run `{grant}`"
                ) from error
            try:
                yield conn
            except psycopg.errors.InsufficientPrivilege as error:
                first = str(error).strip().partition("\n")[0]
                raise CommandError(
                    FAILED,
                    f"{first} (role {conn.info.user})\nhave the owner of schema jobq run `{grant}`",
                ) from error


def connect_cli(dsn: str) -> Connection:
    """Connect with times in UTC, JSON as text, and no limit to how long a statement takes."""
    conn = connect(dsn, "jobq cli", {"statement_timeout": "0", "TimeZone": "UTC"})
    conn.adapters.register_loader("jsonb", JsonTextLoader)
    return conn


def query(conn: Connection, text: str, *args: object) -> list[Row]:
    """Return the rows of a query as dictionaries."""
    with conn.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(text.encode(), args or None).fetchall()


def choose(url: str | None, in_embedded: bool, *, default: Target | None = None) -> Target:
    """Return the target that options name, else `default`, else that of the environment."""
    if url is not None and in_embedded:
        raise CommandError(USAGE, "--database-url and --embedded exclude each other")
    if in_embedded:
        return Target(None)
    if url is None and default is not None:
        return default
    chosen, source = (url, "--database-url") if url else (os.environ.get("DATABASE_URL"), "")
    if not chosen:
        raise CommandError(USAGE, NO_DATABASE_GIVEN)
    try:
        conninfo_to_dict(chosen)
    except psycopg.ProgrammingError:
        # The driver's own message may quote the password.
        raise CommandError(
            USAGE,
            f"{source or 'DATABASE_URL'} is not a connection string:"
            " write it as postgresql://user:password@host:port/database",
        ) from None
    return Target(chosen)


def choose_globally(ctx: typer.Context, url: str | None, in_embedded: bool) -> None:
    """Remember what the options before the command's name say."""
    ctx.obj = choose(url, in_embedded) if url is not None or in_embedded else None


def with_target(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the database options; it gets the Target as `target`."""
    return _decorated(command, "target", _nothing)


def with_connection(level: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the database options; it gets an open connection as `conn`.

    `level` is the access that it needs; with ids of single jobs a producer's is enough.
    """

    def opened(target: Target, arguments: dict[str, Any]) -> AbstractContextManager[Connection]:
        single = arguments.get("job_ids") and not arguments.get("dry_run")
        return target.connection("producer" if single else level)

    return lambda command: _decorated(command, "conn", opened)


def fallback_to_embedded(command: Callable[..., None]) -> Callable[..., None]:
    """`with_target` for a command that needs no database named: the embedded one will do."""
    return _decorated(command, "target", _nothing, default=_from_environment)


def _from_environment() -> Target | None:
    return None if os.environ.get("DATABASE_URL") else Target(None)


@contextmanager
def _nothing(target: Target, _arguments: dict[str, Any]) -> Iterator[Target]:
    yield target


def _decorated(
    command: Callable[..., None],
    name: str,
    opened: Callable[[Target, dict[str, Any]], AbstractContextManager[Any]],
    default: Callable[[], Target | None] = lambda: None,
) -> Callable[..., None]:
    keyword = inspect.Parameter.KEYWORD_ONLY
    own = [
        p.replace(kind=keyword)
        for p in inspect.signature(command, eval_str=True).parameters.values()
        if p.name != name
    ]

    @functools.wraps(command)
    def wrapper(
        *, ctx: typer.Context, database_url: str | None, in_embedded: bool, **arguments: Any
    ) -> None:
        target = choose(database_url, in_embedded, default=ctx.obj or default())
        with opened(target, arguments) as given:
            command(**{name: given}, **arguments)

    parameters = [
        inspect.Parameter("ctx", keyword, annotation=typer.Context),
        *own,
        inspect.Parameter("database_url", keyword, default=None, annotation=DatabaseUrl),
        inspect.Parameter("in_embedded", keyword, default=False, annotation=Embedded),
    ]
    wrapper.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    del wrapper.__wrapped__
    return wrapper
