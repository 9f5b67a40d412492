"""The demo: all of it on a small folder, and what it says when something is off."""

import contextlib
import hashlib
import http.client
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers import Connection, missing, scalar, wait_until

from command import Result, run, start
from jobq.demo.files import compare, find_files
from jobq.demo.run import command_name

pytestmark = pytest.mark.timeout(300)

FILES = {
    "empty": b"",
    "a.txt": b"one\ntwo\n",
    "sub/page.html": b"<b>no line end</b>",
    "sub/na me é.bin": bytes(range(256)) * 5000,
}
ENDS = [
    "its worker is killed        succeeded",
    "fails twice                 succeeded",
    "outlives its lease          succeeded",
    "is cancelled while it runs  cancelled",
    "is delayed by 5 s           succeeded",
    "is urgent, enqueued last    succeeded",
    "has a taken key             refused    JQ002",
]


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with some files that the server's user may enter too."""
    made = Path(tempfile.mkdtemp(prefix="jobq-test-", dir="/tmp"))
    made.chmod(0o711)
    for name, content in FILES.items():
        path = made / "files" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    (made / "files/link").symlink_to("a.txt")
    yield made
    shutil.rmtree(made)


def run_demo(folder: Path, dsn: str | None, **env: str) -> Result:
    return run(("demo", "--headless", "--path", folder / "files"), dsn, folder, **env)


def sessions(conn: Connection) -> int:
    """How many sessions of the demo and its workers the test's database has."""
    query = (
        "select count(*) from pg_stat_activity"
        " where starts_with(application_name, 'jobq ') and datname = current_database()"
    )
    return int(scalar(conn, query))


def dashboard_of(demo: "subprocess.Popen[str]") -> int:
    """Read what the demo says until it says where its dashboard is; returns the port."""
    assert demo.stdout
    line = next(line for line in demo.stdout if line.startswith("dashboard: "))
    return int(line.rpartition(":")[2])


def healthy(port: int) -> bool:
    """Whether a dashboard serves there."""
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=10)) as asking:
        try:
            asking.request("GET", "/_stcore/health")
            return asking.getresponse().read() == b"ok"
        except OSError:
            return False


def until_up(demo: "subprocess.Popen[str]") -> str:
    """What the demo says until it says that it stays up, which it must."""
    assert demo.stdout
    said: list[str] = []
    for line in demo.stdout:
        if "stays up until Ctrl-C" in line:
            return "".join(said)
        said.append(line)
    raise AssertionError("".join(said))


def folder_of(pid: str) -> Path:
    """The current folder of a process, where /proc tells it."""
    try:
        return Path(f"/proc/{pid}/cwd").readlink()
    except OSError:
        return Path("/")


def processes_of(folder: Path) -> list[str]:
    """What still runs in this folder, or with it on the command line, zombies aside."""
    listed = subprocess.run(
        ["ps", "-eo", "pid=,ppid=,stat=,args="], capture_output=True, text=True, check=True
    )
    return [
        line
        for line in listed.stdout.splitlines()
        if (str(folder) in line or folder_of(line.split()[0]).is_relative_to(folder))
        and line.split()[2][0] != "Z"
    ]


def is_complete(said: str) -> None:
    """It fails unless all of a run is as it should be."""
    assert "jobq's own" in said
    assert "4 files in" in said
    assert "left out: 1 links or special files" in said
    for end in ENDS:
        assert end in said
    outcomes = dict(re.findall(r"^ *(\d+)  (reads a file|does nothing) ", said, re.MULTILINE))
    assert outcomes == {"4": "reads a file", "100": "does nothing"}  # this run only
    assert "4 right, 0 wrong" in said
    assert "verify()    clean" in said
    assert "everything is as it should be" in said
    assert "\x1b" not in said


@pytest.mark.once
def test_on_its_own_server_it_runs_twice_and_leaves_nothing_running(folder: Path) -> None:
    """The second time its queue can be looked at, until SIGTERM stops the server too."""
    if shutil.which("ps") is None:
        missing("ps")
    result = run_demo(folder, None)
    assert (result.code, result.err) == (0, ""), result.out + result.err
    is_complete(result.out)
    assert not [line for line in processes_of(folder) if "jobq.demo" in line or "-D" in line]

    demo = start(("demo", "--path", folder / "files", "--dashboard-port", 0), None, folder)
    try:
        is_complete(until_up(demo))
        listed = run(("list", "--embedded", "--kind", "demo.long", "--json"), None, folder)
        assert '"status": "succeeded"' in listed.out
        assert demo.stdout
        told = next(line for line in demo.stdout if "export DATABASE_URL=" in line)
        assert run(("verify",), told.strip().partition("=")[2]).code == 0
    finally:
        started = time.monotonic()
        demo.terminate()
        demo.communicate(timeout=30)
    assert time.monotonic() - started < 5
    assert demo.returncode == 0
    assert not processes_of(folder)


