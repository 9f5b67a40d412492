"""PgQueuer as its documentation tunes it (docs/guides/performance-tuning.md in its repository).

asyncpg, one direct connection a queue manager, large batches for short jobs, `pgq autovac`; uvloop,
as in its own tools/benchmark.py. `work MANAGERS BATCH`: queue managers in this process, and jobs a
dequeue. The rest is left at its default: durable tables, the job log buffered by the batch, log
aggregation each 30 s.
"""

import asyncio
import json
import signal
import sys
from typing import Any

import asyncpg
import uvloop
from peer_command import Payload, Peer, timed
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver
from pgqueuer.models import Job
from pgqueuer.queries import Queries


async def noop(job: Job) -> None:
    """Do nothing."""


async def setup() -> None:
    """Install the schema and the recommended autovacuum settings."""
    queries = await _queries()
    await queries.install()
    await queries.optimize_autovacuum()


async def enqueue(jobs: int, batch: int, slow: bool) -> float:
    """Lists for a batch, scalars for single jobs."""
    queries = await _queries()

    async def many(payloads: list[Payload]) -> None:
        texts = [json.dumps(payload).encode() for payload in payloads]
        await queries.enqueue(["noop"] * len(texts), texts, [0] * len(texts))

    async def single(payloads: list[Payload]) -> None:
        await queries.enqueue("noop", json.dumps(payloads[0]).encode())

    return await timed(many if batch > 1 else single, jobs, batch, slow)


async def work(managers: int = 1, batch: int = 500) -> None:
    """Run until SIGTERM."""
    running = [PgQueuer.from_asyncpg_connection(await asyncpg.connect()) for _ in range(managers)]

    def stop() -> None:
        for manager in running:
            manager.shutdown.set()

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop)
    for manager in running:
        manager.entrypoint("noop")(noop)
    await asyncio.gather(*(manager.run(batch_size=batch) for manager in running))


async def _queries() -> Any:
    return Queries(AsyncpgDriver(await asyncpg.connect()))


if __name__ == "__main__":
    uvloop.run(Peer(setup, enqueue, work).run(sys.argv[1:]))
