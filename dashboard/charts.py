"""Charts over time, for the theme and the clock of whoever looks.

Every chart spans its whole window, whatever the data. The names of its fields are its own: stored
text is only ever a value. Dash, shape or filling tell series apart besides colour.

A spec holds no data and is kept: altair takes a quarter of a second to make one, and the browser
draws a chart with a new spec from scratch, where new data only moves what is there.
"""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import lru_cache
from typing import Any, NamedTuple

import altair as alt
import pandas as pd

from durations import QUANTILES, rung, seconds_axis
from ui import COLOURS, span

__all__ = ["GREY", "Drawing", "flow", "layered", "percentiles", "trouble"]

Row = Mapping[str, Any]
Style = tuple[str, list[int], str]

#: Readable on light and on dark.
GREY = "#808495"
VIOLET = "#a855f7"
#: What the data is called in every spec.
ROWS = "rows"

# Colour, dash, shape.
_FLOW: dict[str, Style] = {
    "started": (COLOURS["running"], [5, 3], "circle"),
    "succeeded": (COLOURS["succeeded"], [1, 0], "circle"),
}
_TROUBLE: dict[str, Style] = {
    "failed": (COLOURS["failed"], [1, 0], "cross"),
    "retried": ("#d97706", [5, 3], "triangle-up"),
    "lost": (VIOLET, [2, 2], "square"),
    "cancelled": (GREY, [8, 3, 2, 3], "diamond"),
}
_QUANTILES: dict[str, Style] = {
    "p50": (COLOURS["succeeded"], [1, 0], "circle"),
    "p95": (COLOURS["running"], [5, 3], "square"),
    "p99": (VIOLET, [2, 2], "triangle-up"),
}
_STROKES = alt.Legend(
    orient="top", symbolType="stroke", symbolStrokeWidth=2.5, symbolSize=400, offset=6
)
_POINTS = alt.Legend(orient="top", symbolSize=90, symbolStrokeWidth=0, offset=6)


class Drawing(NamedTuple):
    """A spec, and the rows that it speaks of."""

    rows: pd.DataFrame
    spec: dict[str, Any]

    def whole(self) -> dict[str, Any]:
        """What `st.vega_lite_chart` takes."""
        return {**self.spec, "datasets": {ROWS: self.rows}}


def flow(rows: Sequence[Row], width: timedelta) -> Drawing:
    """Runs started and succeeded in each bucket of the window."""
    # The last bucket is not over, and not drawn.
    most = _most(rows[:-1], _FLOW)
    return Drawing(_frame(rows, list(_FLOW), width), _flow_spec(width, most))


def trouble(rows: Sequence[Row], width: timedelta) -> Drawing:
    """What did not go well in each bucket, on a scale of its own: it is few among many."""
    rare = {name for name in ("lost", "cancelled") if not any(row[name] for row in rows)}
    names = tuple(name for name in _TROUBLE if name not in rare)
    return Drawing(_frame(rows, names, width), _trouble_spec(width, names, _most(rows, names)))


def percentiles(rows: Sequence[Row], width: timedelta) -> Drawing:
    """The three percentiles over the window; on a logarithmic scale if they lie far apart."""
    frame = _frame(rows, ["runs", *QUANTILES], width)
    values = [max(row[name], 1e-4) for row in rows for name in QUANTILES if row["runs"]]
    low, high = min(values, default=0.1), max(values, default=1.0)
    for name in QUANTILES:
        frame[f"{name} is"] = [span(row[name]) for row in rows]
        frame[name] = frame[name].astype(float)
    spec = _percentiles_spec(width, rung(low, -1), rung(high, 1), high / low > 50)
    return Drawing(frame, spec)


def layered(*layers: alt.Chart, height: int) -> dict[str, Any]:
    """The spec of these layers."""
    chart = alt.layer(*layers, data=alt.NamedData(ROWS)).properties(
        height=height, padding={"left": 0, "right": 8, "top": 0, "bottom": 4}
    )
    spec: dict[str, Any] = chart.to_dict()
    return spec


@lru_cache(64)
def _flow_spec(width: timedelta, most: int) -> dict[str, Any]:
    lines = _counts(_FLOW, width, most).encode(**_dashed(_FLOW, _STROKES))
    area = alt.Chart().mark_area(opacity=0.15, color=_FLOW["succeeded"][0])
    area = area.encode(x=_time("middle", width), y="succeeded:Q")
    return layered(
        area.transform_filter("datum.over"),
        lines.transform_filter("datum.over"),
        _hover(width, _numbers(_FLOW)),
        height=200,
    )


@lru_cache(64)
def _trouble_spec(width: timedelta, names: tuple[str, ...], most: int) -> dict[str, Any]:
    styles = {name: _TROUBLE[name] for name in names}
    lines = _counts(styles, width, most)
    shape = alt.Scale(domain=list(styles), range=[style[2] for style in styles.values()])
    points = lines.transform_filter("datum.value > 0").mark_point(filled=True, size=45, opacity=1)
    points = points.encode(
        color=_coloured(styles, _POINTS),
        shape=alt.Shape("series:N", title=None, scale=shape, legend=_POINTS),
    )
    return layered(
        lines.encode(**_dashed(styles, _POINTS)),
        points,
        _hover(width, _numbers(styles)),
        height=200,
    )


