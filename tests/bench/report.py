"""What is handed in at the end: tables as Markdown, everything as JSON, curves as pictures."""

import os
import platform
import statistics
import subprocess
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
from harness import Bench, Curve, Row
from meter import FIGURES, PROC

_SETTINGS = (
    "fsync", "synchronous_commit", "full_page_writes", "wal_level", "wal_sync_method",
    "shared_buffers", "max_wal_size", "checkpoint_timeout", "max_connections", "autovacuum", "jit",
)  # fmt: skip


def machine(bench: Bench) -> dict[str, Any]:
    """What the figures were measured on."""
    with psycopg.connect(bench.server.dsn) as conn:
        version = conn.execute("select current_setting('server_version')").fetchone()
        settings = {
            name: conn.execute("select current_setting(%s)", (name,)).fetchone()
            for name in _SETTINGS
        }
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        capture_output=True, text=True, check=False, cwd=Path(__file__).parent,
    )  # fmt: skip
    return {
        "date": datetime.now(UTC).isoformat(timespec="minutes"),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory": _memory(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "postgresql": str(version[0]) if version else "unknown",
        "settings": {name: str(row[0]) for name, row in settings.items() if row},
        "jobq": commit.stdout.strip() or "unknown",
        "rounds": bench.rounds,
        "scale": bench.scale,
    }


def heading(facts: Mapping[str, Any]) -> str:
    """The machine, as Markdown."""
    lines = ["# Benchmark", ""]
    for name, value in facts.items():
        text = ", ".join(f"{k} {v}" for k, v in value.items()) if name == "settings" else value
        lines.append(f"- {name}: {text}")
    ticks = (PROC / "self/stat").exists()
    lines += ["", "CPU is counted by ticks of 10 ms a process." if ticks else "No /proc: no CPU."]
    return "\n".join(lines)


def table(name: str, docstring: str | None, rows: list[Row], seconds: float) -> str:
    """A scenario's rows, as Markdown; what jobs cost in a table of its own."""
    title, _, notes = (docstring or "").strip().partition("\n")
    lines = [f"\n## {name}: {title}", ""]
    lines += [" ".join(notes.split()), ""] if notes.strip() else []
    lines += [
        "| | median | min | max | unit | ratio | to | target | |",
        "|---|---:|---:|---:|---|---:|---|---|---|",
        *(_line(row, rows) for row in rows if not _is_cost(row)),
        *_costs([row for row in rows if _is_cost(row)]),
        "",
        f"Rounds: {max((len(row.values) for row in rows), default=0)}. It took {seconds:.0f} s.",
    ]
    return "\n".join(lines)


def _line(row: Row, rows: list[Row]) -> str:
    ratio = ""
    if ratios := row.ratios(rows):
        low, high = min(ratios), max(ratios)
        ratio = f"{statistics.median(ratios):.2f} ({low:.2f} to {high:.2f})"
    figures = " | ".join(_short(v) for v in (row.median, min(row.values), max(row.values)))
    verdict = {True: "met", False: "missed", None: ""}[row.met(rows)]
    return (
        f"| {row.what} | {figures} | {row.unit} | {ratio} | {row.ratio_to or ''}"
        f" | {row.target or ''} | {verdict} |"
    )


def _is_cost(row: Row) -> bool:
    return row.target is None and row.what.rpartition(": ")[2] in FIGURES


def _costs(rows: list[Row]) -> list[str]:
    table: dict[str, dict[str, str]] = {}
    for row in rows:
        name, _, figure = row.what.rpartition(": ")
        table.setdefault(name, {})[f"{figure}, {row.unit}"] = _short(row.median)
    if not table:
        return []
    columns = list(next(iter(table.values())))
    return [
        "",
        f"| median cost | {' | '.join(columns)} |",
        f"|---|{'---:|' * len(columns)}",
        *(f"| {name} | {' | '.join(cells.values())} |" for name, cells in table.items()),
    ]


def as_json(rows: list[Row], seconds: float) -> dict[str, Any]:
    """A scenario's rows with all their values and ratios."""
    return {
        "seconds": round(seconds, 1),
        "rows": [
            {**vars(row), "median": row.median, "ratios": row.ratios(rows), "met": row.met(rows)}
            for row in rows
        ],
    }


def draw(curves: list[Curve], folder: Path) -> list[Path]:
    """Each curve as a PNG in the folder; none where matplotlib is not installed."""
    try:
        import matplotlib as mpl
    except ImportError:
        return []
    mpl.use("agg")
    from matplotlib import pyplot as plt

    paths = []
    for curve in curves:
        figure, axes = plt.subplots(figsize=(8, 4.5), layout="constrained")
        for name, points in curve.series.items():
            marker = "o" if len(points) <= 20 else ""
            axes.plot([x for x, _ in points], [y for _, y in points], marker=marker, label=name)
        axes.set(xlabel=curve.x_label, ylabel=curve.y_label)
        figure.suptitle(curve.title, fontsize="medium")
        axes.set_ylim(bottom=0)
        xs = [x for points in curve.series.values() for x, _ in points]
        if min(xs) > 0 and max(xs) >= 60 * min(xs):
            axes.set_xscale("log")
            axes.set_xticks(sorted(set(xs)), [f"{x:,.0f}" for x in sorted(set(xs))], minor=False)
            axes.minorticks_off()
        axes.grid(visible=True, alpha=0.3)
        if len(curve.series) > 1:
            figure.legend(frameon=False, loc="outside lower center", ncols=len(curve.series))
        paths.append(folder / f"{curve.name}.png")
        figure.savefig(paths[-1], dpi=120)
        plt.close(figure)
    return paths


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:,.3g}"


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or "unknown"


def _memory() -> str:
    try:
        return f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB"
    except (ValueError, OSError):
        return "unknown"
