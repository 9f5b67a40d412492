"""What runs and watches the queue: migrate, worker, stats, verify."""

import json
import signal
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest
from helpers import Connection, scalar, wait_until

from command import Jobq, run, start

APP = """
import jobq
app = jobq.App()
other = jobq.App()
thing = 7

@app.job("greet")
def greet(name: str) -> str:
    follow.enqueue(name)
    return f"hello {name}"

@app.job("follow")
def follow(name: str) -> None: ...
"""


@pytest.fixture
def jobq(dsn: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Jobq:
    return Jobq(dsn, capsys, monkeypatch)


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """A folder with the module `shop`, as a user has one."""
    (tmp_path / "shop.py").write_text(APP)
    return tmp_path


def status_of(conn: Connection, job_id: int) -> str:
    return str(scalar(conn, "select status::text from jobq.jobs where id = %s", job_id))


def test_migrate_installs_and_then_has_nothing_to_do(
    empty_dsn: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    jobq = Jobq(empty_dsn, capsys, monkeypatch)
    before = jobq("migrate", "--status", "--json")
    assert before.code == 1
    assert json.loads(before.out)["current"] is False
    assert "pending migration: 0001.jobs" in jobq("migrate", "--status").out
    first = jobq("migrate", "--json").json()
    assert first["applied"][0] == "0001.jobs"
    assert first["loaded"]
    assert "nothing to do" in jobq("migrate").out
    assert jobq("migrate", "--status", "--json").json()["current"] is True
    assert jobq("verify").code == 0


def test_migrate_waits_for_a_database_that_is_away() -> None:
    result = run(("migrate", "--wait", "0.2"), "postgresql://127.0.0.1:1/none")
    assert result.code == 3
    assert "cannot reach the database" in result.err


def test_a_worker_runs_the_jobs_of_a_module_in_the_current_folder(
    dsn: str, conn: Connection, shop: Path
) -> None:
    conn.execute("select jobq.enqueue('greet', '{\"name\": \"ada\"}')")
    worker = start(("worker", "shop:app", "--log-format", "json"), dsn, shop)
    try:
        wait_until(lambda: scalar(conn, "select count(*) = 2 from jobq.jobs") or None)
        wait_until(lambda: status_of(conn, 2) == "succeeded")
        assert scalar(conn, "select result from jobq.jobs where id = 1") == "hello ada"
    finally:
        worker.send_signal(signal.SIGTERM)
        _, log = worker.communicate(timeout=30)
    assert worker.returncode == 0
    lines = [json.loads(line) for line in log.splitlines()]
    assert [line["event"] for line in lines][:1] == ["worker started"]


def test_the_app_may_come_from_the_environment_and_kinds_from_options(
    dsn: str, conn: Connection, shop: Path
) -> None:
    conn.execute("select jobq.enqueue('follow', '{\"name\": \"ada\"}', priority => 9)")
    conn.execute("select jobq.enqueue('greet', '{\"name\": \"ada\"}')")
    args = ("worker", "--exclude", "follow", "--threads", 1, "--log-level", "debug")
    worker = start(args, dsn, shop, JOB_WORKER_APP="shop:app")
    try:
        wait_until(lambda: status_of(conn, 2) == "succeeded")
        assert status_of(conn, 1) == "queued"
    finally:
        worker.send_signal(signal.SIGTERM)
        _, log = worker.communicate(timeout=30)
    assert " DEBUG claim " in log
    assert "threads=1 kinds=greet" in log


@pytest.mark.parametrize(
    ("name", "code", "words"),
    [
        ("shpo:app", 2, ["no module 'shpo'", "PYTHONPATH"]),
        ("shop.jobs:app", 2, ["no module 'shop.jobs'"]),
        ("shop:application", 2, ["'application'", "shop:app, shop:other"]),
        ("shop:thing", 2, ["no App called 'thing'"]),
        ("shop:other", 2, ["nothing to work on"]),
        ("broken:app", 1, ["broken.py, line 2", "ZeroDivisionError"]),
        ("needy:app", 1, ["needy.py, line 1", "No module named 'no_such_dependency'"]),
        ("wrong:app", 1, ["SyntaxError"]),
    ],
)
def test_an_app_that_cannot_be_loaded_is_explained(
    dsn: str, shop: Path, name: str, code: int, words: list[str]
) -> None:
    (shop / "broken.py").write_text("x = 1\n1 / 0\n")
    (shop / "needy.py").write_text("import no_such_dependency\n")
    (shop / "wrong.py").write_text("def (:\n")
    result = run(("worker", name), dsn, shop)
    assert (result.code, result.out) == (code, "")
    assert "Traceback" not in result.err
    assert len(result.err.splitlines()) <= 2
    for word in words:
        assert word in result.err


def test_a_worker_refuses_settings_and_kinds_that_it_cannot_use(dsn: str, shop: Path) -> None:
    result = run(("worker", "shop:app"), dsn, shop, JOB_WORKER_LEASE_SECONDS="soon")
    assert result.code == 2
    assert "JOB_WORKER_LEASE_SECONDS='soon'" in result.err
    result = run(("worker", "shop:app", "--kinds", "greet,shout"), dsn, shop)
    assert result.code == 2
    assert "shout" in result.err


def test_a_worker_refuses_a_database_without_schema(empty_dsn: str, shop: Path) -> None:
    result = run(("worker", "shop:app"), empty_dsn, shop)
    assert result.code == 3
    assert "jobq migrate" in result.err


def test_a_worker_refuses_a_role_that_may_not_work(
    dsn: str, conn: Connection, make_role: Callable[..., str], shop: Path
) -> None:
    role = make_role()
    conn.execute("select jobq.grant_access(%s, 'producer')", (role,))
    result = run(("worker", "shop:app"), f"{dsn} user={role} password=test", shop)
    assert result.code == 3
    assert f"`select jobq.grant_access('{role}', 'worker')`" in result.err


def test_a_worker_that_leaves_jobs_running_exits_1(
    dsn: str, conn: Connection, tmp_path: Path
) -> None:
    (tmp_path / "slow.py").write_text(
        "import jobq, pathlib, time\napp = jobq.App()\n@app.job('slow')\n"
        "def slow() -> None: pathlib.Path('at work').touch(); time.sleep(60)\n"
    )
    conn.execute("select jobq.enqueue('slow')")
    worker = start(("worker", "slow:app"), dsn, tmp_path, JOB_WORKER_SHUTDOWN_SECONDS="0.1")
    try:
        # What is only claimed would be given back.
        wait_until((tmp_path / "at work").exists)
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(30) == 1
    finally:
        worker.kill()
        worker.communicate()


def test_stats_count_by_status_kind_and_worker(jobq: Jobq, conn: Connection) -> None:
    for kind in ("a", "a", "b"):
        conn.execute("select jobq.enqueue(%s)", (kind,))
    conn.execute("select jobq.enqueue('b', delay => '1 hour')")
    conn.execute("select jobq.claim('host-1', kinds => '{b}')")
    conn.execute("select jobq.cancel(1)")
    found = jobq("stats", "--json").json()
    jobs = {row["status"]: (row["jobs"], row["estimated"]) for row in found["statuses"]}
    assert jobs == {
        "queued": (2, False), "running": (1, False), "succeeded": (0, False),
        "failed": (0, False), "cancelled": (1, False),
    }  # fmt: skip
    kinds = {row["kind"]: (row["queued"], row["due"], row["running"]) for row in found["kinds"]}
    assert kinds == {"a": (1, 1, 0), "b": (1, 0, 1)}
    assert [(row["worker"], row["running"]) for row in found["workers"]] == [("host-1", 1)]
    out = jobq("stats").out
    assert "host-1" in out
    assert len(out.splitlines()) == 6 + 1 + 3 + 1 + 2


def test_verify_exits_1_and_names_what_is_off(jobq: Jobq, conn: Connection) -> None:
    conn.execute("select jobq.enqueue('a') from generate_series(1, 3)")
    assert jobq("verify").out == "no problems: every job is what its history says\n"
    assert jobq("verify", "--json").json() == {"problems": []}
    conn.execute("alter table jobq.jobs disable trigger user")
    conn.execute("update jobq.jobs set priority = 9 where id = 2")
    conn.execute("alter table jobq.jobs enable trigger user")
    result = jobq("verify", "--json")
    assert result.code == 1
    assert json.loads(result.out)["problems"] == [
        {"job_id": 2, "problem": "priority", "ledger": "0", "stored": "9"}
    ]
    result = jobq("verify")
    assert result.code == 1
    assert result.out.splitlines()[1].split() == ["2", "priority", "0", "9"]


def test_verify_may_take_longer_than_a_roles_statement_timeout(
    jobq: Jobq, dsn: str, conn: Connection
) -> None:
    name = psycopg.conninfo.conninfo_to_dict(dsn)["dbname"]
    batch = json.dumps([{"kind": "a"}] * 10_000)
    conn.execute("select jobq.enqueue_many(%s)", (batch,))
    conn.execute(f"alter database {name} set statement_timeout = '50ms'".encode())
    with psycopg.connect(dsn) as limited, pytest.raises(psycopg.errors.QueryCanceled):
        limited.execute("select * from jobq.verify()")
    assert jobq("verify").code == 0
