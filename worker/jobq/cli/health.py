"""How the queue is, and whether its history adds up."""

import typer

from jobq.cli.database import Connection, query, with_connection
from jobq.cli.exits import FAILED
from jobq.cli.options import AsJson
from jobq.cli.output import Column, print_json, print_lines, print_table, write
from jobq.cli.times import age

__all__ = ["stats", "verify"]

_STATS = "select s.*, clock_timestamp() as now from jobq.stats() s"
_KINDS = "select k.*, clock_timestamp() as now from jobq.kinds k order by k.due desc, k.kind"
_WORKERS = "select w.*, clock_timestamp() as now from jobq.workers w order by w.worker"


@with_connection("reader")
def stats(conn: Connection, as_json: AsJson = False) -> None:
    """Count jobs by status, kind and worker.

    By kind and worker only what is queued or running. Queued and running are exact; a final
    status above 100,000 jobs is estimated, and says so. --json: {"statuses": [{"status", "jobs",
    "estimated", "oldest"}], "kinds": [{"kind", "queued", "due", "running",
    "oldest_available_at"}], "workers": [{"worker", "running", "expired", "oldest_start",
    "next_lease_end"}]}.
    """
    statuses, kinds, workers = (query(conn, text) for text in (_STATS, _KINDS, _WORKERS))
    if as_json:
        names = ("statuses", "kinds", "workers")
        tables = ([dict(row, now=None) for row in rows] for rows in (statuses, kinds, workers))
        print_json(
            {
                name: [{k: v for k, v in row.items() if k != "now"} for row in rows]
                for name, rows in zip(names, tables, strict=True)
            }
        )
        return
    print_table(
        [Column("status"), Column("jobs", right=True), Column("oldest", wide=True)],
        [
            [
                row["status"],
                f"{'about ' if row['estimated'] else ''}{row['jobs']:,}",
                row["oldest"] and _oldest(row["status"], age(row["oldest"], row["now"])),
            ]
            for row in statuses
        ],
        styled="status",
    )
    if kinds:
        write("\n")
        print_table(
            [
                Column("kind", wide=True),
                Column("queued", right=True),
                Column("due", right=True),
                Column("running", right=True),
            ],
            [[r["kind"], f"{r['queued']:,}", f"{r['due']:,}", f"{r['running']:,}"] for r in kinds],
        )
    if workers:
        write("\n")
        print_table(
            [
                Column("worker", wide=True),
                Column("running", right=True),
                Column("lease expired", right=True),
            ],
            [[r["worker"], f"{r['running']:,}", f"{r['expired']:,}"] for r in workers],
        )


@with_connection("reader")
def verify(conn: Connection, as_json: AsJson = False) -> None:
    """Prove that every job is what its history says.

    Replays the events and compares; exit 1 if anything differs. Reads both tables whole. --json:
    {"problems": [{"job_id", "problem", "ledger", "stored"}]}.
    """
    problems = query(conn, "select v.* from jobq.verify() v")
    if as_json:
        print_json({"problems": problems})
    elif problems:
        columns = [
            Column("job", right=True),
            Column("problem", wide=True),
            Column("history says", wide=True),
            Column("job says", wide=True),
        ]
        print_table(columns, [list(row.values()) for row in problems])
    else:
        print_lines(["no problems: every job is what its history says"])
    if problems:
        raise typer.Exit(FAILED)


def _oldest(status: str, ago: str) -> str:
    return f"due {ago}" if status == "queued" else f"started {ago}"
