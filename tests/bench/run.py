"""First figures: what one machine does with the queue, on a durable PostgreSQL of its own.

    make bench                         # all scenarios
    make bench ARGS="drain gate"       # some of them

Each scenario prints medians of interleaved rounds with their spread. The server keeps fsync and
synchronous_commit on; JOBQ_TEST_PG_BINDIR names the programs of another PostgreSQL.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
from scenarios import SCENARIOS, Row

from jobq import _binaries, embedded
from jobq.migrate import migrate

SERVER = {"shared_buffers": "1GB", "max_wal_size": "4GB", "max_connections": "200"}


def main() -> int:
    """Run the scenarios named on the command line, all by default."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scenarios", nargs="*", help=f"some of: {', '.join(SCENARIOS)}")
    parser.add_argument("--rounds", type=int, default=3, help="interleaved rounds (default 3)")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args()
    unknown = set(options.scenarios) - set(SCENARIOS)
    if unknown:
        parser.error(f"no scenario {', '.join(sorted(unknown))}; known: {', '.join(SCENARIOS)}")
    report: dict[str, Any] = {"machine": _machine(), "figures": {}}
    with _server() as server:
        report["machine"]["postgresql"] = _version(server.dsn)
        print("  ".join(f"{name}: {value}" for name, value in report["machine"].items()))
        for name in options.scenarios or SCENARIOS:
            rows = SCENARIOS[name](lambda: _fresh(server.dsn), options.rounds)
            report["figures"][name] = [vars(row) for row in rows]
            _print(name, SCENARIOS[name], rows)
    if options.json:
        options.json.write_text(json.dumps(report, indent=1))
    return 0


@contextmanager
def _server() -> Iterator[embedded.Server]:
    bindir = os.environ.get("JOBQ_TEST_PG_BINDIR")
    binaries = _binaries.inspect_bindir(Path(bindir)) if bindir else None
    with tempfile.TemporaryDirectory(prefix="jobq-bench-") as folder:
        Path(folder).chmod(0o711)
        with embedded.server(folder, settings=SERVER, binaries=binaries) as server:
            yield server


def _fresh(dsn: str) -> str:
    """An empty, migrated database."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("drop database if exists bench with (force)")
        conn.execute("create database bench template template0")
        conn.execute("checkpoint")
    target = psycopg.conninfo.make_conninfo(dsn, dbname="bench")
    migrate(target)
    return target


def _version(dsn: str) -> str:
    with psycopg.connect(dsn) as conn:
        row = conn.execute("select current_setting('server_version')").fetchone()
    return str(row[0]) if row else "?"


def _machine() -> dict[str, Any]:
    model = "unknown processor"
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [line for line in cpuinfo.read_text().splitlines() if line.startswith("model name")]
        model = names[0].partition(":")[2].strip() if names else model
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False
    )
    return {
        "processor": model,
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "jobq": commit.stdout.strip() or "unknown",
    }


def _print(name: str, scenario: Callable[..., Any], rows: list[Row]) -> None:
    print(f"\n### {name}: {(scenario.__doc__ or '').splitlines()[0]}\n")
    print("| | median | min | max | unit |\n|---|---:|---:|---:|---|")
    for row in rows:
        figures = [statistics.median(row.values), min(row.values), max(row.values)]
        cells = " | ".join(f"{value:,.2f}" if value < 100 else f"{value:,.0f}" for value in figures)
        print(f"| {row.what} | {cells} | {row.unit} |")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
