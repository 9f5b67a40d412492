"""Creating many jobs: all or nothing, refusals by ordinal, keys within and across batches."""

import random
from datetime import UTC, datetime
from typing import Any

import pytest
from helpers import Connection, scalar

from ledger import (
    NO_PAYLOADS,
    Row,
    assert_empty,
    enqueue,
    enqueue_many,
    events,
    job,
    refused,
    rows,
)


def ids(answer: list[Row]) -> list[int]:
    return [row["job_id"] for row in answer]


def test_an_empty_batch_is_no_job(conn: Connection) -> None:
    assert enqueue_many(conn) == []
    assert_empty(conn)


def test_defaults_are_those_of_a_single_job(conn: Connection) -> None:
    (answer,) = enqueue_many(conn, {"kind": "k"})
    assert (answer["ordinal"], answer["created"], answer["status"]) == (1, True, "queued")
    many, single = job(conn, answer["job_id"]), job(conn, enqueue(conn, "k"))
    own = {"id", "created_at", "available_at"}
    assert {k: v for k, v in many.items() if k not in own} == {
        k: v for k, v in single.items() if k not in own
    }
    assert many["created_at"] == many["available_at"]
    assert [event["event"] for event in events(conn, answer["job_id"])] == ["enqueued"]


def test_every_field_is_stored(conn: Connection) -> None:
    fields: Row = {
        "kind": "ä" * 64,
        "payload": {"text": "☃", "n": [1.5, None]},
        "priority": -100,
        "max_attempts": 2**31 - 1,
        "idempotency_key": "ü" * 256,
        "retry_base_seconds": 7,
        "retry_cap_seconds": 8,
    }
    (answer,) = enqueue_many(conn, {**fields, "available_at": "2100-01-01T02:00:00+02:00"})
    row = job(conn, answer["job_id"])
    assert {name: row[name] for name in fields} == fields
    assert row["available_at"] == datetime(2100, 1, 1, tzinfo=UTC)


def test_answers_and_ids_follow_the_order_of_the_elements(conn: Connection) -> None:
    batch: list[Row] = [{"kind": "k", "payload": {"i": i}} for i in range(200)]
    for i in random.Random(1).sample(range(200), 100):
        batch[i]["idempotency_key"] = str(i * 7919 % 200)
    answer = enqueue_many(conn, *batch)
    assert [row["ordinal"] for row in answer] == list(range(1, 201))
    assert ids(answer) == sorted(ids(answer))
    stored = {row["id"]: row["payload"]["i"] for row in rows(conn, "select * from jobq.jobs")}
    assert [stored[job_id] for job_id in ids(answer)] == list(range(200))
    assert scalar(conn, "select count(*) from jobq.verify()") == 0


@pytest.mark.parametrize(
    ("delay", "seconds"),
    [(90, 90), (0.25, 0.25), ("90", 90), ("1 day", 86400), ("PT1H", 3600), (-5, 0), (None, 0),
     (1e-9, 0), (86400.000001, 86400.000001)],
)  # fmt: skip
def test_a_delay_is_seconds_or_an_interval(conn: Connection, delay: Any, seconds: float) -> None:
    (answer,) = enqueue_many(conn, {"kind": "k", "delay": delay})
    row = job(conn, answer["job_id"])
    assert (row["available_at"] - row["created_at"]).total_seconds() == seconds


@pytest.mark.parametrize("jobs", ["null", "{}", '"x"', "1", "true", None])
def test_a_batch_that_is_no_array_is_refused(conn: Connection, jobs: str | None) -> None:
    with refused("JQ001", "jobs must be a JSON array of objects"):
        conn.execute("select jobq.enqueue_many(%s::jsonb)", (jobs,))


