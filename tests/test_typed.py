"""Filters as they were typed: what their times mean, and when."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from helpers import Connection
from psycopg.rows import dict_row

import actions
import typed
from search import Search
from typed import Typed, moment_of
from verbs import enqueue

NOW = datetime(2026, 11, 29, 14, 30, 30, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2 h", datetime(2026, 11, 29, 13, 30, tzinfo=ZoneInfo("Europe/Paris"))),
        ("90min", datetime(2026, 11, 29, 14, 0, tzinfo=ZoneInfo("Europe/Paris"))),
        ("2026-11-29 14:00", datetime(2026, 11, 29, 13, 0, tzinfo=UTC)),
        ("2026-11-29T14:00Z", datetime(2026, 11, 29, 14, 0, tzinfo=UTC)),
    ],
)
def test_a_time_is_one_of_the_viewers_zone_or_an_age(text: str, moment: datetime) -> None:
    assert moment_of(text, NOW.astimezone(ZoneInfo("Europe/Paris"))) == moment


@pytest.mark.parametrize(
    "text", ["soon", "99999999999999 w", "0001-01-01 00:00", "5", "2026-13-01"]
)
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="neither a time"):
        moment_of(text, NOW.astimezone(ZoneInfo("Asia/Tokyo")))


@pytest.mark.parametrize("zone", ["America/New_York", "Europe/Paris", "Asia/Kolkata", "UTC"])
@pytest.mark.parametrize("now", [datetime(2026, 11, 1, 12, tzinfo=UTC), NOW])
@pytest.mark.parametrize(("text", "hours"), [("12 h", 12), ("40 w", 6720), ("100000 d", 2_400_000)])
def test_an_age_is_so_many_hours_whatever_the_zones_clock_did_meanwhile(
    conn: Connection, zone: str, now: datetime, text: str, hours: int
) -> None:
    moment = moment_of(text, now.astimezone(ZoneInfo(zone)))
    assert now.replace(second=0) - moment == timedelta(hours=hours)
    assert moment.tzinfo is UTC
    conn.row_factory = dict_row
    told = actions.cancel_jobs(conn, Search(created_after=moment).filter(), True)
    assert told["matched"] == 0


def test_an_age_means_another_moment_each_time() -> None:
    asked = Typed((("created_after", "1 h"), ("kind", "a")), ZoneInfo("Europe/Paris"))
    assert asked.search(NOW) == Search(
        kind="a", created_after=datetime(2026, 11, 29, 13, 30, tzinfo=UTC)
    )
    later = asked.search(NOW + timedelta(hours=12)).created_after
    assert later == datetime(2026, 11, 30, 1, 30, tzinfo=UTC)
    assert asked == Typed(asked.texts, ZoneInfo("Europe/Paris"))


def test_the_words_tell_the_moment_that_an_age_means() -> None:
    texts = (("created_after", " 1 h"), ("created_before", "2026-11-29"), ("kind", "1 h"))
    words = Typed(texts, ZoneInfo("Europe/Paris")).described(NOW)
    assert words == (
        "created after  1 h (2026-11-29 14:30 CET), created before 2026-11-29, kind 1 h"
    )


def test_what_cannot_be_read_is_a_problem_and_the_rest_is_not() -> None:
    asked = Typed((("payload", "x"), ("priority", "5"), ("created_after", "soon")))
    payload, after = asked.problems()
    assert payload.startswith("payload: ")
    assert after.startswith("created after: 'soon' is neither")
    assert Typed((("priority", "5"),)).problems() == []


def test_the_list_is_read_by_what_an_age_means_at_that_time(
    conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    enqueue(conn)
    conn.row_factory = dict_row
    asked = Typed((("created_after", "1 h"),))
    assert [row["id"] for row in typed.find(conn, asked, None, 25)["rows"]] == [1]
    later = datetime.now(UTC) + timedelta(hours=3)
    monkeypatch.setattr(typed, "now", lambda: later)
    assert typed.find(conn, asked, None, 25)["rows"] == []
