"""What the wake-up costs those who enqueue."""

import select
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from multiprocessing.pool import Pool
from typing import NamedTuple

from harness import Bench, Row, Rows
from load import Connection, connect
from producers import clients, produce, together

GATE = "select 1"
NO_NOTIFY = "create or replace function jobq._wake(kinds text[]) returns void language sql as ''"
PLAIN_NOTIFY = """
create or replace function jobq._wake(kinds text[]) returns void language sql
as $$ select pg_notify('jobq', k) from unnest(kinds) k $$
"""


class Variant(NamedTuple):
    """Who is woken how: `idle` sessions wait for `kind`."""

    name: str
    wake: str
    idle: int = 0
    kind: str = "noop"


CONTROL = "no NOTIFY at all"
SHORT = [
    Variant(CONTROL, NO_NOTIFY),
    Variant("gate, nobody waits", GATE),
    Variant("gate, 1 idle of another kind", GATE, 1, "other"),
    Variant("gate, 20 idle of another kind", GATE, 20, "other"),
    Variant("gate, 1 idle of this kind", GATE, 1),
    Variant("plain NOTIFY, no gate", PLAIN_NOTIFY),
]
FULL = [
    *SHORT,
    Variant("gate, 20 idle of this kind", GATE, 20),
    Variant("plain NOTIFY, 20 listen", PLAIN_NOTIFY, 20),
]
HELD_AGAINST = {
    "gate, nobody waits",
    "gate, 1 idle of another kind",
    "gate, 20 idle of another kind",
}


def gate(bench: Bench) -> list[Row]:
    """Single enqueues a second, by number of producers: what the wake-up costs them.

    The idle are sessions that called listen() and read what comes, but never claim: the worst
    case, since a worker that is woken stops listening. In the short run 16 producers only.
    """
    rows = Rows()
    counts = (1, 4, 16, 64) if bench.full else (16,)
    with clients() as pool:
        for _ in bench.repeat():
            for producers in counts:
                for variant in FULL if bench.full else SHORT:
                    _measure(bench, rows, pool, producers, variant)
    made = {row.what: row.median for row in rows.list()}
    if bench.full:
        series = {v.name: [(float(n), made[_name(n, v.name)]) for n in counts] for v in FULL}
        bench.curve("gate", "Single enqueues", "producers", "jobs/s", series)
    return rows.list()


def _name(producers: int, variant: str) -> str:
    return f"{producers} producer{'s' if producers > 1 else ''}, {variant}"


def _measure(bench: Bench, rows: Rows, pool: Pool, producers: int, variant: Variant) -> None:
    seconds = bench.seconds(1.5, full=3)
    dsn = bench.fresh()
    with closing(connect(dsn)) as conn:
        conn.execute(variant.wake.encode())
    with idle(dsn, variant.idle, variant.kind):
        made = together(pool, dsn, producers, produce, seconds)
    held = producers == 16 and variant.name in HELD_AGAINST
    rows.add(
        _name(producers, variant.name), "jobs/s", sum(made) / seconds,
        ratio_to=None if variant.name == CONTROL else _name(producers, CONTROL),
        target="≥ 0.85" if held else None,
    )  # fmt: skip


@contextmanager
def idle(dsn: str, sessions: int, kind: str) -> Iterator[None]:
    """So many sessions that wait for this kind and read their notifications."""
    stop = threading.Event()
    with ExitStack() as stack:
        conns = [stack.enter_context(closing(connect(dsn))) for _ in range(sessions)]
        for conn in conns:
            conn.execute("select jobq.listen(%s)", ([kind],))
        reader = threading.Thread(target=_read, args=(conns, stop))
        reader.start()
        try:
            yield
        finally:
            stop.set()
            reader.join()


def _read(conns: list[Connection], stop: threading.Event) -> None:
    while not stop.is_set():
        ready, _, _ = select.select([conn.fileno() for conn in conns], [], [], 0.05)
        for conn in conns:
            if conn.fileno() in ready:
                conn.pgconn.consume_input()
                while conn.pgconn.notifies():
                    pass
