"""The README is true: its examples run, its lists are complete, its defaults are the code's."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import ROOT, Connection, missing, wait_until

from jobq import errors
from jobq.settings import DashboardSettings, WorkerSettings
from workers import counts

README = (ROOT / "README.md").read_text("utf-8")
SAMPLE = (ROOT / ".env.sample").read_text("utf-8")


def block(heading: str, language: str) -> str:
    """The first code block of a language below a heading."""
    below = README.partition(f"\n## {heading}\n")[2]
    found = re.search(rf"^```{language}\n(.*?)^```", below, re.DOTALL | re.MULTILINE)
    assert found is not None, f"no {language} below {heading}"
    return found[1]


def test_every_public_function_and_view_is_listed(conn: Connection) -> None:
    query = """
        select proname || '(' from pg_proc
        where pronamespace = 'jobq'::regnamespace and proname not like '\\_%'
          and proname not in ('schema_version', 'compatible_from')
        union all
        select '`' || relname || '`' from pg_class
        where relnamespace = 'jobq'::regnamespace and relkind = 'v'
    """
    names = [row[0] for row in conn.execute(query)]
    assert len(names) > 30
    assert [name for name in names if name not in README] == []


def test_every_error_is_listed_with_its_code() -> None:
    classes = [c for c in vars(errors).values() if getattr(c, "sqlstate", None)]
    assert len(classes) == 7
    for error in classes:
        assert f"| {error.sqlstate} | `{error.__name__}` |" in README


def test_settings_are_listed_with_their_defaults() -> None:
    fields = {**WorkerSettings.model_fields, **DashboardSettings.model_fields}
    for name, field in fields.items():
        variable = str(field.validation_alias)
        row = next(line for line in README.splitlines() if re.match(rf"\| .*`{variable}`", line))
        assert re.search(rf"^#?{variable}=", SAMPLE, re.MULTILINE), f"{variable} in .env.sample"
        if isinstance(field.default, bool | int | float):
            default = str(field.default).lower()
            assert re.search(rf"\b{default}\b", row.split("|")[2]), name
            assert f"\n{variable}={default}\n" in SAMPLE


def test_the_first_job_runs(dsn: str, conn: Connection, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(block("A first job", "python"))
    environment = {**os.environ, "DATABASE_URL": dsn, "PYTHONPATH": str(ROOT / "worker")}
    command = [sys.executable, "-m", "jobq", "worker", "shop:app"]
    subprocess.run([sys.executable, "shop.py"], cwd=tmp_path, env=environment, check=True)
    assert counts(conn) == {"queued": 1002}
    with subprocess.Popen(command, cwd=tmp_path, env=environment) as worker:
        try:
            # One is delayed by a minute.
            wait_until(lambda: counts(conn) == {"queued": 1, "succeeded": 1001}, 60)
        finally:
            worker.terminate()
        assert worker.wait(30) == 0
    query = "select count(distinct result) from jobq.jobs where status = 'succeeded'"
    assert conn.execute(query).fetchone() == (1001,)


def test_the_psql_example_runs(dsn: str) -> None:
    psql = shutil.which("psql")
    if psql is None:
        missing("psql is not installed (Debian: postgresql-client)")
        pytest.fail("unreachable")
    result = subprocess.run(
        [psql, dsn, "--no-psqlrc", "--quiet", "--tuples-only", "-v", "ON_ERROR_STOP=1"],
        input=block("The same from psql", "sql"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (result.returncode, result.stderr) == (0, "")
    events = [row.split("|")[1].strip() for row in result.stdout.splitlines() if "|" in row][-5:]
    assert events == ["enqueued", "claimed", "failed", "claimed", "succeeded"]
