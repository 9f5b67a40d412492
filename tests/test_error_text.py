"""What an error text is about: the line that names the error, and the class to group it by."""

import subprocess
import sys

import pytest
from helpers import Connection, scalar

from jobq import _outcome

TRACEBACK = """\
Traceback (most recent call last):
  File "/srv/app/handlers.py", line 12, in send
    client.call(payload)
    ~~~~~~~~~~~^^^^^^^^^
  File "/srv/app/client.py", line 88, in call
    raise ConnectionError("refused")
"""
CHAINED = f"""\
{TRACEBACK}KeyError: 'to'

During handling of the above exception, another exception occurred:

{TRACEBACK}"""
GROUP = """\
  + Exception Group Traceback (most recent call last):
  |   File "<string>", line 1, in <module>
  | ExceptionGroup: two (2 sub-exceptions)
  +-+---------------- 1 ----------------
    | Traceback (most recent call last):
    |   File "<string>", line 3, in one
    | ValueError: first
    +---------------- 2 ----------------
    | Traceback (most recent call last):
    |   File "<string>", line 4, in two
    | KeyError: 'second'
    +------------------------------------"""

CASES: list[tuple[str | None, str | None, str]] = [
    (f"{TRACEBACK}ConnectionError: refused", "ConnectionError: refused", "ConnectionError"),
    (f"{TRACEBACK}TimeoutError", "TimeoutError", "TimeoutError"),
    (f"{TRACEBACK}app.errors.Quota: try\n", "app.errors.Quota: try", "app.errors.Quota"),
    (f"{TRACEBACK}a.f.<locals>.Odd: x", "a.f.<locals>.Odd: x", "a.f.<locals>.Odd"),
    (f"{TRACEBACK}Größe: zu groß", "Größe: zu groß", "Größe"),
    (
        f"{TRACEBACK}psycopg.errors.UniqueViolation: duplicate key\nDETAIL:  Key (id)=(1) exists.",
        "psycopg.errors.UniqueViolation: duplicate key",
        "psycopg.errors.UniqueViolation",
    ),
    (
        f"{TRACEBACK}ValidationError: 1 error for Mail\nto\n  Field required\n    For more see x",
        "ValidationError: 1 error for Mail",
        "ValidationError",
    ),
    (f"{CHAINED}OSError: [Errno 5]", "OSError: [Errno 5]", "OSError"),
    (GROUP, "KeyError: 'second'", "KeyError"),
    (
        "TypeError: x is not a function\n    at run (a.js:1:2)\n    at main (a.js:9:1)",
        "TypeError: x is not a function",
        "TypeError",
    ),
    (
        "java.io.IOException: gone\n\tat a.B.c(B.java:7)",
        "java.io.IOException: gone",
        "java.io.IOException",
    ),
    (
        "lease lost: worker w did not renew it by 12:00 (attempt 1 of 3)",
        "lease lost: worker w did not renew it by 12:00 (attempt 1 of 3)",
        "lease lost",
    ),
    ("the printer is on fire", "the printer is on fire", "the printer is on fire"),
    ("line one\nE: the last line counts", "E: the last line counts", "E"),
    ("not a name: x", "not a name: x", "not a name: x"),
    ("x" * 100, "x" * 100, "x" * 100),
    ("x y" * 100, "x y" * 100, ("x y" * 100)[:60]),
    ("ValueError: x\r\n\n  \t\n", "ValueError: x", "ValueError"),
    ("", "", "no error text"),
    (" \n\n ", "", "no error text"),
    (None, None, "no error text"),
]


@pytest.mark.parametrize(("error", "line", "name"), CASES)
def test_an_error_is_known_by_one_line_and_grouped_by_its_name(
    conn: Connection, error: str | None, line: str | None, name: str
) -> None:
    assert scalar(conn, "select jobq.error_line(%s)", error) == line
    assert scalar(conn, "select jobq.error_class(%s)", error) == name


def test_what_python_prints_is_named_by_its_exception(conn: Connection) -> None:
    code = "try:\n  int('x')\nexcept ValueError as e:\n  raise LookupError('a\\n    b\\nc') from e"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stderr
    assert scalar(conn, "select jobq.error_class(%s)", printed) == "LookupError"


def test_a_cut_traceback_is_still_named(conn: Connection) -> None:
    for length in range(2000, 2060):  # the cut falls anywhere in a line
        frame = f'  File "/srv/{"x" * (length - 2000)}.py", line 88, in call\n    call()\n'
        whole = f"{TRACEBACK}{frame * 2000}RecursionError: deep\nDETAIL: very"
        by_database = scalar(conn, "select jobq._clean_error(%s)", whole)
        for error in (by_database, _outcome.clean(whole)):
            assert len(error) < 33_000
            assert scalar(conn, "select jobq.error_class(%s)", error) == "RecursionError"


def test_the_longest_error_takes_milliseconds(conn: Connection) -> None:
    conn.execute("set statement_timeout = '2 s'")
    for text in (
        "| " * 16_000,
        "a" * 32_000,
        "Traceback (most recent call last):" + "\n " * 16_000,
    ):
        conn.execute("select jobq.error_class(%s) from generate_series(1, 20)", (text,))
