"""jobq's side of `enqueue N BATCH [slow]`; its schema is there, and its worker is `jobq worker`."""

import asyncio
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent.parent))
from handlers import noop
from peer_command import Payload, timed


async def many(payloads: list[Payload]) -> None:
    """One enqueue_many."""
    noop.enqueue_many(payloads)


async def single(payloads: list[Payload]) -> None:
    """One enqueue."""
    noop.enqueue(**payloads[0])


if __name__ == "__main__":
    jobs, batch = map(int, sys.argv[2:4])
    slow = sys.argv[4:] == ["slow"]
    noop.enqueue_many([])  # connects, as the others have before their first call
    print(asyncio.run(timed(many if batch > 1 else single, jobs, batch, slow)))
