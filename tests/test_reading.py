"""Readings of the dashboard: shared, kept for their cost, there again after an outage."""

import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from time import monotonic
from typing import Any

import pytest
from conftest import chosen_binaries
from helpers import Connection, scalar, wait_until
from psycopg.conninfo import make_conninfo

import queries
import reading
from answering import Answering
from dashboards import Counted, grant
from jobq import embedded
from jobq.migrate import migrate
from proxy import Proxy
from reading import Away, Source

MakeRole = Callable[..., str]


@pytest.fixture
def source(dsn: str) -> Iterator[Source]:
    """A source of the test's own."""
    opened = Source(dsn)
    yield opened
    opened.close()


class TestReading:
    def test_what_one_read_all_see_until_it_is_old(
        self, source: Source, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        now = clock(monkeypatch)
        query = Counted()
        first = source.read(query, max_age=5)
        assert source.read(query, max_age=5) == first
        now[0] += 4.9
        assert source.read(query, max_age=5).data == (1,)
        now[0] += 0.2
        assert source.read(query, max_age=5).data == (2,)

    def test_each_argument_has_its_own(self, source: Source) -> None:
        query = Counted()
        found = [source.read(query, text, max_age=99).data for text in ("a", "b", "a")]
        assert found == [(1, "a"), (2, "b"), (1, "a")]

    def test_what_was_dear_is_kept_for_a_hundred_times_its_cost(
        self, source: Source, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        now = clock(monkeypatch)

        def dear(conn: Any) -> float:
            now[0] += 2
            return now[0]

        first = source.read(dear, max_age=1).data
        now[0] += 197
        assert source.read(dear, max_age=1).data == first
        now[0] += 4
        assert source.read(dear, max_age=1).data > first

    def test_one_reads_and_the_others_take_what_is_there(
        self, source: Source, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(reading, "SHARE", 0)
        query = Counted()
        first = source.read(query, max_age=0)
        query.go.clear()
        reader = threading.Thread(target=source.read, args=(query,), kwargs={"max_age": 0})
        reader.start()
        wait_until(lambda: query.calls == 2)
        assert source.read(query, max_age=0) == first, "it does not wait"
        query.go.set()
        reader.join(30)
        assert query.calls == 2

    def test_who_has_nothing_to_show_waits_for_the_one_that_reads(self, source: Source) -> None:
        query = Counted()
        query.go.clear()
        found: list[Any] = []
        threads = [
            threading.Thread(target=lambda: found.append(source.read(query, max_age=99).data))
            for _ in range(5)
        ]
        for thread in threads:
            thread.start()
        wait_until(lambda: query.calls == 1)
        query.go.set()
        for thread in threads:
            thread.join(30)
        assert found == [(1,)] * 5

    def test_after_an_act_nobody_is_shown_what_was_read_before_it(
        self, source: Source, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(reading, "SHARE", 0)
        query = Counted()
        source.read(query, max_age=99)
        source.forget()
        assert source.read(query, max_age=99).data == (2,)
        query.go.clear()
        under_way = threading.Thread(target=source.read, args=(query,), kwargs={"max_age": 0})
        under_way.start()
        wait_until(lambda: query.calls == 3)
        source.forget()  # the act commits while that reading is under way
        threading.Timer(0.05, query.go.set).start()
        assert source.read(query, max_age=99).data == (4,)
        under_way.join(30)

    def test_nor_while_somebody_reads_anew(
        self, source: Source, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        query = Counted()
        source.read(query, max_age=99)
        source.forget()
        query.go.clear()
        reader = threading.Thread(target=source.read, args=(query,), kwargs={"max_age": 99})
        reader.start()
        wait_until(lambda: query.calls == 2)
        threading.Timer(0.05, query.go.set).start()
        assert source.read(query, max_age=99).data == (2,)
        reader.join(30)

    def test_a_query_with_a_fault_does_not_block_the_next_one(self, source: Source) -> None:
        faults = iter([KeyError("a fault"), None])

        def faulty(conn: Any) -> str:
            fault = next(faults)
            if fault:
                raise fault
            return "well"

        with pytest.raises(KeyError):
            source.read(faulty, max_age=0)
        assert source.read(faulty, max_age=0).data == "well"

    def test_only_so_many_readings_are_kept(
        self, source: Source, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(reading, "MOST_READINGS", 3)
        query = Counted()
        for number in (1, 2, 3, 1, 4):
            source.read(query, number, max_age=99)
        assert source.read(query, 1, max_age=99).data == (1, 1)
        assert source.read(query, 2, max_age=99).data[0] == 5, "the one not asked for longest"

    def test_a_query_that_takes_too_long_leaves_the_last_data_and_is_not_repeated_at_once(
        self, source: Source, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        now, seconds, asked = clock(monkeypatch), [0.0], []

        def slow(conn: Any) -> str:
            asked.append(1)
            now[0] += 3
            conn.execute("set statement_timeout = '50 ms'")
            conn.execute("select pg_sleep(%s)", (seconds[0],))
            return "data"

        assert source.read(slow, max_age=1).problem is None
        now[0] += 1000
        seconds[0] = 60
        found = source.read(slow, max_age=1)
        assert (found.data, len(asked)) == ("data", 2)
        assert found.problem == "the query took longer than the dashboard allows"
        now[0] += 25
        source.read(slow, max_age=1)
        assert len(asked) == 2
        now[0] += 10
        source.read(slow, max_age=1)
        assert len(asked) == 3


def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that the test moves."""
    now = [1000.0]
    monkeypatch.setattr(reading, "monotonic", lambda: now[0])
    return now


class TestAway:
    def test_the_last_data_stay_while_the_server_is_away_and_it_comes_back_by_itself(
        self, durable_server: embedded.Server
    ) -> None:
        migrate(durable_server.dsn)
        source = Source(durable_server.dsn)
        first = source.read(queries.where, max_age=0)
        assert first.problem is None
        durable_server.stop()
        source.forget()
        away = source.read(queries.where, max_age=0)
        assert (away.data, away.at) == (first.data, first.at)
        assert away.problem is not None
        assert away.problem.startswith("the database is away: ")
        with pytest.raises(Away, match="the database is away"):
            source.read(queries.kinds, max_age=0)
        folder, binaries = durable_server.data_dir, chosen_binaries()
        with embedded.server(folder, binaries=binaries) as again:
            assert again.dsn == durable_server.dsn
            found = wait_until(lambda: healthy(source))
            assert found.at > first.at
            assert source.read(queries.kinds, max_age=0).data == []
            source.close()

    def test_who_finds_it_away_spares_the_others_the_wait(
        self, pg_server: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        now = clock(monkeypatch)
        nowhere = Source(make_conninfo(pg_server.dsn(), port=1))
        tried: list[int] = []
        connection = nowhere.connection

        def counted() -> Any:
            tried.append(1)
            return connection()

        monkeypatch.setattr(nowhere, "connection", counted)
        monkeypatch.setattr(nowhere._pool, "timeout", 0.2)
        for query in (queries.where, queries.kinds, queries.workers):
            with pytest.raises(Away, match="the database is away"):
                nowhere.read(query, max_age=5)
        assert len(tried) == 1
        now[0] += 2.1
        with pytest.raises(Away):
            nowhere.read(queries.verify, max_age=5)
        assert len(tried) == 2
        nowhere.close()

    def test_a_cut_connection_is_replaced_before_it_is_used(
        self, source: Source, conn: Connection
    ) -> None:
        with source.connection() as used:
            pid = used.info.backend_pid
        assert scalar(conn, "select pg_terminate_backend(%s, 10000)", pid)
        assert source.read(queries.where, max_age=0).problem is None

    def test_a_schema_that_does_not_fit_says_what_to_do(self, empty_dsn: str) -> None:
        source = Source(empty_dsn)
        source._pool.timeout = 0.5
        with pytest.raises(Away, match="no jobq schema: create it with `jobq migrate`"):
            source.read(queries.where, max_age=0)
        migrate(empty_dsn)
        wait_until(lambda: healthy(source))
        source.close()

    def test_a_role_without_rights_is_told_what_to_ask_for(
        self, dsn: str, conn: Connection, make_role: MakeRole
    ) -> None:
        role = grant(conn, make_role, "producer")
        source = Source(make_conninfo(dsn, user=role, password="test"))
        command = rf"select jobq\.grant_access\('{role}', 'reader'\)"
        with pytest.raises(Away, match=f"permission denied .*{command}"):
            source.read(queries.overview, max_age=0)
        source.close()


class TestHanging:
    """A server, a virtual machine or a pooler that stopped, and closes no connection."""

    @pytest.mark.timeout(60)
    @pytest.mark.parametrize("hangs_at", ["the query", "the check"])
    def test_it_is_said_beside_the_last_data_and_it_comes_back_by_itself(
        self, dsn: str, monkeypatch: pytest.MonkeyPatch, hangs_at: str
    ) -> None:
        with Proxy(dsn) as proxy:
            source = Source(proxy.dsn)
            first = source.read(queries.where, max_age=0)
            assert first.problem is None
            if hangs_at == "the query":
                monkeypatch.setattr(Answering, "patience", 1.0)
                proxy.swallow_reply_to(b"current_database")
            else:
                monkeypatch.setattr(reading, "REACH_SECONDS", 1.0)
                monkeypatch.setitem(reading._OPTIONS, "connect_timeout", 2)
                proxy.swallow_replies("jobq dashboard")
            source.forget()
            began = monotonic()
            found = source.read(queries.where, max_age=0)
            assert (found.data, found.at) == (first.data, first.at)
            said = {"the query": "hangs: no answer for 1 s", "the check": "is away: connection"}
            assert str(found.problem).startswith(f"the database {said[hangs_at]}")
            assert monotonic() - began < 12, "before the patience with a query is at an end"
            proxy.cut("jobq dashboard")
            assert wait_until(lambda: healthy(source)).at > first.at
            source.close()

    @pytest.mark.timeout(60)
    def test_one_that_lets_in_and_says_no_more_is_told_from_one_that_is_away(
        self, dsn: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(reading, "_prepare", lambda conn: conn.execute("select pg_sleep(99)"))
        monkeypatch.setattr(reading, "REACH_SECONDS", 1.0)
        source = Source(dsn)
        with pytest.raises(Away, match=r"the database hangs: no answer for \d s"):
            source.read(queries.where, max_age=0)
        source.close()

    @pytest.mark.timeout(60)
    def test_the_others_are_told_while_one_waits_for_the_answer(
        self, source: Source, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(reading, "SHARE", 0)
        monkeypatch.setattr(reading, "PATIENCE_SECONDS", 1.0)
        query = Counted()
        first = source.read(query, max_age=0)
        query.go.clear()
        reader = threading.Thread(target=source.read, args=(query,), kwargs={"max_age": 0})
        reader.start()
        wait_until(lambda: query.calls == 2)
        assert source.read(query, max_age=0).problem is None, "it may take a moment longer"
        found = wait_until(lambda: with_problem(source.read(query, max_age=0)))
        assert found.data == first.data
        assert str(found.problem).startswith("no answer for ")
        source.forget()
        found = source.read(query, max_age=0)
        assert found.data == first.data
        assert str(found.problem).startswith("no answer for ")
        query.go.set()
        reader.join(30)
        assert source.read(query, max_age=0) != first

    @pytest.mark.timeout(60)
    def test_who_has_nothing_to_show_does_not_wait_for_ever(
        self, source: Source, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(reading, "FIRST_SECONDS", 0.5)
        query = Counted()
        query.go.clear()
        reader = threading.Thread(target=source.read, args=(query,), kwargs={"max_age": 0})
        reader.start()
        wait_until(lambda: query.calls == 1)
        with pytest.raises(Away, match="no answer for "):
            source.read(query, max_age=0)
        query.go.set()
        reader.join(30)


def with_problem(found: Any) -> Any:
    """The reading, once it is one with a problem."""
    return found if found.problem else None


def healthy(source: Source) -> Any:
    """The reading, once it is one without a problem."""
    try:
        found = source.read(queries.where, max_age=0)
    except Away:
        return None
    return None if found.problem else found


def test_sessions_are_set_up_as_jobqs_own(source: Source, admin: Connection) -> None:
    with source.connection() as conn:
        found = {
            name: next(iter((conn.execute(f"show {name}".encode()).fetchone() or {}).values()))
            for name in ("statement_timeout", "timezone", "application_name", "jit")
        }
        assert found == {
            "statement_timeout": "10s", "timezone": "UTC", "application_name": "jobq dashboard",
            "jit": "off",
        }  # fmt: skip
        row: Any = conn.execute("select '{\"n\": 1.10}'::jsonb as j, now() as t").fetchone()
        assert row["j"] == '{"n": 1.10}'
        assert row["t"].utcoffset() == timedelta(0)
