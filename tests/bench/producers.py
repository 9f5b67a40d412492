"""Clients by the dozen: threads of four processes, each on a connection of its own.

A thread gives the interpreter up while it waits for the server; four processes leave two cores
enough of them to be busy with.
"""

import random
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from multiprocessing import get_context
from multiprocessing.pool import ApplyResult, Pool
from typing import Any, ClassVar

from load import Claimer, Connection, Turn, connect, one

PROCESSES = 4
# The planned time travels in the payload, so that the latency is a query.
_ENQUEUE = "select jobq.enqueue('noop', jsonb_build_object('n', 1, 'to', %s::text))"
_BACKLOG = "select count(*) from (select from jobq.jobs where status = 'queued' limit 500) q"

Client = Callable[[Connection, float, int, Any], Any]


@contextmanager
def clients() -> Iterator[Pool]:
    """The processes, started."""
    context = get_context("spawn")
    barrier = context.Barrier(PROCESSES, timeout=60)
    with context.Pool(PROCESSES, _State.enter, (barrier,)) as pool:
        pool.map(_State.meet, range(PROCESSES), chunksize=1)
        yield pool


class _State:
    """What a client process keeps: where it waits for the others."""

    ready: ClassVar[Any] = None

    @classmethod
    def enter(cls, ready: Any) -> None:
        cls.ready = ready

    @classmethod
    def meet(cls, number: int) -> None:
        cls.ready.wait()


def begin(
    pool: Pool, dsn: str, count: int, client: Client, argument: Any
) -> ApplyResult[list[list[Any]]]:
    """Run `client(conn, start, number, argument)` on so many connections; what they return, later.

    `start` is the time, a moment ahead, at which all are connected and begin.
    """
    calls = [(dsn, range(first, count, PROCESSES), client, argument) for first in range(PROCESSES)]
    return pool.starmap_async(_threads, calls, chunksize=1)


def together(pool: Pool, dsn: str, count: int, client: Client, argument: Any) -> list[Any]:
    """The same, to the end: what each returned."""
    return [value for part in begin(pool, dsn, count, client, argument).get() for value in part]


def _threads(dsn: str, numbers: Sequence[int], client: Client, argument: Any) -> list[Any]:
    with ExitStack() as stack, ThreadPoolExecutor(len(numbers) or 1) as threads:
        conns = [stack.enter_context(closing(connect(dsn))) for _ in numbers]
        _State.meet(0)
        start = time.time() + 0.3
        futures = [
            threads.submit(client, conn, start, number, argument)
            for conn, number in zip(conns, numbers, strict=True)
        ]
        return [future.result() for future in futures]


def sleep_until(at: float) -> None:
    """Sleep until this time; not at all if it has passed."""
    time.sleep(max(at - time.time(), 0))


def produce(conn: Connection, start: float, number: int, seconds: float) -> int:
    """Enqueue single jobs for so long; how many."""
    made = 0
    sleep_until(start)
    while time.time() < start + seconds:
        conn.execute("select jobq.enqueue('noop', '{\"n\": 1}')")
        made += 1
    return made


def supply(conn: Connection, start: float, number: int, seconds: float) -> int:
    """The same, but wait while 500 jobs are queued."""
    made = 0
    sleep_until(start)
    while time.time() < start + seconds:
        if made % 20 == 0:
            while one(conn, _BACKLOG) >= 500 and time.time() < start + seconds:
                time.sleep(0.01)
        conn.execute("select jobq.enqueue('noop', '{\"n\": 1}')")
        made += 1
    return made


def arrive(conn: Connection, start: float, number: int, plan: tuple[float, float, int]) -> float:
    """Enqueue at random times fixed in advance; by how many seconds the last one was late.

    `plan`: arrivals a second of all connections together, seconds, number of connections.
    """
    arrivals, seconds, connections = plan
    gaps = random.Random(number)
    with conn.transaction(force_rollback=True):  # a session's first call makes its plans
        conn.execute(_ENQUEUE, ("0",))
    at, late = start, 0.0
    while True:
        at += gaps.expovariate(arrivals / connections)
        if at >= start + seconds:
            return late
        sleep_until(at)
        conn.execute(_ENQUEUE, (f"{at:.6f}",))
        late = time.time() - at


def take(conn: Connection, start: float, number: int, plan: tuple[int, float]) -> list[Turn]:
    """Claim and settle for so long, after as long again that does not count.

    `plan`: jobs a claim, seconds.
    """
    batch, seconds = plan
    claimer = Claimer(conn, batch)
    sleep_until(start)
    claimer.burn(seconds)
    return [claimer.turn(), *claimer.burn(start + 2 * seconds - time.time())]
