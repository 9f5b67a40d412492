"""Finding jobs: what is listed is what a filter matches, in order, page by page, and bounded."""

import json
import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from helpers import Connection, scalar

import search
from dashboards import Asking, asking, grant
from ledger import STATUSES, job_in, rows
from scale import Connect
from search import Search
from verbs import enqueue, outcome, run, settle

FINISHED = ("failed", "cancelled")


@pytest.fixture
def reader(conn: Connection, connect: Connect, make_role: Callable[..., str]) -> Asking:
    """The dashboard's connection, as a role with the level reader and nothing else."""
    return asking(connect, user=grant(conn, make_role, "reader"))


def pages(reader: Asking, wanted: Search, limit: int = 7) -> list[list[int]]:
    """The ids of all pages."""
    found: list[list[int]] = []
    after: tuple[Any, ...] | None = None
    while True:
        page = search.find(reader, wanted, after, limit)
        assert len(page["rows"]) <= limit
        found.append([row["id"] for row in page["rows"]])
        after = page["after"]
        if after is None:
            return found


def ids(reader: Asking, wanted: Search, limit: int = 50) -> list[int]:
    return [job_id for page in pages(reader, wanted, limit) for job_id in page]


KINDS = ["a", "b", "ä % _ '"]
KEYS = ["key 1", "key 2", "Key 1", "ключ"]
ERRORS = ["E: one", "Traceback (most recent call last):\n  f\nTimeout: 100 %", "ANGER"]
PAYLOADS = [{}, {"to": "x"}, {"to": "x", "n": 3}, {"list": [1, {"b": 2}]}, {"n": 3.5}]


def seeded(conn: Connection, jobs: int = 300) -> random.Random:
    """Random jobs of all statuses, with ties in every column that orders a list."""
    rnd = random.Random(4711)
    base = datetime(2026, 3, 1, tzinfo=UTC)
    keys = iter(KEYS)
    conn.execute("set session_replication_role = replica")
    for number in range(1, jobs + 1):
        status = rnd.choice(STATUSES)
        made = base + timedelta(seconds=number)
        end = base + timedelta(hours=rnd.randrange(5)) if status not in STATUSES[:2] else None
        values = {
            "id": number,
            "kind": rnd.choice(KINDS),
            "payload": json.dumps(rnd.choice(PAYLOADS)),
            "status": status,
            "priority": rnd.choice([-3, 0, 0, 7]),
            "created_at": made,
            "available_at": base + timedelta(hours=rnd.randrange(4)),
            "attempt": 0 if status == "queued" else 1,
            "idempotency_key": next(keys, None) if rnd.random() < 0.3 else None,
            "locked_by": rnd.choice(["w1", "w2"]) if status == "running" else None,
            "lease_token": "00000000-0000-0000-0000-000000000001" if status == "running" else None,
            "lease_expires_at": base if status == "running" else None,
            "started_at": None if status == "queued" else base,
            "finished_at": end,
            "last_error": None if status == "succeeded" else rnd.choice([None, *ERRORS]),
        }
        names = ", ".join(values)
        places = ", ".join(f"%({name})s" for name in values)
        conn.execute(f"insert into jobq.jobs ({names}) values ({places})".encode(), values)
    conn.execute(
        "insert into jobq.job_events (job_id, id, at, event, to_status, attempt, actor)"
        " overriding system value"
        " select id, id, created_at, 'enqueued', 'queued', 0, 'x' from jobq.jobs"
    )
    conn.execute("set session_replication_role = origin")
    return rnd


def some_search(rnd: random.Random) -> Search:
    """One to four random fields."""
    base = datetime(2026, 3, 1, tzinfo=UTC)
    choices: dict[str, list[Any]] = {
        "status": list(STATUSES),
        "kind": [*KINDS, "none"],
        "key": [*KEYS, "none"],
        "payload": ['{"to": "x"}', '{"n": 3}', '{"list": [{"b": 2}]}', "{}", '{"n": 3.50}'],
        "error": ["e: ONE", "timeout: 100 %", "anger", "%", "\n", "none", "o"],
        "worker": ["w1", "w2", "none"],
        "priority": [-3, 0, 7, 8, 1000],
        "created_after": [base + timedelta(seconds=n) for n in (-5, 0, 100, 250, 999)],
        "created_before": [base + timedelta(seconds=n) for n in (0, 101, 300.5, 999)],
        "job_id": [1, 7, 300, 301, 0, -1, 2**63 - 1],
    }
    names = rnd.sample(list(choices), rnd.choice([1, 1, 2, 2, 3, 4]))
    return Search(**{name: rnd.choice(choices[name]) for name in names})


def matched(conn: Connection, wanted: Search) -> set[int]:
    """The ids that the filter of the verbs for many matches; they leave out what has succeeded."""
    text = search.filter_text(wanted.filter())
    conn.execute("select jobq._check_filter(%s)", (text,))
    query = "select jobq._matching(%s, '{queued,running,failed,cancelled}', null)"
    return {row[0] for row in conn.execute(query, (text,))}


