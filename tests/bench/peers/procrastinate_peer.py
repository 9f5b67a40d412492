"""Procrastinate as its documentation tunes it: the async psycopg connector, concurrent sub-workers.

`work CONCURRENCY`: sub-workers in this process (docs/howto/concurrency.md in its repository); the
pool has a connection for each and one more, as docs/discussions.md has it for short jobs. Finished
jobs stay, which is the default.
"""

import asyncio
import logging
import sys

from peer_command import Payload, Peer, timed
from procrastinate import App, PsycopgConnector


async def noop(n: int, to: str) -> None:
    """Do nothing."""


async def setup() -> None:
    """Install the schema."""
    app = _app(1)
    async with app.open_async():
        await app.schema_manager.apply_schema_async()


async def enqueue(jobs: int, batch: int, slow: bool) -> float:
    """batch_defer for a batch, defer for single jobs, on one connection."""
    app = _app(1)
    task = app.tasks["noop"]

    async def many(payloads: list[Payload]) -> None:
        await task.batch_defer_async(*payloads)

    async def single(payloads: list[Payload]) -> None:
        await task.defer_async(**payloads[0])

    async with app.open_async():
        return await timed(many if batch > 1 else single, jobs, batch, slow)


async def work(concurrency: int = 30) -> None:
    """Run until SIGTERM."""
    app = _app(concurrency + 1)
    async with app.open_async():
        await app.run_worker_async(concurrency=concurrency)


def _app(connections: int) -> App:
    app = App(connector=PsycopgConnector(min_size=connections, max_size=connections))
    app.task(name="noop")(noop)
    return app


if __name__ == "__main__":
    # It warns of an app made in the main module, which matters for tasks of other modules.
    logging.getLogger("procrastinate").setLevel(logging.ERROR)
    asyncio.run(Peer(setup, enqueue, work).run(sys.argv[1:]))