def test_its_figures_are_what_the_database_says(folder: Path, dsn: str, conn: Connection) -> None:
    result = run_demo(folder, dsn)
    assert result.code == 0, result.out + result.err
    for name, content in FILES.items():
        stored = scalar(
            conn, "select result from jobq.jobs where payload ->> 'path' like %s", f"%/{name}"
        )
        assert stored["sha256"] == hashlib.sha256(content).hexdigest()
        assert (stored["bytes"], stored["lines"]) == (len(content), content.count(b"\n"))
    mime = "select array_agg(distinct result ->> 'mime') from jobq.jobs where kind = 'demo.file'"
    assert set(scalar(conn, mime)) >= {"text/plain", "text/html"}

    waits = "select extract(epoch from started_at - available_at)::float8 * 1000 from jobq.jobs"
    pings = sorted(ms for (ms,) in conn.execute(f"{waits} where kind = 'demo.ping'".encode()))
    p50, p99 = (pings[49] + pings[50]) / 2, pings[98]
    assert f"p50 {p50:.1f} ms, p99 {p99:.1f} ms" in result.out

    span = "select extract(epoch from max(finished_at) - min(started_at))::float8 from jobq.jobs"
    seconds = scalar(conn, f"{span} where kind = 'demo.file'")
    assert f"{4 / seconds:,.0f} jobs/s" in result.out

    workers = (
        "select array_agg(distinct e.worker) from jobq.job_events e join jobq.jobs j"
        " on j.id = e.job_id where j.kind = 'demo.crash' and e.event = 'claimed'"
    )
    assert len(scalar(conn, workers)) == 2
    lost = "select array_agg(kind) from jobq.jobs where lost_leases > 0"
    assert scalar(conn, lost) == ["demo.crash"]


def test_every_fault_is_named_and_makes_it_fail(folder: Path, dsn: str, conn: Connection) -> None:
    """A spoilt result, a job without a third try, a change behind the ledger's back."""
    conn.execute("""
        create function public.spoil() returns trigger language plpgsql as $$
        begin
          new.result := new.result || '{"sha256": "0000"}';
          return new;
        end $$;
        create trigger spoil before update on jobq.jobs for each row
        when (new.status = 'succeeded' and new.payload ->> 'path' like '%/a.txt')
        execute function public.spoil();

        create function public.once() returns trigger language plpgsql as $$
        begin
          new.max_attempts := 1;
          return new;
        end $$;
        create trigger once before insert on jobq.jobs for each row
        when (new.kind = 'demo.flaky') execute function public.once();

        select jobq.enqueue('other');
        alter table jobq.jobs disable trigger record_transitions;
        update jobq.jobs set priority = 9;
        alter table jobq.jobs enable trigger record_transitions;
    """)
    result = run_demo(folder, dsn)
    assert result.code == 1, result.out
    assert "3 right, 1 wrong" in result.out
    flaky, corrupted, planted = result.err.splitlines()
    assert re.match(r"jobq: off: the job that fails twice \(job \d+\) is failed after", flaky)
    assert corrupted.startswith("jobq: off: not what its job stored: 1 file: ")
    assert corrupted.endswith("/files/a.txt")
    assert planted == "jobq: off: verify(): job 1, priority: history says 0, job says 9"
    assert "3 things off" in result.out
    assert scalar(conn, "select status::text from jobq.jobs where kind = 'other'") == "queued"


def test_a_second_demo_on_the_same_database_is_refused(
    folder: Path, dsn: str, conn: Connection
) -> None:
    conn.execute("select pg_advisory_lock(hashtextextended('jobq demo', 0))")
    result = run_demo(folder, dsn)
    assert result.code == 1
    assert "another demo runs on this database" in result.err
    assert scalar(conn, "select count(*) from jobq.jobs") == 0