MALFORMED: list[tuple[Any, str]] = [
    *((value, "a job must be a JSON object, not") for value in (1, "x", None, [[{"kind": "k"}]])),
    ({}, "kind is missing"),
    ({"payload": {}}, "kind is missing"),
    ({"priority": 3, "idempotency_key": "a"}, "kind is missing"),
    ({"kind": None}, "kind must be a string, not null"),
    ({"kind": 5}, "kind must be a string, not 5"),
    ({"kind": {"a": 1}}, "kind must be a string"),
    ({"kind": ""}, "kind must be 1 to 128 bytes, not 0"),
    ({"kind": "ä" * 65}, "kind must be 1 to 128 bytes, not 130"),
    ({"kind": "k", "Priority": 5}, 'unknown field "Priority"; known are kind, payload, priority'),
    ({"kind": "k", "id": 5}, 'unknown field "id"'),
    ({"kind": "k", "": 5}, 'unknown field ""'),
    ({"kind": "k", "priority": "5"}, 'priority must be an integer, not "5"'),
    ({"kind": "k", "priority": 1.5}, r"priority must be an integer, not 1\.5"),
    ({"kind": "k", "priority": None}, "priority must be an integer, not null"),
    ({"kind": "k", "priority": True}, "priority must be an integer, not true"),
    ({"kind": "k", "priority": [5]}, r"priority must be an integer, not \[5\]"),
    ({"kind": "k", "priority": 101}, "priority must be between -100 and 100, not 101"),
    ({"kind": "k", "priority": 40000}, "priority must be between -100 and 100, not 40000"),
    ({"kind": "k", "priority": 10**30}, "priority must be an integer, not 1000"),
    ({"kind": "k", "max_attempts": 0}, "max_attempts must be positive, not 0"),
    ({"kind": "k", "max_attempts": None}, "max_attempts must be an integer, not null"),
    ({"kind": "k", "max_attempts": "3"}, 'max_attempts must be an integer, not "3"'),
    ({"kind": "k", "max_attempts": 2**31}, "max_attempts must be an integer, not 2147483648"),
    ({"kind": "k", "retry_base_seconds": 0}, "retry_base_seconds must be positive, not 0"),
    ({"kind": "k", "retry_cap_seconds": -1}, "retry_cap_seconds must be positive, not -1"),
    ({"kind": "k", "idempotency_key": ""}, "idempotency_key must be 1 to 512 bytes, not 0"),
    ({"kind": "k", "idempotency_key": 5}, "idempotency_key must be a string, not 5"),
    ({"kind": "k", "idempotency_key": "ä" * 257}, "must be 1 to 512 bytes, not 514"),
    ({"kind": "k", "available_at": "2100-01-01T00:00:00"}, "available_at must be a time with its"),
    ({"kind": "k", "available_at": "2100-01-01"}, "available_at must be a time with its"),
    ({"kind": "k", "available_at": "infinity"}, "available_at must be a time with its"),
    ({"kind": "k", "available_at": "tomorrow"}, "available_at must be a time with its"),
    ({"kind": "k", "available_at": 4102444800}, "available_at must be a time with its"),
    ({"kind": "k", "available_at": "2100-13-01T00:00:00Z"}, "out of range"),
    ({"kind": "k", "available_at": "12000-01-01T00:00:00Z"}, "years 2000 to 9999"),
    ({"kind": "k", "delay": "soon"}, "invalid input syntax for type interval"),
    ({"kind": "k", "delay": True}, "delay must be a number of seconds or an interval, not true"),
    ({"kind": "k", "delay": "8000 years"}, "delay is out of range"),
    ({"kind": "k", "delay": 1e300}, "type interval"),
    ({"kind": "k", "delay": 5, "available_at": "2100-01-01T00:00:00Z"}, "exclude each other"),
    *(({"kind": "k", "payload": value}, "payload must be a JSON object") for value in NO_PAYLOADS),
    ({"kind": "k", "payload": {"a": "x" * 16777216}}, "payload must be at most 16 MiB"),
]  # fmt: skip


@pytest.mark.parametrize("with_keys", [False, True])
def test_a_malformed_element_is_named_and_the_batch_refused(
    conn: Connection, with_keys: bool
) -> None:
    good = {"kind": "k", **({"idempotency_key": "good"} if with_keys else {})}
    for element, message in MALFORMED:
        with refused("JQ001", f"invalid job 2 of the batch: .*{message}"):
            enqueue_many(conn, good, element, {"kind": ""})
        assert_empty(conn)
    enqueue_many(conn, good)


def test_json_with_a_nul_is_a_typed_error(conn: Connection) -> None:
    for text in ('"payload": {"s": "a\\u0000b"}', '"payload": {"a\\u0000b": 1}', '"a\\u0000": 1'):
        batch = '[{"kind": "k"}, {"kind": "k", ' + text + "}]"
        with refused("22P05"):
            conn.execute("select jobq.enqueue_many(%s::jsonb)", (batch,))
    assert_empty(conn)
    enqueue_many(conn, {"kind": "k"})
