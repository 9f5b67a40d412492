"""What the dashboard may do, and that what it does is on record and read anew."""

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
import streamlit as st
from helpers import Connection, scalar, wait_until
from psycopg.conninfo import make_conninfo

import actions
import data
import queries
from answering import Answering
from dashboards import Counted, grant
from data import Away
from jobq.errors import InvalidJob, JobNotFound
from ledger import job, job_in
from scale import Connect
from verbs import enqueue

MakeRole = Callable[..., str]


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch, dsn: str) -> Iterator[Callable[..., None]]:
    """Have the dashboard use the test's database, as this role; readings are for each look."""
    monkeypatch.delenv("JOB_DASHBOARD_READ_ONLY", raising=False)
    monkeypatch.setattr(data, "refresh_seconds", lambda: 0.001)

    def use_as(user: str | None = None) -> None:
        st.cache_resource.clear()
        target = make_conninfo(dsn, user=user, password="test") if user else dsn
        monkeypatch.setenv("DATABASE_URL", target)

    use_as()
    yield use_as
    st.cache_resource.clear()


class TestRights:
    @pytest.mark.parametrize(
        ("levels", "steer", "enqueue"),
        [
            (("reader",), False, False), (("reader", "producer"), False, True),
            (("operator", "producer"), True, True), (("operator",), True, False),
        ],
    )  # fmt: skip
    def test_they_are_what_the_database_granted(
        self,
        use: Callable[..., None],
        conn: Connection,
        make_role: MakeRole,
        levels: tuple[str, ...],
        steer: bool,
        enqueue: bool,
    ) -> None:
        role = grant(conn, make_role, *levels)
        use(role)
        found = data.rights()
        assert (found.steer, found.enqueue) == (steer, enqueue)
        if steer:
            assert found.reason is None
        else:
            assert f"`select jobq.grant_access('{role}', 'operator')`" in str(found.reason)

    def test_a_new_grant_is_noticed(
        self, use: Callable[..., None], conn: Connection, make_role: MakeRole
    ) -> None:
        role = grant(conn, make_role, "reader")
        use(role)
        assert not data.rights().steer
        conn.execute("select jobq.grant_access(%s, 'operator')", (role,))
        assert wait_until(data.rights).steer or wait_until(lambda: data.rights().steer)

    @pytest.mark.parametrize("text", ["1", "true", "YES", " on "])
    def test_a_dashboard_set_to_show_only_shows(
        self,
        use: Callable[..., None],
        conn: Connection,
        monkeypatch: pytest.MonkeyPatch,
        text: str,
    ) -> None:
        monkeypatch.setenv("JOB_DASHBOARD_READ_ONLY", text)
        found = data.rights()
        assert (found.steer, found.enqueue) == (False, False)
        assert "JOB_DASHBOARD_READ_ONLY" in str(found.reason)
        job_id = job_in(conn, "queued")
        with pytest.raises(Away, match="JOB_DASHBOARD_READ_ONLY"):
            data.act(actions.cancel, job_id)
        assert job(conn, job_id)["status"] == "queued"
        assert data.read(queries.where).problem is None

    def test_a_standby_only_shows(
        self, use: Callable[..., None], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        replica = data._GRANTED.replace("pg_is_in_recovery()", "true")
        monkeypatch.setattr(data, "_GRANTED", replica)
        assert data.rights() == data.Rights(
            steer=False,
            enqueue=False,
            reason="This database is a standby: nothing can be changed here.",
        )


class TestAct:
    def test_it_is_on_record_who_acted(
        self, use: Callable[..., None], conn: Connection, make_role: MakeRole
    ) -> None:
        role = grant(conn, make_role, "operator")
        use(role)
        job_id = enqueue(conn)
        assert data.act(actions.cancel, job_id) == "cancelled"
        actor = "select actor from jobq.job_events where event = 'cancelled'"
        assert scalar(conn, actor) == f"{role} (claims dashboard)"

    def test_it_is_the_viewer_where_one_has_logged_in(
        self, use: Callable[..., None], conn: Connection, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        job_id = enqueue(conn)
        monkeypatch.setattr(st, "user", {"email": "ada@example.org", "name": "Ada"})
        data.act(actions.cancel, job_id)
        actor = "select actor from jobq.job_events where event = 'cancelled'"
        assert scalar(conn, actor).endswith(" (claims dashboard: ada@example.org)")

    def test_the_actor_does_not_stay_with_the_connection(self, use: Callable[..., None]) -> None:
        data.act(actions.reap)
        query = "select current_setting('jobq.actor', true) as actor"
        assert data.look(lambda conn: conn.execute(query).fetchone()) in (
            {"actor": ""}, {"actor": None},
        )  # fmt: skip

    def test_what_is_read_after_it_is_new(
        self, use: Callable[..., None], conn: Connection, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(data, "refresh_seconds", lambda: None)
        job_id = enqueue(conn)
        before = data.read(queries.job, job_id).data
        assert before is not None
        data.act(actions.cancel, job_id)
        after = data.read(queries.job, job_id).data
        assert after is not None
        assert (before["status"], after["status"]) == ("queued", "cancelled")

    def test_a_refusal_is_a_typed_error_and_nothing_is_kept(
        self, use: Callable[..., None], conn: Connection
    ) -> None:
        with pytest.raises(JobNotFound):
            data.act(actions.cancel, 999)

        def half(conn: data.Connection) -> None:
            actions.enqueue(conn, "k", "{}", 0, 0, None, 10)
            actions.enqueue(conn, "", "{}", 0, 0, None, 10)

        with pytest.raises(InvalidJob):
            data.act(half)
        assert scalar(conn, "select count(*) from jobq.jobs") == 0

    def test_a_reader_is_refused_before_the_database_is_asked(
        self, use: Callable[..., None], conn: Connection, make_role: MakeRole
    ) -> None:
        use(grant(conn, make_role, "reader"))
        asked = Counted()
        with pytest.raises(Away, match="may read but not act"):
            data.act(asked)
        assert asked.calls == 0

    def test_a_producer_may_enqueue_and_is_told_what_steering_takes(
        self, use: Callable[..., None], conn: Connection, make_role: MakeRole
    ) -> None:
        role = grant(conn, make_role, "reader", "producer")
        use(role)
        assert data.act(actions.enqueue, "k", "{}", 0, 0, None, 10)["created"]
        with pytest.raises(Away, match=rf"grant_access\('{role}', 'operator'\)"):
            data.act(actions.cancel_jobs, {}, False)

    def test_a_connection_lost_meanwhile_leaves_open_whether_it_was_done(
        self, use: Callable[..., None], conn: Connection
    ) -> None:
        def interrupted(acting: data.Connection) -> None:
            pid = acting.info.backend_pid
            conn.execute("select pg_terminate_backend(%s, 10000)", (pid,))
            actions.reap(acting)

        with pytest.raises(Away, match="Whether this was done is not known"):
            data.act(interrupted)
        assert data.act(actions.reap) == 0, "the next one works"

    def test_two_viewers_do_not_wait_for_one_another(
        self, use: Callable[..., None], conn: Connection, connect: Connect
    ) -> None:
        job_id = enqueue(conn)
        holder = connect(autocommit=False)
        holder.execute("select from jobq.jobs for update")
        waiting = threading.Thread(target=data.act, args=(actions.cancel, job_id))
        waiting.start()
        wait_until(lambda: scalar(conn, "select count(*) from pg_locks where not granted"))
        assert data.look(queries.where)["role"]
        holder.rollback()
        waiting.join(30)
        assert job(conn, job_id)["status"] == "cancelled"


class TestApart:
    def test_one_at_a_time_and_not_from_the_pool(self, use: Callable[..., None]) -> None:
        query = Counted()
        query.go.clear()
        running = threading.Thread(target=data.look_apart, args=(60, query))
        running.start()
        wait_until(lambda: query.calls == 1)
        with pytest.raises(Away, match="one is running already"):
            data.look_apart(60, Counted())
        with ExitStack() as held:
            for _ in range(4):
                held.enter_context(data.source().connection())
        query.go.set()
        running.join(30)
        assert data.look_apart(60, query) == (2,)

    def test_it_may_take_its_time_and_one_that_fails_makes_room(
        self, use: Callable[..., None]
    ) -> None:
        with pytest.raises(Away, match="syntax error"):
            data.look_apart(60, lambda conn: conn.execute("selec"))
        shown = data.look_apart(60, lambda conn: conn.execute("show statement_timeout").fetchone())
        assert shown == {"statement_timeout": "1min"}
        with pytest.raises(Away, match="took longer than"):
            data.look_apart(1, lambda conn: conn.execute("select pg_sleep(60)"))


def test_a_look_at_a_database_that_hangs_ends(
    use: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    data.look(queries.where)
    monkeypatch.setattr(Answering, "patience", 0.5)
    with pytest.raises(Away, match="the database hangs: no answer for"):
        data.look(lambda conn: conn.execute("select pg_sleep(60)"))


def test_an_act_may_take_longer_than_a_look(
    use: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    data.rights()
    monkeypatch.setattr(Answering, "patience", 0.3)
    data.act(lambda conn: conn.execute("select pg_sleep(0.6)"))


def test_a_look_is_not_shared(use: Callable[..., None]) -> None:
    query = Counted()
    assert [data.look(query) for _ in range(2)] == [(1,), (2,)]
    with pytest.raises(Away, match="syntax error"):
        data.look(lambda conn: conn.execute("selec"))


def test_without_a_database_it_says_what_to_set(
    use: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DATABASE_URL")
    with pytest.raises(Away, match="no database: set DATABASE_URL"):
        data.read(queries.where)
