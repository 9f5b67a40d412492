"""What the screens share: words, times, live parts, and CSV.

Stored text (payload, kind, error, key, worker) is data. Streamlit takes most strings for Markdown,
so such text goes into `st.text`, `st.code`, a data frame or a chart, or through `literal`.
"""

import csv
import io
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import streamlit as st

from data import Away, Reading, refresh_seconds

__all__ = [
    "MARKS",
    "ago",
    "amount",
    "csv_of",
    "literal",
    "live",
    "local",
    "marked",
    "shown",
    "span",
    "viewer_zone",
    "when",
]

T = TypeVar("T")

#: A sign for each status, so that colour is never the only one.
MARKS = {
    "queued": "◷ queued",
    "running": "▶ running",
    "succeeded": "✓ succeeded",
    "failed": "✕ failed",
    "cancelled": "⊘ cancelled",
}

#: By status, legible on light and on dark.
COLOURS = {
    "queued": "#0891b2",
    "running": "#2563eb",
    "succeeded": "#16a34a",
    "failed": "#dc2626",
    "cancelled": "#a16207",
}

_MARKDOWN = re.compile(r"([\\\\`*_{}\[\]()#+\-.!|<>~$:&\"'^=@])")


# What Streamlit changes after it has taken the escapes away: icons, its logo, arrows and dashes
# that stand alone, and addresses. A word joiner, which cannot be seen, goes behind what matches.
_REWRITTEN = re.compile(
    r":(?=material[/_]|streamlit:)"
    r"|(?<![^\s\ufeff])(?:<(?=->|-|=)|-(?=>|-)|[>~](?==))(?=(?:->|[->=])(?:[\s\ufeff]|$))"
    r"|(?i:https?:(?=//)|www(?=\.))"
    r"|(?<=[-.\w+])@(?=[-\w]+\.[-\w])"
)


def literal(text: object, most: int = 200) -> str:
    """Stored text for a place that takes Markdown: shown as it is, in one line, cut at `most`."""
    line = " ".join(str(text).split())
    line = line if len(line) <= most else line[: most - 1] + "…"
    line = _REWRITTEN.sub("\\g<0>\u2060", line)
    return _MARKDOWN.sub(r"\\\1", line)


def marked(status: str) -> str:
    """The status with its sign."""
    return MARKS.get(status, status)


def amount(number: int | None, *, estimated: bool = False) -> str:
    """A count, its thousands apart; "≈" before one that is an estimate."""
    return "unknown" if number is None else f"{'≈ ' if estimated else ''}{number:,}"


def span(seconds: float | None) -> str:
    """A duration in its two largest units: 850 ms, 12.3 s, 4 min 5 s, 3 h 20 min, 2 d 4 h."""
    if seconds is None:
        return "-"
    sign, rest = ("-" if seconds < 0 else ""), abs(seconds)
    if rest < 0.9995:  # more is rounded to 1,000
        return f"{sign}{rest * 1000:.3g} ms"
    if rest < 60:
        return f"{sign}{rest:.3g} s"
    whole = round(rest)
    for size, name, part, part_name in ((86400, "d", 3600, "h"), (3600, "h", 60, "min")):
        if whole >= size:
            return f"{sign}{whole // size} {name} {whole % size // part} {part_name}"
    return f"{sign}{whole // 60} min {whole % 60} s"


def ago(moment: datetime | None, now: datetime | None = None) -> str:
    """How long ago, or in how long."""
    if moment is None:
        return "-"
    seconds = ((now or datetime.now(UTC)) - moment).total_seconds()
    return f"{span(seconds)} ago" if seconds >= 0 else f"in {span(-seconds)}"


def viewer_zone() -> Any:
    """The zone of the viewer's browser; UTC when it does not say."""
    try:
        return ZoneInfo(st.context.timezone or "UTC")
    except (ZoneInfoNotFoundError, ValueError):
        return UTC


def local(moment: datetime) -> datetime:
    """The time in the viewer's zone; in UTC where that zone's calendar has ended."""
    try:
        return moment.astimezone(viewer_zone())
    except OverflowError:
        return moment.astimezone(UTC)


def when(moment: datetime | None) -> str:
    """A time in the viewer's zone, with its offset."""
    if moment is None:
        return "-"
    shown_as = local(moment)
    return (
        shown_as.strftime("%Y-%m-%d %H:%M:%S.")
        + f"{shown_as.microsecond // 1000:03d} "
        + shown_as.strftime("%Z")
    )


def shown(reading: Reading[T]) -> T:
    """The data of a reading, below a line that says from when it is, or a banner if it is old."""
    at = local(reading.at).strftime("%H:%M:%S")
    if reading.problem is None:
        st.caption(f"as of {at}")
    else:
        st.warning(
            f"Nothing newer than {at} ({ago(reading.at)}): {literal(reading.problem, 500)}",
            icon=":material/cloud_off:",
        )
    return reading.data


def live(draw: Callable[[], None]) -> None:
    """Draw a part of the page, again and again at the interval that the viewer chose.

    Only that part is drawn anew: selections, open expanders and half-typed forms elsewhere stay.
    A database that is away leaves its banner here, and the part comes back by itself.
    """

    def guarded() -> None:
        try:
            draw()
        except Away as away:
            st.error(f"No data yet: {literal(away, 500)}", icon=":material/cloud_off:")

    st.fragment(guarded, run_every=refresh_seconds())()


# At the start, and where a program splits that takes another sign for the separator.
_FORMULA = re.compile(r"""(^|[;,\t\r\n])(?=[\s"]*[=+\-@\uff1d\uff0b\uff0d\uff20])""")


def csv_of(rows: Iterable[Mapping[str, Any]], columns: Sequence[str]) -> str:
    """CSV that a spreadsheet only shows: what would be a formula there gets a quote in front."""
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(columns)
    for row in rows:
        writer.writerow([_harmless(row.get(column)) for column in columns])
    return out.getvalue()


def _harmless(value: object) -> object:
    if isinstance(value, datetime):
        return value.isoformat()
    return _FORMULA.sub(r"\1'", value) if isinstance(value, str) else value
