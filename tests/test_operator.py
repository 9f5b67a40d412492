"""Steering one job by hand: cancel, retry, clone."""

from collections.abc import Callable
from typing import Any

import pytest
from helpers import Connection, scalar, wait_for_lock_wait
from psycopg.types.json import Jsonb

from ledger import in_thread, job_in, refused
from verbs import (
    assert_consistent,
    claim,
    claim_one,
    enqueue,
    events_of,
    job_row,
    outcome,
    renew,
    rows,
    run,
    settle,
    status_of,
)

CANCEL = "select jobq.cancel(%s)"
RETRY = "select jobq.retry(%s)"
CLONE = "select jobq.clone(%s, %s)"


def test_cancel_ends_a_queued_job(conn: Connection) -> None:
    job_id = enqueue(conn, delay="1 hour")
    assert scalar(conn, CANCEL, job_id) == "cancelled"
    row = job_row(conn, job_id)
    assert row.finished_at is not None
    assert row.cancel_requested_at is None
    assert events_of(conn, job_id) == ["enqueued", "cancelled"]
    assert_consistent(conn)


def test_cancel_asks_a_running_job_once(conn: Connection) -> None:
    job = run(conn)
    assert [scalar(conn, CANCEL, job.id) for _ in range(3)] == ["running"] * 3
    asked_at = job_row(conn, job.id).cancel_requested_at
    assert renew(conn, job) == [(job.id, True, True, True)]
    assert job_row(conn, job.id).cancel_requested_at == asked_at
    assert events_of(conn, job.id) == ["enqueued", "claimed", "cancel_requested"]
    assert_consistent(conn)


@pytest.mark.parametrize("status", ["succeeded", "failed", "cancelled"])
def test_cancel_leaves_a_finished_job_alone(conn: Connection, status: str) -> None:
    job_id = job_in(conn, status)
    before, history = job_row(conn, job_id), events_of(conn, job_id)
    assert scalar(conn, CANCEL, job_id) == status
    assert (job_row(conn, job_id), events_of(conn, job_id)) == (before, history)


@pytest.mark.parametrize("status", ["failed", "cancelled"])
def test_retry_queues_a_job_again_due_now_with_its_history(conn: Connection, status: str) -> None:
    job_id = job_in(conn, status)
    finished = job_row(conn, job_id)
    assert scalar(conn, RETRY, job_id) == "queued"
    row = job_row(conn, job_id)
    assert (row.finished_at, row.cancel_requested_at) == (None, None)
    assert (row.attempt, row.max_attempts) == (finished.attempt, 10)
    assert row.last_error == finished.last_error
    assert row.available_at > finished.finished_at
    assert events_of(conn, job_id)[-2:] == [status, "retried"]
    assert claim_one(conn).id == job_id
    assert_consistent(conn)


@pytest.mark.parametrize(("extra", "allowed"), [(1, 3), (2, 4), (100, 102), (2**31 - 1, 2**31 - 1)])
def test_retry_of_an_exhausted_job_allows_more_starts(
    conn: Connection, extra: int, allowed: int
) -> None:
    job_id = enqueue(conn, max_attempts=2)
    for _ in range(2):
        settle(conn, outcome(claim_one(conn), "failed", error="x", retry_in_seconds=0))
    assert status_of(conn, job_id) == "failed"
    assert scalar(conn, "select jobq.retry(%s, %s)", job_id, extra) == "queued"
    assert job_row(conn, job_id).max_attempts == allowed
    assert claim_one(conn).attempt == 3
    assert_consistent(conn)


def test_a_cancelled_run_can_be_retried_though_it_was_asked_to_stop(conn: Connection) -> None:
    job = run(conn)
    scalar(conn, CANCEL, job.id)
    settle(conn, outcome(job, "released"))
    assert scalar(conn, RETRY, job.id) == "queued"
    again = claim_one(conn)
    assert renew(conn, again) == [(job.id, True, True, False)]
    assert_consistent(conn)


@pytest.mark.parametrize(
    ("status", "advice"),
    [("queued", "by itself"), ("running", "by itself"), ("succeeded", "clone it")],
)
def test_retry_refuses_a_job_that_did_not_end_badly(
    conn: Connection, status: str, advice: str
) -> None:
    job_id = job_in(conn, status)
    before = job_row(conn, job_id)
    # The hint is part of the error's text.
    with refused("JQ005", f"(?s)job {job_id} is {status}; only a failed or cancelled.*{advice}"):
        scalar(conn, RETRY, job_id)
    assert job_row(conn, job_id) == before


