"""The proof of the ledger: any history replays clean, and each planted fault is named."""

from collections.abc import Callable

import pytest
from helpers import Connection, wait_for_lock_wait

from ledger import (
    Row,
    claim,
    enqueue,
    in_thread,
    job,
    job_in,
    rows,
)


def problems(conn: Connection) -> list[Row]:
    return rows(conn, "select * from jobq.verify()")


# One job ran, failed once, runs again and was asked to stop; then something is forged.
FAULTS: dict[str, tuple[str, str]] = {
    "status": (
        (
            "update jobq.jobs set status = 'failed', finished_at = created_at, locked_by = null,"
            " lease_token = null, lease_expires_at = null"
        ),
        "status",
    ),
    "attempt": ("update jobq.jobs set attempt = 7", "attempt"),
    "max_attempts": ("update jobq.jobs set max_attempts = 11", "max_attempts"),
    "kind": ("update jobq.jobs set kind = 'forged'", "kind"),
    "payload": ("update jobq.jobs set payload = '{\"a\": 2}'", "payload"),
    "priority": ("update jobq.jobs set priority = 1", "priority"),
    "available_at": (
        "update jobq.jobs set available_at = available_at + interval '1 microsecond'",
        "available_at",
    ),
    "worker": ("update jobq.jobs set locked_by = 'forged'", "worker"),
    "error": ("update jobq.jobs set last_error = 'forged'", "error"),
    "no error": ("update jobq.jobs set last_error = null", "error"),
    "cancel request": ("update jobq.jobs set cancel_requested_at = null", "cancel request"),
    "all events lost": ("delete from jobq.job_events", "no events"),
    "the job lost": ("delete from jobq.jobs", "events without a job"),
    "the first event lost": (
        "delete from jobq.job_events where event = 'enqueued'",
        "broken chain at event ",
    ),
    "an event lost": (
        "delete from jobq.job_events where event = 'failed'",
        "broken chain at event ",
    ),
    "the last event lost": (
        "delete from jobq.job_events where event = 'cancel_requested'",
        "cancel request",
    ),
    "an event twice": (
        (
            "insert into jobq.job_events (job_id, event, from_status, to_status, attempt, actor)"
            " select job_id, event, from_status, to_status, attempt, actor from jobq.job_events"
            " where event = 'claimed' and attempt = 2"
        ),
        "broken chain at event ",
    ),
    "another start": (
        "update jobq.job_events set event = 'retried' where event = 'enqueued'",
        "broken chain at event ",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_named(conn: Connection, fault: str) -> None:
    job_id = enqueue(conn, "k", {"a": 1})
    (first,) = claim(conn, "k")
    token = first["lease_token"]
    conn.execute("select jobq.fail(%s, %s, 'broken', retry_in => '0')", (job_id, token))
    conn.execute("select set_config('jobq.floor', '', false)")
    assert len(claim(conn, "k", worker="w2")) == 1
    conn.execute("select jobq.cancel(%s)", (job_id,))
    sound = job_in(conn, "succeeded")
    assert problems(conn) == []
    forgery, problem = FAULTS[fault]
    forgery += " and" if " where " in forgery else " where"
    forgery += f" {'id' if 'jobq.jobs' in forgery else 'job_id'} = {job_id}"
    with conn.transaction():
        conn.execute("set local session_replication_role = replica")
        assert conn.execute(forgery.encode()).rowcount > 0
    found = [(row["job_id"], row["problem"]) for row in problems(conn)]
    assert any(where == job_id and what.startswith(problem) for where, what in found), found
    assert sound not in {where for where, _ in found}


def test_a_forged_finish_is_named(conn: Connection) -> None:
    job_id = job_in(conn, "succeeded")
    with conn.transaction():
        conn.execute("set local session_replication_role = replica")
        conn.execute("update jobq.jobs set finished_at = finished_at + interval '1 microsecond'")
    (row,) = problems(conn)
    assert (row["job_id"], row["problem"]) == (job_id, "finish")
    assert row["ledger"] < row["stored"]


def test_a_control_event_is_no_fault(conn: Connection) -> None:
    conn.execute("insert into jobq.job_events (job_id, event, actor) values (0, 'control', 'x')")
    assert problems(conn) == []


def test_both_tables_are_read_in_one_snapshot(
    conn: Connection, connect: Callable[..., Connection]
) -> None:
    """What commits after verify() began is seen in neither table."""
    writer, reader = connect(autocommit=False), connect()
    job_id = job_in(conn, "queued")
    # Known to the reader, so that its plan takes no lock before its snapshot.
    assert problems(reader) == []
    writer.execute("lock table jobq.job_events in access exclusive mode")
    verdict = in_thread(problems, reader)
    wait_for_lock_wait(conn, reader.info.backend_pid)
    writer.execute("select jobq.cancel(%s)", (job_id,))
    gone = enqueue(writer, "new")
    writer.commit()
    assert verdict.result(30) == []
    assert job(conn, job_id)["status"] == "cancelled"
    assert job(conn, gone)["status"] == "queued"
