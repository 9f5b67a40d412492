"""What an event says of its cause and its actor, and that saying it stays cheap."""

import re
from collections.abc import Callable

import psycopg
import pytest
from helpers import Connection, scalar

from ledger import Row, claim, enqueue, enqueue_many, events, job, job_in

# Each verb that writes, on jobs: queued, running (with its lease_token), failed.
VERBS: dict[str, tuple[str, str]] = {
    "enqueue": ("select jobq.enqueue('k')", "enqueued"),
    "enqueue_many": ('select jobq.enqueue_many(\'[{"kind": "k"}]\')', "enqueued"),
    "enqueue_many with keys": (
        'select jobq.enqueue_many(\'[{"kind": "k", "idempotency_key": "a"}]\')',
        "enqueued",
    ),
    "clone": ("select jobq.clone(%(queued)s)", "enqueued"),
    "claim": ("select jobq.claim('w', kinds => %(kinds)s)", "claimed"),
    "claim nothing": ("select jobq.claim('w', kinds => '{none}')", ""),
    "renew": ("select jobq.renew(array[%(running)s], array[%(token)s]::uuid[])", ""),
    "succeed": ("select jobq.succeed(%(running)s, %(token)s)", "succeeded"),
    "fail": ("select jobq.fail(%(running)s, %(token)s, 'x')", "failed"),
    "fail for good": ("select jobq.fail(%(running)s, %(token)s, 'x', false)", "failed"),
    "release": ("select jobq.release(%(running)s, %(token)s)", "released"),
    "snooze": ("select jobq.snooze(%(running)s, %(token)s, '1 minute')", "snoozed"),
    "stop": ("select jobq.stop(%(running)s, %(token)s, 'x')", "cancelled"),
    "settle nothing": ("select jobq.settle('[]')", ""),
    "report_progress": ("select jobq.report_progress(%(running)s, %(token)s, 0.5)", "progress"),
    "log": ("select jobq.log(%(running)s, %(token)s, 'info', 'x')", "log"),
    "reap": ("select jobq.reap()", "lease_lost"),
    "cancel": ("select jobq.cancel(%(queued)s)", "cancelled"),
    "cancel a run": ("select jobq.cancel(%(running)s)", "cancel_requested"),
    "cancel in vain": ("select jobq.cancel(%(failed)s)", ""),
    "retry": ("select jobq.retry(%(failed)s)", "retried"),
    "cancel_jobs": ('select jobq.cancel_jobs(\'{"status": "queued"}\')', "cancelled"),
    "retry_jobs": ("select jobq.retry_jobs('{}')", "retried"),
    "set_priority": ("select jobq.set_priority('{}', 5)", "changed"),
    "reschedule": ("select jobq.reschedule('{}', delay => '1 hour')", "changed"),
    "purge": ("select jobq.purge('1 hour')", ""),
}


def jobs_for_verbs(conn: Connection) -> Row:
    queued, running, failed = (job_in(conn, status) for status in ("queued", "running", "failed"))
    conn.execute("update jobq.jobs set lease_expires_at = created_at where id = %s", (running,))
    token = str(job(conn, running)["lease_token"])
    kinds = [job(conn, queued)["kind"]]
    return {"queued": queued, "running": running, "failed": failed, "token": token, "kinds": kinds}


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_writes_one_event_and_its_cause_stays_its_own(
    connect: Callable[..., Connection], verb: str
) -> None:
    conn = connect(autocommit=False)
    jobs = jobs_for_verbs(conn)
    other = job_in(conn, "cancelled")
    last = scalar(conn, "select max(id) from jobq.job_events")
    statement, expected = VERBS[verb]
    conn.execute(statement.encode(), jobs)
    query = "select event::text, detail from jobq.job_events where id > %s order by id"
    written = conn.execute(query, (last,)).fetchall()
    if verb == "retry_jobs":  # the cancelled one too
        assert [event for event, _ in written] == [expected, expected]
    else:
        assert [event for event, _ in written] == ([expected] if expected else [])
    assert not any("via" in (detail or {}) for _, detail in written)
    # The caller's own statements in the same transaction are by hand.
    assert scalar(conn, "select coalesce(current_setting('jobq.via', true), '')") == ""
    conn.execute("update jobq.jobs set max_attempts = 77 where id = %s", (other,))
    assert events(conn, other)[-1]["detail"] == {"via": "by hand", "max_attempts": 77}
    assert scalar(conn, "select count(*) from jobq.verify()") == 0


