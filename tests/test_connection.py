"""What a database or a role has for its sessions' defaults does not matter to those of jobq."""

from datetime import datetime, timedelta

import pytest
from helpers import Connection, scalar

from command import Jobq
from jobq._connection import connect


@pytest.fixture
def foreign_dsn(dsn: str, conn: Connection) -> str:
    """A database whose sessions write times and intervals as the driver cannot read them."""
    name = scalar(conn, "select current_database()")
    for setting, value in (("DateStyle", "German, DMY"), ("IntervalStyle", "sql_standard")):
        conn.execute(f"alter database {name} set {setting} = '{value}'".encode())
    return dsn


def test_times_and_intervals_are_read(foreign_dsn: str) -> None:
    with connect(foreign_dsn, "test") as conn:
        assert isinstance(scalar(conn, "select now()"), datetime)
        assert scalar(conn, "select interval '1 day 2 h'") == timedelta(days=1, hours=2)


def test_the_command_line_reads_what_it_shows(
    foreign_dsn: str,
    conn: Connection,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    jobq = Jobq(foreign_dsn, capsys, monkeypatch)
    assert jobq("enqueue", "k", "--delay", "1h").code == 0
    assert jobq("enqueue", "k").code == 0
    conn.execute("select jobq.claim('w')")
    for args in (("list",), ("show", 1), ("show", 2), ("explain", 2), ("stats",)):
        assert jobq(*args).code == 0
        assert jobq(*args, "--json").code == 0
