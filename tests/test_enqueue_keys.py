"""One key, one job: repeats, conflicts, races, stricter isolation."""

import random
import threading
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from helpers import Connection, scalar, wait_for_lock_wait
from psycopg import IsolationLevel

from ledger import (
    STATUSES,
    enqueue,
    enqueue_row,
    events,
    in_thread,
    job,
    job_in,
    pause_after_inserts,
    refused,
    rows,
)


class TestIdempotencyKey:
    @pytest.mark.parametrize("status", STATUSES)
    def test_a_repeat_returns_the_job_untouched(self, conn: Connection, status: str) -> None:
        job_id = job_in(conn, status, payload={"a": 1, "b": [2]}, idempotency_key="key")
        row, history = job(conn, job_id), events(conn, job_id)
        repeat = {"b": [2], "a": 1.0}
        again = enqueue_row(conn, row["kind"], repeat, idempotency_key="key", priority=9)
        assert again == {"job_id": job_id, "created": False, "status": status}
        assert (job(conn, job_id), events(conn, job_id)) == (row, history)

    @pytest.mark.parametrize(("kind", "payload"), [("k", {"a": 2}), ("other", {"a": 1})])
    def test_another_kind_or_payload_is_a_conflict(
        self, conn: Connection, kind: str, payload: dict[str, int]
    ) -> None:
        job_id = enqueue(conn, "k", {"a": 1}, idempotency_key="it's")
        with refused("JQ002", f"idempotency key 'it''s' belongs to job {job_id}, whose kind or"):
            enqueue(conn, kind, payload, idempotency_key="it's")
        assert len(events(conn, job_id)) == 1
        assert scalar(conn, "select count(*) from jobq.jobs") == 1

    def test_keys_differ_by_case_and_space(self, conn: Connection) -> None:
        keys = ["key", "Key", "key ", "ke\u0301y", "k\u00e9y"]
        assert len({enqueue(conn, idempotency_key=key) for key in keys}) == len(keys)

    def test_a_deleted_job_frees_its_key(self, conn: Connection) -> None:
        first = enqueue(conn, idempotency_key="key")
        conn.execute("delete from jobq.jobs")
        assert enqueue_row(conn, "other", {}, idempotency_key="key")["job_id"] > first

    def test_fifty_threads_with_one_key_make_one_job(self, dsn: str, conn: Connection) -> None:
        gate = threading.Barrier(50)

        def produce() -> Any:
            with psycopg.connect(dsn, autocommit=True) as own:
                gate.wait(30)
                return enqueue_row(own, "k", {"a": 1}, idempotency_key="key")

        answers = [call.result(60) for call in [in_thread(produce) for _ in range(50)]]
        assert len({answer["job_id"] for answer in answers}) == 1
        assert sorted(answer["created"] for answer in answers) == [False] * 49 + [True]
        assert scalar(conn, "select count(*) from jobq.jobs") == 1
        assert scalar(conn, "select count(*) from jobq.job_events") == 1

    @pytest.mark.parametrize("ending", ["commit", "rollback"])
    def test_a_second_producer_waits_for_the_first(
        self, conn: Connection, connect: Callable[..., Connection], ending: str
    ) -> None:
        first, second = connect(autocommit=False), connect()
        held = enqueue(first, idempotency_key="key")
        waiting = in_thread(lambda: enqueue_row(second, "k", {}, idempotency_key="key"))
        wait_for_lock_wait(conn, second.info.backend_pid)
        first.execute(ending.encode())
        answer = waiting.result(30)
        assert answer["created"] is (ending == "rollback")
        assert (answer["job_id"] == held) is (ending == "commit")
        assert len(events(conn, answer["job_id"])) == 1

    def test_a_holder_that_is_purged_meanwhile_is_replaced(
        self, conn: Connection, connect: Callable[..., Connection]
    ) -> None:
        held = job_in(conn, "succeeded", idempotency_key="key")
        kind = job(conn, held)["kind"]
        pause_after_inserts(conn)
        purger, producer = connect(), connect()
        purger.execute("select pg_advisory_lock(1)")
        waiting = in_thread(lambda: enqueue_row(producer, kind, {}, idempotency_key="key"))
        # The insert has met the key, and its holder goes before the look at it.
        wait_for_lock_wait(conn, producer.info.backend_pid)
        assert scalar(purger, "select jobq.purge('0.001 s')") == 1
        purger.execute("select pg_advisory_unlock(1)")
        answer = waiting.result(30)
        assert answer["created"] is True
        assert answer["job_id"] > held
        assert len(events(conn, answer["job_id"])) == 1


class TestStricterIsolation:
    @pytest.mark.parametrize("level", [IsolationLevel.REPEATABLE_READ, IsolationLevel.SERIALIZABLE])
    def test_a_key_taken_after_the_snapshot_is_a_serialization_failure(
        self, conn: Connection, connect: Callable[..., Connection], level: IsolationLevel
    ) -> None:
        late = connect(autocommit=False)
        late.isolation_level = level
        late.execute("select 1 from jobq.jobs")
        job_id = enqueue(conn, idempotency_key="key")
        with refused("40001"):
            enqueue(late, idempotency_key="key")
        late.rollback()
        again = enqueue_row(late, "k", {}, idempotency_key="key")
        assert again == {"job_id": job_id, "created": False, "status": "queued"}

    @pytest.mark.parametrize("level", [IsolationLevel.REPEATABLE_READ, IsolationLevel.SERIALIZABLE])
    def test_eight_threads_with_common_keys_make_one_job_a_key(
        self, dsn: str, conn: Connection, level: IsolationLevel
    ) -> None:
        keys = [f"key {number}" for number in range(20)]
        gate = threading.Barrier(8)

        def produce(seed: int) -> dict[str, int]:
            order = random.Random(seed).sample(keys, len(keys))
            found: dict[str, int] = {}
            with psycopg.connect(dsn) as own:
                own.isolation_level = level
                gate.wait(30)
                while len(found) < len(keys):
                    key = order[len(found)]
                    try:
                        found[key] = enqueue(own, "k", {"key": key}, idempotency_key=key)
                        own.commit()
                    except psycopg.errors.SerializationFailure:
                        found.pop(key, None)
                        own.rollback()
            return found

        threads = [in_thread(produce, seed) for seed in range(8)]
        answers = [thread.result(60) for thread in threads]
        stored = rows(conn, "select id, idempotency_key, payload from jobq.jobs")
        assert {row["idempotency_key"]: row["id"] for row in stored} == answers[0]
        assert len(stored) == len(keys)
        assert all(row["payload"] == {"key": row["idempotency_key"]} for row in stored)
        assert all(answer == answers[0] for answer in answers)
        assert scalar(conn, "select count(*) from jobq.job_events") == len(keys)