@pytest.mark.parametrize(
    "mistake",
    [
        "select jobq.enqueue('')",
        'select jobq.enqueue_many(\'[{"kind": ""}]\')',
        'select jobq.settle(\'[{"job_id": 1, "outcome": "?"}]\')',
        "select jobq.claim('w'), 1 / 0",
        "select jobq.clone(%(queued)s), 1 / 0",
        "select jobq.retry(%(failed)s), 1 / 0",
    ],
)
def test_the_cause_of_a_failed_call_does_not_outlive_its_savepoint(
    connect: Callable[..., Connection], mistake: str
) -> None:
    conn = connect(autocommit=False)
    jobs = jobs_for_verbs(conn)
    with pytest.raises(psycopg.Error), conn.transaction():
        conn.execute(mistake.encode(), jobs)
    assert scalar(conn, "select coalesce(current_setting('jobq.via', true), '')") == ""
    conn.execute("update jobq.jobs set max_attempts = 77 where id = %s", (jobs["queued"],))
    assert events(conn, jobs["queued"])[-1]["detail"]["via"] == "by hand"


class TestActor:
    def test_it_is_the_role_that_logged_in(
        self, conn: Connection, connect: Callable[..., Connection], make_role: Callable[..., str]
    ) -> None:
        role = make_role()
        conn.execute("select jobq.grant_access(%s, 'producer')", (role,))
        job_id = enqueue(connect(user=role))
        assert events(conn, job_id)[0]["actor"] == role

    def test_it_is_the_role_that_was_set(
        self, conn: Connection, make_role: Callable[..., str]
    ) -> None:
        role = make_role()
        conn.execute("select jobq.grant_access(%s, 'producer')", (role,))
        conn.execute(f"set role {role}".encode())
        job_id = enqueue(conn)
        conn.execute("reset role")
        conn.execute("select jobq.cancel(%s)", (job_id,))
        me = scalar(conn, "select session_user")
        assert [event["actor"] for event in events(conn, job_id)] == [role, me]

    def test_what_a_client_claims_to_be_is_marked_as_a_claim(self, conn: Connection) -> None:
        conn.execute("select set_config('jobq.actor', %s, false)", ("alice" * 100,))
        job_id = enqueue(conn)
        conn.execute("set jobq.actor = ''")
        conn.execute("select jobq.cancel(%s)", (job_id,))
        me = scalar(conn, "select session_user")
        claimed, plain = (event["actor"] for event in events(conn, job_id))
        assert claimed == f"{me} (claims {('alice' * 100)[:200]})"
        assert plain == me


def plans_of(conn: Connection, statement: str) -> list[str]:
    """Run the statement and return the plans of it and of all that ran inside it."""
    notices: list[str] = []
    handler = lambda diag: notices.append(diag.message_primary or "")  # noqa: E731
    conn.add_notice_handler(handler)
    conn.execute("load 'auto_explain'")
    conn.execute("set auto_explain.log_min_duration = 0")
    conn.execute("set auto_explain.log_nested_statements = on")
    conn.execute("set auto_explain.log_level = notice")
    conn.execute(statement.encode())
    conn.execute("set auto_explain.log_min_duration = -1")
    conn.remove_notice_handler(handler)
    return [notice for notice in notices if "plan:" in notice]


def test_the_trigger_joins_by_hash_whatever_it_was_planned_for(conn: Connection) -> None:
    """A plan cached from one row would be a nested loop: quadratic for 50,000."""
    enqueue_many(conn, *({"kind": "k"} for _ in range(50_000)))
    one_id = scalar(conn, "select min(id) from jobq.jobs")
    for condition in (f"id = {one_id}", "true", f"id = {one_id}"):
        for plan in plans_of(
            conn, f"update jobq.jobs set max_attempts = max_attempts + 1 where {condition}"
        ):
            if "insert into jobq.job_events" in plan:
                assert re.search(r"Hash Cond: \((n.id = o.id|o.id = n.id)\)", plan), plan
                break
        else:
            pytest.fail("the trigger's plan was not logged")
    assert scalar(conn, "select count(*) from jobq.job_events") == 100_002


def test_events_of_many_claims_are_cheap_after_one_of_few(conn: Connection) -> None:
    enqueue_many(conn, *({"kind": "k", "payload": {"i": i}} for i in range(20_000)))
    assert len(claim(conn, "k")) == 1
    conn.execute("set statement_timeout = '20s'")
    assert len(claim(conn, "k", max_jobs=19_999)) == 19_999
    query = "select count(*) from jobq.job_events where event = 'claimed'"
    assert scalar(conn, query) == 20_000
