"""The dashboard's verbs: they do what the functions do, and refuse in words fit for people."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from helpers import Connection, scalar

import actions
from dashboards import Asking, asking, grant, in_hand_of
from jobq.errors import (
    IdempotencyConflict,
    IllegalTransition,
    InvalidArgument,
    InvalidJob,
    JobNotFound,
)
from ledger import STATUSES, job, job_in, names_of_events
from scale import Connect
from search import Search
from verbs import assert_consistent, enqueue, enqueue_many, expire, run


@pytest.fixture
def acting(conn: Connection, connect: Connect, make_role: Callable[..., str]) -> Asking:
    """The dashboard's connection, as a role that may steer and enqueue."""
    return asking(connect, user=grant(conn, make_role, "producer", "operator"))


def test_retry_and_cancel_tell_the_new_status(acting: Asking, conn: Connection) -> None:
    failed, queued, running = (job_in(conn, status) for status in ("failed", "queued", "running"))
    assert actions.retry(acting, failed) == "queued"
    assert actions.cancel(acting, queued) == "cancelled"
    assert actions.cancel(acting, running) == "running", "its worker is asked"
    assert job(conn, running)["cancel_requested_at"] is not None
    assert_consistent(conn)


@pytest.mark.parametrize("status", ["queued", "running", "succeeded"])
def test_a_retry_that_makes_no_sense_is_refused(
    acting: Asking, conn: Connection, status: str
) -> None:
    job_id = job_in(conn, status)
    before = job(conn, job_id)
    with pytest.raises(IllegalTransition, match=f"job {job_id} is {status}; only a failed or"):
        actions.retry(acting, job_id)
    assert job(conn, job_id) == before


def test_a_job_that_is_gone_is_said_to_be(acting: Asking) -> None:
    for verb in (actions.retry, actions.cancel):
        with pytest.raises(JobNotFound, match="no job 999\nIt was purged, or never existed"):
            verb(acting, 999)
    with pytest.raises(JobNotFound):
        actions.clone(acting, 999, "{}")


@pytest.mark.parametrize("status", STATUSES)
def test_a_clone_has_the_edited_payload_to_the_last_digit(
    acting: Asking, conn: Connection, status: str
) -> None:
    job_id = job_in(conn, status, payload={"n": 1}, priority=7, idempotency_key="key")
    text = '{"n": 123456789012345678901234567890}'
    new = job(conn, actions.clone(acting, job_id, text))
    stored = scalar(conn, "select payload::text from jobq.jobs where id = %s", new["id"])
    assert stored == text
    assert (new["status"], new["priority"], new["idempotency_key"]) == ("queued", 7, None)
    assert new["kind"] == job(conn, job_id)["kind"]


@pytest.mark.parametrize("text", ["", "{", "[1]", "null", "3", '{"a": "\\u0000"}', '{"a": NaN}'])
def test_a_payload_that_is_none_is_refused(acting: Asking, conn: Connection, text: str) -> None:
    job_id = enqueue(conn)
    with pytest.raises(InvalidJob):
        actions.clone(acting, job_id, text)
    with pytest.raises(InvalidJob):
        actions.enqueue(acting, "k", text, 0, 0, None, 10)
    assert scalar(conn, "select count(*) from jobq.jobs") == 1


