"""A process that stands still for three leases: its job runs elsewhere, and its own end is void."""

from pathlib import Path

import pytest
from helpers import Connection, wait_until

from jobq import NewJob, client
from verbs import assert_consistent, rows
from workers import Process, finish

# A C call that keeps the interpreter's lock, so that no thread of the process can renew.
HOLDS_THE_GIL = """
import ctypes

@app.job("k")
def handler(seconds: int) -> int:
    if current_job().attempt == 1:
        ctypes.PyDLL(None).sleep(seconds)
    return os.getpid()
"""


@pytest.mark.parametrize("leases", [3])
def test_a_call_that_holds_the_gil_is_run_again_elsewhere_and_its_own_end_is_refused(
    dsn: str, conn: Connection, tmp_path: Path, leases: int
) -> None:
    folders = [tmp_path / name for name in ("one", "two")]
    for folder in folders:
        folder.mkdir()
    new = NewJob(kind="k", payload=f'{{"seconds": {leases}}}', retry_base_seconds=1)
    with (
        Process(folders[0], HOLDS_THE_GIL, dsn) as one,
        Process(folders[1], HOLDS_THE_GIL, dsn) as two,
    ):
        job_id = client.enqueue(conn, new).job_id
        owner = finish(conn, job_id, "running")["locked_by"]
        stuck, other = (one, two) if f"-{one.process.pid}-" in owner else (two, one)
        row = finish(conn, job_id, "succeeded")
        wait_until(lambda: "outcome not sent" in stuck.log_text())
        after = finish(conn, job_id, "succeeded")
    assert after == row
    assert (row["result"], row["attempt"], row["lost_leases"]) == (other.process.pid, 2, 1)
    query = "select event::text, worker from jobq.job_events where job_id = %s order by id"
    history = [(event.event, event.worker == owner) for event in rows(conn, query, job_id)]
    assert history == [
        ("enqueued", False), ("claimed", True), ("lease_lost", True),
        ("claimed", False), ("succeeded", False),
    ]  # fmt: skip
    assert_consistent(conn)
