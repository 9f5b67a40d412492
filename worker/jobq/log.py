"""One line per event, for people or (`json`) for machines, through the standard `logging`.

    log(logger, logging.DEBUG, "claim", jobs=5, ms=1.3)
    2026-01-31T10:00:00.000Z DEBUG claim jobs=5 ms=1.3

Stored text can hold anything, so a value that could break the line is written as a JSON string.
"""

import json
import logging
import re
import sys
import time
from typing import Any, Literal, TextIO

__all__ = ["JsonFormatter", "LineFormatter", "configure", "log"]

Format = Literal["text", "json"]

_PLAIN = re.compile(r"[!#-<>-~]+")  # printable ASCII but space, quote and equals sign
_LONGEST_VALUE = 2_000


def log(logger: logging.Logger, level: int, event: str, /, **fields: Any) -> None:
    """Log `event` with named values; fields that are None are left out."""
    if logger.isEnabledFor(level):
        logger.log(level, event, extra={"jobq": fields})


def configure(
    level: str = "INFO", log_format: Format = "text", stream: TextIO | None = None
) -> None:
    """Send the `jobq` loggers' lines to `stream` (standard error), and nowhere else.

    Calling it again replaces what the last call set up.
    """
    handler = logging.StreamHandler(stream if stream is not None else sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format == "json" else LineFormatter())
    logger = logging.getLogger("jobq")
    logger.handlers[:] = [handler]
    logger.setLevel(level)
    logger.propagate = False


class LineFormatter(logging.Formatter):
    """`time LEVEL event key=value …`, always one line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one line of text."""
        fields = _fields(record)
        words = [_time(record), record.levelname, _one_line(record.getMessage())]
        words += [f"{key}={_quoted(value)}" for key, value in fields.items()]
        return " ".join(words)


class JsonFormatter(logging.Formatter):
    """One JSON object per line: time, level, logger, event, and the event's own fields."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one line of JSON."""
        line: dict[str, Any] = {
            "time": _time(record),
            "level": record.levelname,
            "logger": record.name,
            "event": record.getMessage(),
        }
        for key, value in _fields(record).items():
            line.setdefault(key, value)
        return json.dumps(line, default=str)


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    fields = {k: v for k, v in getattr(record, "jobq", {}).items() if v is not None}
    if record.exc_info:
        fields["traceback"] = logging.Formatter().formatException(record.exc_info)
    return fields


def _time(record: logging.LogRecord) -> str:
    seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    return f"{seconds}.{int(record.msecs):03d}Z"


def _quoted(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    text = str(value)
    if len(text) > _LONGEST_VALUE:
        text = f"{text[:_LONGEST_VALUE]}…"
    return text if _PLAIN.fullmatch(text) else json.dumps(text)


def _one_line(text: str) -> str:
    return text if text.isprintable() else json.dumps(text)
