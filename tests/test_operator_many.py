"""Steering all jobs that match a filter: what matches, what is changed, what is refused."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from helpers import Connection, scalar

from ledger import job_in, refused
from verbs import (
    assert_consistent,
    claim,
    enqueue,
    enqueue_many,
    events_of,
    job_row,
    outcome,
    rows,
    run,
    settle,
    status_of,
)

VERBS = {
    "retry_jobs": "select * from jobq.retry_jobs(%s",
    "cancel_jobs": "select * from jobq.cancel_jobs(%s",
    "set_priority": "select * from jobq.set_priority(%s, 9",
    "reschedule": "select * from jobq.reschedule(%s, delay => '1 hour'",
}


def call(conn: Connection, verb: str, filter: Any, **options: object) -> Any:
    """Call a verb for many; returns (matched, changed, sample)."""
    named = "".join(f", {name} => %s" for name in options)
    given = filter if isinstance(filter, str) or filter is None else json.dumps(filter)
    (row,) = rows(conn, f"{VERBS[verb]}{named})", given, *options.values())
    return row


def fresh_jobs(conn: Connection, verb: str, count: int) -> list[int]:
    """New jobs that the verb could change."""
    ids = enqueue_many(conn, count, "many")
    if verb == "retry_jobs":
        conn.execute('select count(*) from jobq.cancel_jobs(\'{"kind": "many"}\')')
    return ids


def test_filters_match_what_they_say(conn: Connection, subtests: pytest.Subtests) -> None:
    early = scalar(conn, "select clock_timestamp()")
    mail = enqueue(conn, "mail", {"to": "a", "list": [1, 2]}, priority=5, idempotency_key="Key 1")
    sms = enqueue(conn, "sms", {"to": "b"})
    failing = run(conn, kind="fax", payload={"to": "a"})
    settle(conn, outcome(failing, "failed", error="Line is BUSY: 100 %", retry_in_seconds=0))
    late = scalar(conn, "select clock_timestamp()")
    (running,) = claim(conn, 1, ["fax"], worker="host-7")
    fax = running.id
    now = scalar(conn, "select clock_timestamp()").isoformat()
    cases: list[tuple[dict[str, Any], set[int]]] = [
        ({}, {mail, sms, fax}),
        ({"ids": []}, set()),
        ({"ids": [mail, 999, -1, 2**63 - 1]}, {mail}),
        ({"ids": [mail, mail, sms]}, {mail, sms}),
        ({"ids": [mail, sms], "kind": "sms"}, {sms}),
        ({"key": "Key 1"}, {mail}),
        ({"key": "key 1"}, set()),
        ({"key": ""}, set()),
        ({"key": "Key 1", "ids": [mail, sms]}, {mail}),
        ({"key": "Key 1", "ids": [sms]}, set()),
        ({"key": "Key 1", "kind": "sms"}, set()),
        ({"kind": "mail"}, {mail}),
        ({"kind": ["sms", "fax", "x"]}, {sms, fax}),
        ({"kind": []}, set()),
        ({"kind": "%"}, set()),
        ({"status": "queued"}, {mail, sms}),
        ({"status": ["running"]}, {fax}),
        ({"status": "succeeded"}, set()),
        ({"priority": 5}, {mail}),
        ({"priority": 0.5}, set()),
        ({"priority": 1e300}, set()),
        ({"worker": "host-7"}, {fax}),
        ({"worker": "host-7", "status": "queued"}, set()),
        ({"worker": "host-7", "ids": [mail, fax]}, {fax}),
        ({"status": ["queued", "running"], "ids": [fax]}, {fax}),
        ({"status": "queued", "ids": [fax]}, set()),
        ({"error": "busy: 100 %"}, {fax}),
        ({"error": "b%y"}, set()),
        ({"payload": {"to": "a"}}, {mail, fax}),
        ({"payload": {"list": [2]}}, {mail}),
        ({"payload": {}}, {mail, sms, fax}),
        ({"created_before": early.isoformat()}, set()),
        ({"created_before": late.isoformat()}, {mail, sms, fax}),
        ({"created_after": late.isoformat()}, set()),
        ({"created_after": "2000-01-01T00:00:00Z"}, {mail, sms, fax}),
        ({"created_after": early.isoformat(), "created_before": now, "kind": "sms"}, {sms}),
        ({"kind": "mail", "status": "running"}, set()),
    ]
    for filter_, expected in cases:
        with subtests.test(filter=str(filter_)):
            answer = call(conn, "cancel_jobs", filter_, dry_run=True)
            assert (answer.matched, answer.changed) == (len(expected), 0)
            assert answer.sample == sorted(expected)
    assert {status_of(conn, job) for job in (mail, sms)} == {"queued"}


REFUSED: list[tuple[Any, str]] = [
    (None, "filter must be a JSON object"),
    ([], "filter must be a JSON object"),
    ("7", "filter must be a JSON object"),
    ({"id": 1}, 'filter: unknown field "id"'),
    ({"ids": 1}, "ids cannot be 1"),
    ({"ids": ["1"]}, "ids cannot be"),
    ({"ids": [None]}, "ids cannot be"),
    ({"ids": [1.5]}, "ids cannot be"),
    ({"ids": [1e30]}, "ids cannot be"),
    ({"key": 7}, "key cannot be 7"),
    ({"key": ["a"]}, "key cannot be"),
    ({"key": None}, "key cannot be null"),
    ({"kind": None}, "kind cannot be null"),
    ({"kind": 7}, "kind cannot be 7"),
    ({"kind": ["a", 7]}, "kind cannot be"),
    ({"status": "done"}, "status cannot be"),
    ({"status": [None]}, "status cannot be"),
    ({"status": {}}, "status cannot be"),
    ({"priority": "5"}, "priority cannot be"),
    ({"worker": None}, "worker cannot be null"),
    ({"created_before": "2030-01-01"}, "created_before cannot be"),
    ({"created_before": "2030-01-01T00:00:00"}, "created_before cannot be"),
    ({"created_before": "2030-13-01T00:00:00Z"}, "filter: date/time field value out of range"),
    ({"created_after": "nonsense:00Z"}, "filter: invalid input syntax"),
    ({"created_after": 7}, "created_after cannot be 7"),
    ({"error": ["x"]}, "error cannot be"),
    ({"payload": []}, "payload cannot be"),
    ({"payload": "x" * 500}, "payload cannot be"),
]


def test_filters_that_mean_nothing_are_refused_and_change_nothing(
    conn: Connection, subtests: pytest.Subtests
) -> None:
    job_id = enqueue(conn)
    for filter_, says in REFUSED:
        for verb in VERBS:
            with subtests.test(verb, filter=str(filter_)[:60]), refused("JQ006", says):
                call(conn, verb, filter_)
    for verb in VERBS:
        for most in (0, -1, None):
            with subtests.test(verb, max_jobs=most), refused("JQ006", "max_jobs must be"):
                call(conn, verb, {}, max_jobs=most)
    assert events_of(conn, job_id) == ["enqueued"]


@pytest.mark.parametrize("verb", VERBS)
def test_a_dry_run_counts_and_samples_and_changes_nothing(conn: Connection, verb: str) -> None:
    ids = fresh_jobs(conn, verb, 12)
    before = rows(conn, "select * from jobq.jobs order by id")
    answer = call(conn, verb, {}, dry_run=True)
    assert (answer.matched, answer.changed, answer.sample) == (12, 0, ids[:10])
    assert rows(conn, "select * from jobq.jobs order by id") == before


@pytest.mark.parametrize("verb", VERBS)
def test_locked_rows_are_counted_and_skipped_at_once(
    conn: Connection, connect: Callable[..., Connection], verb: str
) -> None:
    ids = fresh_jobs(conn, verb, 5)
    holder = connect(autocommit=False)
    holder.execute("select from jobq.jobs where id = any(%s) for update", (ids[:2],))
    conn.execute("set lock_timeout = '1 s'")
    answer = call(conn, verb, {})
    assert (answer.matched, answer.changed) == (5, 3)
    holder.rollback()
    assert call(conn, verb, {"ids": ids[:2]}).changed == 2
    assert_consistent(conn)


@pytest.mark.parametrize("verb", VERBS)
def test_calling_again_gets_to_all_of_them_in_the_end(
    conn: Connection, connect: Callable[..., Connection], verb: str
) -> None:
    ids = fresh_jobs(conn, verb, 7)
    holder = connect(autocommit=False)
    holder.execute("select from jobq.jobs where id = any(%s) for update", (ids[:3],))
    due = scalar(conn, "select clock_timestamp() + interval '1 day'")
    query = VERBS[verb].replace("delay => '1 hour'", f"available_at => '{due.isoformat()}'")
    changed = [rows(conn, f"{query}, max_jobs => 3)", "{}")[0].changed for _ in range(3)]
    assert changed == [3, 1, 0], "locked rows in front must not stand in the way"
    holder.rollback()
    answer = rows(conn, f"{query}, max_jobs => 9)", "{}")[0]
    assert (answer.matched, answer.changed) == (3, 3)
    assert rows(conn, f"{query})", "{}")[0].matched == 0


def test_cancel_ends_queued_jobs_and_asks_running_ones(conn: Connection) -> None:
    queued, running = enqueue(conn, "later", delay="1 h"), run(conn)
    done = job_in(conn, "succeeded")
    assert call(conn, "cancel_jobs", {}).changed == 2
    assert status_of(conn, queued) == "cancelled"
    assert job_row(conn, running.id).cancel_requested_at is not None
    assert (status_of(conn, running.id), status_of(conn, done)) == ("running", "succeeded")
    assert call(conn, "cancel_jobs", {}).matched == 0
    assert events_of(conn, running.id).count("cancel_requested") == 1
    assert_consistent(conn)


def test_retry_takes_failed_and_cancelled_jobs_only(conn: Connection) -> None:
    failed, cancelled = job_in(conn, "failed"), job_in(conn, "cancelled")
    exhausted = job_in(conn, "failed", max_attempts=1)
    others = [job_in(conn, status) for status in ("queued", "running", "succeeded")]
    before = [job_row(conn, job) for job in others]
    answer = call(conn, "retry_jobs", {}, extra_attempts=2)
    assert (answer.matched, answer.changed) == (3, 3)
    assert {status_of(conn, job) for job in (failed, cancelled, exhausted)} == {"queued"}
    assert job_row(conn, exhausted).max_attempts == 3
    assert [job_row(conn, job) for job in others] == before
    with refused("JQ006", "extra_attempts must be positive"):
        call(conn, "retry_jobs", {}, extra_attempts=0)
    assert_consistent(conn)


def test_a_new_priority_moves_queued_jobs_and_lines_them_up_anew(conn: Connection) -> None:
    first, second, running = enqueue(conn), enqueue(conn, delay="1 hour"), run(conn)
    due = job_row(conn, second).available_at
    answer = call(conn, "set_priority", {})
    assert (answer.matched, answer.changed) == (2, 2)
    assert job_row(conn, running.id).priority == 0
    moved, waits = job_row(conn, first), job_row(conn, second)
    assert (moved.priority, waits.priority) == (9, 9)
    assert moved.available_at > moved.created_at, "above the floor of every claimer"
    assert waits.available_at == due, "it is not due any sooner"
    assert events_of(conn, second) == ["enqueued", "changed"]
    for priority in (101, -101, None):
        with refused("JQ006", "priority must be between -100 and 100"):
            conn.execute("select * from jobq.set_priority('{}', %s)", (priority,))
    assert_consistent(conn)


def test_rescheduling_moves_queued_jobs_to_a_time(conn: Connection) -> None:
    job_id, due_already = enqueue(conn, delay="1 day"), enqueue(conn)
    place = job_row(conn, due_already).available_at
    at = scalar(conn, "select clock_timestamp() + interval '2 hours'")
    only = json.dumps({"ids": [job_id]})
    conn.execute("select * from jobq.reschedule(%s, %s)", (only, at))
    assert job_row(conn, job_id).available_at == at
    conn.execute("select * from jobq.reschedule('{}')")
    assert [job.id for job in claim(conn, 9)] == [due_already, job_id]
    assert job_row(conn, due_already).available_at == place, "a job due already keeps its place"
    assert_consistent(conn)


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ("available_at => 'infinity'", "JQ006"),
        ("available_at => '-infinity'", "JQ006"),
        ("available_at => '10000-01-01Z'", "JQ006"),
        ("delay => '9000 years'", "JQ001"),
        ("available_at => '2030-01-01Z', delay => '1 s'", "JQ001"),
    ],
)
def test_a_job_cannot_wait_for_an_impossible_time(
    conn: Connection, arguments: str, code: str
) -> None:
    job_id = enqueue(conn)
    with refused(code):
        conn.execute(f"select * from jobq.reschedule('{{}}', {arguments})".encode())
    assert events_of(conn, job_id) == ["enqueued"]
    past = "select changed from jobq.reschedule('{}', '2000-01-01Z')"
    assert scalar(conn, past) == 0, "the past means now, and it is due already"
