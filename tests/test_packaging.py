"""The SQL and the dashboard travel with the package; the pins are complete and name no host."""

import os
import re
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import version
from pathlib import Path

import pytest
from helpers import ROOT

from jobq.paths import dashboard_dir, db_dir

SQL = sorted(file.relative_to(ROOT / "db").as_posix() for file in (ROOT / "db").rglob("*.sql"))

pytestmark = [pytest.mark.once, pytest.mark.xdist_group("package")]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out)]
    subprocess.run([*command, str(ROOT)], check=True, capture_output=True)
    return next(out.glob("*.whl"))


def test_the_wheel_carries_every_sql_file(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    packed = sorted(n.removeprefix("jobq/_db/") for n in names if n.startswith("jobq/_db/"))
    assert [name for name in packed if name.endswith(".sql")] == SQL
    assert "migrations/post-apply.py" in packed
    assert {name.split("/")[0] for name in names} == {"jobq", "jobq-0.1.0.dist-info"}


def test_the_wheel_carries_the_dashboard(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    folder = ROOT / "dashboard"
    files = [
        file.relative_to(folder).as_posix()
        for file in folder.rglob("*")
        if file.is_file() and not {"__pycache__", "pictures"} & set(file.parts)  # the README's
    ]
    assert {"app.py", "icon.svg", ".streamlit/config.toml", "screens/jobs.py"} <= set(files)
    prefix = "jobq/_dashboard/"
    packed = sorted(n.removeprefix(prefix) for n in names if n.startswith(prefix))
    assert packed == sorted(files)


def test_an_installed_wheel_finds_its_own_sql_and_dashboard(wheel: Path, tmp_path: Path) -> None:
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*pip, "--target", str(tmp_path), str(wheel)], check=True)
    result = subprocess.run(
        [sys.executable, "-c", "from jobq.paths import *; print(db_dir(), dashboard_dir())"],
        cwd="/",
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    folder = tmp_path / "jobq"
    assert result.stdout.split() == [str(folder / "_db"), str(folder / "_dashboard")]


def test_a_checkout_uses_its_own_sql_and_dashboard() -> None:
    assert db_dir() == ROOT / "db"
    assert dashboard_dir() == ROOT / "dashboard"


def _pins(*names: str) -> list[str]:
    return [
        line
        for name in names
        for line in (ROOT / name).read_text().splitlines()
        if not line.startswith("#") and line != "--requirement requirements.txt"
    ]


INSTALLED = _pins("requirements.txt", "requirements-dev.txt")
PINS = INSTALLED + _pins("requirements-bench.txt")


def test_every_requirement_is_pinned_once_and_names_no_host() -> None:
    assert [pin for pin in PINS if not re.fullmatch(r"[\w.-]+==[0-9A-Za-z.]+", pin)] == []
    assert len({pin.split("==")[0] for pin in PINS}) == len(PINS)


def test_every_dependency_has_a_pin() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].values()
    wanted = [item for group in (project["dependencies"], *extras) for item in group]
    names = {re.match(r"[\w.-]+", item)[0] for item in wanted}  # type: ignore[index]
    pinned = {pin.split("==")[0].lower().replace("_", "-") for pin in PINS}
    assert names - pinned == {"jobq"}


def test_the_installed_versions_are_the_pinned_ones() -> None:
    for pin in INSTALLED:
        name, wanted = pin.split("==")
        assert version(name) == wanted
