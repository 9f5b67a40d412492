"""Clients are thin: no Python file of the package writes the tables, all go through functions."""

import re
from pathlib import Path

import pytest
from helpers import ROOT

FILES = sorted([*(ROOT / "worker").rglob("*.py"), *(ROOT / "dashboard").rglob("*.py")])
WRITE = re.compile(
    r"\b(insert\s+into|update|delete\s+from|truncate|merge\s+into|copy)\s+(only\s+)?"
    r"(jobq\.)?(jobs|job_events)\b",
    re.IGNORECASE,
)


def test_the_pattern_finds_a_write() -> None:
    assert WRITE.search("UPDATE jobq.jobs set status = 'queued'")
    assert WRITE.search("insert into\n  job_events (job_id) values (1)")


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_no_python_file_writes_the_tables(file: Path) -> None:
    assert WRITE.findall(file.read_text("utf-8")) == []
