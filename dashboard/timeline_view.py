"""Draws a job's story: a chart of its attempts, and a list of its events.

The list is HTML for its looks. Whatever is stored passes `_text`, so it stays text.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape
from typing import Any

import altair as alt
import pandas as pd

from timeline import OUTCOMES, Line, Mark, Span
from ui import COLOURS, span, viewer_zone, when

__all__ = ["STYLE", "chart", "facts", "story", "why"]

_MOST_LANES = 12
_GREY = "#808495"
_ORANGE = "#d97706"

_EVENT_COLOURS = {
    **COLOURS,
    "enqueued": COLOURS["queued"],
    "claimed": COLOURS["running"],
    "lease_lost": _ORANGE,
    "retried": COLOURS["queued"],
    "cancel_requested": COLOURS["cancelled"],
}

#: Follows the theme: it only mixes and dims the colour of the text.
STYLE = """
<style>
.jq-facts { display: grid; grid-template-columns: repeat(auto-fill, minmax(10rem, 1fr));
  gap: .7rem 1.2rem; overflow-wrap: anywhere; font-variant-numeric: tabular-nums; }
.jq-facts span { display: block; font-size: .78rem; opacity: .65; }
.jq-why { border-left: 4px solid var(--jq, #808495); padding: .15rem 0 .15rem .8rem;
  overflow-wrap: anywhere; }
.jq-story { font-size: .92rem; }
.jq-day { opacity: .65; font-size: .8rem; padding: .4rem 0 .2rem; }
.jq-event { display: grid; grid-template-columns: 6.4rem 1.5rem 1fr; column-gap: .5rem; }
.jq-time { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.jq-time small, .jq-who { display: block; font-size: .78rem; opacity: .65; }
.jq-sign { position: relative; text-align: center; font-weight: 700; color: var(--jq, inherit); }
.jq-sign::after { content: ""; position: absolute; left: 50%; top: 1.55rem; bottom: .1rem;
  border-left: 2px solid color-mix(in srgb, currentColor 30%, transparent); }
.jq-event:last-child .jq-sign::after { display: none; }
.jq-body { padding-bottom: .65rem; overflow-wrap: anywhere; min-width: 0; }
.jq-body b { font-weight: 600; }
.jq-quiet { opacity: .8; }
.jq-hand { display: inline-block; font-size: .78rem; opacity: 1; margin-top: .1rem;
  padding: 0 .5rem; border-radius: .6rem; border: 1px solid #9333ea;
  background: color-mix(in srgb, #9333ea 14%, transparent); }
</style>
"""


def facts(pairs: Sequence[tuple[str, str, str]]) -> str:
    """A grid of (name, value, small print), empty ones left out."""
    cells = [
        f"<div><span>{_text(name)}</span>{_text(value)}"
        + (f"<span>{_text(small)}</span>" if small else "")
        + "</div>"
        for name, value, small in pairs
        if value
    ]
    return f'<div class="jq-facts">{"".join(cells)}</div>'


def why(messages: Sequence[str], status: str) -> str:
    """Why the job is where it is, beside a bar in the colour of its status."""
    told = "".join(f"<div>{_text(message)}</div>" for message in messages)
    return f'<div class="jq-why" style="--jq: {COLOURS.get(status, _GREY)}">{told}</div>'


def story(lines: Sequence[Line]) -> str:
    """The events, one below the other."""
    zone, day, parts = viewer_zone(), "", []
    for line in lines:
        local = line.at.astimezone(zone)
        if (today := local.strftime("%A, %Y-%m-%d (%Z)")) != day:
            day = today
            parts.append(f'<div class="jq-day">{_text(day)}</div>')
        parts.append(_event(line, local))
    return f'<div class="jq-story">{"".join(parts)}</div>'


def _event(line: Line, local: datetime) -> str:
    time = local.strftime("%H:%M:%S.") + f"{local.microsecond // 1000:03d}"
    since = "" if line.since is None else f"+{span(line.since)}"
    quiet = line.event in ("progress", "log")
    title = (
        f'<span class="jq-quiet">{_text(line.title)}</span>'
        if quiet
        else (f"<b>{_text(line.title)}</b>")
    )
    said = "".join(f" · {_text(words)}" for words in line.said)
    who = "" if quiet else _text(line.who)
    who = (
        f'<span class="jq-who jq-hand">by {who}</span>'
        if line.by_hand
        else (f'<span class="jq-who">{who}</span>')
    )
    colour = _EVENT_COLOURS.get(line.event, _GREY)
    return (
        f'<div class="jq-event"><div class="jq-time" title="{_text(when(line.at))}">{time}'
        f'<small>{_text(since)}</small></div><div class="jq-sign" style="--jq: {colour}">'
        f'{_text(line.sign)}</div><div class="jq-body">{title}{said}{who}</div></div>'
    )


def _text(stored: object) -> str:
    return escape(str(stored), quote=True)


def chart(spans: Sequence[Span], marks: Sequence[Mark]) -> alt.LayerChart | alt.FacetChart | None:
    """A lane for each attempt: what it waited for, its run, and how that ended."""
    newest = sorted({one.attempt for one in spans})[-_MOST_LANES:]
    shown = [one for one in spans if one.attempt in newest]
    if not shown:
        return None
    table = pd.DataFrame([_span_row(one) for one in shown])
    moments = pd.DataFrame(
        [
            {"lane": one.attempt, "at": one.at, "mark": one.what, "said": one.said[:200]}
            for one in marks
            if one.attempt in newest
        ],
        columns=["lane", "at", "mark", "said"],
    )
    form = _clock(shown[0].start, max(one.end for one in shown))
    lane = alt.Y("lane:O", title=None, axis=alt.Axis(labelExpr="'attempt ' + datum.value"))
    base = alt.Chart(table).encode(
        x=alt.X("start:T", title=None, axis=alt.Axis(format=form, labelOverlap=True, tickCount=4)),
        x2="end:T",
        y=lane,
        color=alt.Color("colour:N", scale=None),
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
        alt.Chart(table)
        .transform_filter("datum.phase == 'run'")
        .mark_text(align="left", dx=9, fontSize=13, fontWeight="bold")
        .encode(x="end:T", y=lane, text="sign:N", color=alt.Color("colour:N", scale=None))
    )
    layers = [later, wait, run, sign]
    if len(moments):
        layers.append(
            alt.Chart(moments)
            .mark_point(filled=True, size=55, opacity=1, stroke="white", strokeWidth=0.8)
            .encode(
                x="at:T",
                y=lane,
                shape=alt.Shape(
                    "mark:N",
                    scale=alt.Scale(
                        domain=["progress", "log", "by hand"], range=["circle", "square", "diamond"]
                    ),
                    legend=None,
                ),
                color=alt.Color(
                    "mark:N",
                    scale=alt.Scale(
                        domain=["progress", "log", "by hand"], range=[_GREY, _GREY, "#9333ea"]
                    ),
                    legend=None,
                ),
                tooltip=[alt.Tooltip("mark:N", title="what"), alt.Tooltip("said:N", title="said")],
            )
        )
    return alt.layer(*layers).properties(height=max(70, 34 * len(newest) + 30))


def _clock(start: datetime, end: datetime) -> str:
    seconds = (end - start).total_seconds()
    if seconds < 3:
        return "%H:%M:%S.%L"
    if seconds < 900:
        return "%H:%M:%S"
    return "%H:%M" if seconds < 86_400 else "%a %d %H:%M"


def _span_row(one: Span) -> dict[str, Any]:
    sign, word = OUTCOMES.get(one.outcome, ("", ""))
    colour = _EVENT_COLOURS.get(one.outcome, _GREY) if one.phase == "run" else COLOURS["queued"]
    return {
        "lane": one.attempt,
        "phase": one.phase,
        "start": one.start.astimezone(UTC),
        "end": one.end.astimezone(UTC),
        "colour": _GREY if one.phase == "not due" else colour,
        "sign": f"{sign} {word}",
        "what": f"run: {word}" if one.phase == "run" else one.phase,
        "length": span((one.end - one.start).total_seconds()),
        "worker": one.worker or "-",
    }
