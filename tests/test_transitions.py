"""The state machine and its ledger: what no UPDATE can do, and what each change leaves behind."""

import itertools
from collections.abc import Callable

import pytest
from helpers import Connection, scalar

from ledger import STATUSES, events, job, job_in, refused

LEGAL = {
    ("queued", "running"): "claimed",
    ("running", "succeeded"): "succeeded",
    ("running", "queued"): "requeued",
    ("running", "failed"): "failed",
    ("queued", "cancelled"): "cancelled",
    ("running", "cancelled"): "cancelled",
    ("failed", "queued"): "retried",
    ("cancelled", "queued"): "retried",
}
# What an UPDATE to this status must set beside it to give an otherwise valid row.
NO_LEASE = "locked_by = null, lease_token = null, lease_expires_at = null"
FINISHED = f"finished_at = clock_timestamp(), {NO_LEASE}, result = null"
MEANWHILE = {
    "queued": f"{NO_LEASE}, finished_at = null, cancel_requested_at = null, result = null",
    "running": "locked_by = 'w', lease_token = gen_random_uuid(), started_at = clock_timestamp(),"
    " lease_expires_at = clock_timestamp() + interval '1 hour', attempt = attempt + 1,"
    " finished_at = null, result = null",
    "succeeded": FINISHED,
    "failed": FINISHED,
    "cancelled": FINISHED,
}


def update_status(conn: Connection, job_id: int, status: str) -> None:
    query = f"update jobq.jobs set status = %s, {MEANWHILE[status]} where id = %s"
    conn.execute(query.encode(), (status, job_id))


@pytest.mark.parametrize(("old", "new"), list(itertools.permutations(STATUSES, 2)))
def test_a_plain_update_makes_legal_transitions_only(conn: Connection, old: str, new: str) -> None:
    job_id = job_in(conn, old)
    row, history = job(conn, job_id), events(conn, job_id)
    if (old, new) in LEGAL:
        update_status(conn, job_id, new)
        *before, event = events(conn, job_id)
        assert before == history
        assert (event["event"], event["from_status"], event["to_status"]) == (
            LEGAL[old, new],
            old,
            new,
        )
        assert event["detail"]["via"] == "by hand"
        assert scalar(conn, "select count(*) from jobq.verify()") == 0
    else:
        with refused("JQ005", f"job {job_id} cannot go from {old} to {new}"):
            update_status(conn, job_id, new)
        assert (job(conn, job_id), events(conn, job_id)) == (row, history)


@pytest.mark.parametrize("status", STATUSES)
def test_an_update_that_keeps_the_status_passes(conn: Connection, status: str) -> None:
    job_id = job_in(conn, status)
    history = events(conn, job_id)
    conn.execute("update jobq.jobs set status = status where id = %s", (job_id,))
    assert events(conn, job_id) == history
    conn.execute("update jobq.jobs set priority = 7 where id = %s", (job_id,))
    *before, event = events(conn, job_id)
    assert before == history
    assert (event["event"], event["from_status"], event["to_status"]) == ("changed", None, None)
    assert event["detail"] == {"priority": 7, "via": "by hand"}


@pytest.mark.parametrize("status", STATUSES[1:])
def test_a_new_job_is_queued_or_refused(conn: Connection, status: str) -> None:
    row = "'w', gen_random_uuid(), clock_timestamp(), clock_timestamp(), 1, null"
    if status != "running":
        row = "null, null, null, null, 0, clock_timestamp()"
    with refused("JQ005", f"cannot be inserted as {status}"):
        conn.execute(
            f"""insert into jobq.jobs (kind, status, locked_by, lease_token, lease_expires_at,
              started_at, attempt, finished_at) values ('k', '{status}', {row})""".encode()
        )
    assert scalar(conn, "select count(*) from jobq.jobs") == 0


def test_a_queued_job_inserted_by_hand_has_its_event(conn: Connection) -> None:
    job_id = scalar(
        conn,
        "insert into jobq.jobs (kind, payload, priority, available_at, created_at, last_error)"
        " values ('k', '{\"a\": 1}', 3, '2031-01-01+00', '2030-01-01+00', 'x') returning id",
    )
    (event,) = events(conn, job_id)
    assert (event["event"], event["to_status"]) == ("enqueued", "queued")
    assert event["detail"]["via"] == "by hand"
    assert scalar(conn, "select count(*) from jobq.verify()") == 0


@pytest.mark.parametrize(
    "change",
    ["id = id + 1000", "created_at = clock_timestamp()", "id = id", "priority = 1, id = 9"],
)
def test_id_and_creation_time_never_change(conn: Connection, change: str) -> None:
    job_id = job_in(conn, "queued")
    row = job(conn, job_id)
    with refused("JQ005", "id and created_at cannot change"):
        conn.execute(f"update jobq.jobs set {change}".encode())
    assert job(conn, job_id) == row


