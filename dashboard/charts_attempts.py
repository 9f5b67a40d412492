"""A job's attempts as a chart: a lane for each, what it waited for, its run, how that ended."""

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

import altair as alt
import pandas as pd

from charts import GREY, Drawing, layered
from timeline import OUTCOMES, Mark, Span
from timeline_view import EVENT_COLOURS
from ui import COLOURS, span

__all__ = ["attempts"]

_MOST_LANES = 12
_MARKS = {"progress": ("circle", GREY), "log": ("square", GREY), "by hand": ("diamond", "#9333ea")}


def attempts(spans: Sequence[Span], marks: Sequence[Mark]) -> Drawing | None:
    """The newest attempts, each with the marks that stand in it; None where there is none."""
    newest = sorted({one.attempt for one in spans})[-_MOST_LANES:]
    shown = [one for one in spans if one.attempt in newest]
    if not shown:
        return None
    # A run that was given back is followed by another in its lane, whose words would lie over its.
    last = {one.attempt: one for one in shown if one.phase == "run"}
    rows = [_span_row(one, named=last.get(one.attempt) is one) for one in shown]
    rows += [_mark_row(one) for one in marks if one.attempt in newest]
    form = _clock(shown[0].start, max(one.end for one in shown))
    return Drawing(pd.DataFrame(rows), _spec(form, len(newest)))


@lru_cache(64)
def _spec(form: str, lanes: int) -> dict[str, Any]:
    lane = alt.Y("lane:O", title=None, axis=alt.Axis(labelExpr="'attempt ' + datum.value"))
    colour = alt.Color("colour:N", scale=None)
    base = alt.Chart().encode(
        x=alt.X("start:T", title=None, axis=alt.Axis(format=form, labelOverlap=True, tickCount=4)),
        x2="end:T",
        y=lane,
        color=colour,
        tooltip=[
            alt.Tooltip("what:N", title="what"),
            alt.Tooltip("length:N", title="for"),
            alt.Tooltip("worker:N", title="on"),
        ],
    )
    wait = base.transform_filter("datum.phase == 'waiting'").mark_bar(height=6, strokeWidth=1)
    later = base.transform_filter("datum.phase == 'not due'").mark_rule(
        strokeDash=[3, 3], strokeWidth=2
    )
    run = base.transform_filter("datum.phase == 'run'").mark_bar(height=16, minBandSize=2)
    sign = (
        alt.Chart()
        .transform_filter("datum.phase == 'run'")
        .mark_text(align="left", dx=9, fontSize=13, fontWeight="bold")
        .encode(x="end:T", y=lane, text="sign:N", color=colour)
    )
    shapes = alt.Scale(domain=list(_MARKS), range=[shape for shape, _ in _MARKS.values()])
    marks = (
        alt.Chart()
        .transform_filter("datum.phase == 'mark'")
        .mark_point(filled=True, size=55, opacity=1, stroke="white", strokeWidth=0.8)
        .encode(
            x="start:T",
            y=lane,
            shape=alt.Shape("what:N", scale=shapes, legend=None),
            color=colour,
            tooltip=[alt.Tooltip("what:N", title="what"), alt.Tooltip("said:N", title="said")],
        )
    )
    return layered(later, wait, run, sign, marks, height=max(70, 34 * lanes + 30))


def _clock(start: datetime, end: datetime) -> str:
    seconds = (end - start).total_seconds()
    if seconds < 3:
        return "%H:%M:%S.%L"
    if seconds < 900:
        return "%H:%M:%S"
    return "%H:%M" if seconds < 86_400 else "%a %d %H:%M"


def _span_row(one: Span, *, named: bool) -> dict[str, Any]:
    sign, word = OUTCOMES.get(one.outcome, ("", ""))
    colour = EVENT_COLOURS.get(one.outcome, GREY) if one.phase == "run" else COLOURS["queued"]
    return {
        "lane": one.attempt,
        "phase": one.phase,
        "start": one.start.astimezone(UTC),
        "end": one.end.astimezone(UTC),
        "colour": GREY if one.phase == "not due" else colour,
        "sign": f"{sign} {word}" if named else "",
        "what": f"run: {word}" if word else one.phase,
        "length": span((one.end - one.start).total_seconds()),
        "worker": one.worker or "-",
        "said": "",
    }


def _mark_row(one: Mark) -> dict[str, Any]:
    at = one.at.astimezone(UTC)
    return {
        "lane": one.attempt,
        "phase": "mark",
        "start": at,
        "end": at,
        "colour": _MARKS[one.what][1],
        "sign": "",
        "what": one.what,
        "length": "",
        "worker": "",
        "said": one.said[:200],
    }
