"""Bars: the backlog by kind, and how long runs took."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any

import altair as alt
import pandas as pd

from charts import GREY, Drawing, layered
from durations import RUNGS, rung, seconds_axis
from ui import COLOURS, amount, span

__all__ = ["backlog", "histogram"]

Row = Mapping[str, Any]

# Colour and filling: what runs is full, what is due is pale, what is scheduled is hollow.
_STATES = {
    "running": (COLOURS["running"], 1.0),
    "due": (COLOURS["queued"], 0.4),
    "scheduled": (GREY, 0.0),
}


def backlog(rows: Sequence[Row]) -> Drawing:
    """Running, due and scheduled jobs of each kind; the numbers stand above the bars."""
    flat = []
    for row in rows:
        jobs = [row["running"], row["due"], row["queued"] - row["due"]]
        counts = zip(jobs, _STATES, strict=True)
        told = ", ".join(f"{amount(count)} {state}" for count, state in counts if count)
        kind = row["kind"] if len(row["kind"]) <= 40 else row["kind"][:39] + "…"
        flat.append([row["kind"], f"{kind}: {told}", *jobs])
    frame = pd.DataFrame(flat, columns=["kind", "words", *_STATES])
    return Drawing(frame, _backlog_spec(len(flat)))


def histogram(runs: Sequence[Row]) -> Drawing:
    """Run times: of runs that succeeded filled, of others hollow and on top."""
    taken = [(max(run["run_seconds"], 1e-4), run["event"] == "succeeded") for run in runs]
    seconds = [time for time, _ in taken]
    edges = _edges(min(seconds, default=0.1), max(seconds, default=1.0))
    rows = []
    for low, high in pairwise(edges):
        inside = [well for time, well in taken if low <= time < high]
        well, ill = sum(inside), len(inside) - sum(inside)
        rows.append([low, high, f"{span(low)} to {span(high)}", well, ill, len(inside)])
    frame = pd.DataFrame(rows, columns=["low", "high", "took", "succeeded", "others", "runs"])
    return Drawing(frame, _histogram_spec(edges[0], edges[-1]))


@lru_cache(64)
def _backlog_spec(kinds: int) -> dict[str, Any]:
    names: list[Any] = list(_STATES)
    colours = alt.Scale(domain=names, range=[colour for colour, _ in _STATES.values()])
    fillings = alt.Scale(domain=names, range=[filling for _, filling in _STATES.values()])
    legend = alt.Legend(orient="top", symbolType="square", offset=6)
    axis = alt.Axis(format="~s", tickMinStep=1, tickCount=4)
    y = alt.Y("kind:N", sort=None, axis=None)
    bars = (
        alt.Chart()
        .transform_fold(names, as_=["state", "jobs"])
        .transform_calculate(place=f"indexof({names}, datum.state)")
        .mark_bar(strokeWidth=1.5, height=12, yOffset=9)
        .encode(
            x=alt.X("jobs:Q", title=None, stack="zero", axis=axis),
            y=y,
            color=alt.Color("state:O", title=None, scale=colours, legend=legend),
            stroke=alt.Stroke("state:O", title=None, scale=colours, legend=legend),
            fillOpacity=alt.FillOpacity("state:O", title=None, scale=fillings, legend=legend),
            order=alt.Order("place:Q"),
            tooltip=["kind:N", *(alt.Tooltip(f"{name}:Q", format=",d") for name in names)],
        )
    )
    words = alt.Chart().mark_text(align="left", yOffset=-7, color=GREY, fontSize=13, limit=380)
    return layered(bars, words.encode(x=alt.value(0), y=y, text="words:N"), height=60 + 38 * kinds)


@lru_cache(64)
def _histogram_spec(low: float, high: float) -> dict[str, Any]:
    scale, axis = seconds_axis(low, high, logarithmic=True)
    told = [
        alt.Tooltip("took:N"),
        alt.Tooltip("succeeded:Q", format=",d"),
        alt.Tooltip("others:Q", title="other ends", format=",d"),
    ]
    bars = alt.Chart().encode(
        x=alt.X("low:Q", title=None, scale=scale, axis=axis), x2="high:Q", tooltip=told
    )
    counts = alt.Y("succeeded:Q", title="runs", axis=alt.Axis(tickMinStep=1, tickCount=4))
    others = bars.transform_filter("datum.others > 0").mark_bar(
        filled=False, stroke=COLOURS["failed"], strokeWidth=1.5, strokeDash=[3, 2]
    )
    return layered(
        bars.mark_bar(color=COLOURS["succeeded"], opacity=0.8).encode(y=counts, y2=alt.Y2Datum(0)),
        others.encode(y="succeeded:Q", y2="runs:Q"),
        height=200,
    )


def _edges(low: float, high: float) -> list[float]:
    """Bounds of the bars that hold everything from `low` to `high`."""
    first, last = RUNGS.index(rung(low, -1)), RUNGS.index(rung(high, 1))
    return RUNGS[first : last + 1]