@pytest.mark.parametrize("extra", [0, -1, None])
def test_retry_needs_a_positive_number_of_attempts(conn: Connection, extra: int | None) -> None:
    job_id = job_in(conn, "failed")
    with refused("JQ006", "extra_attempts must be positive"):
        scalar(conn, "select jobq.retry(%s, %s)", job_id, extra)


@pytest.mark.parametrize("call", [CANCEL, RETRY, "select jobq.clone(%s)"])
@pytest.mark.parametrize("job_id", [0, -1, 999, 2**63 - 1, None])
def test_there_is_no_such_job(conn: Connection, call: str, job_id: int | None) -> None:
    with refused("JQ004", f"no job {'null' if job_id is None else job_id}"):
        scalar(conn, call, job_id)


def test_a_clone_is_a_new_job_like_the_old_one(conn: Connection) -> None:
    original = enqueue(
        conn,
        "mail",
        {"to": "a"},
        priority=7,
        max_attempts=3,
        retry_base_seconds=2,
        retry_cap_seconds=9,
        idempotency_key="k",
        delay="1 hour",
    )
    plain = scalar(conn, "select jobq.clone(%s)", original)
    other = scalar(conn, CLONE, original, Jsonb({"to": "b"}))
    for clone, payload in ((plain, {"to": "a"}), (other, {"to": "b"})):
        row = job_row(conn, clone)
        assert (row.status, row.attempt, row.kind, row.payload) == ("queued", 0, "mail", payload)
        assert (row.priority, row.max_attempts, row.idempotency_key) == (7, 3, None)
        assert (row.retry_base_seconds, row.retry_cap_seconds) == (2, 9)
        assert row.available_at == row.created_at
        (event,) = rows(conn, "select * from jobq.job_events where job_id = %s", clone)
        assert event.detail["cloned_from"] == original
    assert [job.id for job in claim(conn, 9)] == [plain, other]
    assert_consistent(conn)


@pytest.mark.parametrize("status", ["queued", "running", "succeeded", "failed", "cancelled"])
def test_a_job_of_any_status_can_be_cloned(conn: Connection, status: str) -> None:
    job_id = job_in(conn, status)
    before = job_row(conn, job_id)
    assert status_of(conn, scalar(conn, "select jobq.clone(%s)", job_id)) == "queued"
    assert job_row(conn, job_id) == before


@pytest.mark.parametrize("payload", [[], None, "x", 7, {"x": "y" * (16 * 2**20)}], ids=str)
def test_a_clone_needs_a_payload_that_a_job_can_have(conn: Connection, payload: Any) -> None:
    job_id = enqueue(conn)
    with refused("JQ001", "invalid job: payload must be"):
        scalar(conn, CLONE, job_id, Jsonb(payload))
    assert scalar(conn, "select count(*) from jobq.jobs") == 1


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_cancel_waits_for_its_one_row_and_judges_what_it_finds_then(
    conn: Connection, connect: Callable[..., Connection], end: str
) -> None:
    job = run(conn)
    worker, operator = connect(autocommit=False), connect()
    settle(worker, outcome(job, "succeeded"))
    answer = in_thread(lambda: scalar(operator, CANCEL, job.id))
    wait_for_lock_wait(conn, operator.info.backend_pid)
    getattr(worker, end)()
    assert answer.result(10) == ("succeeded" if end == "commit" else "running")
    assert (job_row(conn, job.id).cancel_requested_at is None) == (end == "commit")
    assert_consistent(conn)


def test_cancel_reaches_a_job_that_was_renewed_while_it_waited(
    conn: Connection, connect: Callable[..., Connection]
) -> None:
    job = run(conn)
    worker, operator = connect(autocommit=False), connect()
    renew(worker, job, lease="1 hour")
    answer = in_thread(lambda: scalar(operator, CANCEL, job.id))
    wait_for_lock_wait(conn, operator.info.backend_pid)
    worker.commit()
    assert answer.result(10) == "running"
    assert renew(conn, job) == [(job.id, True, True, True)]
    assert events_of(conn, job.id) == ["enqueued", "claimed", "cancel_requested"]


def test_two_retries_at_once_queue_the_job_once(
    conn: Connection, connect: Callable[..., Connection]
) -> None:
    job_id = job_in(conn, "failed")
    first, second = connect(autocommit=False), connect()
    scalar(first, RETRY, job_id)
    late = in_thread(lambda: scalar(second, RETRY, job_id))
    wait_for_lock_wait(conn, second.info.backend_pid)
    first.commit()
    with refused("JQ005", f"job {job_id} is queued"):
        late.result(10)
    assert events_of(conn, job_id).count("retried") == 1
    assert_consistent(conn)
