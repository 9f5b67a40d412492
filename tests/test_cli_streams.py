"""Closed standard streams, and a current folder that is gone: a line or two, never a traceback."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import Connection, scalar

from command import Result, environment


def shell(line: str, dsn: str, cwd: Path | None = None, **env: str) -> Result:
    """Run a line of shell in which `jobq` is our command."""
    done = subprocess.run(
        ["sh", "-c", f'jobq() {{ "{sys.executable}" -m jobq "$@"; }}\n{line}'],
        cwd=cwd,
        env=environment(dsn, **env),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "Traceback" not in done.stderr
    return Result(done.returncode, done.stdout, done.stderr)


@pytest.mark.parametrize(
    "line",
    ["jobq list", "jobq list --json", "jobq --help", "jobq --version", "jobq list 2>&- <&-"],
)
def test_a_closed_output_is_like_the_null_device(dsn: str, line: str) -> None:
    assert shell(f"{line} >&-", dsn) == Result(0, "", "")


def test_a_closed_stream_lends_its_number_to_no_connection(dsn: str) -> None:
    # What is written to the number would go to the server.
    source = (
        "import os, jobq.cli; from jobq.cli import database\n"
        "connect = database.connect_cli\n"
        "database.connect_cli = lambda dsn: os._exit(100 + connect(dsn).fileno())\n"
        "jobq.cli.main(['list'])\n"
    )
    command = ["sh", "-c", f'exec "{sys.executable}" -c "$0" <&- >&- 2>&-', source]
    assert subprocess.run(command, env=environment(dsn)).returncode > 102


@pytest.mark.parametrize("line", ["jobq list >/dev/full", "jobq --help >/dev/full"])
def test_an_output_that_takes_nothing_exits_1_and_says_so(dsn: str, line: str) -> None:
    result = shell(line, dsn)
    assert result.code == 1
    assert result.err == "jobq: cannot write the output: No space left on device\n"


def test_a_closed_input_is_an_empty_one(dsn: str, conn: Connection) -> None:
    conn.execute("select jobq.enqueue('k')")
    result = shell("jobq enqueue k --payload - <&-", dsn)
    assert result.code == 2
    assert "takes a JSON object" in result.err
    result = shell("jobq cancel --all <&-", dsn)
    assert result.code == 2
    assert "add --yes" in result.err
    assert scalar(conn, "select array_agg(status::text) from jobq.jobs") == ["queued"]


GONE = "cd folder && rmdir ../folder && "


@pytest.fixture
def parent(tmp_path: Path) -> Path:
    (tmp_path / "folder").mkdir()
    return tmp_path


@pytest.mark.parametrize("line", ["jobq list --embedded", "jobq demo --headless --path ."])
def test_a_folder_that_is_gone_and_needed_exits_2(dsn: str, parent: Path, line: str) -> None:
    result = shell(GONE + line, dsn, parent)
    assert result.code == 2
    assert "jobq: the current folder is gone: change to one that exists\n" in result.err


def test_a_worker_in_a_folder_that_is_gone_finds_its_module_elsewhere(
    dsn: str, parent: Path
) -> None:
    result = shell(f"{GONE} jobq worker shop:app", dsn, parent)
    assert result.code == 2
    assert "no module 'shop' in the current folder, which is gone, or on PYTHONPATH" in result.err
    (parent / "shop.py").write_text("import sys\nsys.exit('found')\n")
    path = f"{environment(dsn)['PYTHONPATH']}{os.pathsep}{parent}"
    (parent / "folder").mkdir()
    assert "found" in shell(f"{GONE} jobq worker shop:app", dsn, parent, PYTHONPATH=path).err
