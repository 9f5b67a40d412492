"""The charts: true numbers, series told apart without colour, specs that last."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import charts
import charts_bars
from durations import QUANTILES, quantiles, rung, spread
from screens import HOSTILE

MINUTE = timedelta(minutes=1)
START = datetime(2026, 11, 1, 12, tzinfo=UTC)
COUNTS = ("started", "succeeded", "failed", "retried", "lost", "cancelled")


def buckets(count: int = 60, start: datetime = START, **sums: int) -> list[dict[str, Any]]:
    """So many buckets of a minute; what is given happened in the second one."""
    return [
        {
            "bucket": start + MINUTE * place,
            **{name: sums.get(name, 0) if place == 1 else 0 for name in COUNTS},
        }
        for place in range(count)
    ]


def runs_of(
    *seconds: float, at: datetime = START, event: str = "succeeded"
) -> list[dict[str, Any]]:
    """Runs that ended then and took so long."""
    return [{"ended_at": at, "run_seconds": taken, "event": event} for taken in seconds]


def scales(spec: Any, channel: str) -> list[list[Any]]:
    """The ranges of a channel in a spec's layers."""
    layers = [layer["encoding"].get(channel, {}) for layer in spec["layer"]]
    return [layer["scale"]["range"] for layer in layers if "scale" in layer]


def test_a_chart_has_all_buckets_of_the_window_and_their_counts() -> None:
    rows = buckets(started=7, succeeded=5, failed=2)
    flow, trouble = charts.flow(rows, MINUTE).rows, charts.trouble(rows, MINUTE).rows
    assert list(flow["at"]) == [row["bucket"] for row in rows]
    assert list(flow["until"])[-1] == START + MINUTE * 60
    assert list(flow["started"])[:3] == [0, 7, 0]
    assert list(flow["succeeded"])[:3] == [0, 5, 0]
    assert list(trouble["failed"])[:3] == [0, 2, 0]


def test_the_bucket_that_is_not_over_is_no_rate_yet() -> None:
    drawing = charts.flow(buckets(), MINUTE)
    assert list(drawing.rows["over"]) == [True] * 59 + [False]
    lines = [layer for layer in drawing.spec["layer"] if layer["mark"]["type"] in ("line", "area")]
    assert len(lines) == 2
    assert all({"filter": "datum.over"} in layer["transform"] for layer in lines)


def test_series_differ_by_dash_or_shape_and_not_by_colour_alone() -> None:
    rows = buckets(failed=1, retried=1, lost=1, cancelled=1)
    drawings = {
        "strokeDash": [
            charts.flow(rows, MINUTE),
            charts.percentiles(quantiles([], "x", [], MINUTE), MINUTE),
        ],
        "shape": [charts.trouble(rows, MINUTE)],
    }
    for channel, drawn in drawings.items():
        for drawing in drawn:
            for styles in scales(drawing.spec, channel):
                assert len({str(style) for style in styles}) == len(styles) > 1


def test_what_is_rare_is_only_drawn_when_it_happened() -> None:
    def series(**sums: int) -> list[str]:
        rows = charts.trouble(buckets(60, START, **sums), MINUTE).rows
        return [name for name in COUNTS if name in rows]

    assert series() == ["failed", "retried"]
    assert series(lost=1, cancelled=3) == ["failed", "retried", "lost", "cancelled"]


def test_new_data_of_the_same_kind_needs_no_new_spec() -> None:
    later = START + MINUTE * 7
    for draw in (charts.flow, charts.trouble):
        first = draw(buckets(started=3, failed=1), MINUTE)
        second = draw(buckets(start=later, started=30, failed=900), MINUTE)
        assert first.spec is second.spec
    assert charts.flow(buckets(started=3), MINUTE).spec is not charts.flow(buckets(), MINUTE).spec


def test_the_axis_knows_of_what_is_drawn_only() -> None:
    rows = buckets()
    rows[-1]["started"] = 3  # in the bucket that is not over
    assert charts.flow(rows, MINUTE).spec is charts.flow(buckets(), MINUTE).spec


def test_a_spec_holds_no_rows_and_no_times() -> None:
    for drawing in (
        charts.flow(buckets(started=3), MINUTE),
        charts.trouble(buckets(), MINUTE),
        charts.percentiles(quantiles(runs_of(3.0), "run_seconds", [START], MINUTE), MINUTE),
        charts_bars.histogram(runs_of(3.0)),
        charts_bars.backlog([{"kind": HOSTILE, "queued": 3, "due": 2, "running": 1}]),
    ):
        assert drawing.spec["data"] == {"name": charts.ROWS}
        assert "datasets" not in drawing.spec
        assert all("data" not in layer for layer in drawing.spec["layer"])
        assert HOSTILE not in str(drawing.spec)
        assert "2026" not in str(drawing.spec)
        assert drawing.whole()["datasets"] == {charts.ROWS: drawing.rows}


