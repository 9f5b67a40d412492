"""Ending runs: every outcome, what a stale claim may do, and values that nobody should send."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from helpers import Connection, scalar

from ledger import refused
from verbs import (
    assert_consistent,
    claim,
    claim_one,
    enqueue,
    enqueue_many,
    events_of,
    job_row,
    outcome,
    run,
    settle,
    stale,
)

# outcome, further fields -> status, the event, attempt
OUTCOMES: list[tuple[str, dict[str, Any], str, str, int]] = [
    ("succeeded", {"result": {"n": 1}}, "succeeded", "succeeded", 1),
    ("failed", {"error": "broken"}, "queued", "failed", 1),
    ("failed", {"error": "broken", "retryable": True}, "queued", "failed", 1),
    ("failed", {"error": "broken", "retryable": False}, "failed", "failed", 1),
    ("released", {}, "queued", "released", 0),
    ("snoozed", {"delay_seconds": 60}, "queued", "snoozed", 0),
    ("cancelled", {"error": "not wanted"}, "cancelled", "cancelled", 1),
]


def assert_at_rest(job: Any) -> None:
    assert (job.locked_by, job.lease_token, job.lease_expires_at) == (None, None, None)
    assert (job.finished_at is None) == (job.status == "queued")


def test_each_outcome_brings_the_job_where_it_says(
    conn: Connection, subtests: pytest.Subtests
) -> None:
    for verdict, fields, status, event, attempt in OUTCOMES:
        with subtests.test(verdict, **fields):
            job = run(conn)
            assert settle(conn, outcome(job, verdict, **fields)) == [(job.id, True, status)]
            row = job_row(conn, job.id)
            assert (row.status, row.attempt) == (status, attempt)
            assert row.result == fields.get("result")
            assert row.last_error == fields.get("error")
            assert_at_rest(row)
            assert events_of(conn, job.id) == ["enqueued", "claimed", event]
    assert_consistent(conn)


def test_what_a_cancel_request_does_to_each_outcome(
    conn: Connection, subtests: pytest.Subtests
) -> None:
    for verdict, fields, status, event, _ in OUTCOMES:
        with subtests.test(verdict, **fields):
            job = run(conn)
            assert scalar(conn, "select jobq.cancel(%s)", job.id) == "running"
            expected = "cancelled" if status == "queued" else status
            assert settle(conn, outcome(job, verdict, **fields)) == [(job.id, True, expected)]
            row = job_row(conn, job.id)
            assert (row.status, row.available_at) == (expected, job.available_at)
            assert_at_rest(row)
            ended = "cancelled" if status == "queued" else event
            assert events_of(conn, job.id)[2:] == ["cancel_requested", ended]
    assert_consistent(conn)


VERBS: list[tuple[str, tuple[object, ...], str]] = [
    ("succeed(%s, %s)", (), "succeeded"),
    ("succeed(%s, %s, %s)", ('{"n": [1]}',), "succeeded"),
    ("fail(%s, %s, %s)", ("broken",), "queued"),
    ("fail(%s, %s, %s, retryable => false)", ("broken",), "failed"),
    ("fail(%s, %s, %s, retryable => null)", ("broken",), "queued"),
    ("fail(%s, %s, %s, retry_in => '5 s')", ("broken",), "queued"),
    ("release(%s, %s)", (), "queued"),
    ("snooze(%s, %s, '1 hour')", (), "queued"),
    ("stop(%s, %s, %s)", ("not wanted",), "cancelled"),
    ("stop(%s, %s)", (), "cancelled"),
]


def test_the_single_verbs_do_the_same_and_refuse_a_claim_that_is_not_current(
    conn: Connection, subtests: pytest.Subtests
) -> None:
    for call, extra, status in VERBS:
        with subtests.test(call):
            job = run(conn)
            query = f"select jobq.{call}"
            with refused("JQ003", f"claim on job {job.id} is no longer current.*running"):
                scalar(conn, query, job.id, uuid4(), *extra)
            with refused("JQ004", "no job 999999"):
                scalar(conn, query, 999999, job.lease_token, *extra)
            for job_id, token in ((None, job.lease_token), (job.id, None)):
                with refused("JQ004" if job_id is None else "JQ003"):
                    scalar(conn, query, job_id, token, *extra)
            assert scalar(conn, query, job.id, job.lease_token, *extra) == status
            with refused("JQ003", f"the job is {status}"):
                scalar(conn, query, job.id, job.lease_token, *extra)
            assert events_of(conn, job.id)[2:] == [events_of(conn, job.id)[-1]]
    assert_consistent(conn)


def test_a_stale_claim_is_not_accepted_and_never_stops_the_rest(
    conn: Connection, connect: Callable[..., Connection]
) -> None:
    enqueue_many(conn, 5)
    jobs = claim(conn, 5)
    settle(conn, outcome(jobs[1], "released"))
    again = claim_one(connect())
    assert again.id == jobs[1].id
    answers = settle(
        conn,
        outcome(jobs[4], "succeeded"),
        outcome(jobs[1], "succeeded"),
        outcome(stale(jobs[2]), "succeeded"),
        {"job_id": 999999, "lease_token": str(uuid4()), "outcome": "failed"},
        outcome(jobs[0], "succeeded"),
    )
    assert answers == [
        (jobs[4].id, True, "succeeded"),
        (jobs[1].id, False, "running"),
        (jobs[2].id, False, "running"),
        (999999, False, None),
        (jobs[0].id, True, "succeeded"),
    ]
    assert job_row(conn, jobs[1].id) == again
    assert settle(conn, outcome(jobs[0], "failed", error="late")) == [
        (jobs[0].id, False, "succeeded")
    ]
    assert_consistent(conn)


@pytest.mark.parametrize("token", ["", "x", None, 7, {}, [], "00000000" * 4, "{%s}"])
def test_a_malformed_token_is_a_stale_one(conn: Connection, token: object) -> None:
    enqueue_many(conn, 2)
    first, second = claim(conn, 2)
    if token == "{%s}":
        token = f"{{{first.lease_token}}}"
    answers = settle(
        conn,
        {"job_id": first.id, "lease_token": token, "outcome": "succeeded"},
        outcome(second, "succeeded"),
    )
    assert answers == [(first.id, False, "running"), (second.id, True, "succeeded")]


def test_a_token_in_capitals_is_the_same_token(conn: Connection) -> None:
    job = run(conn)
    shouted = {**outcome(job, "succeeded"), "lease_token": str(job.lease_token).upper()}
    assert settle(conn, shouted) == [(job.id, True, "succeeded")]


def test_of_the_same_job_twice_the_first_counts(conn: Connection) -> None:
    job = run(conn)
    twice = settle(
        conn, outcome(job, "failed", error="1", retryable=False), outcome(job, "succeeded")
    )
    assert twice == [(job.id, True, "failed")]
    assert events_of(conn, job.id) == ["enqueued", "claimed", "failed"]
    other = run(conn)
    mixed = settle(conn, outcome(stale(other), "released"), outcome(other, "succeeded"))
    assert mixed == [(other.id, False, "running"), (other.id, True, "succeeded")]


REFUSED: list[tuple[Any, str]] = [
    ({"outcome": "succeeded"}, "job_id must be an integer, not missing"),
    ({"job_id": None, "outcome": "succeeded"}, "outcome 2: job_id must be an integer, not null"),
    ({"job_id": "1", "outcome": "succeeded"}, "job_id must be an integer"),
    ({"job_id": 1.5, "outcome": "succeeded"}, "job_id must be an integer, not 1.5"),
    ({"job_id": 1e30, "outcome": "succeeded"}, "job_id must be an integer, not 1000"),
    ({"job_id": 2**63, "outcome": "succeeded"}, "job_id must be an integer"),
    ({"job_id": [1], "outcome": "succeeded"}, "job_id must be an integer"),
    ({"job_id": 1}, "outcome 2: unknown outcome null"),
    ({"job_id": 1, "outcome": "done"}, "outcome 2: unknown outcome done"),
    ({"job_id": 1, "outcome": "SUCCEEDED"}, "unknown outcome SUCCEEDED"),
    ({"job_id": 1, "outcome": 1}, "unknown outcome 1"),
    (7, "outcome 2: job_id"),
    (None, "outcome 2: job_id"),
    ([], "outcome 2: job_id"),
]


def test_an_outcome_that_nobody_could_mean_is_refused_and_nothing_is_settled(
    conn: Connection, subtests: pytest.Subtests
) -> None:
    job = run(conn)
    for element, says in REFUSED:
        with subtests.test(str(element)), refused("JQ006", says):
            settle(conn, outcome(job, "succeeded"), element)
    for whole in ("null", "{}", '"x"', "1"):
        with subtests.test(whole), refused("JQ006", "must be a JSON array"):
            conn.execute("select * from jobq.settle(%s)", (whole,))
    assert job_row(conn, job.id) == job
    assert settle(conn) == []


def test_no_job_has_a_negative_or_the_greatest_id(conn: Connection) -> None:
    for job_id in (-1, 0, 2**63 - 1, -(2**63) + 1):
        answer = settle(conn, {"job_id": job_id, "lease_token": "x", "outcome": "succeeded"})
        assert answer == [(job_id, False, None)]


def test_success_clears_the_error_of_earlier_attempts(conn: Connection) -> None:
    job = run(conn)
    settle(conn, outcome(job, "failed", error="first try", retry_in_seconds=0))
    again = claim_one(conn)
    assert (again.id, again.last_error, again.attempt) == (job.id, "first try", 2)
    settle(conn, outcome(again, "succeeded"))
    assert job_row(conn, job.id).last_error is None
    assert_consistent(conn)


def test_release_keeps_the_place_in_the_queue_and_the_error(conn: Connection) -> None:
    first, second = enqueue(conn), enqueue(conn)
    job = claim_one(conn)
    settle(conn, outcome(job, "failed", error="why", retry_in_seconds=0))
    later = next(found for found in claim(conn, 2) if found.id == first)
    assert settle(conn, outcome(later, "released"))[0][2] == "queued"
    row = job_row(conn, first)
    assert (row.available_at, row.last_error, row.attempt) == (later.available_at, "why", 1)
    assert second != first


def test_a_job_with_one_attempt_starts_once(conn: Connection) -> None:
    job_id = enqueue(conn, max_attempts=1)
    assert settle(conn, outcome(claim_one(conn), "failed", error="x"))[0][2] == "failed"
    assert claim(conn) == []
    assert events_of(conn, job_id) == ["enqueued", "claimed", "failed"]


def test_a_retried_job_that_was_used_up_starts_once_more(conn: Connection) -> None:
    job_id = enqueue(conn, max_attempts=1)
    settle(conn, outcome(claim_one(conn), "failed", error="x"))
    conn.execute("select jobq.retry(%s)", (job_id,))
    again = claim_one(conn)
    assert (again.id, again.attempt, again.max_attempts) == (job_id, 2, 2)
    settle(conn, outcome(again, "failed", error="y"))
    assert job_row(conn, job_id).status == "failed"
    assert events_of(conn, job_id) == [
        *["enqueued", "claimed", "failed"],
        *["retried", "claimed", "failed"],
    ]
    assert_consistent(conn)


def test_a_snooze_is_counted_from_now(conn: Connection) -> None:
    job = run(conn)
    settle(conn, outcome(job, "snoozed", delay_seconds=3600))
    waits = job_row(conn, job.id).available_at - scalar(conn, "select clock_timestamp()")
    assert timedelta(minutes=59) < waits <= timedelta(hours=1)
