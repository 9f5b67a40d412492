"""What several screens draw alike: the window, a table to pick from, links, a date."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pandas as pd
import streamlit as st

from charts import Drawing
from data import Reading
from queries import WINDOWS
from ui import ago, local

__all__ = [
    "about",
    "bucket_width",
    "chart",
    "choose_window",
    "dated",
    "in_hand",
    "life",
    "pick",
    "tiles",
    "window_seconds",
]


# A number that is cut off is a wrong number; what needs attention is to be read whole.
_STYLE = """
<style>
[class*="st-key-tiles"] [data-testid="stMetricValue"],
[class*="st-key-tiles"] [data-testid="stMetricValue"] * {
  font-size: clamp(1.5rem, 1.9vw, 2.5rem); line-height: 1.25;
  white-space: normal; text-overflow: clip; overflow-wrap: anywhere;
}
[class*="st-key-tiles"] [data-testid="stPageLink-NavLink"] { padding: 0; }
[class*="st-key-tiles"] [data-testid="stPageLink-NavLink"] p { text-decoration: underline; }
[class*="st-key-wrapped"] [data-testid="stPageLink-NavLink"] * {
  white-space: normal; text-overflow: clip; overflow: visible; line-height: 1.35;
}
</style>
"""


@contextmanager
def tiles(name: str, most: int, width: int = 120) -> Iterator[None]:
    """A row of tiles for numbers, in more rows where there is less room."""
    st.html(_STYLE)
    with st.container(key=f"tiles_{name}"), st.grid(most, min_column_width=width):
        yield


def choose_window() -> str:
    """Which window is looked at, as the URL says."""
    return (
        st.segmented_control(
            "Window",
            list(WINDOWS),
            default="1 h",
            required=True,
            key="window",
            bind="query-params",
            label_visibility="collapsed",
        )
        or "1 h"
    )


def window_seconds(window: str) -> float:
    """How long a window is."""
    return float(pd.Timedelta(WINDOWS[window][0]).total_seconds())


def bucket_width(window: str) -> timedelta:
    """How long each bucket of a window is."""
    return timedelta(seconds=window_seconds(window) / WINDOWS[window][1])


def about(share: float) -> str:
    """The sign before a number that a sample gave."""
    return "≈ " if share < 1 else ""


def dated(reading: Reading[Any]) -> str:
    """From when a further reading of a page is; the page's first one has the banner."""
    at = local(reading.at).strftime("%H:%M:%S")
    if reading.problem is None:
        return f"As of {at}."
    return f":material/cloud_off: As of {at} ({ago(reading.at)}), nothing newer."


def life(worker: Mapping[str, Any]) -> str:
    """Whether a worker shows signs of life, with a sign for each."""
    if worker["expired"]:
        leases = "1 lease" if worker["expired"] == 1 else f"{worker['expired']:,} leases"
        return f"⚠ {leases} expired"
    if not worker["alive"]:
        return "? not connected"
    return "✓ idle" if worker["idle"] else "✓ connected"


def in_hand(worker: Mapping[str, Any]) -> str:
    """How many jobs a worker runs, and how many it could."""
    threads = worker["threads"]
    return f"{worker['running']:,}" if threads is None else f"{worker['running']:,} of {threads:,}"


def chart(drawing: Drawing, alt: str) -> None:
    """Draw a chart; `alt` says it in words."""
    st.vega_lite_chart(drawing.whole(), alt=alt)


def pick(
    name: str, rows: Sequence[Mapping[str, Any]], frame: pd.DataFrame, **options: Any
) -> Mapping[str, Any] | None:
    """Draw a table; return the row that the viewer just chose, as it was on screen.

    A selection is a position, and with the next reading another row may stand there: so it is
    looked up among the rows drawn last, and forgotten at once.
    """
    turn_key, rows_key = f"_{name}_turn", f"_{name}_rows"
    turn = st.session_state.get(turn_key, 0)
    seen = st.session_state.get(rows_key, rows)
    event = st.dataframe(
        frame,
        key=f"{name}_{turn}",
        on_select="rerun",
        selection_mode="single-row",
        hide_index=True,
        **options,
    )
    st.session_state[rows_key] = list(rows)
    chosen = event["selection"]["rows"]
    if not chosen or chosen[0] >= len(seen):
        return None
    st.session_state[turn_key] = turn + 1
    found: Mapping[str, Any] = seen[chosen[0]]
    return found
