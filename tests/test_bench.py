"""The benchmarks' arithmetic, and one scenario from the command line to the report."""

import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from harness import Bench

pytestmark = pytest.mark.once

BENCH = Path(__file__).parent / "bench"
PNG = b"\x89PNG"


@pytest.fixture(autouse=True)
def _path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCH)


@pytest.fixture
def bench(tmp_path: Path) -> "Callable[[float], Bench]":
    """A bench of any scale whose server is never asked."""
    from harness import Bench

    from jobq.embedded import Server

    return lambda scale: Bench(Server(tmp_path), tmp_path, rounds=3, scale=scale)


def test_ratios_are_taken_round_by_round() -> None:
    from harness import Row

    base = Row("base", "jobs/s", [100, 50, 10])
    row = Row("row", "jobs/s", [90, 60, 8], ratio_to="base", target="≥ 0.9")
    assert row.median == 60
    assert row.ratios([base, row]) == [0.9, 1.2, 0.8]
    assert row.met([base, row]) is True
    assert base.ratios([base, row]) == []


@pytest.mark.parametrize(
    ("target", "met"),
    [("≥ 2", True), ("≥ 2.1", False), ("≤ 2", True), ("< 1.9", False), ("few", None), (None, None)],
)
def test_a_target_is_read(target: str | None, met: bool | None) -> None:
    from harness import Row

    assert Row("p50", "ms", [1, 2, 9], target=target).met([]) is met


def test_a_ratio_to_nothing_is_left_out() -> None:
    from harness import Row

    row = Row("row", "jobs/s", [1, 2], ratio_to="base", target="≥ 0.9")
    assert row.ratios([row, Row("base", "jobs/s", [0, 4])]) == [0.5]
    assert row.ratios([row]) == []
    assert row.met([row]) is None


def test_rows_collect_a_value_a_round() -> None:
    from harness import Rows

    rows = Rows()
    for value in (1.0, 2.0):
        rows.add("a", "ms", value)
        rows.add("b", "ms", value * 2, ratio_to="a")
    assert [(row.what, row.values) for row in rows.list()] == [("a", [1, 2]), ("b", [2, 4])]
    assert rows.list()[1].ratios(rows.list()) == [2, 2]


def test_no_round_begins_that_would_end_too_late(bench: "Callable[[float], Bench]") -> None:
    timed = bench(1)
    assert list(timed.repeat()) == [0, 1, 2]
    timed.until = 0
    assert list(timed.repeat()) == [0]


@pytest.mark.parametrize(
    ("scale", "jobs", "jobs_given_full", "seconds"),
    [(1, 5000, 5000, 2), (0.01, 100, 100, 0.3), (4, 20_000, 200_000, 30)],
)
def test_sizes_are_scaled(
    bench: "Callable[[float], Bench]", scale: float, jobs: int, jobs_given_full: int, seconds: float
) -> None:
    sized = bench(scale)
    assert sized.jobs(5000) == jobs
    assert sized.jobs(5000, full=200_000) == jobs_given_full
    assert sized.seconds(2, full=30) == seconds
    assert sized.jobs(0) == 0


def test_percentiles_are_by_nearest_rank() -> None:
    from load import percentile

    assert percentile([3, 1, 2], 0.5) == 2
    assert percentile(range(1000), 0.99) == 990
    assert percentile([7], 0.999) == 7
    assert percentile([], 0.5) == 0


def test_costs_are_told_apart_from_figures() -> None:
    from harness import Row
    from report import as_json, table

    rows = [Row("drain", "jobs/s", [1000, 2000, 3000]), Row("drain: WAL", "bytes/job", [1500])]
    text = table("drain", "Backlog.\n\nHow it\nis measured.", rows, 1.4)
    assert text.startswith("\n## drain: Backlog.\n\nHow it is measured.\n")
    assert "| drain | 2,000 | 1,000 | 3,000 | jobs/s |" in text
    assert "| median cost | WAL, bytes/job |\n|---|---:|\n| drain | 1,500 |" in text
    assert as_json(rows, 1.4)["rows"][0]["median"] == 2000


def test_a_run_writes_its_report(tmp_path: Path) -> None:
    smoke(tmp_path, "enqueue_many")
    report = json.loads((tmp_path / "bench.json").read_text())
    machine: dict[str, Any] = report["machine"]
    assert machine["settings"]["fsync"] == machine["settings"]["synchronous_commit"] == "on"
    assert machine["postgresql"] in (tmp_path / "bench.md").read_text()
    rows = report["scenarios"]["enqueue_many"]["rows"]
    assert all(len(row["values"]) == 1 for row in rows)
    assert rows[0]["values"][0] > 0
    if importlib.util.find_spec("matplotlib"):
        assert (tmp_path / "enqueue_many.png").read_bytes().startswith(PNG)
    else:
        assert "no plots" in (tmp_path / "bench.md").read_text()


def test_an_unknown_scenario_is_refused(tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, str(BENCH / "run.py"), "nonsense", "--out", str(tmp_path)],
        capture_output=True, text=True,
    )  # fmt: skip
    assert run.returncode == 2
    assert "no scenario nonsense; known: drain" in run.stderr


def smoke(out: Path, *scenarios: str) -> None:
    """Run scenarios at their smallest size."""
    subprocess.run(
        [sys.executable, str(BENCH / "run.py"), "--smoke", "--out", str(out), *scenarios],
        check=True, stdout=subprocess.DEVNULL,
    )  # fmt: skip
