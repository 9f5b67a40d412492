"""Enqueuing jobs and looking at them: enqueue, list, show, explain."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from helpers import Connection, scalar

from command import Jobq, in_terminal


@pytest.fixture
def jobq(dsn: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Jobq:
    return Jobq(dsn, capsys, monkeypatch)


def row(conn: Connection, columns: str, job_id: int) -> tuple[Any, ...]:
    found = conn.execute(f"select {columns} from jobq.jobs where id = %s".encode(), (job_id,))
    return found.fetchone() or ()


def claim(conn: Connection, worker: str = "w") -> str:
    return str(scalar(conn, "select lease_token from jobq.claim(%s)", worker))


def test_enqueue_stores_what_it_was_given(jobq: Jobq, conn: Connection) -> None:
    args = ("--payload", '{"to": "ada"}', "--priority", 7, "--key", "k1", "--max-attempts", 3)
    done = jobq("enqueue", "email.send", *args, "--json").json()
    assert done == {"job_id": 1, "created": True, "status": "queued"}
    columns = "kind, payload, priority, idempotency_key, max_attempts"
    assert row(conn, columns, 1) == ("email.send", {"to": "ada"}, 7, "k1", 3)


def test_enqueue_says_the_id_to_people(jobq: Jobq) -> None:
    assert jobq("enqueue", "k").out == "job 1 queued\n"


def test_a_payload_comes_from_a_file_or_standard_input(
    jobq: Jobq, conn: Connection, tmp_path: Path
) -> None:
    file = tmp_path / "payload.json"
    file.write_text('{"from": "file"}')
    jobq("enqueue", "k", "--payload", f"@{file}")
    jobq("enqueue", "k", "--payload", "-", stdin='{"from": "stdin"}')
    payloads = [row(conn, "payload", job_id)[0] for job_id in (1, 2)]
    assert payloads == [{"from": "file"}, {"from": "stdin"}]


def test_a_number_keeps_its_digits_on_the_way_in_and_out(jobq: Jobq) -> None:
    number = "12345678901234567890.123456789012345678901"
    jobq("enqueue", "k", "--payload", f'{{"n": {number}}}')
    assert number in jobq("list", "--json").out
    assert number in jobq("show", 1, "--json").out
    assert number in jobq("show", 1).out


def test_delay_and_time_set_when_it_is_due(jobq: Jobq, conn: Connection) -> None:
    jobq("enqueue", "k", "--delay", "1h30m")
    jobq("enqueue", "k", "--at", "2050-01-31T12:00:00+02:00")
    wait = "extract(epoch from available_at - created_at)"
    assert row(conn, wait, 1) == (5400,)
    assert row(conn, "available_at = '2050-01-31 10:00:00Z'", 2) == (True,)


def test_a_key_gives_the_job_that_has_it(jobq: Jobq, conn: Connection) -> None:
    args = ("enqueue", "k", "--key", "a", "--json")
    first, second = jobq(*args).json(), jobq(*args).json()
    assert (first["created"], second["created"]) == (True, False)
    assert first["job_id"] == second["job_id"]
    assert "job 1 has that key already" in jobq(*args[:-1]).out
    assert scalar(conn, "select count(*) from jobq.jobs") == 1


@pytest.mark.parametrize(
    ("args", "word"),
    [
        (("k", "--payload", '{"a": "\\u0000"}'), "NUL"),
        (("k", "--priority", 101), "priority"),
        (("k", "--priority", 10**12), "range"),
        (("k" * 129,), "kind"),
        (("k", "--key", ""), "key"),
        (("k", "--max-attempts", 0), "max_attempts"),
        (("k", "--payload", '{"a": 1}', "--key", "taken"), "taken"),
    ],
)
def test_a_refused_job_exits_1_and_leaves_nothing(
    jobq: Jobq, conn: Connection, args: tuple[object, ...], word: str
) -> None:
    conn.execute("select jobq.enqueue('k', idempotency_key => 'taken')")
    result = jobq("enqueue", *args)
    assert (result.code, result.out) == (1, "")
    assert word in result.err
    assert len(result.err.splitlines()) <= 3
    assert scalar(conn, "select count(*) from jobq.jobs") == 1


@pytest.mark.parametrize("payload", ["{to: 1}", "[1]", "{", '{"a": NaN}', "@no-such-file", "7"])
def test_a_payload_that_is_no_json_object_is_wrong_usage(
    jobq: Jobq, conn: Connection, payload: str
) -> None:
    result = jobq("enqueue", "k", "--payload", payload)
    assert (result.code, result.out) == (2, "")
    assert ("no-such-file" if payload.startswith("@") else "--payload") in result.err
    assert len(result.err.splitlines()) == 1
    assert scalar(conn, "select count(*) from jobq.jobs") == 0


def test_list_shows_the_newest_first_and_pages(jobq: Jobq, conn: Connection) -> None:
    conn.execute("select jobq.enqueue('k') from generate_series(1, 25)")

    def ids(*args: object) -> list[int]:
        return [job["id"] for job in jobq("list", "--json", *args).json()["jobs"]]

    assert ids() == list(range(25, 5, -1))
    assert ids("--limit", 2) == [25, 24]
    assert ids("--before", 6) == [5, 4, 3, 2, 1]
    assert ids("--limit", 100) == list(range(25, 0, -1))
    assert len(jobq("list", "--limit", 3).out.splitlines()) == 4


def test_list_filters_by_status_and_kind(jobq: Jobq, conn: Connection) -> None:
    for kind in ("a", "b", "c"):
        conn.execute("select jobq.enqueue(%s)", (kind,))
    conn.execute("select jobq.cancel(1)")
    conn.execute("select jobq.claim('w', kinds => '{b}')")

    def kinds(*args: object) -> list[str]:
        return [job["kind"] for job in jobq("list", "--json", *args).json()["jobs"]]

    assert kinds("--status", "queued") == ["c"]
    assert kinds("--status", "cancelled", "--status", "running") == ["b", "a"]
    assert kinds("--kind", "a", "--kind", "c") == ["c", "a"]
    assert kinds("--kind", "a", "--status", "queued") == []
    assert jobq("list", "--kind", "none").out == "no such jobs\n"


def test_list_gives_scripts_every_column_but_the_token(jobq: Jobq, conn: Connection) -> None:
    conn.execute("select jobq.enqueue('k')")
    token = claim(conn)
    result = jobq("list", "--json")
    (job,) = result.json()["jobs"]
    view = "select array_agg(attname order by attnum) from pg_attribute where attnum > 0"
    columns = scalar(conn, f"{view} and attrelid = 'jobq.job_details'::regclass")
    assert list(job) == columns
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", job["created_at"])
    assert token not in result.out


def test_a_time_at_the_end_of_the_calendar_is_shown(jobq: Jobq, conn: Connection) -> None:
    conn.execute("select jobq.enqueue('k', available_at => '9999-12-31 23:59:59Z')")
    for args in (("list",), ("show", 1), ("explain", 1)):
        assert jobq(*args).code == 0
    assert jobq("list", "--json").json()["jobs"][0]["available_at"] == "9999-12-31T23:59:59Z"


@pytest.mark.parametrize("command", ["show", "explain"])
@pytest.mark.parametrize("job_id", [404, 2**63 - 1, 0])
def test_no_such_job_exits_4(jobq: Jobq, command: str, job_id: int) -> None:
    result = jobq(command, job_id)
    assert (result.code, result.out) == (4, "")
    assert f"no job {job_id}" in result.err


def failed_twice(conn: Connection) -> int:
    """A job that failed on worker-1, lost its lease on worker-2, and succeeded on worker-3."""
    job_id = int(scalar(conn, "select job_id from jobq.enqueue('k', '{\"n\": 1}')"))
    due_now = "select jobq.reschedule('{}')"
    token = claim(conn, "worker-1")
    conn.execute("select jobq.report_progress(%s, %s, 0.5, 'half')", (job_id, token))
    error = "Traceback:\n  line\nValueError: boom"
    conn.execute("select jobq.fail(%s, %s, %s)", (job_id, token, error))
    conn.execute(due_now)
    conn.execute("select jobq.claim('worker-2', lease => '1 millisecond')")
    conn.execute("select pg_sleep(0.002)")
    conn.execute("select jobq.reap()")
    conn.execute(due_now)
    conn.execute("select jobq.succeed(%s, %s, '{\"ok\": true}')", (job_id, claim(conn, "worker-3")))
    return job_id


def test_show_draws_the_timeline(jobq: Jobq, conn: Connection) -> None:
    out = jobq("show", failed_twice(conn)).out
    head, _, timeline = out.partition("timeline (UTC)\n")
    assert "job 1  k  succeeded" in head
    assert "3 of 10, 1 ended by a lost lease" in head
    assert '{"ok": true}' in head
    lines = timeline.splitlines()[2:]
    cells = [re.split(" {2,}", line.strip()) for line in lines]
    assert [line[2] if line[1].startswith("+") else line[1] for line in cells] == [
        "enqueued", "claimed", "progress", "failed", "changed",
        "claimed", "lease_lost", "changed", "claimed", "succeeded",
    ]  # fmt: skip
    assert "attempt 1 on worker-1" in lines[1]
    assert "50%: half" in lines[2]
    assert re.search(r"ran \d+ ms; queued again; due in 1\d(\.\d)? s; ValueError: boom", lines[3])
    assert "attempt 2 on worker-2" in lines[5]
    assert re.search(r"ran \d+ ms; queued again; due in .* lease lost: worker worker-2", lines[6])
    assert re.search(r"\+\d+ ms  succeeded +ran \d+ ms", lines[9])


def test_shown_durations_are_the_databases(jobq: Jobq, conn: Connection) -> None:
    conn.execute("select jobq.enqueue('k')")
    token = claim(conn)
    conn.execute("select jobq.succeed(1, %s)", (token,))
    at = "select at from jobq.job_events where event = %s"
    ran = scalar(conn, at, "succeeded") - scalar(conn, at, "claimed")
    assert f"ran {ran.total_seconds() * 1000:.0f} ms" in jobq("show", 1).out


def test_show_gives_scripts_job_and_timeline(jobq: Jobq, conn: Connection) -> None:
    shown = jobq("show", failed_twice(conn), "--json").json()
    assert shown["job"]["result"] == {"ok": True}
    assert "lease_token" not in shown["job"]
    assert [event["event"] for event in shown["timeline"]][:2] == ["enqueued", "claimed"]
    assert shown["timeline"][3]["detail"]["error"].endswith("ValueError: boom")
    assert set(shown["timeline"][0]) == {
        "id", "at", "event", "from_status", "to_status", "attempt", "worker", "actor", "detail",
    }  # fmt: skip


def test_a_long_timeline_shows_its_end_and_says_so(jobq: Jobq, conn: Connection) -> None:
    conn.execute("select jobq.enqueue('k')")
    token = claim(conn)
    for number in range(10):
        conn.execute("select jobq.log(1, %s, 'info', %s)", (token, f"line {number}"))
    out = jobq("show", 1, "--events", 3).out
    assert "… 9 earlier events: --events 12 shows them" in out
    assert "line 6" not in out
    assert "line 7" in out
    assert len(jobq("show", 1, "--events", 3, "--json").json()["timeline"]) == 3
    assert "earlier" not in jobq("show", 1, "--events", 12).out


def test_a_large_payload_is_whole_in_a_pipe_and_cut_in_a_terminal(
    jobq: Jobq, dsn: str, conn: Connection
) -> None:
    conn.execute("select jobq.enqueue('k', jsonb_build_object('a', repeat('x', 5000)))")
    assert "x" * 5000 in jobq("show", 1).out
    _, screen = in_terminal(("show", 1), dsn)
    assert 0 < screen.count("x") < 2100
    assert "(5,009 characters: --json shows all)" in screen


def test_explain_says_why_a_job_waits(jobq: Jobq, conn: Connection) -> None:
    conn.execute("select jobq.enqueue('k', delay => '1 hour')")
    assert "not due until" in jobq("explain", 1).out
    reasons = jobq("explain", 1, "--json").json()
    expected = conn.execute("select reason, detail from jobq.explain(1)").fetchall()
    assert reasons["job_id"] == 1
    assert [(r["reason"], json.dumps(r["detail"]["workers"])) for r in reasons["reasons"][1:]] == [
        (reason, json.dumps(detail["workers"])) for reason, detail in expected[1:]
    ]