class TestEnqueue:
    def test_a_job_is_as_it_was_asked_for(self, acting: Asking, conn: Connection) -> None:
        told = actions.enqueue(acting, "k", '{"a": 1}', -7, 90.5, "key", 3)
        row = job(conn, told["job_id"])
        assert told == {"job_id": row["id"], "created": True, "status": "queued"}
        assert (row["kind"], row["payload"], row["priority"]) == ("k", {"a": 1}, -7)
        assert (row["idempotency_key"], row["max_attempts"]) == ("key", 3)
        assert (row["available_at"] - row["created_at"]).total_seconds() == 90.5

    def test_the_same_key_gives_the_same_job(self, acting: Asking, conn: Connection) -> None:
        first = actions.enqueue(acting, "k", "{}", 0, 0, "key", 10)
        again = actions.enqueue(acting, "k", "{}", 5, 60, "key", 10)
        assert again == {**first, "created": False}
        with pytest.raises(IdempotencyConflict, match="key 'key' belongs to job"):
            actions.enqueue(acting, "k", '{"other": 1}', 0, 0, "key", 10)

    def test_no_key_is_no_key(self, acting: Asking, conn: Connection) -> None:
        for _ in range(2):
            assert actions.enqueue(acting, "k", "{}", 0, 0, "", 10)["created"]
        assert scalar(conn, "select count(idempotency_key) from jobq.jobs") == 0

    @pytest.mark.parametrize(
        ("changed", "says"),
        [
            ({"kind": ""}, "kind"), ({"kind": "x" * 129}, "kind"), ({"priority": 101}, "priority"),
            ({"max_attempts": 0}, "max_attempts"), ({"key": "k" * 513}, "idempotency_key"),
            ({"delay_seconds": 1e12}, "out of range"),
        ],
    )  # fmt: skip
    def test_it_is_refused_with_what_is_wrong(
        self, acting: Asking, conn: Connection, changed: dict[str, Any], says: str
    ) -> None:
        given = {
            "kind": "k", "payload_text": "{}", "priority": 0, "delay_seconds": 0, "key": None,
            "max_attempts": 10, **changed,
        }  # fmt: skip
        for verb in (actions.enqueue, actions.check):
            with pytest.raises(InvalidJob, match=says):
                verb(acting, **given)
        assert scalar(conn, "select count(*) from jobq.jobs") == 0

    def test_a_check_says_what_would_happen_and_leaves_nothing(
        self, acting: Asking, conn: Connection
    ) -> None:
        told = actions.check(acting, "k", "{}", 0, 0, "key", 10)
        assert (told["created"], told["status"]) == (True, "queued")
        assert scalar(conn, "select count(*) from jobq.jobs") == 0
        assert scalar(conn, "select count(*) from jobq.job_events") == 0
        done = actions.enqueue(acting, "k", "{}", 0, 0, "key", 10)
        assert actions.check(acting, "k", "{}", 0, 0, "key", 10) == {**done, "created": False}
        with acting.transaction():  # as data.act calls it
            assert actions.check(acting, "k", "{}", 0, 0, None, 10)["created"]
        assert scalar(conn, "select count(*) from jobq.jobs") == 1


class TestMany:
    def test_a_dry_run_counts_and_changes_nothing(self, acting: Asking, conn: Connection) -> None:
        for status in STATUSES:
            job_in(conn, status)
        before = [job(conn, n)["status"] for n in range(1, 6)]
        verbs: list[tuple[Callable[..., dict[str, Any]], tuple[int, ...], int]] = [
            (actions.retry_jobs, (), 2), (actions.cancel_jobs, (), 2),
            (actions.set_priority, (5,), 1), (actions.reschedule, (60,), 1),
        ]  # fmt: skip
        for verb, arguments, matched in verbs:
            told = verb(acting, {}, *arguments, True)
            assert (told["matched"], told["changed"], len(told["sample"])) == (matched, 0, matched)
        assert [job(conn, n)["status"] for n in range(1, 6)] == before

    def test_what_matches_is_changed(self, acting: Asking, conn: Connection) -> None:
        enqueue_many(conn, 3, "a")
        others = enqueue_many(conn, 2, "b")
        only = Search(kind="a").filter()
        assert actions.set_priority(acting, only, 5, False)["changed"] == 3
        assert actions.reschedule(acting, only, 3600, False)["changed"] == 3
        query = """
            select count(*) from jobq.jobs where kind = 'a' and priority = 5
            and available_at between now() + interval '59 min' and now() + interval '61 min'"""
        assert scalar(conn, query) == 3
        assert actions.cancel_jobs(acting, only, False)["changed"] == 3
        assert actions.retry_jobs(acting, only, False)["changed"] == 3
        assert [names_of_events(conn, job_id) for job_id in others] == [["enqueued"]] * 2
        assert_consistent(conn)

    def test_no_more_are_changed_than_max_jobs(self, acting: Asking, conn: Connection) -> None:
        enqueue_many(conn, 3)
        assert actions.set_priority(acting, {}, 5, False, 2)["changed"] == 2
        assert actions.reschedule(acting, {}, 3600, False, 2)["changed"] == 2
        assert actions.cancel_jobs(acting, {}, False, 2)["changed"] == 2
        assert actions.retry_jobs(acting, {}, False, 1)["changed"] == 1

    def test_a_payload_filter_keeps_its_digits(self, acting: Asking, conn: Connection) -> None:
        number = "123456789012345678901234567890.5"
        job_id = actions.enqueue(acting, "k", f'{{"n": {number}}}', 0, 0, None, 10)["job_id"]
        enqueue(conn, "k", {"n": float(number)})
        told = actions.cancel_jobs(acting, Search(payload=f'{{"n": {number}}}').filter(), True)
        assert told["sample"] == [job_id]

    @pytest.mark.parametrize("filter_", [{"no such field": 1}, {"kind": 3}, {"ids": ["x"]}])
    def test_a_filter_that_means_nothing_is_refused(
        self, acting: Asking, filter_: dict[str, Any]
    ) -> None:
        with pytest.raises(InvalidArgument, match="filter: "):
            actions.retry_jobs(acting, filter_, True)

    def test_a_priority_out_of_range_is_refused(self, acting: Asking) -> None:
        with pytest.raises(InvalidArgument, match="between -100 and 100"):
            actions.set_priority(acting, {}, 101, True)


