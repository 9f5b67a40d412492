"""Steering jobs by id or by filter: cancel, retry, purge."""

from typing import Any

import pytest
from helpers import Connection, scalar

from command import Jobq, in_terminal


@pytest.fixture
def jobq(dsn: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Jobq:
    return Jobq(dsn, capsys, monkeypatch)


def statuses(conn: Connection) -> list[str]:
    return [s for (s,) in conn.execute("select status::text from jobq.jobs order by id")]


def enqueue(conn: Connection, *kinds: str) -> None:
    for kind in kinds:
        conn.execute("select jobq.enqueue(%s)", (kind,))


def fail_all(conn: Connection, error: str = "E: boom") -> None:
    for job_id, token in conn.execute("select id, lease_token from jobq.claim('w', 1000)"):
        conn.execute("select jobq.fail(%s, %s, %s, retryable => false)", (job_id, token, error))


def test_cancel_by_id_says_what_became_of_each(jobq: Jobq, conn: Connection) -> None:
    enqueue(conn, "a", "b", "c")
    conn.execute("select jobq.claim('w', kinds => '{a}')")
    result = jobq("cancel", 1, 2)
    assert result.code == 0
    assert result.out == "job 1 is running: asked to stop\njob 2 is cancelled\n"
    assert statuses(conn) == ["running", "cancelled", "queued"]


def test_an_unknown_id_exits_4_and_the_others_are_done(jobq: Jobq, conn: Connection) -> None:
    enqueue(conn, "a")
    result = jobq("cancel", 404, 1, "--json")
    assert result.code == 4
    assert '{"job_id": 1, "status": "cancelled", "error": null}' in result.out
    assert result.err == ""
    assert statuses(conn) == ["cancelled"]
    assert "no job 404" in jobq("cancel", 404).err


def test_retry_by_id_refuses_what_is_not_over(jobq: Jobq, conn: Connection) -> None:
    enqueue(conn, "a", "b")
    conn.execute("select jobq.cancel(1)")
    result = jobq("retry", 1, 2)
    assert result.code == 1
    assert result.out == "job 1 is queued\n"
    assert "job 2 is queued; only a failed or cancelled job can be retried" in result.err


def test_retry_gives_as_many_starts_as_asked(jobq: Jobq, conn: Connection) -> None:
    conn.execute("select jobq.enqueue('a', max_attempts => 1)")
    fail_all(conn)
    assert jobq("retry", 1, "--extra-attempts", 3).code == 0
    assert conn.execute("select attempt, max_attempts from jobq.jobs").fetchall() == [(1, 4)]
    assert jobq("cancel", 1).code == 0
    assert jobq("retry", 1, "--extra-attempts", 0).code == 1


@pytest.mark.parametrize("command", ["cancel", "retry"])
def test_a_dry_run_counts_and_changes_nothing(jobq: Jobq, conn: Connection, command: str) -> None:
    enqueue(conn, *["a"] * 12)
    if command == "retry":
        fail_all(conn)
    before = statuses(conn)
    found = jobq(command, "--kind", "a", "--dry-run", "--json").json()
    assert found == {"matched": 12, "changed": 0, "sample": list(range(1, 11)), "dry_run": True}
    out = jobq(command, "--kind", "a", "--dry-run").out
    assert out == f"would {command} 12 jobs: 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, …\n"
    assert jobq(command, 1, "--dry-run").out == f"would {command} 1 job: 1\n"
    assert statuses(conn) == before


def test_many_without_yes_are_refused_where_nobody_can_be_asked(
    jobq: Jobq, conn: Connection
) -> None:
    enqueue(conn, "a", "a")
    result = jobq("cancel", "--kind", "a")
    assert (result.code, result.out) == (2, "")
    assert "2 jobs: add --yes" in result.err
    assert statuses(conn) == ["queued", "queued"]


@pytest.mark.parametrize(("answer", "code", "status"), [("y", 0, "cancelled"), ("n", 1, "queued"),
                                                        ("", 1, "queued")])  # fmt: skip
def test_in_a_terminal_it_asks(
    dsn: str, conn: Connection, answer: str, code: int, status: str
) -> None:
    enqueue(conn, "a", "a")
    ended, screen = in_terminal(("cancel", "--kind", "a"), dsn, typed=f"{answer}\n")
    assert "cancel 2 jobs (1, 2)? [y/N]" in screen
    assert ended == code
    assert statuses(conn) == [status, status]


def test_cancel_by_filter(jobq: Jobq, conn: Connection) -> None:
    enqueue(conn, "a", "b", "a")
    result = jobq("cancel", "--kind", "a", "--yes")
    assert result.out == "2 jobs cancelled or asked to stop\n"
    assert statuses(conn) == ["cancelled", "queued", "cancelled"]


@pytest.mark.parametrize(
    "options",
    [
        ("--status", "failed"),
        ("--kind", "a"),
        ("--priority", "5"),
        ("--error", "TIMED out"),
        ("--payload", '{"customer": 7}'),
        ("--created-before", "2020-01-01T00:00:00Z"),
        ("--created-before", "1d"),
    ],
    ids=" ".join,
)
def test_retry_by_each_field_of_the_filter(
    jobq: Jobq, conn: Connection, options: tuple[str, ...]
) -> None:
    """Job 1 is what each option is after, job 2 is cancelled and nothing of that."""
    conn.execute("select jobq.enqueue('a', '{\"customer\": 7, \"n\": 1}', priority => 5)")
    fail_all(conn, "E: it timed out")
    enqueue(conn, "b")
    conn.execute("select jobq.cancel(2)")
    if options[0] == "--created-before":
        conn.execute("alter table jobq.jobs disable trigger user")
        conn.execute("update jobq.jobs set created_at = '2010-01-01Z' where id = 1")
        conn.execute("alter table jobq.jobs enable trigger user")
    assert jobq("retry", *options, "--yes").code == 0
    assert statuses(conn) == ["queued", "cancelled"]


def test_created_after_takes_a_duration(jobq: Jobq, conn: Connection) -> None:
    enqueue(conn, "a")
    assert jobq("cancel", "--created-after", "1h", "--dry-run", "--json").json()["matched"] == 1
    later = "2090-01-01T00:00:00Z"
    assert jobq("cancel", "--created-after", later, "--dry-run").code == 4


def test_all_means_all_that_the_command_applies_to(jobq: Jobq, conn: Connection) -> None:
    enqueue(conn, "a", "b")
    fail_all(conn)
    enqueue(conn, "c")
    changed: dict[str, Any] = jobq("retry", "--all", "--yes", "--json").json()
    assert (changed["matched"], changed["changed"]) == (2, 2)
    assert statuses(conn) == ["queued"] * 3
    assert jobq("cancel", "--all", "-y").code == 0
    assert statuses(conn) == ["cancelled"] * 3


def test_more_jobs_than_one_batch_are_retried_once_each(jobq: Jobq, conn: Connection) -> None:
    conn.execute("select jobq.enqueue_many((select jsonb_agg('{\"kind\": \"a\"}'::jsonb)"
                 " from generate_series(1, 10050)))")  # fmt: skip
    conn.execute("select jobq.cancel_jobs('{}', max_jobs => 20000)")
    assert jobq("retry", "--all", "--yes", "--json").json()["changed"] == 10_050
    retried = "select count(*), count(distinct job_id) from jobq.job_events where event = 'retried'"
    assert conn.execute(retried).fetchall() == [(10_050, 10_050)]


@pytest.mark.parametrize("command", ["cancel", "retry"])
def test_nothing_matches_exits_4(jobq: Jobq, command: str) -> None:
    result = jobq(command, "--kind", "none", "--yes")
    assert (result.code, result.out) == (4, "")
    assert f"no job to {command} matches" in result.err
    result = jobq(command, "--kind", "none", "--yes", "--json")
    assert result.code == 4
    assert '"matched": 0' in result.out


@pytest.mark.parametrize(
    "args",
    [(), (1, "--kind", "a"), (1, "--all"), ("--all", "--kind", "a"),
     ("--payload", "[1]"), ("--payload", '{"a": 1}, "ids": [1]'), ("--created-before", "soon")],
)  # fmt: skip
def test_it_must_be_clear_which_jobs(
    jobq: Jobq, conn: Connection, args: tuple[object, ...]
) -> None:
    enqueue(conn, "a")
    assert jobq("cancel", *args, "--yes").code == 2
    assert statuses(conn) == ["queued"]


def test_purge_deletes_what_is_old_and_over(jobq: Jobq, conn: Connection) -> None:
    enqueue(conn, "old", "old", "new", "open")
    conn.execute("select jobq.cancel(i) from generate_series(1, 3) i")
    conn.execute("alter table jobq.jobs disable trigger user")
    conn.execute(
        "update jobq.jobs set created_at = created_at - interval '9 days',"
        " finished_at = finished_at - interval '9 days' where kind in ('old', 'open')"
    )
    conn.execute("alter table jobq.jobs enable trigger user")
    assert jobq("purge", "--older-than", "7d", "--status", "failed").out == "0 jobs deleted\n"
    assert jobq("purge", "--older-than", "7d", "--json").json() == {"purged": 2}
    kinds = conn.execute("select kind from jobq.jobs order by id").fetchall()
    assert kinds == [("new",), ("open",)]
    assert scalar(conn, "select count(*) from jobq.job_events where job_id in (1, 2)") == 0


def test_purge_goes_on_beyond_one_batch(jobq: Jobq, conn: Connection) -> None:
    conn.execute("select jobq.enqueue_many((select jsonb_agg('{\"kind\": \"a\"}'::jsonb)"
                 " from generate_series(1, 2500)))")  # fmt: skip
    conn.execute("select jobq.cancel_jobs('{}')")
    assert jobq("purge", "--older-than", "1ms").out == "2,500 jobs deleted\n"


def test_purge_of_no_time_at_all_is_refused(jobq: Jobq) -> None:
    result = jobq("purge", "--older-than", "0s")
    assert result.code == 1
    assert "longer than zero" in result.err
