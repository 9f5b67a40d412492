"""Keys in batches: repeats within and across them, conflicts, races, lock order."""

import threading
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from helpers import Connection, scalar, wait_for_lock_wait
from psycopg import IsolationLevel
from psycopg.types.json import Jsonb

from ledger import (
    Row,
    enqueue,
    enqueue_many,
    events,
    in_thread,
    job,
    job_in,
    pause_after_inserts,
    refused,
)


def keyed(*keys: str, **fields: Any) -> list[Row]:
    return [{"kind": "k", "idempotency_key": key, **fields} for key in keys]


def ids(answer: list[Row]) -> list[int]:
    return [row["job_id"] for row in answer]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"priority": 500}, "priority must be between -100 and 100, not 500"),
        ({"payload": []}, "payload must be a JSON object, not array"),
        ({"max_attempts": 0}, "max_attempts must be positive"),
        ({"priority": "5"}, "priority must be an integer"),
    ],
)
@pytest.mark.parametrize("taken", ["before", "within"])
def test_a_repeated_key_does_not_excuse_a_malformed_element(
    conn: Connection, fields: Row, message: str, taken: str
) -> None:
    first = keyed("a", "b") if taken == "within" else []
    for each in keyed("a", "b") if taken == "before" else []:
        enqueue(conn, **each)
    ordinal = len(first) + 1
    with refused("JQ001", f"invalid job {ordinal} of the batch: {message}"):
        enqueue_many(conn, *first, *keyed("b", **fields))


