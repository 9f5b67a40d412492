"""What the demo says at the end: each figure with a word on what it means, and all that is off."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from jobq.cli.database import Row
from jobq.cli.output import Column, counted, is_terminal, print_table, write
from jobq.cli.times import show_seconds
from jobq.demo.files import Comparison
from jobq.demo.queue import BATCH, Counts, Latency, Throughput
from jobq.demo.stories import Outcome, Story

__all__ = ["Findings", "faults", "print_report"]

_NAMED = 5


@dataclass(slots=True)
class Findings:
    """All that a run brought to light; what it did not get to is None."""

    files: int
    enqueue_seconds: float
    counts: Counts = field(default_factory=dict)
    throughput: Throughput | None = None
    comparison: Comparison | None = None
    latency: Latency | None = None
    problems: list[Row] | None = None
    refusal: str | None = None
    ends: list[tuple[Story, Outcome]] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)


def faults(found: Findings) -> list[str]:
    """Everything that is not as it should be, a line each."""
    off = list(found.broken)
    off += [
        f"the job that {story.title} (job {story.job_id}) {problem}"
        for story, end in found.ends
        if (problem := story.check(end))
    ]
    if found.refusal is None:
        off.append("a taken idempotency key was not refused (JQ002)")
    if found.comparison is None:
        off.append("the results were not compared with the files")
    elif found.comparison.wrong:
        wrong = found.comparison.wrong
        off.append(f"not what its job stored: {counted(len(wrong), 'file')}: {_some(wrong)}")
    if found.latency is None:
        off.append("pick-up latency could not be measured: a single job did not run within 10 s")
    if found.problems is None:
        off.append("verify() was not run")
    else:
        off += [
            f"verify(): job {row['job_id']}, {row['problem']}:"
            f" history says {row['ledger']}, job says {row['stored']}"
            for row in found.problems[:_NAMED]
        ]
        if len(found.problems) > _NAMED:
            off.append(f"verify(): {len(found.problems) - _NAMED:,} more problems")
    return off


def print_report(found: Findings, seconds: float) -> None:
    """Print what became of the jobs, and the figures."""
    write("\n")
    _print_outcomes(found)
    write("\n")
    rows: list[list[object]] = [
        *_throughput(found),
        *_latency(found.latency),
        *_digests(found.comparison),
        *_problems(found.problems),
        ["took", show_seconds(seconds), "all of it, by this process's clock"],
    ]
    print_table([Column("figure"), Column("value", wide=True), Column("meaning", wide=True)], rows)


def _print_outcomes(found: Findings) -> None:
    rows: list[list[object]] = []
    for kind, name in (("demo.file", "reads a file"), ("demo.ping", "does nothing")):
        for status, jobs in sorted(found.counts.get(kind, {}).items()):
            rows.append([f"{jobs:,}", name, status, _about(kind, status, found)])
    for story, end in found.ends:
        problem = story.check(end)
        told = f"off: {problem}" if problem else story.tell(end)
        rows.append(["1", story.title, end.job["status"], told])
    refusal = found.refusal or "off: it was not refused"
    rows.append(["1", "has a taken key", "refused", refusal])
    columns = [
        Column("jobs", right=True),
        Column("that", wide=True),
        Column("ended", wide=False),
        Column("what happened", wide=True),
    ]
    print_table(columns, rows, styled="ended")


def _about(kind: str, status: str, found: Findings) -> str:
    if kind == "demo.ping":
        return "one at a time, to measure the pick-up"
    if status == "succeeded" and found.comparison:
        return f"{found.comparison.bytes / 1e6:,.1f} MB read"
    return ""


def _throughput(found: Findings) -> list[list[object]]:
    if found.throughput is None or not found.throughput.seconds:
        return []
    done = found.throughput.succeeded + found.throughput.failed
    span = show_seconds(found.throughput.seconds)
    rate = done / found.throughput.seconds
    return [
        [
            "throughput",
            f"{rate:,.0f} jobs/s",
            f"{counted(done, 'file')} in {span}, first claim to last finish, database's clock",
        ],
        [
            "enqueue",
            f"{found.files / found.enqueue_seconds:,.0f} jobs/s",
            f"enqueue_many, {BATCH:,} jobs a call, each committed",
        ],
    ]


def _latency(latency: Latency | None) -> list[list[object]]:
    if latency is None:
        return []
    return [
        [
            "pick-up",
            f"p50 {latency.p50 * 1000:.1f} ms, p99 {latency.p99 * 1000:.1f} ms",
            f"due to claimed: {latency.jobs} jobs, each enqueued when nothing else was to do",
        ]
    ]


def _digests(comparison: Comparison | None) -> list[list[object]]:
    if comparison is None:
        return []
    rows: list[list[object]] = [
        [
            "digests",
            f"{comparison.same:,} right, {len(comparison.wrong):,} wrong",
            "SHA-256 and size as stored by the job, against hashlib on the file now",
        ]
    ]
    if comparison.changed:
        rows.append(
            [
                "changed",
                counted(len(comparison.changed), "file"),
                f"changed or removed meanwhile, so not compared: {_some(comparison.changed)}",
            ]
        )
    return rows


def _problems(problems: list[Row] | None) -> list[list[object]]:
    if problems is None:
        return []
    return [
        [
            "verify()",
            counted(len(problems), "problem") if problems else "clean",
            "replay of the history of every job in the database, compared with the job",
        ]
    ]


def _some(names: Sequence[str]) -> str:
    limit = _NAMED if is_terminal() else len(names)
    more = f", and {len(names) - limit:,} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more
