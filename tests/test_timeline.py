"""A job's events as spans and as words: waiting, runs, how they ended, and who stepped in."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pandas as pd
import pytest

from charts_attempts import attempts
from timeline import Mark, lines, marks, spans
from timeline_view import story

START = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)


def at(seconds: float) -> datetime:
    """So long after the start."""
    return START + timedelta(seconds=seconds)


def event(
    seconds: float,
    name: str,
    change: str = "",
    attempt: int = 0,
    worker: str | None = None,
    **detail: Any,
) -> dict[str, Any]:
    """An event as `queries.timeline` returns it; `change` is "from>to"."""
    before, _, after = change.partition(">")
    if "available_at" in detail:
        detail["available_at"] = at(detail["available_at"]).isoformat()
    return {
        "id": round(seconds * 10),
        "at": at(seconds),
        "event": name,
        "from_status": before or None,
        "to_status": after or None,
        "attempt": attempt,
        "worker": worker,
        "actor": "postgres",
        "detail": json.dumps(detail) if detail else None,
    }


ENQUEUED = event(0, "enqueued", ">queued", available_at=10, kind="test")
CLAIMED = event(15, "claimed", "queued>running", 1, "w")
FAILED = event(18, "failed", "running>queued", 1, "w", error="x", available_at=30)
AGAIN = event(31, "claimed", "queued>running", 2, "w")


def told(events: list[dict[str, Any]], now: float | None) -> list[tuple[Any, ...]]:
    """The spans in seconds since the start."""
    return [
        (
            one.attempt,
            one.phase,
            (one.start - START).total_seconds(),
            (one.end - START).total_seconds(),
            one.outcome,
        )
        for one in spans(events, None if now is None else at(now))
    ]


@pytest.mark.parametrize(
    ("events", "now", "expected"),
    [
        ([ENQUEUED], 5, [(1, "not due", 0, 10, "")]),
        ([ENQUEUED], 12, [(1, "not due", 0, 10, ""), (1, "waiting", 10, 12, "")]),
        (
            [ENQUEUED, CLAIMED],
            20,
            [
                (1, "not due", 0, 10, ""),
                (1, "waiting", 10, 15, ""),
                (1, "run", 15, 20, "running"),
            ],
        ),
        (
            [ENQUEUED, CLAIMED, FAILED, AGAIN, event(35, "succeeded", "running>succeeded", 2, "w")],
            99,
            [
                (1, "not due", 0, 10, ""),
                (1, "waiting", 10, 15, ""),
                (1, "run", 15, 18, "failed"),
                (2, "not due", 18, 30, ""),
                (2, "waiting", 30, 31, ""),
                (2, "run", 31, 35, "succeeded"),
            ],
        ),
        # Given back: the next start is of the same attempt.
        (
            [
                event(0, "enqueued", ">queued"),
                CLAIMED,
                event(16, "released", "running>queued", 0, "w"),
                event(17, "claimed", "queued>running", 1, "v"),
            ],
            18,
            [
                (1, "waiting", 0, 15, ""),
                (1, "run", 15, 16, "released"),
                (1, "waiting", 16, 17, ""),
                (1, "run", 17, 18, "running"),
            ],
        ),
        # Due earlier than planned, by hand.
        (
            [ENQUEUED, event(4, "changed", "", 0, available_at=4), CLAIMED],
            15,
            [(1, "not due", 0, 4, ""), (1, "waiting", 4, 15, ""), (1, "run", 15, 15, "running")],
        ),
        (
            [event(0, "enqueued", ">queued"), event(3, "cancelled", "queued>cancelled")],
            99,
            [(1, "waiting", 0, 3, "")],
        ),
        (
            [
                event(0, "enqueued", ">queued"),
                event(3, "cancelled", "queued>cancelled"),
                event(50, "retried", "cancelled>queued"),
            ],
            60,
            [(1, "waiting", 0, 3, ""), (1, "waiting", 50, 60, "")],
        ),
        # A page that begins in the middle of a run.
        ([FAILED], 18, [(1, "run", 18, 18, "failed"), (2, "not due", 18, 30, "")]),
        ([], 5, []),
    ],
)
def test_events_make_spans(
    events: list[dict[str, Any]], now: float, expected: list[tuple[Any, ...]]
) -> None:
    assert told(events, now) == expected


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        (
            [CLAIMED, event(17, "progress", "", 1, "w", progress=0.5)],
            [(1, "run", 15, 17, "")],
        ),
        ([CLAIMED, FAILED], [(1, "run", 15, 18, "failed")]),
        (
            [FAILED, event(25, "changed", "", 1, priority=3)],
            [(1, "run", 18, 18, "failed"), (2, "not due", 18, 25, "")],
        ),
        ([], []),
    ],
)
def test_an_earlier_page_is_told_as_far_as_its_events_go(
    events: list[dict[str, Any]], expected: list[tuple[Any, ...]]
) -> None:
    assert told(events, None) == expected


@pytest.mark.parametrize(
    ("text", "due"),
    [
        ("10000-01-01T08:59:59+09:00", datetime.max.replace(tzinfo=UTC)),
        ("0001-12-31T19:00:00-05:00 BC", datetime.min.replace(tzinfo=UTC)),
        ("9999-12-31T23:59:59-01:00", datetime.max.replace(tzinfo=UTC)),
        ("9999-12-31T23:59:59+00:00", datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)),
    ],
)
def test_a_job_due_in_no_year_of_pythons_is_due_at_its_end(text: str, due: datetime) -> None:
    enqueued = {**ENQUEUED, "detail": json.dumps({"available_at": text})}
    (one,) = spans([enqueued], max(at(5), due)) if due > at(0) else spans([enqueued], at(5))
    assert due in (one.end, datetime.min.replace(tzinfo=UTC))
    assert one.phase == ("not due" if due > at(0) else "waiting")
    assert lines([enqueued])[0].said[0].startswith("due ")


def test_moments_lie_in_the_lane_of_their_attempt() -> None:
    events = [
        event(0, "enqueued", ">queued"),
        event(1, "changed", "", 0, priority=5),
        CLAIMED,
        event(16, "progress", "", 1, "w", progress=0.5, message="half"),
        event(17, "cancel_requested", "", 1, "w"),
    ]
    assert marks(events) == [
        Mark(1, at(1), "by hand", "changed: priority 5"),
        Mark(1, at(16), "progress", "50%: half"),
        Mark(1, at(17), "by hand", "asked to stop"),
    ]


@pytest.mark.parametrize(
    ("one", "title", "said", "by_hand"),
    [
        (ENQUEUED, "enqueued", ("due in 10 s",), False),
        (event(0, "enqueued", ">queued", cloned_from=7), "enqueued", ("a copy of job 7",), True),
        (CLAIMED, "attempt 1 started", (), False),
        (FAILED, "attempt 1 failed", ("after 3 s", "queued again", "due in 12 s", "x"), False),
        (
            event(18, "lease_lost", "running>failed", 1, "w", error="lease lost: w died"),
            "lease lost, no attempt left",
            ("after 3 s", "w died"),
            False,
        ),
        (event(18, "snoozed", "running>queued", 0, "w", available_at=78), "snoozed", None, False),
        (event(18, "cancelled", "queued>cancelled"), "cancelled", (), True),
        (event(18, "cancelled", "running>cancelled", 1, "w"), "cancelled", ("after 3 s",), False),
        (
            event(18, "succeeded", "running>succeeded", 1, "w", via="by hand"),
            "succeeded",
            ("after 3 s", "by hand, without a function of jobq"),
            True,
        ),
        (event(18, "log", "", 1, "w", level="info", message="hello"), "info: hello", (), False),
        (event(18, "progress", "", 1, "w", progress=0), "0%", (), False),
    ],
)
def test_events_are_told_in_words(
    one: dict[str, Any], title: str, said: tuple[str, ...] | None, by_hand: bool
) -> None:
    line = lines([CLAIMED, one] if one["at"] > CLAIMED["at"] else [one])[-1]
    assert (line.title, line.by_hand) == (title, by_hand)
    assert said is None or line.said == said
    assert line.who == ("postgres" if by_hand or not one["worker"] else "w")


def test_each_line_says_how_long_after_the_last() -> None:
    assert [line.since for line in lines([ENQUEUED, CLAIMED, FAILED])] == [None, 15, 3]


def test_stored_text_stays_text() -> None:
    script = "<script>alert('x')</script>"
    hostile = event(1, "failed", "running>failed", 1, script, error=script, message=script)
    log = event(2, "log", "", 1, "w", level="info", message=script)
    drawn = story(lines([hostile, log, event(3, "retried", "failed>queued") | {"actor": script}]))
    assert "<script" not in drawn
    assert drawn.count("&lt;script&gt;alert(&#x27;x&#x27;)&lt;/script&gt;") == 4


def drawn(events: list[dict[str, Any]], now: int) -> pd.DataFrame:
    drawing = attempts(spans(events, at(now)), marks(events))
    assert drawing is not None
    return drawing.rows


def test_a_chart_shows_how_each_attempt_ended() -> None:
    assert attempts([], []) is None
    report = event(16, "progress", "", 1, "w", progress=0.5)
    events = [ENQUEUED, CLAIMED, report, FAILED, AGAIN]
    rows = drawn(events, 40)
    assert list(rows[rows["phase"] == "run"]["sign"]) == ["✕ failed", "▶ running"]
    (mark,) = rows[rows["phase"] == "mark"].to_dict("records")
    assert (mark["what"], mark["lane"], mark["start"]) == ("progress", 1, at(16))


def test_of_the_runs_of_one_attempt_the_last_is_named() -> None:
    back = event(18, "snoozed", "running>queued", 0, "w", available_at=19)
    again = event(20, "claimed", "queued>running", 1, "w")
    rows = drawn([ENQUEUED, CLAIMED, back, again], 25)
    runs = rows[rows["phase"] == "run"]
    assert list(runs["lane"]) == [1, 1]
    assert list(runs["sign"]) == ["", "▶ running"]
    assert list(runs["what"]) == ["run: snoozed", "run: running"]


def test_a_chart_of_an_earlier_page_gives_an_open_run_no_outcome() -> None:
    report = event(16, "progress", "", 1, "w", progress=0.5)
    drawing = attempts(spans([CLAIMED, report], None), [])
    assert drawing is not None
    (row,) = drawing.rows.to_dict("records")
    assert (row["sign"].strip(), row["what"], row["end"]) == ("", "run", at(16))


def test_a_chart_of_many_attempts_shows_the_newest() -> None:
    events = [event(0, "enqueued", ">queued")]
    for n in range(1, 41):
        events += [
            event(10 * n, "claimed", "queued>running", n, "w"),
            event(10 * n + 5, "failed", "running>queued", n, "w", error="x"),
        ]
    rows = drawn(events, 500)
    assert (min(rows["lane"]), max(rows["lane"])) == (30, 41)