def expected(conn: Connection, wanted: Search) -> list[int]:
    """The same by hand, of all statuses, in the order of the list."""

    def holds(row: Any) -> bool:
        given = {name: value for name, value in vars(wanted).items() if value is not None}
        tests: dict[str, Callable[[Any], bool]] = {
            "status": lambda v: row["status"] == v,
            "kind": lambda v: row["kind"] == v,
            "key": lambda v: row["idempotency_key"] == v,
            "payload": lambda v: contains(row["payload"], json.loads(v)),
            "error": lambda v: v.lower() in (row["last_error"] or "").lower(),
            "worker": lambda v: row["locked_by"] == v,
            "priority": lambda v: row["priority"] == v,
            "created_after": lambda v: row["created_at"] >= v,
            "created_before": lambda v: row["created_at"] < v,
            "job_id": lambda v: row["id"] == v,
        }
        return all(tests[name](value) for name, value in given.items())

    found = [row for row in rows(conn, "select * from jobq.jobs") if holds(row)]
    if wanted.status == "queued" and wanted.worker is None:
        key = ("available_at", "created_at", "id")
        found.sort(key=lambda r: (-r["priority"], *(r[name] for name in key)))
    elif wanted.status in FINISHED and wanted.worker is None:
        found.sort(key=lambda r: (r["finished_at"], r["id"]), reverse=True)
    else:
        found.sort(key=lambda r: -int(r["id"]))
    return [row["id"] for row in found]


def contains(stored: Any, part: Any) -> bool:
    """What @> means, for what the tests store."""
    if isinstance(part, dict):
        return isinstance(stored, dict) and all(
            name in stored and contains(stored[name], value) for name, value in part.items()
        )
    if isinstance(part, list):
        return isinstance(stored, list) and all(
            any(contains(have, want) for have in stored) for want in part
        )
    return bool(stored == part)


def test_what_is_listed_is_what_the_filter_matches(reader: Asking, conn: Connection) -> None:
    rnd = seeded(conn)
    empty = 0
    for _ in range(400):
        wanted = some_search(rnd)
        found = ids(reader, wanted, rnd.choice([3, 50]))
        by_hand = expected(conn, wanted)
        assert found == by_hand, wanted
        finished = {
            job_id
            for (job_id,) in conn.execute("select id from jobq.jobs where status = 'succeeded'")
        }
        assert set(found) - finished == matched(conn, wanted), wanted
        empty += not found
    assert 50 < empty < 350, "some find something, some nothing"


@pytest.mark.parametrize("status", [None, *STATUSES])
def test_pages_meet_without_a_gap_or_a_repetition(
    reader: Asking, conn: Connection, status: str | None
) -> None:
    seeded(conn)
    for wanted in (Search(status=status), Search(status=status, kind="a")):
        whole = expected(conn, wanted)
        for limit in (1, 4, 50):
            found = pages(reader, wanted, limit)
            assert [job_id for page in found for job_id in page] == whole
            assert {len(page) for page in found[:-1]} <= {limit}


def test_each_order_says_what_it_is(reader: Asking) -> None:
    words = {status: search.find(reader, Search(status=status))["order"] for status in STATUSES}
    assert words["queued"] == "in the order of the queue"
    assert words["failed"] == words["cancelled"] == "the newest finish first"
    assert words["running"] == words["succeeded"] == "the newest job first"


def test_a_row_has_what_a_list_shows(reader: Asking, conn: Connection) -> None:
    failing = run(conn, kind="a", idempotency_key="k")
    settle(
        conn, outcome(failing, "failed", error="Traceback (most recent call last):\n  f\nE: x\n")
    )
    (row,) = search.find(reader, Search())["rows"]
    stored = scalar(conn, "select to_jsonb(j) from jobq.jobs j")
    assert row["error"] == "E: x"
    names = set(row) - {"error"}
    assert names == {
        "id", "kind", "status", "priority", "created_at", "available_at", "attempt", "max_attempts",
        "locked_by", "progress", "started_at", "finished_at", "idempotency_key",
        "lease_expires_at", "cancel_requested_at",
    }  # fmt: skip
    for name in names:
        value = row[name]
        expected = datetime.fromisoformat(stored[name]) if name.endswith("_at") and value else None
        assert value == (expected or stored[name]), name


def test_rows_by_id_come_in_the_order_asked_for(reader: Asking, conn: Connection) -> None:
    seeded(conn, 20)
    found = search.by_ids(reader, (7, 3, 999, 12, 3))
    assert [row["id"] for row in found] == [7, 3, 12, 3]
    assert search.by_ids(reader, ()) == []
    assert found[0] == search.find(reader, Search(job_id=7))["rows"][0]


def test_nothing_of_a_search_is_interpreted(reader: Asking, conn: Connection) -> None:
    job_id = enqueue(conn, "%s'; drop table x --", {"a": "%(b)s"}, idempotency_key="100 %")
    for wanted in (Search(kind="%s'; drop table x --"), Search(key="100 %"),
                   Search(payload='{"a": "%(b)s"}')):  # fmt: skip
        assert ids(reader, wanted) == [job_id]


def test_a_job_that_finished_meanwhile_does_not_break_the_next_page(
    reader: Asking, conn: Connection
) -> None:
    for _ in range(6):
        job_in(conn, "failed")
    first = search.find(reader, Search(status="failed"), None, 3)
    job_in(conn, "failed")
    second = search.find(reader, Search(status="failed"), first["after"], 3)
    shown = [row["id"] for row in first["rows"] + second["rows"]]
    assert shown == [6, 5, 4, 3, 2, 1]
