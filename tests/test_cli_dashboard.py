"""`jobq dashboard`: it serves, only where it should, and leaves nothing behind."""

import http.client
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import psycopg
import pytest
from helpers import scalar, wait_until
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect
from websockets.typing import Origin

from command import Jobq, run, start

pytestmark = pytest.mark.once

Process = subprocess.Popen[str]


@pytest.fixture
def folder() -> Iterator[Path]:
    """An empty folder that the server's user may enter."""
    made = Path(tempfile.mkdtemp(prefix="jobq-test-", dir="/tmp"))
    made.chmod(0o711)
    yield made
    shutil.rmtree(made)


def serving(process: Process) -> int:
    """The port on which it serves, once it says so."""
    assert process.stdout
    line = process.stdout.readline()
    assert line.startswith("dashboard: http://127.0.0.1:"), line + str(process.communicate())
    return int(line.rpartition(":")[2])


def get(port: int, path: str) -> tuple[int, str]:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=10)) as connection:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read().decode()


def children(pid: int) -> list[int]:
    listed = subprocess.run(["ps", "-eo", "pid=,ppid="], capture_output=True, text=True, check=True)
    pairs = (map(int, line.split()) for line in listed.stdout.splitlines())
    return [child for child, parent in pairs if parent == pid]


def gone(pid: int) -> bool:
    """Whether the process has ended; a zombie has."""
    with suppress(ProcessLookupError):
        os.kill(pid, 0)
        shown = subprocess.run(
            ["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True
        )
        return shown.stdout[:1] in ("", "Z")
    return True


def test_it_serves_until_sigterm_and_leaves_nothing_running(dsn: str) -> None:
    process = start(("dashboard", "--port", 0), dsn)
    port = serving(process)
    (streamlit,) = children(process.pid)
    assert get(port, "/_stcore/health") == (200, "ok")
    status, page = get(port, "/")
    assert (status, "<html" in page) == (200, True)
    with connect(f"ws://127.0.0.1:{port}/_stcore/stream"):  # an open page delays the end by nothing
        began = time.monotonic()
        process.terminate()
        out, err = process.communicate(timeout=30)
        assert time.monotonic() - began < 5
    assert (process.returncode, out, err) == (0, "", "")
    assert gone(streamlit)


def test_it_ends_with_a_killed_parent(dsn: str) -> None:
    process = start(("dashboard", "--port", 0), dsn)
    serving(process)
    (streamlit,) = children(process.pid)
    process.kill()
    wait_until(lambda: gone(streamlit))


def test_it_ends_when_streamlit_does(dsn: str) -> None:
    process = start(("dashboard", "--port", 0), dsn)
    serving(process)
    (streamlit,) = children(process.pid)
    os.kill(streamlit, signal.SIGKILL)
    _, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (1, "jobq: the dashboard ended by itself (exit code -9)\n")


def test_embedded_it_brings_a_migrated_database_and_stops_both(folder: Path) -> None:
    process = start(("dashboard", "--embedded", "--port", 0), None, folder)
    serving(process)
    beside = children(process.pid)
    assert len(beside) == 2
    with psycopg.connect((folder / ".jobq/dsn").read_text().strip()) as conn:
        assert scalar(conn, "select sum(jobs) from jobq.stats()") == 0
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert time.monotonic() - began < 5
    assert (process.returncode, err) == (0, "")
    assert all(gone(pid) for pid in beside)


def test_modules_of_the_current_folder_are_not_the_dashboards(dsn: str, folder: Path) -> None:
    for name in ("streamlit", "queries", "data", "pandas"):
        (folder / f"{name}.py").write_text("raise SystemExit('the wrong one')")
    process = start(("dashboard", "--port", 0), dsn, folder)
    assert get(serving(process), "/_stcore/health")[0] == 200


def test_it_starts_while_the_database_is_away() -> None:
    process = start(("dashboard", "--port", 0), "postgresql://127.0.0.1:1/none")
    assert get(serving(process), "/_stcore/health")[0] == 200


def test_a_page_from_elsewhere_cannot_reach_it_by_a_name_of_its_own(dsn: str) -> None:
    """Its name resolves to 127.0.0.1, so that the browser takes this for the page's own server."""
    process = start(("dashboard", "--port", 0), dsn)
    port = serving(process)

    def visit(host: str) -> None:
        uri, origin = f"ws://{host}:{port}/_stcore/stream", f"http://{host}:{port}"
        with (
            socket.create_connection(("127.0.0.1", port)) as reached,
            connect(uri, sock=reached, origin=Origin(origin)),
        ):
            pass

    visit("localhost")
    visit("127.0.0.1")
    with pytest.raises(InvalidStatus):
        visit("rebound.example.org")


def test_a_taken_port_is_named(dsn: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = run(("dashboard", "--port", port), dsn)
    assert (result.code, result.out) == (1, "")
    assert result.err.startswith(f"jobq: port {port} on 127.0.0.1 is taken")


def test_an_address_of_another_machine_is_refused(dsn: str) -> None:
    result = run(("dashboard", "--host", "192.0.2.1"), dsn)
    assert result.code == 1
    assert result.err.startswith("jobq: cannot listen on 192.0.2.1, port 8501: ")


@pytest.fixture
def jobq(dsn: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Jobq:
    return Jobq(dsn, capsys, monkeypatch)


@pytest.mark.parametrize("module", ["streamlit", "psycopg_pool"])
def test_without_the_extra_it_says_how_to_install_it(
    jobq: Jobq, monkeypatch: pytest.MonkeyPatch, module: str
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == module else find(name)
    )
    result = jobq("dashboard")
    assert (result.code, result.out) == (1, "")
    assert "pip install 'jobq[dashboard]'" in result.err


def test_a_setting_that_it_cannot_use_is_refused(
    jobq: Jobq, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JOB_DASHBOARD_READ_ONLY", "ture")
    result = jobq("dashboard")
    assert result.code == 2
    assert "JOB_DASHBOARD_READ_ONLY='ture' cannot be used: allowed: true or false" in result.err