@pytest.mark.parametrize(
    ("tables", "code"),
    [
        ("jobq.jobs", "JQ005"),
        ("jobq.job_events", "JQ007"),
        ("jobq.jobs, jobq.job_events", "JQ005"),
        ("jobq.jobs restart identity cascade", "JQ005"),
    ],
)
def test_truncate_is_refused(conn: Connection, tables: str, code: str) -> None:
    job_id = job_in(conn, "succeeded")
    with refused(code):
        conn.execute(f"truncate {tables}".encode())
    assert len(events(conn, job_id)) == 3


@pytest.mark.parametrize(
    "statement", ["update jobq.job_events set actor = 'x'", "delete from jobq.job_events"]
)
def test_history_of_a_stored_job_cannot_be_rewritten(conn: Connection, statement: str) -> None:
    job_id = job_in(conn, "succeeded")
    history = events(conn, job_id)
    with refused("JQ007", "append-only|cannot be deleted"):
        conn.execute(statement.encode())
    assert events(conn, job_id) == history


def test_an_event_cannot_be_updated_even_where_nothing_matches(conn: Connection) -> None:
    with refused("JQ007"):
        conn.execute("update jobq.job_events set actor = 'x' where job_id = -1")


def test_deleting_jobs_deletes_their_events_and_no_others(conn: Connection) -> None:
    gone = [job_in(conn, status) for status in STATUSES]
    kept = job_in(conn, "succeeded")
    history = events(conn, kept)
    conn.execute("delete from jobq.jobs where id = any(%s)", (gone,))
    assert scalar(conn, "select count(*) from jobq.job_events where job_id = any(%s)", gone) == 0
    assert events(conn, kept) == history


def test_events_may_be_deleted_once_their_job_is_gone(conn: Connection) -> None:
    kept = job_in(conn, "queued")
    insert = "insert into jobq.job_events (job_id, event, actor) values (%s, 'control', 'x')"
    for job_id in (0, 4711):
        conn.execute(insert, (job_id,))
    with refused("JQ007", f"events of job {kept} cannot be deleted"):
        conn.execute("delete from jobq.job_events")
    conn.execute("delete from jobq.job_events where job_id in (0, 4711)")
    assert scalar(conn, "select count(*) from jobq.job_events") == 1


def test_a_statement_by_hand_writes_one_event_a_row(conn: Connection) -> None:
    ids = [job_in(conn, "queued") for _ in range(3)] + [job_in(conn, "running")]
    before = scalar(conn, "select count(*) from jobq.job_events")
    conn.execute(f"update jobq.jobs set status = 'cancelled', {MEANWHILE['cancelled']}".encode())
    assert scalar(conn, "select count(*) from jobq.job_events") == before + len(ids)
    for job_id in ids:
        event = events(conn, job_id)[-1]
        assert (event["event"], event["detail"]["via"]) == ("cancelled", "by hand")
    assert events(conn, ids[-1])[-1]["worker"] == "w"
    assert scalar(conn, "select count(*) from jobq.verify()") == 0


def test_one_illegal_row_refuses_the_whole_statement(conn: Connection) -> None:
    legal, illegal = job_in(conn, "queued"), job_in(conn, "succeeded")
    with refused("JQ005", f"job {illegal} cannot go from succeeded to cancelled"):
        conn.execute(f"update jobq.jobs set status = 'cancelled', {FINISHED}".encode())
    assert job(conn, legal)["status"] == "queued"
    assert len(events(conn, legal)) == 1


def test_an_edit_of_kind_and_payload_by_hand_is_recorded(conn: Connection) -> None:
    job_id = job_in(conn, "queued")
    conn.execute("update jobq.jobs set kind = 'new', payload = '{\"b\": 2}', priority = 4")
    changed = events(conn, job_id)[1:]
    assert [event["event"] for event in changed] == ["changed", "changed"]
    assert {key for event in changed for key in event["detail"]} == {
        "kind", "payload_hash", "priority", "via",
    }  # fmt: skip
    assert scalar(conn, "select count(*) from jobq.verify()") == 0


def test_ids_order_the_events_of_a_job_across_sessions(
    conn: Connection, connect: Callable[..., Connection]
) -> None:
    job_id = job_in(conn, "queued")
    sessions = [conn, connect()]
    for turn, session in zip(range(6), itertools.cycle(sessions), strict=False):
        session.execute("update jobq.jobs set priority = %s", (turn + 1,))
    priorities = [event["detail"]["priority"] for event in events(conn, job_id)[1:]]
    assert priorities == [1, 2, 3, 4, 5, 6]
