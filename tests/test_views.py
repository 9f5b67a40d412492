"""Views for readers: their columns, and that no lease token is in any of them."""

from collections.abc import Callable
from typing import Any

import pytest
from helpers import Connection, scalar, wait_until

from jobq import App
from ledger import Row, claim, enqueue, job, job_in, rows
from workers import running

COLUMNS = {
    "job_details": "id kind payload status priority created_at available_at attempt max_attempts"
    " retry_base_seconds retry_cap_seconds idempotency_key locked_by lease_expires_at lost_leases"
    " cancel_requested_at progress started_at finished_at result last_error",
    "job_timeline": "job_id id at event from_status to_status attempt worker actor detail",
    "kinds": "kind queued due running oldest_available_at",
    "sessions": "pid worker purpose threads application_name idle kind_keys kinds",
    "workers": "worker running expired oldest_start next_lease_end",
}


def test_views_have_the_published_columns(conn: Connection) -> None:
    query = (
        "select c.relname, string_agg(a.attname, ' ' order by a.attnum) as columns"
        " from pg_class c join pg_attribute a on a.attrelid = c.oid"
        " where c.relnamespace = 'jobq'::regnamespace and c.relkind = 'v' and a.attnum > 0"
        " group by c.relname"
    )
    assert {row["relname"]: row["columns"] for row in rows(conn, query)} == COLUMNS


def test_no_view_and_no_event_shows_a_token(
    conn: Connection, connect: Callable[..., Connection], make_role: Callable[..., str]
) -> None:
    job_id = job_in(conn, "running")
    tokens = {str(job(conn, job_id)["lease_token"])}
    conn.execute("select jobq.report_progress(%s, %s, 0.5, 'half')", (job_id, *tokens))
    conn.execute("select jobq.log(%s, %s, 'info', 'hello')", (job_id, *tokens))
    conn.execute("select jobq.renew(array[%s], array[%s]::uuid[])", (job_id, *tokens))
    conn.execute("select jobq.cancel(%s)", (job_id,))
    conn.execute("select jobq.fail(%s, %s, 'broken')", (job_id, *tokens))
    other = job_in(conn, "running")
    tokens.add(str(job(conn, other)["lease_token"]))
    conn.execute("update jobq.jobs set lease_token = gen_random_uuid() where id = %s", (other,))
    tokens.add(str(job(conn, other)["lease_token"]))
    assert len(tokens) == 3
    role = make_role()
    conn.execute("select jobq.grant_access(%s, 'reader')", (role,))
    reader = connect(user=role)
    sources = [f"jobq.{view}" for view in COLUMNS]
    sources += ["jobq.stats()", f"jobq.explain({other})", "jobq.verify()"]
    sources += ["jobq.activity()", "jobq.runs()", "jobq.failures()"]
    for source in sources:
        shown = str(rows(reader, f"select to_jsonb(x)::text from {source} x"))
        assert not [token for token in tokens if token in shown], source
    stored = str(rows(conn, "select e::text from jobq.job_events e"))
    assert "half" in stored
    assert not [token for token in tokens if token in stored]


def test_details_and_timeline_show_what_is_stored(conn: Connection) -> None:
    job_id = job_in(conn, "failed", payload={"a": 1})
    row = job(conn, job_id)
    del row["lease_token"]
    assert rows(conn, "select * from jobq.job_details") == [row]
    stored = rows(conn, "select * from jobq.job_events order by job_id, id")
    assert rows(conn, "select * from jobq.job_timeline order by job_id, id") == stored


def test_kinds_count_what_waits_and_what_runs(conn: Connection) -> None:
    for delay in ("0", "0", "0", "1 hour"):
        enqueue(conn, "a", delay=delay)
    job_in(conn, "succeeded")
    claim(conn, "a")
    (row,) = rows(conn, "select * from jobq.kinds")
    assert {k: v for k, v in row.items() if k != "oldest_available_at"} == {
        "kind": "a", "queued": 3, "due": 2, "running": 1,
    }  # fmt: skip
    oldest = scalar(conn, "select min(available_at) from jobq.jobs where status = 'queued'")
    assert row["oldest_available_at"] == oldest


