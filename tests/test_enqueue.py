"""Creating one job: defaults, refusals that leave nothing, times, idempotency keys, races."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from helpers import Connection, scalar
from psycopg.types.json import Jsonb

from ledger import (
    NO_PAYLOADS,
    assert_empty,
    enqueue,
    enqueue_row,
    events,
    job,
    refused,
)

THE_LAST_DAY = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)


def test_defaults_are_the_published_ones(conn: Connection) -> None:
    before = scalar(conn, "select clock_timestamp()")
    created = enqueue_row(conn, "mail", {})
    after = scalar(conn, "select clock_timestamp()")
    row = job(conn, created["job_id"])
    assert (created["created"], created["status"]) == (True, "queued")
    assert before <= row["created_at"] == row["available_at"] <= after
    expected = {
        "kind": "mail", "payload": {}, "status": "queued", "priority": 0, "attempt": 0,
        "max_attempts": 10, "retry_base_seconds": 15, "retry_cap_seconds": 3600,
        "lost_leases": 0, "idempotency_key": None,
    }  # fmt: skip
    assert {name: row[name] for name in expected} == expected
    (event,) = events(conn, created["job_id"])
    assert (event["event"], event["at"]) == ("enqueued", row["created_at"])


def test_every_argument_is_stored(conn: Connection) -> None:
    arguments: dict[str, Any] = {
        "priority": -100,
        "available_at": datetime(2100, 1, 1, tzinfo=UTC),
        "max_attempts": 2**31 - 1,
        "idempotency_key": "ü" * 256,
        "retry_base_seconds": 2**31 - 1,
        "retry_cap_seconds": 1,
    }
    payload = {"text": "ünï ☃ \U0001f600", "n": [1.5, None, True, {"": ""}]}
    row = job(conn, enqueue(conn, "ä" * 64, payload, **arguments))
    assert (row["kind"], row["payload"]) == ("ä" * 64, payload)
    assert {name: row[name] for name in arguments} == arguments
    assert scalar(conn, "select count(*) from jobq.verify()") == 0


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"kind": None}, "kind is missing"),
    ({"kind": ""}, "kind must be 1 to 128 bytes, not 0"),
    ({"kind": "ä" * 65}, "kind must be 1 to 128 bytes, not 130"),
    ({"priority": 101}, "priority must be between -100 and 100, not 101"),
    ({"priority": -101}, "not -101"),
    ({"priority": 2**31 - 1}, "not 2147483647"),
    ({"priority": None}, "priority must be between -100 and 100, not null"),
    ({"max_attempts": 0}, "max_attempts must be positive, not 0"),
    ({"max_attempts": -(2**31)}, "not -2147483648"),
    ({"max_attempts": None}, "max_attempts must be positive, not null"),
    ({"retry_base_seconds": 0}, "retry_base_seconds must be positive, not 0"),
    ({"retry_cap_seconds": None}, "retry_cap_seconds must be positive, not null"),
    ({"idempotency_key": ""}, "idempotency_key must be 1 to 512 bytes, not 0"),
    ({"idempotency_key": "ä" * 257}, "idempotency_key must be 1 to 512 bytes, not 514"),
    ({"available_at": "infinity"}, "available_at must be a time in the years 2000 to 9999"),
    ({"available_at": "-infinity"}, "not -infinity"),
    ({"available_at": "10000-01-01+00"}, "years 2000 to 9999"),
    ({"available_at": "294276-01-01+00"}, "years 2000 to 9999"),
    ({"delay": "8000 years"}, "delay is out of range: 8000 years"),
    ({"delay": "7999 years"}, "delay is out of range|years 2000 to 9999"),
    ({"delay": "178000000 years"}, "delay is out of range"),
    ({"delay": "1 s", "available_at": "2100-01-01+00"}, "available_at and delay exclude"),
    ({"payload": "x" * 16777216}, r"payload must be at most 16 MiB, not 167772\d\d bytes"),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "message"), REFUSED, ids=lambda value: str(value)[:40])
def test_an_invalid_job_is_refused_and_leaves_nothing(
    conn: Connection, arguments: dict[str, Any], message: str
) -> None:
    arguments = {"kind": "k", "payload": {}, **arguments}
    if isinstance(arguments["payload"], str):
        arguments["payload"] = {"a": arguments["payload"]}
    with refused("JQ001", message):
        enqueue_row(conn, **arguments)
    assert_empty(conn)
    enqueue(conn)


@pytest.mark.parametrize("payload", NO_PAYLOADS, ids=str)
def test_a_payload_that_is_no_object_is_refused_with_its_type(
    conn: Connection, payload: Any
) -> None:
    name = {list: "array", type(None): "null", str: "string", int: "number", bool: "boolean"}
    with refused("JQ001", f"payload must be a JSON object, not {name[type(payload)]}"):
        conn.execute("select jobq.enqueue('k', %s)", (Jsonb(payload),))
    with refused("JQ001", "payload must be a JSON object, not SQL null"):
        conn.execute("select jobq.enqueue('k', null)")
    assert_empty(conn)


@pytest.mark.parametrize(
    "payload", ['{"s": "a\\u0000b"}', '{"a\\u0000b": 1}', "{", "", '{"a": NaN}']
)
def test_json_that_no_server_can_store_is_a_typed_error(conn: Connection, payload: str) -> None:
    with refused("22P05" if "u0000" in payload else "22P02"):
        conn.execute("select jobq.enqueue('k', %s::jsonb)", (payload,))
    assert_empty(conn)
    enqueue(conn)


@pytest.mark.parametrize("size", [7_999, 8_000, 2**20])
@pytest.mark.parametrize("letter", ["x", "☃"])
def test_a_payload_of_any_size_is_announced_by_its_kind_alone(
    conn: Connection, connect: Callable[..., Connection], size: int, letter: str
) -> None:
    listener, kind = connect(), "ä" * 64
    assert scalar(listener, "select jobq.listen(%s)", [kind])
    payload = {"text": letter * size}
    job_id = enqueue(conn, kind, payload)
    assert job(conn, job_id)["payload"] == payload
    (notify,) = listener.notifies(timeout=20, stop_after=1)
    assert (notify.channel, notify.payload) == ("jobq", kind)


@pytest.mark.parametrize(
    "when", [{"delay": "-1 hour"}, {"delay": "-3000 years"}, {"delay": "0"},
             {"available_at": "2001-01-01+00"}, {"available_at": "0044-03-15+00 BC"}], ids=str
)  # fmt: skip
def test_the_past_means_now(conn: Connection, when: dict[str, str]) -> None:
    row = job(conn, enqueue(conn, **when))
    assert row["available_at"] == row["created_at"]


def test_the_last_time_that_counts_is_stored(conn: Connection) -> None:
    assert job(conn, enqueue(conn, available_at=THE_LAST_DAY))["available_at"] == THE_LAST_DAY


def test_a_day_of_delay_is_86400_seconds_in_any_session(conn: Connection) -> None:
    # A zone whose clock goes forward within the next day, whenever this runs.
    start, end = (datetime.now(UTC) + timedelta(hours=hours) for hours in (12, 400))
    zone = f"STD0DST-1,{start.timetuple().tm_yday - 1}/{start.hour},{end.timetuple().tm_yday - 1}/0"
    conn.execute("select set_config('timezone', %s, false)", (zone,))
    plain = scalar(conn, "select extract(epoch from now() + interval '1 day' - now())")
    assert plain == 82800
    row = job(conn, enqueue(conn, delay="1 day"))
    assert (row["available_at"] - row["created_at"]).total_seconds() == 86400


def test_time_goes_on_within_a_transaction(connect: Callable[..., Connection]) -> None:
    conn = connect(autocommit=False)
    began = scalar(conn, "select now()")
    first, second = (job(conn, enqueue(conn))["created_at"] for _ in range(2))
    assert began < first < second
