"""A settle cannot fail on its data: results, error texts, delays and numbers of every kind."""

import json
from datetime import timedelta
from typing import Any

import pytest
from helpers import Connection, scalar

from ledger import refused
from verbs import assert_consistent, claim, enqueue, enqueue_many, job_row, outcome, run, settle

LIMIT = 32_768

ERRORS = {
    "20 MB": "begin " + "x" * 20_000_000 + " end",
    "4 MB of four-byte characters": "begin " + "\U0001f600" * 1_000_000 + " end",
    "mixed widths": "begin " + "aé\u20ac\U0001f600" * 20_000 + " end",
    "just above the limit": "begin " + "x" * (LIMIT - 9) + " end",
}


def test_an_error_too_long_to_store_keeps_its_beginning_and_its_end(
    conn: Connection, subtests: pytest.Subtests
) -> None:
    for name, error in ERRORS.items():
        with subtests.test(name):
            job = run(conn)
            assert settle(conn, outcome(job, "failed", error=error))[0][1:] == (True, "queued")
            stored = job_row(conn, job.id).last_error
            assert len(stored.encode()) <= LIMIT
            assert len(stored.encode()) > 20_000
            assert stored.startswith("begin ")
            assert stored.endswith(" end")
            assert "bytes left out" in stored
            by_verb = run(conn)
            conn.execute("select jobq.stop(%s, %s, %s)", (by_verb.id, by_verb.lease_token, error))
            assert job_row(conn, by_verb.id).last_error == stored
    assert_consistent(conn)


