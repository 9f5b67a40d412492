"""What the queue does on this machine, on a durable PostgreSQL of its own.

    make bench                          # in at most ten minutes on two cores
    make bench ARGS="drain pickup"      # some scenarios
    make bench ARGS="ablations renewals"  # those that otherwise only the full run has
    make bench-full                     # all but peers, at full size, in at most two hours
    make bench ARGS=--smoke             # tiny, in under a minute: does it run?

Not every combination is run, in full neither: a variant of the drain differs in one thing from one
process with 10 threads; producers meet every gate at 1, 4, 16 and 64; claimers every batch of 1, 10
and 100 at 1 to 64; an old snapshot, crowds and ablations one way of claiming each.

Medians of interleaved rounds (three, or as many as the time allows) with their spread, and ratios
taken round by round. Writes bench.md, bench.json and the curves as PNG. fsync and
synchronous_commit are on; JOBQ_TEST_PG_BINDIR names the programs of another PostgreSQL.
"""

import argparse
import json
import sys
import time
from math import inf
from pathlib import Path
from typing import Any

import report
from harness import open_bench
from scenarios import IN_FULL, IN_SHORT, SCENARIOS

SMOKE, SHORT, FULL = 0.01, 1.0, 4.0
MINUTES = {SHORT: 9.5, FULL: 110.0}


def main() -> int:
    """Run the scenarios named on the command line; by default those of the short or full run."""
    options = _options()
    options.out.mkdir(parents=True, exist_ok=True)
    names = options.scenarios or (IN_FULL if options.scale > SHORT else IN_SHORT)
    with open_bench(options.out, rounds=options.rounds, scale=options.scale) as bench:
        facts = report.machine(bench)
        texts = [report.heading(facts)]
        print(texts[0], flush=True)
        content: dict[str, Any] = {"machine": facts, "scenarios": {}}
        end = time.monotonic() + 60 * options.minutes
        for place, name in enumerate(names):
            started = time.monotonic()
            # A long scenario may take its share of what is left and half of that again.
            bench.until = min(started + 1.5 * (end - started) / (len(names) - place), end)
            rows = SCENARIOS[name](bench)
            seconds = time.monotonic() - started
            texts.append(report.table(name, SCENARIOS[name].__doc__, rows, seconds))
            print(texts[-1], flush=True)
            content["scenarios"][name] = report.as_json(rows, seconds)
            content["curves"] = [vars(curve) for curve in bench.curves]
            _write(options.out, texts, content)  # now, in case a later one fails
        curves = bench.curves
    if curves:
        pictures = report.draw(curves, options.out)
        pictured = "\n".join(f"![{path.stem}]({path.name})" for path in pictures)
        texts.append("\n" + (pictured or "matplotlib is not installed: no plots."))
        print(texts[-1])
        _write(options.out, texts, content)
    return 0


def _write(folder: Path, texts: list[str], content: dict[str, Any]) -> None:
    (folder / "bench.md").write_text("\n".join(texts) + "\n")
    (folder / "bench.json").write_text(json.dumps(content, indent=1, ensure_ascii=False))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("scenarios", nargs="*", help=f"some of: {', '.join(SCENARIOS)}")
    parser.add_argument("--rounds", type=int, help="interleaved rounds (default 3)")
    parser.add_argument(
        "--minutes", type=float, help="fewer rounds if it would take longer (default 9.5, full 110)"
    )
    parser.add_argument("--out", type=Path, default=Path("build/bench"), help="output folder")
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--smoke", dest="scale", action="store_const", const=SMOKE, default=SHORT)
    size.add_argument("--full", dest="scale", action="store_const", const=FULL)
    size.add_argument("--scale", type=float, help=f"sizes; {SHORT} by default, over it: full")
    options = parser.parse_args()
    unknown = set(options.scenarios) - set(SCENARIOS)
    if unknown:
        parser.error(f"no scenario {', '.join(sorted(unknown))}; known: {', '.join(SCENARIOS)}")
    options.minutes = options.minutes or MINUTES.get(options.scale, inf)
    options.rounds = options.rounds or (1 if options.scale <= SMOKE else 3)
    return options


if __name__ == "__main__":
    sys.exit(main())
