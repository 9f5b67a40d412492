"""What each rule of the hot path buys or costs: the same work on a schema altered in one place."""

import re
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass

from gate import PLAIN_NOTIFY
from harness import Bench, Meter, Row, Rows
from load import Claimer, Connection, connect, fill, one, rate
from pinned import FREE, READER, pin

BATCH = 500

_ENQUEUE, _DRAIN = "enqueue_many", "claim and settle"
_RECORDERS = ("_record_new_jobs", "_record_transitions")
_INSERT = re.compile(r"insert into jobq\.job_events \([^)]*\)\s*select")

# The same functions once a row: each row is a table of one, the cause cannot be taken away by the
# first one, and the plan needs no pin.
_ROW_WISE = (
    ("jobq._take_via()", "coalesce(current_setting('jobq.via', true), '')"),
    ("join old_jobs o on o.id = n.id", "cross join unnest(array[old]) o"),
    ("new_jobs n", "unnest(array[new]) n"),
)
_ROW_TRIGGERS = """
drop trigger record_new_jobs on jobq.jobs;
drop trigger record_transitions on jobq.jobs;
create trigger record_new_jobs after insert on jobq.jobs
for each row execute function jobq._record_new_jobs();
create trigger record_transitions after update on jobq.jobs
for each row execute function jobq._record_transitions();
alter function jobq._record_new_jobs() reset enable_nestloop reset enable_mergejoin
  reset enable_hashjoin reset jit;
alter function jobq._record_transitions() reset enable_nestloop reset enable_mergejoin
  reset enable_hashjoin reset jit
"""
_FOREIGN_KEY = """
alter table jobq.job_events add constraint job_events_job_id_fkey
foreign key (job_id) references jobq.jobs (id) not valid
"""
_SECOND_INDEX = "create index on jobq.job_events (at)"


def _keep(conn: Connection) -> None:
    """The schema as it is."""


def _no_events(conn: Connection) -> None:
    for name in _RECORDERS:
        _rewrite(conn, name, lambda text: _INSERT.sub("perform", text))


def _row_wise(conn: Connection) -> None:
    for name in _RECORDERS:
        _rewrite(conn, name, lambda text: _replaced(text, _ROW_WISE))
    conn.execute(_ROW_TRIGGERS.encode())


def _no_floor(conn: Connection) -> None:
    _rewrite(conn, "_read_floor", lambda text: text.replace("begin\n", "begin\n  return;\n", 1))


def _waiting_settle(conn: Connection) -> None:
    _rewrite(conn, "settle", lambda text: text.replace("update skip locked", "update", 1))


def _run(statement: str) -> Callable[[Connection], None]:
    def alter(conn: Connection) -> None:
        conn.execute(statement.encode())

    return alter


@dataclass(frozen=True)
class Variant:
    """An altered schema, what is measured on it, and the variant that it is held against."""

    name: str
    alter: Callable[[Connection], None] = _keep
    parts: tuple[str, ...] = (_ENQUEUE, _DRAIN)
    old: str = FREE
    against: str = "as it is"


VARIANTS = [
    Variant("as it is"),
    Variant("no events, still the guard", _no_events),
    Variant("triggers for each row", _row_wise),
    Variant("a foreign key from events to jobs", _run(_FOREIGN_KEY)),
    Variant("a second index on events", _run(_SECOND_INDEX)),
    Variant("plain NOTIFY, no gate", _run(PLAIN_NOTIFY), (_ENQUEUE,)),
    Variant("settle waits for locked rows", _waiting_settle, (_DRAIN,)),
    Variant("no floor", _no_floor, (_DRAIN,)),
    Variant("old snapshot, as it is", _keep, (_DRAIN,), READER, "old snapshot, as it is"),
    Variant("old snapshot, no floor", _no_floor, (_DRAIN,), READER, "old snapshot, as it is"),
]


def ablations(bench: Bench) -> list[Row]:
    """The hot path without one of its rules: one connection, 1,000 and 500 jobs a call.

    Server CPU is the more robust figure where the machine is shared. A ratio over 1 in jobs/s, or
    under 1 in CPU and WAL, is what the rule costs; the other way round, what it buys.
    """
    measured: list[tuple[str, Variant, dict[str, float]]] = []
    jobs = bench.jobs(20_000, full=200_000)
    for _ in bench.repeat():
        for variant in VARIANTS:
            for part, figures in _measure(bench, variant, jobs).items():
                measured.append((part, variant, figures))
    rows = Rows()
    for part in (_ENQUEUE, _DRAIN):
        for unit in ("jobs/s", "server CPU, µs/job", "WAL, bytes/job"):
            for which, variant, figures in measured:
                if which == part and unit in figures:
                    kind, _, plain = unit.rpartition(", ")
                    head = f"{part}, {kind}" if kind else part
                    other = None if variant.against == variant.name else variant.against
                    rows.add(
                        f"{head}: {variant.name}", plain, figures[unit],
                        ratio_to=other and f"{head}: {other}",
                    )  # fmt: skip
    return rows.list()


def _measure(bench: Bench, variant: Variant, jobs: int) -> dict[str, dict[str, float]]:
    """Figures by part; an enqueue that is not asked for only fills the queue."""
    dsn = bench.fresh()
    with closing(connect(dsn)) as conn:
        variant.alter(conn)
        with Meter(dsn, jobs) as enqueuing:
            seconds = fill(conn, jobs)
        conn.execute("analyze jobq.jobs, jobq.job_events")
    parts = {_ENQUEUE: (jobs / seconds, enqueuing)}
    if _DRAIN in variant.parts:
        with closing(connect(dsn)) as conn, Meter(dsn, jobs) as draining, pin(dsn, variant.old):
            turns = Claimer(conn, BATCH).burn()
        with closing(connect(dsn)) as conn:
            left = one(conn, "select count(*) from jobq.jobs where status <> 'succeeded'")
        if left:
            raise RuntimeError(f"{variant.name}: {left} jobs are left")
        parts[_DRAIN] = (rate(turns), draining)
    return {
        part: {"jobs/s": speed}
        | {f"{name}, {unit}": value for (name, unit), value in meter.per_job().items()}
        for part, (speed, meter) in parts.items()
        if part in variant.parts
    }


def _rewrite(conn: Connection, function: str, change: Callable[[str], str]) -> None:
    """Replace a function of the schema by a changed one; what does not fit is an error."""
    query = "select pg_get_functiondef(%s::regproc)"
    text = str(one(conn, query, f"jobq.{function}"))
    changed = change(text)
    if changed == text:
        raise RuntimeError(f"jobq.{function} has nothing to change here any more")
    conn.execute(changed.encode())


def _replaced(text: str, pairs: tuple[tuple[str, str], ...]) -> str:
    for old, new in pairs:
        text = text.replace(old, new)
    return text