@pytest.mark.parametrize(
    ("error", "stored"),
    [
        ("x" * LIMIT, "x" * LIMIT),
        ("\U0001f600" * (LIMIT // 4), "\U0001f600" * (LIMIT // 4)),
        ("tab\t, newline\n, \x01, \x7f, \ufeff, <b>", "tab\t, newline\n, \x01, \x7f, \ufeff, <b>"),
        ("", "failed without an error message"),
        (None, "failed without an error message"),
        (7, "7"),
        ({"code": 1}, '{"code": 1}'),
    ],
    ids=lambda value: str(value)[:20],
)
def test_an_error_is_stored_as_text(conn: Connection, error: object, stored: str) -> None:
    job = run(conn)
    settle(conn, outcome(job, "failed", error=error))
    assert job_row(conn, job.id).last_error == stored


def test_an_error_with_a_nul_is_refused_by_the_cast_and_leaves_the_run_as_it_was(
    conn: Connection,
) -> None:
    job = run(conn)
    with refused("22P05"):
        settle(conn, outcome(job, "failed", error="a\0b"))
    assert job_row(conn, job.id) == job


@pytest.mark.parametrize("result", [None, True, 0, -0.5, "", "a\\u\U0001f600", [], {}, [[{}]]])
def test_a_result_of_any_json_type_is_stored_as_it_is(conn: Connection, result: object) -> None:
    job = run(conn)
    settle(conn, outcome(job, "succeeded", result=result))
    stored = scalar(conn, "select result::text from jobq.jobs")
    assert (None if stored is None else json.loads(stored)) == result


def test_a_result_of_huge_numbers_or_depth_is_stored(conn: Connection) -> None:
    for result in ("1e400", "-1e-400", '{"a":' * 900 + "1" + "}" * 900):
        job = run(conn)
        sent = json.dumps([outcome(job, "succeeded", result="?")]).replace('"?"', result)
        conn.execute("select * from jobq.settle(%s)", (sent,))
        assert job_row(conn, job.id).status == "succeeded"
        assert scalar(conn, f"select result = '{result}' from jobq.jobs where id = {job.id}")


def test_a_result_too_large_to_store_fails_its_job_and_no_other(conn: Connection) -> None:
    enqueue_many(conn, 2)
    one, two = claim(conn, 2)
    huge = "x" * (16 * 2**20)
    answers = settle(
        conn, outcome(one, "succeeded", result=huge), outcome(two, "succeeded", result=huge[:-99])
    )
    assert answers == [(one.id, True, "failed"), (two.id, True, "succeeded")]
    row = job_row(conn, one.id)
    assert (row.attempt, row.max_attempts, row.result) == (1, 10, None)
    assert "larger than the 16 MiB" in row.last_error
    assert_consistent(conn)


def delay_after(conn: Connection, verdict: str, **fields: Any) -> timedelta:
    """Settle a new job so; returns how long it waits from then on."""
    job = run(conn, kind="delay", retry_base_seconds=100, retry_cap_seconds=1000)
    before = scalar(conn, "select clock_timestamp()")
    # json.dumps knows no number beyond a float.
    sent = (
        json.dumps([outcome(job, verdict, error="x", **fields)]).replace('"#', "").replace('#"', "")
    )
    ((_, accepted, status),) = conn.execute("select * from jobq.settle(%s)", (sent,))
    assert (accepted, status) == (True, "queued")
    waits = job_row(conn, job.id).available_at - before
    assert isinstance(waits, timedelta)
    return waits


TEN_YEARS = timedelta(days=3650)
SLACK = timedelta(seconds=5)

DELAYS: list[tuple[object, timedelta | None]] = [
    (5, timedelta(seconds=5)),
    (0, timedelta()),
    (0.25, timedelta(seconds=0.25)),
    (-5, timedelta()),
    ("#-1e400#", timedelta()),
    ("#1e400#", TEN_YEARS),
    ("#1e30#", TEN_YEARS),
    ("#1e-400#", timedelta()),
    (2**31, TEN_YEARS),
    ("5", None),
    (None, None),
    (True, None),
    ([], None),
    ({}, None),
    ("NaN", None),
]


def test_a_retry_waits_as_told_within_ten_years_else_its_backoff(
    conn: Connection, subtests: pytest.Subtests
) -> None:
    for value, expected in DELAYS:
        with subtests.test(value=str(value)):
            waits = delay_after(conn, "failed", retry_in_seconds=value)
            if expected is None:
                assert timedelta(seconds=100) <= waits <= timedelta(seconds=125) + SLACK
            else:
                assert expected <= waits <= expected + SLACK


def test_a_snooze_waits_as_told_within_ten_years_else_not_at_all(
    conn: Connection, subtests: pytest.Subtests
) -> None:
    for value, expected in DELAYS:
        with subtests.test(value=str(value)):
            waits = delay_after(conn, "snoozed", delay_seconds=value)
            assert (expected or timedelta()) <= waits <= (expected or timedelta()) + SLACK
    assert_consistent(conn)


@pytest.mark.parametrize("delay", ["-1 s", "11 years", "178000000 years", None])
def test_the_verb_snooze_refuses_a_delay_out_of_range(conn: Connection, delay: str | None) -> None:
    job = run(conn)
    with refused("JQ006", "delay must be between 0 and 10 years"):
        conn.execute("select jobq.snooze(%s, %s, %s)", (job.id, job.lease_token, delay))
    assert job_row(conn, job.id) == job


@pytest.mark.parametrize("retry_in", ["-1 s", "178000000 years", "0.5 s"])
def test_the_verb_fail_bounds_retry_in(conn: Connection, retry_in: str) -> None:
    job = run(conn)
    query = "select jobq.fail(%s, %s, 'x', retry_in => %s)"
    assert scalar(conn, query, job.id, job.lease_token, retry_in) == "queued"


def test_backoff_doubles_jitters_by_a_quarter_and_never_passes_its_cap(conn: Connection) -> None:
    for attempt, least, most in ((1, 100, 125), (2, 200, 250), (4, 800, 1000), (5, 1000, 1000)):
        enqueue_many(conn, 200, retry_base_seconds=100, retry_cap_seconds=1000, max_attempts=100)
        conn.execute("update jobq.jobs set attempt = %s where status = 'queued'", (attempt - 1,))
        jobs = claim(conn, 1000)
        before = scalar(conn, "select clock_timestamp()")
        settle(conn, *(outcome(job, "failed", error="x") for job in jobs))
        waits = [(job_row(conn, job.id).available_at - before).total_seconds() for job in jobs]
        assert min(waits) >= least
        assert max(waits) <= most + 5
        if least < most:
            assert max(waits) - min(waits) > (most - least) / 2, "no jitter"
        conn.execute("delete from jobq.jobs")


@pytest.mark.parametrize("attempt", [1, 31, 38, 62, 63, 1024, 2**31 - 2])
def test_backoff_is_positive_and_within_its_cap_for_any_attempt(
    conn: Connection, attempt: int
) -> None:
    job_id = enqueue(conn, max_attempts=2**31 - 1, retry_cap_seconds=2**31 - 1)
    conn.execute("update jobq.jobs set attempt = %s", (attempt - 1,))
    (job,) = claim(conn)
    settle(conn, outcome(job, "failed", error="x"))
    waits = job_row(conn, job_id).available_at - scalar(conn, "select clock_timestamp()")
    assert timedelta() < waits <= timedelta(seconds=2**31 - 1)
    delay = "select extract(epoch from jobq.retry_delay(%s, 15, 3600))::float8"
    assert scalar(conn, delay, attempt) == min(3600, 15 * 2 ** min(attempt - 1, 62))
    assert_consistent(conn)
