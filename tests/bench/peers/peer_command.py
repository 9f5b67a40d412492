"""What each peer's program answers to; it connects by the PG* variables of the environment.

setup              install the schema
enqueue N BATCH    enqueue N no-ops, BATCH a call; prints the seconds that the calls took
enqueue N 1 slow   the same, one at a time, with 20 to 40 ms between them
work               run no-ops until SIGTERM
"""

import asyncio
import random
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any

Payload = dict[str, Any]
Call = Callable[[list[Payload]], Awaitable[object]]


@dataclass(frozen=True)
class Peer:
    """A peer's three sub-commands; `work` gets the arguments that follow it."""

    setup: Callable[[], Coroutine[Any, Any, None]]
    enqueue: Callable[[int, int, bool], Coroutine[Any, Any, float]]
    work: Callable[..., Coroutine[Any, Any, None]]

    def run(self, arguments: list[str]) -> Coroutine[Any, Any, None]:
        """The coroutine of the sub-command that the arguments name."""
        match arguments:
            case ["setup"]:
                return self.setup()
            case ["enqueue", jobs, batch, *slow]:
                return self._enqueue(int(jobs), int(batch), slow == ["slow"])
            case ["work", *numbers]:
                return self.work(*map(int, numbers))
        sys.exit(__doc__)

    async def _enqueue(self, jobs: int, batch: int, slow: bool) -> None:
        print(await self.enqueue(jobs, batch, slow))


async def timed(call: Call, jobs: int, batch: int, slow: bool = False) -> float:
    """Seconds that enqueuing so many jobs took, in calls of a batch; making payloads is free."""
    seconds = 0.0
    gaps = random.Random(1)
    for first in range(0, jobs, batch):
        last = min(first + batch, jobs)
        payloads = [{"n": n, "to": "ada@example.org"} for n in range(first, last)]
        started = time.perf_counter()
        await call(payloads)
        seconds += time.perf_counter() - started
        if slow:
            await asyncio.sleep(gaps.uniform(0.02, 0.04))
    return seconds
