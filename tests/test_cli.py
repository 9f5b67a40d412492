"""The command line as a whole: which database, exit codes, errors, terminals and pipes."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable

import pytest
from conftest import PgServer
from helpers import Connection, scalar

from command import Jobq, end_all, environment, in_terminal, run, start
from jobq.cli.output import visible
from jobq.cli.times import parse_duration, show_seconds

HOSTILE = "\x1b[31mred\x1b]0;title\x07\r\n\t\x9b2J\u202e[bold]x[/bold]\x7f"


@pytest.fixture
def jobq(dsn: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Jobq:
    return Jobq(dsn, capsys, monkeypatch)


@pytest.fixture
def jobq_nowhere(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Jobq:
    """The command line without any database given."""
    return Jobq(None, capsys, monkeypatch)


def hostile_job(conn: Connection) -> int:
    """A job with text in every place that could drive a terminal or be taken for markup."""
    text = HOSTILE
    query = "select job_id from jobq.enqueue(%s, to_jsonb(row(%s::text)), idempotency_key => %s)"
    job_id = int(scalar(conn, query, f"k{text}", text, f"key{text}"))
    conn.execute("select jobq.claim(%s)", (f"w{text}",))
    token = scalar(conn, "select lease_token from jobq.jobs where id = %s", job_id)
    conn.execute("select jobq.log(%s, %s, 'info', %s)", (job_id, token, text))
    conn.execute("select jobq.fail(%s, %s, %s, retryable => false)", (job_id, token, f"E: {text}"))
    return job_id


def test_no_database_named_says_both_ways(jobq_nowhere: Jobq) -> None:
    result = jobq_nowhere("list")
    assert (result.code, result.out) == (2, "")
    assert "DATABASE_URL" in result.err
    assert "--embedded" in result.err
    assert len(result.err.splitlines()) == 2


def test_the_option_counts_before_and_after_the_command_and_beats_the_environment(
    jobq_nowhere: Jobq, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgresql://127.0.0.1:1/none")
    assert jobq_nowhere("--database-url", dsn, "stats").code == 0
    assert jobq_nowhere("stats", "--database-url", dsn).code == 0
    assert jobq_nowhere("stats").code == 3


def test_two_databases_at_once_are_refused(jobq: Jobq, dsn: str) -> None:
    result = jobq("list", "--embedded", "--database-url", dsn)
    assert result.code == 2
    assert "exclude each other" in result.err


def test_a_malformed_url_is_refused_without_repeating_its_password(jobq_nowhere: Jobq) -> None:
    result = jobq_nowhere("list", "--database-url", "postgres:/user:secret@host")
    assert result.code == 2
    assert "connection string" in result.err
    assert "secret" not in result.err


@pytest.mark.parametrize("url", ["postgresql://127.0.0.1:1/none", "wrong password", "no database"])
def test_an_unreachable_database_exits_3(
    jobq_nowhere: Jobq, pg_server: PgServer, make_role: Callable[..., str], url: str
) -> None:
    if url == "wrong password":
        user = f"no_such_role_{os.getpid()}"
        url = pg_server.dsn() + f" user={user}"
    elif url == "no database":
        url = pg_server.dsn(f"no_such_database_{os.getpid()}")
    result = jobq_nowhere("list", "--database-url", url)
    assert (result.code, result.out) == (3, "")
    assert result.err.startswith("jobq: cannot reach the database: ")
    assert len(result.err.splitlines()) == 2


def test_a_missing_schema_exits_3_and_names_the_command(jobq_nowhere: Jobq, empty_dsn: str) -> None:
    result = jobq_nowhere("list", "--database-url", empty_dsn)
    assert result.code == 3
    assert "jobq migrate" in result.err


def test_a_role_without_rights_is_told_whom_to_ask(
    jobq_nowhere: Jobq, dsn: str, conn: Connection, make_role: Callable[..., str]
) -> None:
    role = make_role()
    url = f"{dsn} user={role} password=test"
    for command, level in (("enqueue", "producer"), ("show", "reader"), ("retry", "producer")):
        result = jobq_nowhere(command, 1, "--database-url", url)
        assert result.code == 3
        assert f"`select jobq.grant_access('{role}', '{level}')`" in result.err
    conn.execute("select jobq.grant_access(%s, 'producer')", (role,))
    assert jobq_nowhere("enqueue", "k", "--database-url", url).code == 0
    assert jobq_nowhere("cancel", 1, "--database-url", url).code == 0
    for args, level in (
        (("list",), "reader"),
        (("stats",), "reader"),
        (("verify",), "reader"),
        (("explain", 1), "reader"),
        (("cancel", "--all", "--yes"), "operator"),
        (("retry", 1, "--dry-run"), "operator"),
        (("purge", "--older-than", "1s"), "operator"),
    ):
        result = jobq_nowhere(*args, "--database-url", url)
        assert result.code == 1
        assert f"`select jobq.grant_access('{role}', '{level}')`" in result.err


def test_a_command_heeds_ctrl_c_though_the_tests_ignore_it() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        process = start(("migrate", "--wait", 60), "postgresql://127.0.0.1:1/none")
    finally:
        signal.signal(signal.SIGINT, before)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert process.returncode in (130, -signal.SIGINT)


def test_what_a_test_left_running_is_ended_with_its_group() -> None:
    process = start(("migrate", "--wait", 60), "postgresql://127.0.0.1:1/none")
    end_all()
    assert process.poll() is not None


@pytest.mark.parametrize(
    "args",
    [
        ("nonsense",),
        ("list", "--limit", "0"),
        ("list", "--status", "done"),
        ("show",),
        ("show", "seven"),
        ("enqueue", "k", "--delay", "5"),
        ("enqueue", "k", "--at", "2030-01-01T00:00:00"),
        ("enqueue", "k", "--delay", "5s", "--at", "2030-01-01T00:00:00Z"),
        ("enqueue", "k", "--payload", "@/no/such/file"),
        ("purge",),
        ("worker",),
        ("worker", "no_colon"),
        ("worker", "a:b", "--threads", "0"),
        ("demo", "--path", "/no/such/folder"),
    ],
    ids=" ".join,
)
def test_wrong_usage_exits_2_with_a_line_or_two_and_nothing_on_stdout(
    jobq: Jobq, args: tuple[str, ...]
) -> None:
    result = jobq(*args)
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("jobq: ")
    assert len(result.err.splitlines()) <= 2


def test_debug_shows_the_traceback_of_a_users_error(dsn: str) -> None:
    args = ("show", "404")
    assert "Traceback" not in run(args, dsn).err
    result = run(args, dsn, JOB_WORKER_LOG_LEVEL="debug")
    assert result.code == 4
    assert "Traceback" in result.err


def test_without_arguments_it_shows_help_with_all_commands_and_exit_codes(jobq: Jobq) -> None:
    result = jobq()
    assert (result.code, result.err) == (0, "")
    commands = "migrate worker enqueue list show explain cancel retry purge stats verify demo"
    for name in commands.split():
        assert re.search(rf"^  {name} ", result.out, re.MULTILINE), name
        assert jobq(name, "--help").code == 0
    for code in range(5):
        assert re.search(rf"^ +{code}  ", result.out, re.MULTILINE), code


def test_the_version_is_told(jobq: Jobq) -> None:
    assert re.fullmatch(r"jobq \d+\.\d+\.\d+\S*\n", jobq("--version").out)


@pytest.mark.parametrize("command", ["list", "show", "explain"])
def test_stored_text_cannot_drive_a_terminal(dsn: str, conn: Connection, command: str) -> None:
    job_id = hostile_job(conn)
    args = (command,) if command == "list" else (command, job_id)
    code, screen = in_terminal(args, dsn, columns=200, NO_COLOR="1")
    assert code == 0
    plain = re.sub(r"\x1b\[[\d;]*m", "", screen)  # bold headings
    assert not [c for c in plain if c != "\n" and not c.isprintable()]
    if command != "explain":
        assert "\\x1b[31mred" in plain
        assert "\\u202e[bold]x[/bold]\\x7f" in plain


def test_an_error_cannot_drive_a_terminal(dsn: str) -> None:
    _, screen = in_terminal(("enqueue", f"k{HOSTILE}", "--payload", "["), dsn)
    assert "\x1b" not in screen


def test_a_pipe_gets_whole_lines_without_colour(jobq: Jobq, conn: Connection) -> None:
    kind, error = "k" * 128, "E" * 3_000
    job_id = scalar(conn, "select job_id from jobq.enqueue(%s)", kind)
    conn.execute("select jobq.claim('w')")
    token = scalar(conn, "select lease_token from jobq.jobs where id = %s", job_id)
    conn.execute("select jobq.fail(%s, %s, %s, retryable => false)", (job_id, token, error))
    out = jobq("list").out
    assert len(out.splitlines()) == 2
    assert kind in out
    assert error in out
    assert "\x1b" not in out


def test_a_narrow_terminal_is_not_overrun(dsn: str, conn: Connection) -> None:
    conn.execute("select jobq.enqueue(%s, jsonb_build_object('a', repeat('x ', 200)))", ("k" * 60,))
    _, screen = in_terminal(("list",), dsn, columns=60, NO_COLOR="1")
    lines = re.sub(r"\x1b\[[\d;]*m", "", screen).splitlines()
    assert max(map(len, lines)) <= 60
    assert sum(line.count("k") for line in lines[1:]) == 60, screen


def test_colour_is_for_terminals_and_no_color_turns_it_off(dsn: str, conn: Connection) -> None:
    conn.execute("select jobq.enqueue('k')")
    cyan = "\x1b[36mqueued"
    assert cyan in in_terminal(("list",), dsn)[1]
    assert cyan not in in_terminal(("list",), dsn, NO_COLOR="1")[1]


@pytest.mark.parametrize("size", [1, 5_000_000])
def test_a_closed_pipe_ends_quietly(dsn: str, conn: Connection, size: int) -> None:
    conn.execute("select jobq.enqueue('k', jsonb_build_object('a', repeat('x', %s)))", (size,))
    process = start(("list", "--json"), dsn)
    assert process.stdout
    assert process.stderr
    process.stdout.close()
    assert process.stderr.read() == ""
    process.stderr.close()
    assert process.wait(30) == 141


def test_a_character_that_the_terminal_lacks_does_not_end_the_command(
    dsn: str, conn: Connection
) -> None:
    conn.execute("select jobq.enqueue('café 試')")
    result = run(("list",), dsn, PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert result.code == 0
    assert "caf\\xe9 \\u8a66" in result.out


def test_json_comes_out_as_ascii_with_every_digit() -> None:
    number = "123456789012345678901234567890.000000000000000000001"
    source = (
        "from jobq.cli.output import *\n"
        f"print_json({{'a': [{{'n': JsonText('{{\"n\": {number}, \"s\": \"試\\x7f\"}}')}}]}})"
    )
    done = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, env=environment(None), check=True
    )
    assert done.stdout.isascii()
    assert number.encode() in done.stdout
    assert b"\x7f" not in done.stdout
    assert json.loads(done.stdout)["a"][0]["n"]["s"] == "試\x7f"


def test_visible_text_keeps_what_can_be_printed() -> None:
    assert visible("plain [bold] 試 é") == "plain [bold] 試 é"
    assert visible("a\x1b\x9b\n\u2028\u202e") == "a\\x1b\\x9b\\n\\u2028\\u202e"
    assert visible("a\n\tb\x07", lines=True) == "a\n    b\\x07"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30s", 30), ("90m", 5400), ("7d", 604_800), ("1h30m", 5400), ("1.5h", 5400),
     ("500ms", 0.5), ("2w", 1_209_600), (" 1d 12h ", 129_600)],
)  # fmt: skip
def test_durations_are_read(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "7", "d", "7 days", "-7d", "7d!", "1e3s", "s7"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(Exception, match="is not a duration"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 ms"), (0.0123, "12 ms"), (0.9996, "1.00 s"), (1.234, "1.23 s"), (59.96, "1m"),
     (60, "1m"), (200, "3m 20s"), (3600, "1h"), (7260, "2h 1m"), (187_200, "2d 4h"),
     (864_000_000, "10000d"), (-90, "-1m 30s")],
)  # fmt: skip
def test_durations_are_written(seconds: float, text: str) -> None:
    assert show_seconds(seconds) == text
