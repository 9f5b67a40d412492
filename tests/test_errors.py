import psycopg
import pytest
from helpers import Connection

from jobq import errors
from jobq.errors import JobqError, sqlstate_of, translate, translated

BY_CODE = {
    "JQ001": errors.InvalidJob,
    "JQ002": errors.IdempotencyConflict,
    "JQ003": errors.LeaseLost,
    "JQ004": errors.JobNotFound,
    "JQ005": errors.IllegalTransition,
    "JQ006": errors.InvalidArgument,
    "JQ007": errors.HistoryIsAppendOnly,
}


@pytest.mark.parametrize("code", BY_CODE)
def test_each_code_of_the_database_has_its_error(conn: Connection, code: str) -> None:
    with pytest.raises(psycopg.Error) as caught:
        conn.execute(
            f"do $$ begin raise exception using errcode = '{code}', message = 'said so',"
            " detail = 'more', hint = 'do this'; end $$".encode()
        )
    error = translate(caught.value)
    assert type(error) is BY_CODE[code]
    assert str(error) == "said so\nmore\ndo this"
    assert error.sqlstate == code


def test_every_error_with_a_code_is_in_the_table() -> None:
    classes = [
        c for c in JobqError.__subclasses__() if c.__module__ == "jobq.errors" and c.sqlstate
    ]
    assert {c.sqlstate: c for c in classes} == BY_CODE


def test_errors_of_other_origin_are_not_ours(conn: Connection) -> None:
    with pytest.raises(psycopg.Error) as caught:
        conn.execute("select 1 / 0")
    assert translate(caught.value) is None
    assert translate(ValueError("JQ001")) is None


class DriverError(Exception):
    """What a DB-API driver raises; pgcode as psycopg2 has it."""

    pgcode: str | None = None


def test_a_code_is_found_behind_an_orm_s_wrapper() -> None:
    inner = DriverError("inner")
    inner.pgcode = "JQ002"
    wrapper = RuntimeError("outer")
    wrapper.orig = inner  # type: ignore[attr-defined] # as SQLAlchemy does
    assert isinstance(translate(wrapper), errors.IdempotencyConflict)
    cause = RuntimeError("outer")
    cause.__cause__ = inner  # as Django does
    assert isinstance(translate(cause), errors.IdempotencyConflict)


def test_pg8000_carries_the_code_in_its_first_argument() -> None:
    assert sqlstate_of(Exception({"C": "JQ004", "M": "no such job"})) == "JQ004"


def test_a_chain_that_loops_ends() -> None:
    first, second = RuntimeError("a"), RuntimeError("b")
    first.__cause__, second.__cause__ = second, first
    assert translate(first) is None


def test_translated_keeps_the_driver_s_error_as_the_cause() -> None:
    inner = DriverError("inner")
    inner.pgcode = "JQ001"
    with pytest.raises(errors.InvalidJob) as caught, translated():
        raise inner
    assert caught.value.__cause__ is inner


def test_translated_lets_everything_else_pass() -> None:
    with pytest.raises(KeyError), translated():
        raise KeyError("x")
    original = errors.LeaseLost("as it is")
    with pytest.raises(errors.LeaseLost) as caught, translated():
        raise original
    assert caught.value is original