def test_what_a_killed_demo_left_behind_is_cancelled(
    folder: Path, dsn: str, conn: Connection
) -> None:
    demo = start(("demo", "--path", folder / "files", "--dashboard-port", 0), dsn, folder)
    endless = "select id from jobq.jobs where kind = 'demo.endless'"
    wait_until(lambda: conn.execute(endless).fetchone(), timeout=60)
    demo.kill()
    demo.communicate()
    # Its worker ends with it, whether or not it had one yet.
    wait_until(lambda: sessions(conn) == 0)
    result = run_demo(folder, dsn)
    assert result.code == 0, result.out + result.err
    assert re.search(r"cancelled [1-9]\d* jobs? that an earlier demo left behind", result.out)


def test_it_stays_up_until_ctrl_c_which_stops_all_within_five_seconds(
    folder: Path, dsn: str, conn: Connection
) -> None:
    demo = start(("demo", "--path", folder / "files", "--dashboard-port", 0), dsn, folder)
    port = dashboard_of(demo)
    until_up(demo)
    assert healthy(port)
    conn.execute('select jobq.enqueue(\'demo.note\', \'{"run": "", "text": "still here"}\')')
    done = "select count(*) from jobq.jobs where result = '\"still here\"'"
    wait_until(lambda: scalar(conn, done))
    started = time.monotonic()
    demo.send_signal(signal.SIGINT)
    _, err = demo.communicate(timeout=30)
    assert time.monotonic() - started < 5
    assert (demo.returncode, err) == (0, "")
    assert sessions(conn) == 0
    assert not healthy(port)


@pytest.mark.once
def test_where_the_dashboards_port_is_taken_it_says_so_and_a_signal_in_the_middle_stops_the_rest(
    folder: Path, dsn: str, conn: Connection
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        options = ("--path", folder / "files", "--dashboard-port", port)
        demo = start(("demo", *options), dsn, folder)
        assert demo.stdout
        told = next(line for line in demo.stdout if "dashboard" in line)
        assert told.startswith(f"no dashboard: port {port} on 127.0.0.1 is taken")
        running = "select count(*) from jobq.jobs where kind = 'demo.long' and status = 'running'"
        wait_until(lambda: scalar(conn, running), timeout=60)
    started = time.monotonic()
    os.kill(demo.pid, signal.SIGINT)
    _, err = demo.communicate(timeout=30)
    assert time.monotonic() - started < 5
    assert (demo.returncode, err) == (130, "")
    wait_until(lambda: sessions(conn) == 0)


@pytest.mark.parametrize(
    ("started", "command"),
    [
        (".venv/bin/jobq", ".venv/bin/jobq"),
        ("/a b/jobq", "'/a b/jobq'"),
        ("/x/jobq/__main__.py", f"{sys.executable} -m jobq"),
    ],
)
def test_it_names_the_command_by_which_it_was_started(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, started: str, command: str
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "argv", [started, "demo"])
    assert command_name() == command
    (tmp_path / "jobq").touch(0o755)
    assert command_name() == "jobq"


def test_a_folder_without_files_is_refused(folder: Path, dsn: str) -> None:
    shutil.rmtree(folder / "files")
    (folder / "files").mkdir()
    result = run_demo(folder, dsn)
    assert result.code == 1
    assert "no files to read" in result.err


def test_a_file_that_was_changed_or_removed_meanwhile_is_said_so(folder: Path) -> None:
    found = find_files(folder / "files")
    results = {
        file.path: {
            "sha256": hashlib.sha256(Path(file.path).read_bytes()).hexdigest(),
            "bytes": Path(file.path).stat().st_size,
        }
        for file in found.files
    }
    changed, removed, wrong, same = (file.path for file in found.files)
    Path(changed).write_bytes(b"something else")
    Path(removed).unlink()
    results[wrong]["sha256"] = "0" * 64
    comparison = compare(found.files, results)
    assert comparison.changed == [changed, removed]
    assert comparison.wrong == [wrong]
    assert (comparison.same, comparison.bytes) == (1, Path(same).stat().st_size)


def test_a_file_without_a_result_is_wrong(folder: Path) -> None:
    found = find_files(folder / "files")
    assert len(compare(found.files, {}).wrong) == len(FILES)


def test_what_is_no_readable_file_with_a_name_in_utf8_is_left_out(folder: Path) -> None:
    files = folder / "files"
    os.mkfifo(files / "pipe")
    Path(os.fsdecode(bytes(files) + b"/\xff")).write_bytes(b"")
    found = find_files(files, without=["sub"])
    assert [Path(file.path).name for file in found.files] == ["a.txt", "empty"]
    assert found.skipped == {
        "links or special files": 2,
        "names that are not UTF-8": 1,
        "folder sub": 1,
    }
