"""Readings of the dashboard: shared, kept for their cost, there again after an outage."""

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from helpers import Connection, wait_until

import reading
from dashboards import Counted, clock, under_way
from reading import Source

pytest_plugins = ["dashboards"]

MakeRole = Callable[..., str]


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
        with under_way(source, query):
            assert source.read(query, max_age=0) == first, "it does not wait"
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
        with under_way(source, query):
            source.forget()  # the act commits meanwhile
            threading.Timer(0.05, query.go.set).start()
            assert source.read(query, max_age=99).data == (4,)

    def test_nor_while_somebody_reads_anew(
        self, source: Source, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        query = Counted()
        source.read(query, max_age=99)
        source.forget()
        with under_way(source, query):
            threading.Timer(0.05, query.go.set).start()
            assert source.read(query, max_age=99).data == (2,)

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