def test_workers_show_their_claims_and_which_have_expired(conn: Connection) -> None:
    for _ in range(4):
        enqueue(conn, "a")
    claim(conn, worker="one", max_jobs=3)
    (late,) = claim(conn, worker="two")
    conn.execute("update jobq.jobs set lease_expires_at = created_at where id = %s", (late["id"],))
    query = "select worker, running, expired from jobq.workers order by worker"
    assert conn.execute(query).fetchall() == [("one", 3, 0), ("two", 1, 1)]


NOT_SHOWN = (None, None)


class TestSessions:
    """Who is connected: workers by the name of their sessions, others by the locks they hold."""

    @pytest.fixture
    def reader(self, conn: Connection, connect: Callable[..., Connection], make_role: Any) -> Any:
        role = make_role()
        conn.execute("select jobq.grant_access(%s, 'reader')", (role,))
        return connect(user=role)

    @staticmethod
    def of(reader: Connection, condition: str = "true") -> list[Row]:
        return rows(reader, f"select * from jobq.sessions where {condition} order by pid")

    def test_a_worker_is_known_by_name_and_one_session_tells_its_kinds(
        self, dsn: str, conn: Connection, reader: Connection
    ) -> None:
        app = App(dsn)
        for kind in ("mail", "ärger", "never enqueued"):
            app.job(kind)(lambda: None)
        for kind in ("mail", "ärger", "other"):
            enqueue(conn, kind, delay="1 hour")
        with running(app, dsn, name="host-1", threads=3):
            wait_until(lambda: self.of(reader, "idle"))
            found = self.of(reader)
            assert {row["purpose"] for row in found} >= {"calls", "listen"}
            assert {(row["worker"], row["threads"]) for row in found} == {("host-1", 3)}
            (listening,) = [row for row in found if row["kind_keys"]]
            assert listening["purpose"] == "listen"
            assert listening["kinds"] == ["mail", "ärger"], "as far as jobs tell their names"
            keys = "select array_agg(hashtext(k)) from unnest(%s::text[]) k"
            expected = scalar(conn, keys, ["mail", "ärger", "never enqueued"])
            assert sorted(listening["kind_keys"]) == sorted(expected)
        wait_until(lambda: self.of(reader) == [])

    def test_a_client_in_another_language_is_seen_by_its_locks(
        self, conn: Connection, connect: Callable[..., Connection], reader: Connection
    ) -> None:
        enqueue(conn, "k", delay="1 hour")
        client = connect(application_name="js")
        client.execute("select jobq.listen('{k}')")
        (found,) = self.of(reader)
        assert (found["pid"], found["application_name"]) == (client.info.backend_pid, "js")
        assert (found["worker"], found["purpose"], found["threads"]) == (None, None, None)
        assert (found["idle"], found["kinds"]) == (True, ["k"])
        client.execute("select jobq.unlisten()")
        (found,) = self.of(reader)
        assert (found["idle"], found["kinds"]) == (False, ["k"])
        client.execute("select pg_advisory_unlock_all()")
        assert self.of(reader) == []

    def test_other_sessions_and_other_locks_are_not_among_them(
        self,
        conn: Connection,
        connect: Callable[..., Connection],
        empty_dsn: str,
        reader: Connection,
    ) -> None:
        connect(application_name="jobq check x").execute("select pg_advisory_lock(1, 2)")
        enqueue(conn, "k")  # asks for the idle lock exclusively, and gives it back
        elsewhere = connect(empty_dsn, application_name="jobq listen host-9 threads=4")
        elsewhere.execute("select pg_advisory_lock_shared(1785815922, 7)")
        assert self.of(reader) == []

    def test_an_odd_name_cannot_break_the_view(
        self, connect: Callable[..., Connection], reader: Connection
    ) -> None:
        names = {
            "jobq listen a b threads=1 threads=2": ("a b threads=1", 2),
            "jobq calls  threads=07": ("", 7),
            "jobq listen x threads=99999999999": NOT_SHOWN,
        }
        for name, expected in names.items():
            client = connect(application_name=name)
            client.execute("select jobq.present('{k}')")
            (found,) = self.of(reader, f"pid = {client.info.backend_pid}")
            assert expected in ((found["worker"], found["threads"]), NOT_SHOWN)
            assert found["kinds"] == []
