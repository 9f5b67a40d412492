"""Readings of the dashboard while the database is away, or hangs."""

from collections.abc import Callable
from time import monotonic
from typing import Any

import pytest
from conftest import chosen_binaries
from helpers import Connection, scalar, wait_until
from psycopg.conninfo import make_conninfo

import queries
import reading
from answering import Answering
from dashboards import Counted, clock, grant, under_way
from jobq import embedded
from jobq.migrate import migrate
from proxy import Proxy
from reading import Away, Source

pytest_plugins = ["dashboards"]

MakeRole = Callable[..., str]


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
        with under_way(source, query):
            assert source.read(query, max_age=0).problem is None, "it may take a moment longer"
            found = wait_until(lambda: with_problem(source.read(query, max_age=0)))
            assert found.data == first.data
            assert str(found.problem).startswith("no answer for ")
            source.forget()
            found = source.read(query, max_age=0)
            assert found.data == first.data
            assert str(found.problem).startswith("no answer for ")
        assert source.read(query, max_age=0) != first

    @pytest.mark.timeout(60)
    def test_who_has_nothing_to_show_does_not_wait_for_ever(
        self, source: Source, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(reading, "FIRST_SECONDS", 0.5)
        query = Counted()
        with under_way(source, query), pytest.raises(Away, match="no answer for "):
            source.read(query, max_age=0)


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