class TestIdempotencyKeys:
    def test_a_key_twice_in_a_batch_is_the_first_one(self, conn: Connection) -> None:
        answer = enqueue_many(conn, *keyed("b", "a", "b"), {"kind": "k"}, *keyed("a", "b"))
        first, second, *_ = ids(answer)
        assert ids(answer)[2:] == [first, answer[3]["job_id"], second, first]
        assert [row["created"] for row in answer] == [True, True, False, True, False, False]
        assert scalar(conn, "select count(*) from jobq.jobs") == 3
        assert scalar(conn, "select count(*) from jobq.job_events") == 3

    def test_a_stored_key_is_that_job_untouched(self, conn: Connection) -> None:
        held = job_in(conn, "succeeded", idempotency_key="a")
        row, history = job(conn, held), events(conn, held)
        batch = keyed("b", "a", kind=row["kind"])
        answer = enqueue_many(conn, *batch)
        assert [(r["created"], r["status"]) for r in answer] == [
            (True, "queued"),
            (False, "succeeded"),
        ]
        assert answer[1]["job_id"] == held
        assert (job(conn, held), events(conn, held)) == (row, history)

    @pytest.mark.parametrize("other", [{"kind": "other"}, {"payload": {"a": 2}}])
    @pytest.mark.parametrize("taken", ["before", "within"])
    def test_another_kind_or_payload_is_a_conflict_by_ordinal(
        self, conn: Connection, other: Row, taken: str
    ) -> None:
        batch = [{"kind": "k"}, *keyed("x")]
        if taken == "before":
            held = enqueue(conn, idempotency_key="a")
        else:
            batch += keyed("a")
        count = scalar(conn, "select count(*) from jobq.job_events")
        message = f"job {len(batch) + 1} of the batch: idempotency key 'a' belongs to job"
        with refused("JQ002", message):
            enqueue_many(conn, *batch, *keyed("a", **other))
        assert scalar(conn, "select count(*) from jobq.job_events") == count
        if taken == "before":
            assert job(conn, held)["kind"] == "k"

    def test_batches_in_opposite_orders_do_not_deadlock(self, dsn: str, conn: Connection) -> None:
        keys = [f"key {number}" for number in range(300)]
        for turn in range(5):
            batch = [f"{turn} {key}" for key in keys]
            gate = threading.Barrier(4)

            def produce(order: list[str], gate: threading.Barrier = gate) -> dict[str, int]:
                with psycopg.connect(dsn, autocommit=True) as own:
                    gate.wait(30)
                    return dict(zip(order, ids(enqueue_many(own, *keyed(*order))), strict=True))

            orders = [batch, batch[::-1], batch, batch[::-1]]
            calls = [in_thread(produce, order) for order in orders]
            answers = [call.result(60) for call in calls]
            assert all(answer == answers[0] for answer in answers)
        assert scalar(conn, "select count(*) from jobq.jobs") == 1500

    def test_the_lock_order_is_that_of_the_keys(
        self, conn: Connection, connect: Callable[..., Connection]
    ) -> None:
        """Holding a key in the middle, the batch has inserted what sorts before it, no more."""
        holder, producer = connect(autocommit=False), connect(autocommit=False)
        enqueue(holder, idempotency_key="M")
        waiting = in_thread(lambda: enqueue_many(producer, *keyed("a", "z", "M", "Z", "A")))
        wait_for_lock_wait(conn, producer.info.backend_pid)
        free, taken = (enqueue_within(conn, key) for key in ("Z", "A"))
        assert (free, taken) == (True, False)
        holder.rollback()
        assert [row["created"] for row in waiting.result(30)] == [True] * 5
        producer.commit()

    @pytest.mark.parametrize("ending", ["commit", "rollback"])
    def test_a_key_being_taken_is_waited_for(
        self, conn: Connection, connect: Callable[..., Connection], ending: str
    ) -> None:
        first, second = connect(autocommit=False), connect()
        held = enqueue(first, idempotency_key="b")
        waiting = in_thread(lambda: enqueue_many(second, *keyed("c", "b", "a")))
        wait_for_lock_wait(conn, second.info.backend_pid)
        first.execute(ending.encode())
        answer = waiting.result(30)
        assert [row["created"] for row in answer] == [True, ending == "rollback", True]
        assert (answer[1]["job_id"] == held) is (ending == "commit")
        assert scalar(conn, "select count(*) from jobq.jobs") == 3

    def test_a_holder_that_is_purged_meanwhile_is_replaced(
        self, conn: Connection, connect: Callable[..., Connection]
    ) -> None:
        held = job_in(conn, "succeeded", idempotency_key="b")
        kind = job(conn, held)["kind"]
        pause_after_inserts(conn)
        purger, producer = connect(), connect()
        # The second insert is that of the jobs with keys.
        purger.execute("select pg_advisory_lock(2)")
        waiting = in_thread(lambda: enqueue_many(producer, *keyed("a", "b", kind=kind)))
        wait_for_lock_wait(conn, producer.info.backend_pid)
        assert scalar(purger, "select jobq.purge('0.001 s')") == 1
        purger.execute("select pg_advisory_unlock(2)")
        answer = waiting.result(30)
        assert [row["created"] for row in answer] == [True, True]
        assert held not in ids(answer)
        assert scalar(conn, "select count(*) from jobq.jobs") == 2

    @pytest.mark.parametrize("level", [IsolationLevel.REPEATABLE_READ, IsolationLevel.SERIALIZABLE])
    def test_a_stricter_transaction_gets_the_job_or_a_serialization_failure(
        self, conn: Connection, connect: Callable[..., Connection], level: IsolationLevel
    ) -> None:
        late = connect(autocommit=False)
        late.isolation_level = level
        late.execute("select 1 from jobq.jobs")
        held = enqueue(conn, idempotency_key="b")
        with refused("40001"):
            enqueue_many(late, *keyed("a", "b"))
        late.rollback()
        answer = enqueue_many(late, *keyed("a", "b"))
        late.commit()
        assert [row["created"] for row in answer] == [True, False]
        assert answer[1]["job_id"] == held


def enqueue_within(conn: Connection, key: str) -> bool:
    """Whether the key can be taken without waiting; takes nothing."""
    with conn.transaction(force_rollback=True):
        conn.execute("set local lock_timeout = '50ms'")
        try:
            with conn.transaction():
                enqueue(conn, idempotency_key=key)
        except psycopg.errors.LockNotAvailable:
            return False
        return True


def test_a_large_batch_with_keys_is_not_quadratic(conn: Connection) -> None:
    conn.execute("set statement_timeout = '30s'")
    batch = [{"kind": "k", "idempotency_key": str(i), "payload": {"i": i}} for i in range(20_000)]
    first = conn.execute("select count(*) from jobq.enqueue_many(%s)", (Jsonb(batch),)).fetchone()
    again = scalar(
        conn, "select count(*) filter (where not created) from jobq.enqueue_many(%s)", Jsonb(batch)
    )
    assert (first, again) == ((20_000,), 20_000)