@lru_cache(64)
def _percentiles_spec(width: timedelta, low: float, high: float, far: bool) -> dict[str, Any]:
    scale, axis = seconds_axis(low, high, logarithmic=far)
    # A bucket between empty ones has a point and no line.
    lines = (
        _folded(_QUANTILES)
        .transform_filter("isValid(datum.value)")
        .mark_line(strokeWidth=2, clip=True, point=alt.OverlayMarkDef(size=20))
        .encode(
            x=_time("middle", width),
            y=alt.Y("value:Q", title="logarithmic" if far else None, scale=scale, axis=axis),
            **_dashed(_QUANTILES, _STROKES),
        )
    )
    told = [alt.Tooltip(f"{name} is:N", title=name) for name in QUANTILES]
    return layered(lines, _hover(width, [*told, alt.Tooltip("runs:Q", format=",d")]), height=200)


def _frame(rows: Sequence[Row], columns: Sequence[str], width: timedelta) -> pd.DataFrame:
    """The buckets: where each begins, its middle, its end, and whether it is over."""
    frame = pd.DataFrame(
        [[row["bucket"], *(row[column] for column in columns)] for row in rows],
        columns=["at", *columns],
    )
    frame.insert(1, "middle", frame["at"] + width / 2)
    frame.insert(2, "until", frame["at"] + width)
    # The counts of a bucket that is not over are no rate yet.
    frame.insert(3, "over", [place + 1 < len(rows) for place in range(len(rows))])
    return frame


def _most(rows: Sequence[Row], names: Sequence[str] | dict[str, Style]) -> int:
    """0, 1 or 10,000: as much as the axis has to know of the highest count."""
    high = max((row[name] for row in rows for name in names), default=0)
    return 10_000 if high >= 10_000 else min(high, 1)


def _folded(series: Mapping[str, Any]) -> alt.Chart:
    return alt.Chart().transform_fold(list(series), as_=["series", "value"])


def _counts(styles: Mapping[str, Style], width: timedelta, most: int) -> alt.Chart:
    """A line for each series."""
    # Without this an empty chart has no zero, and few jobs have halves.
    scale = alt.Scale(zero=True) if most else alt.Scale(domain=[0, 1])
    form = "~s" if most >= 10_000 else ",d"
    axis = alt.Axis(tickMinStep=1, tickCount=4, minExtent=44, format=form)
    y = alt.Y("value:Q", title=f"per {_whole(width)}", scale=scale, axis=axis)
    lines: alt.Chart = _folded(styles).mark_line(strokeWidth=2)
    return lines.encode(x=_time("middle", width), y=y)


def _dashed(styles: Mapping[str, Style], legend: alt.Legend) -> dict[str, Any]:
    dash = alt.Scale(domain=list(styles), range=[style[1] for style in styles.values()])
    return {
        "color": _coloured(styles, legend),
        "strokeDash": alt.StrokeDash("series:N", title=None, scale=dash, legend=legend),
    }


def _coloured(styles: Mapping[str, Style], legend: alt.Legend) -> alt.Color:
    colours = alt.Scale(domain=list(styles), range=[style[0] for style in styles.values()])
    return alt.Color("series:N", title=None, scale=colours, legend=legend)


def _numbers(styles: Mapping[str, Style]) -> list[alt.Tooltip]:
    return [alt.Tooltip(f"{name}:Q", format=",d") for name in styles]


def _whole(width: timedelta) -> str:
    seconds = int(width.total_seconds())
    size, unit = next(pair for pair in ((3600, "h"), (60, "min"), (1, "s")) if seconds >= pair[0])
    return f"{seconds / size:g} {unit}"


def _time(field: str, width: timedelta) -> alt.X:
    form = "%a %d" if width >= timedelta(hours=1) else "%H:%M"
    axis = alt.Axis(format=form, tickCount=6, labelOverlap=True, grid=False)
    return alt.X(f"{field}:T", title=None, scale=alt.Scale(nice=False), axis=axis)


def _hover(width: timedelta, told: Sequence[alt.Tooltip]) -> alt.Chart:
    """A column for each bucket that says its numbers; it also spans the axis over the window."""
    form = "%H:%M:%S" if width < timedelta(minutes=1) else "%a %d %b %H:%M"
    times = [
        alt.Tooltip("at:T", title="from", format=form),
        alt.Tooltip("until:T", title="to", format=form),
    ]
    over = alt.selection_point("over", on="pointerover", clear="pointerout", empty=False)
    shade = alt.when(over).then(alt.value(0.2)).when("!datum.over").then(alt.value(0.1))
    columns: alt.Chart = alt.Chart(name="buckets").mark_rect(color=GREY).add_params(over)
    return columns.encode(
        x=_time("at", width),
        x2="until:T",
        opacity=shade.otherwise(alt.value(0.0)),
        tooltip=[*times, *told],
    )