def test_percentiles_are_of_the_runs_that_ended_in_the_bucket() -> None:
    at = [START, START + MINUTE, START + 2 * MINUTE]
    runs = [*runs_of(*range(101), at=START), *runs_of(7.0, at=START + 2 * MINUTE + MINUTE / 2)]
    rows = quantiles(runs, "run_seconds", at, MINUTE)
    assert rows[0] == {"bucket": START, "runs": 101, "p50": 50, "p95": 95, "p99": 99}
    assert rows[1] == {"bucket": at[1], "runs": 0, "p50": None, "p95": None, "p99": None}
    assert rows[2] == {"bucket": at[2], "runs": 1, "p50": 7, "p95": 7, "p99": 7}


def test_a_run_that_ended_outside_the_buckets_counts_in_none() -> None:
    runs = [
        run
        for seconds, place in ((9.0, -1), (1.0, 0), (2.0, 1), (9.0, 2))
        for run in runs_of(seconds, at=START + place * MINUTE)
    ]
    rows = quantiles(runs, "run_seconds", [START, START + MINUTE], MINUTE)
    assert [(row["runs"], row["p50"]) for row in rows] == [(1, 1.0), (1, 2.0)]


@pytest.mark.parametrize(
    ("seconds", "logarithmic"), [((1.0, 2.0, 40.0), False), ((0.01, 3.0), True), ((), False)]
)
def test_the_scale_is_logarithmic_only_where_values_lie_far_apart(
    seconds: tuple[float, ...], logarithmic: bool
) -> None:
    runs = [
        run
        for place, taken in enumerate(seconds)
        for run in runs_of(taken, at=START + MINUTE * place)
    ]
    at = [START + MINUTE * place for place in range(4)]
    drawing = charts.percentiles(quantiles(runs, "run_seconds", at, MINUTE), MINUTE)
    encodings = [layer["encoding"] for layer in drawing.spec["layer"]]
    (scale,) = [encoding["y"]["scale"] for encoding in encodings if "y" in encoding]
    assert (scale.get("type") == "log") is logarithmic
    if seconds:
        low, high = scale["domain"]
        assert low <= min(seconds)
        assert high >= max(seconds)


def test_the_spread_says_of_how_many_runs_and_marks_a_sample() -> None:
    runs = runs_of(*[0.5] * 99, 2.0)
    assert spread(runs, "run_seconds", 1) == "p50 500 ms, p95 500 ms, p99 515 ms, of 100 runs."
    sampled = spread(runs, "run_seconds", 0.25)
    assert sampled == "≈ p50 500 ms, p95 500 ms, p99 515 ms, of 100 runs, a sample of ≈ 400."
    assert spread([], "run_seconds", 1) == "No run to tell from."


def test_the_backlog_says_what_is_due_what_is_scheduled_and_what_runs() -> None:
    drawing = charts_bars.backlog([{"kind": HOSTILE, "queued": 3000, "due": 2000, "running": 1}])
    (row,) = drawing.rows.to_dict("records")
    assert (row["running"], row["due"], row["scheduled"]) == (1, 2000, 1000)
    assert row["kind"] == HOSTILE
    assert row["words"].endswith("1 running, 2,000 due, 1,000 scheduled")


def test_every_run_is_in_one_bar_of_the_histogram() -> None:
    seconds = [1e-6, 0.0001, 0.001, 0.01, 0.0999, 1.0, 59.9, 60.0, 3600.0, 500_000.0]
    runs = [*runs_of(*seconds), *runs_of(*seconds[:3], event="failed")]
    rows = charts_bars.histogram(runs).rows
    assert rows["runs"].sum() == 13
    assert rows["succeeded"].sum() == 10
    assert rows["others"].sum() == 3
    assert list(rows["high"])[:-1] == list(rows["low"])[1:]


def test_bounds_of_scales_hold_their_value() -> None:
    for value in (0.0002, 0.5, 1.0, 9.99, 1234.5):
        assert rung(value, -1) <= value < rung(value, 1)
    assert list(QUANTILES) == ["p50", "p95", "p99"]
