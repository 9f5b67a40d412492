import io
import json
import logging
from collections.abc import Iterator

import pytest

from jobq.log import Format, configure, log

logger = logging.getLogger("jobq.test")


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    root = logging.getLogger("jobq")
    before = (root.handlers[:], root.level, root.propagate)
    yield
    root.handlers[:], root.level, root.propagate = before


def lines(log_format: Format, level: str = "DEBUG", **fields: object) -> list[str]:
    stream = io.StringIO()
    configure(level, log_format, stream)
    log(logger, logging.INFO, "event", **fields)
    return stream.getvalue().splitlines()


def test_a_line_has_time_level_event_and_fields() -> None:
    (line,) = lines("text", jobs=5, ms=1.23456789, none=None, kind="email.send")
    time, level, rest = line.split(" ", 2)
    assert time.endswith("Z")
    assert len(time) == len("2026-01-31T10:00:00.000Z")
    assert (level, rest) == ("INFO", "event jobs=5 ms=1.23457 kind=email.send")


@pytest.mark.parametrize(
    "text", ["a b", 'say "hi"', "x=y", "two\nlines", "\x1b[31m", "ümlaut", "\ud800", ""]
)
def test_text_cannot_break_the_line(text: str) -> None:
    (line,) = lines("text", value=text)
    assert json.loads(line.partition("value=")[2]) == text
    assert line.isprintable()


def test_long_values_are_cut() -> None:
    (line,) = lines("text", value="x" * 1_000_000)
    assert len(line) < 3000


def test_json_lines_parse_and_keep_types() -> None:
    (line,) = lines("json", jobs=5, error="two\nlines", event="not the event's name")
    record = json.loads(line)
    assert record.pop("time")
    assert record == {
        "level": "INFO",
        "logger": "jobq.test",
        "event": "event",
        "jobs": 5,
        "error": "two\nlines",
    }


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_a_traceback_stays_on_the_line(log_format: Format) -> None:
    stream = io.StringIO()
    configure("INFO", log_format, stream)
    try:
        raise ValueError("no\ngood")
    except ValueError:
        logger.exception("failed")
    (line,) = stream.getvalue().splitlines()
    assert "ValueError" in line


def test_the_level_filters_and_a_second_call_replaces_the_first() -> None:
    first, second = io.StringIO(), io.StringIO()
    configure("INFO", "text", first)
    configure("WARNING", "text", second)
    log(logger, logging.INFO, "quiet")
    log(logger, logging.WARNING, "loud")
    assert first.getvalue() == ""
    assert [line.split(" ", 2)[2] for line in second.getvalue().splitlines()] == ["loud"]