def ago(days: float) -> datetime:
    return datetime.now(UTC) - timedelta(days=days)


def test_a_purge_takes_one_batch_of_what_is_old(acting: Asking, conn: Connection) -> None:
    for status in STATUSES:
        job_in(conn, status)
    conn.execute("alter table jobq.jobs disable trigger user")
    back = "update jobq.jobs set created_at = created_at - %s::interval"
    conn.execute(back, ("20 days",))
    conn.execute("update jobq.jobs set finished_at = finished_at - interval '10 days'")
    conn.execute("alter table jobq.jobs enable trigger user")
    final = ("succeeded", "failed", "cancelled")
    assert actions.purge(acting, ago(11), final) == (0, "")
    assert actions.purge(acting, ago(9.5), ("failed",)) == (1, "")
    assert actions.purge(acting, ago(9.5), final) == (2, "")
    with pytest.raises(InvalidArgument):
        actions.purge(acting, ago(9.5), ("queued",))
    with pytest.raises(InvalidArgument):
        actions.purge(acting, ago(-1), ("failed",))


def test_a_purge_goes_on_from_where_it_ended_and_another_begins_anew(
    acting: Asking, conn: Connection, connect: Connect
) -> None:
    jobs = [job_in(conn, "failed") for _ in range(4)]
    conn.execute("alter table jobq.jobs disable trigger user")
    conn.execute("""
        update jobq.jobs set created_at = created_at - interval '99 days',
          finished_at = finished_at - make_interval(days => case id % 2 when 1 then 20 else 40 end)
        """)
    conn.execute("alter table jobq.jobs enable trigger user")
    deleted, place = actions.purge(acting, ago(30), ("failed",), 1)
    assert (deleted, place) == (1, f"{{failed}} {jobs[1]}")
    other = asking(connect)
    assert actions.purge(other, ago(30), ("failed",), 1, place) == (1, f"{{failed}} {jobs[3]}")
    # In both sessions the last batch was a full one.
    assert actions.purge(other, ago(7), ("failed",), 1)[0] == 1
    assert actions.purge(acting, ago(7), ("failed",), 1)[0] == 1
    assert scalar(conn, "select count(*) from jobq.jobs") == 0


def test_a_reap_takes_back_what_nobody_holds(acting: Asking, conn: Connection) -> None:
    expire(conn, run(conn, kind="a"), run(conn, kind="b"))
    in_hand_of(conn, "w", "c", 1)
    assert actions.reap(acting) == 2
    assert actions.reap(acting) == 0


def test_a_reader_may_do_none_of_it(
    conn: Connection, connect: Connect, make_role: Callable[..., str]
) -> None:
    reader = asking(connect, user=grant(conn, make_role, "reader"))
    job_id = enqueue(conn)
    verbs: list[tuple[Callable[..., Any], tuple[Any, ...]]] = [
        (actions.cancel, (job_id,)), (actions.retry, (job_id,)), (actions.clone, (job_id, "{}")),
        (actions.cancel_jobs, ({}, True)), (actions.purge, (ago(1), ("failed",))),
        (actions.reap, ()),
        (actions.enqueue, ("k", "{}", 0, 0, None, 10)),
    ]  # fmt: skip
    for verb, arguments in verbs:
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            verb(reader, *arguments)
    assert job(conn, job_id)["status"] == "queued"
