"""What the dashboard shows of one job: every column, exact numbers, its events in pages."""

import json
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from helpers import Connection, scalar
from psycopg.rows import dict_row

import queries
from dashboards import Asking, asking, grant
from jobq.errors import translate
from ledger import job_in
from scale import Connect
from verbs import enqueue, outcome, run, settle

HUGE = '{"n": 123456789012345678901234567890, "f": 0.1000000000000000000001, "text": "<b>*x*"}'


@pytest.fixture
def reader(conn: Connection, connect: Connect, make_role: Callable[..., str]) -> Asking:
    """The dashboard's connection, as a role with the level reader and nothing else."""
    return asking(connect, user=grant(conn, make_role, "reader"))


def test_a_job_has_all_columns_but_its_token(reader: Asking, conn: Connection) -> None:
    job_id = job_in(conn, "failed", payload={"a": 1}, idempotency_key="key")
    with conn.cursor(row_factory=dict_row) as cursor:
        row: Any = cursor.execute("select * from jobq.jobs where id = %s", (job_id,)).fetchone()
    del row["lease_token"]
    found = queries.job(reader, job_id)
    assert found is not None
    assert abs((found.pop("now") - scalar(conn, "select now()")).total_seconds()) < 30
    assert (json.loads(found.pop("payload")), found.pop("result")) == ({"a": 1}, None)
    assert found == {name: row[name] for name in row if name not in ("payload", "result")}


def test_there_is_no_job_that_was_never_made(reader: Asking) -> None:
    for job_id in (0, -1, 999, 2**63 - 1):
        assert queries.job(reader, job_id) is None
        assert queries.timeline(reader, job_id) == {"rows": [], "more": False}
        with pytest.raises(psycopg.Error) as caught:
            queries.explain(reader, job_id)
        assert type(translate(caught.value)).__name__ == "JobNotFound"


def test_numbers_in_json_keep_every_digit(reader: Asking, conn: Connection) -> None:
    job = run(conn)
    conn.execute("update jobq.jobs set payload = %s where id = %s", (HUGE, job.id))
    conn.execute("select jobq.succeed(%s, %s, %s)", (job.id, job.lease_token, HUGE))
    found = queries.job(reader, job.id)
    assert found is not None
    for column in ("payload", "result"):
        assert '"n": 123456789012345678901234567890' in found[column]
        assert '"f": 0.1000000000000000000001' in found[column]
        assert found[column].count("\n") == 4, "one member a line"


def test_why_it_is_where_it_is(reader: Asking, conn: Connection) -> None:
    found = queries.explain(reader, enqueue(conn))
    assert [row["reason"] for row in found] == ["next", "no_worker_seen"]
    assert found[0]["message"] == "due, and first in the queue"
    assert all(isinstance(row["detail"], str) for row in found)


class TestTimeline:
    def test_events_come_oldest_first_with_everything_they_say(
        self, reader: Asking, conn: Connection
    ) -> None:
        conn.execute("select set_config('jobq.actor', 'me', false)")
        job = run(conn)
        settle(conn, outcome(job, "failed", error="E: <b>x</b>", retry_in_seconds=0))
        found = queries.timeline(reader, job.id)
        assert [row["event"] for row in found["rows"]] == ["enqueued", "claimed", "failed"]
        assert not found["more"]
        last = found["rows"][-1]
        assert (last["from_status"], last["to_status"], last["attempt"]) == ("running", "queued", 1)
        assert (last["worker"], last["actor"]) == ("worker-1", f"{conn.info.user} (claims me)")
        assert json.loads(last["detail"])["error"] == "E: <b>x</b>"
        at = scalar(conn, "select at from jobq.job_events where id = %s", last["id"])
        assert last["at"] == at

    def test_pages_meet_without_a_gap(self, reader: Asking, conn: Connection) -> None:
        job = run(conn)
        for number in range(20):
            conn.execute(
                "select jobq.log(%s, %s, 'info', %s)", (job.id, job.lease_token, str(number))
            )
        query = "select id from jobq.job_events where job_id = %s order by id"
        expected = [row[0] for row in conn.execute(query, (job.id,))]
        assert len(expected) == 22
        pages: list[int] = []
        before, more = None, True
        while more:
            page = queries.timeline(reader, job.id, before, 8)
            pages = [row["id"] for row in page["rows"]] + pages
            before, more = page["rows"][0]["id"], page["more"]
        assert pages == expected
        whole = queries.timeline(reader, job.id, None, 22)
        assert ([row["id"] for row in whole["rows"]], whole["more"]) == (expected, False)
