"""How long things took: percentiles, and axes with ticks that people use."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import altair as alt
import numpy as np

from ui import span

__all__ = ["QUANTILES", "RUNGS", "quantiles", "rung", "seconds_axis", "spread"]

Row = Mapping[str, Any]

QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}

# Where people expect a tick on an axis of durations, and where a scale may end.
_STEPS = [
    *(unit * step for unit in (1e-3, 1e-2, 1e-1, 1) for step in (1, 2, 5)),
    *(10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 21600, 43200, 86400, 172800),
]
_DECADES = [1e-4, 1e-3, 1e-2, 1e-1, 1, 10, 60, 600, 3600, 21600, 86400, 604800]
RUNGS = [step * 10.0**power for power in range(-4, 8) for step in (1, 1.5, 2, 3, 5, 7)]
_SPAN = (
    "datum.value < 1 ? format(datum.value * 1e3, '.3~r') + ' ms'"
    " : datum.value < 60 ? format(datum.value, '.3~r') + ' s'"
    " : datum.value < 3600 ? format(datum.value / 60, '.3~r') + ' min'"
    " : datum.value < 86400 ? format(datum.value / 3600, '.3~r') + ' h'"
    " : format(datum.value / 86400, '.3~r') + ' d'"
)


def spread(runs: Sequence[Row], field: str, share: float) -> str:
    """The percentiles of a duration in words, and of how many runs."""
    seconds = [run[field] for run in runs if run[field] is not None]
    if not seconds:
        return "No run to tell from."
    values = np.quantile(seconds, list(QUANTILES.values())).tolist()
    told = ", ".join(f"{name} {span(value)}" for name, value in zip(QUANTILES, values, strict=True))
    of = "1 run" if len(seconds) == 1 else f"{len(seconds):,} runs"
    if share < 1:
        return f"≈ {told}, of {of}, a sample of ≈ {len(seconds) / share:,.0f}."
    return f"{told}, of {of}."


def quantiles(
    runs: Sequence[Row], field: str, buckets: Sequence[datetime], width: timedelta
) -> list[dict[str, Any]]:
    """Percentiles of a duration for each bucket, from the runs that ended in it."""
    ended: dict[int, list[float]] = {}
    for run in runs:
        # The window of the runs begins up to a bucket earlier, and is not read at the same moment.
        if run[field] is not None:
            ended.setdefault((run["ended_at"] - buckets[0]) // width, []).append(run[field])
    rows = []
    shares = list(QUANTILES.values())
    for place, at in enumerate(buckets):
        seconds = ended.get(place, [])
        values = np.quantile(seconds, shares).tolist() if seconds else [None] * len(shares)
        rows.append(
            {"bucket": at, "runs": len(seconds), **dict(zip(QUANTILES, values, strict=True))}
        )
    return rows


def rung(seconds: float, direction: int) -> float:
    """The nearest bound for a scale below (-1) or above (1): few, so that specs last."""
    if direction < 0:
        return max((edge for edge in RUNGS if edge <= seconds), default=RUNGS[0])
    return min((edge for edge in RUNGS if edge > seconds), default=RUNGS[-1])


def seconds_axis(low: float, high: float, *, logarithmic: bool) -> tuple[alt.Scale, alt.Axis]:
    """A scale for durations from `low` to `high` and its axis, with ticks that people use."""
    if logarithmic:
        scale = alt.Scale(type="log", domain=[low, high], nice=False, clamp=True)
        ticks = [tick for tick in _STEPS if low <= tick <= high]
        if len(ticks) > 7:
            ticks = [tick for tick in _DECADES if low <= tick <= high]
    else:
        step = next((step for step in _STEPS if high / step <= 5), 604800)
        scale = alt.Scale(domain=[0, high], nice=False)
        ticks = [step * count for count in range(int(high / step) + 1)]
    return scale, alt.Axis(values=ticks, labelExpr=_SPAN, minExtent=44)
