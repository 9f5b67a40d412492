"""Durations as people write and read them, and times, which are always UTC."""

import re
from datetime import UTC, datetime

import typer

__all__ = ["age", "parse_duration", "parse_time", "show_seconds", "show_time"]

_UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_SHOWN = (("d", 86_400, "h", 3600), ("h", 3600, "m", 60), ("m", 60, "s", 1))
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|[smhdw])", re.IGNORECASE)
_WHOLE = re.compile(rf"(?:{_PART.pattern}\s*)+", re.IGNORECASE)


def parse_duration(text: str) -> float:
    """Return the seconds of a duration such as 30s, 90m, 1h30m, 7d."""
    if not _WHOLE.fullmatch(text.strip()):
        raise typer.BadParameter(f"{text!r} is not a duration: write it as 30s, 90m, 1h30m or 7d")
    return float(sum(float(n) * _UNITS[unit.lower()] for n, unit in _PART.findall(text)))


def parse_time(text: str) -> datetime:
    """Return the time of an ISO 8601 text, which must name its UTC offset."""
    try:
        time = datetime.fromisoformat(text.strip())
    except ValueError:
        time = datetime.min  # noqa: DTZ901 - refused below like any other without an offset
    if time.utcoffset() is None:
        raise typer.BadParameter(
            f"{text!r} is not a time with its UTC offset: write it as 2030-01-31T12:00:00Z"
        )
    return time


def show_seconds(seconds: float) -> str:
    """Return a length of time with about three digits: 850 ms, 1.02 s, 3m 20s, 2d 4h."""
    if seconds < 0:
        return f"-{show_seconds(-seconds)}"
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 59.95:
        return f"{seconds:.2f} s" if seconds < 10 else f"{seconds:.1f} s"
    whole = round(seconds)
    unit, size, smaller, part = next(u for u in _SHOWN if whole >= u[1])
    rest = whole % size // part
    return f"{whole // size}{unit}" + (f" {rest}{smaller}" if rest else "")


def show_time(time: datetime) -> str:
    """Return a time as 2026-01-31 10:00:00Z."""
    return f"{time.astimezone(UTC):%Y-%m-%d %H:%M:%S}Z"


def age(time: datetime, now: datetime) -> str:
    """Return how far a time lies from now: 5m ago, in 2h."""
    seconds = (now - time).total_seconds()
    return f"{show_seconds(seconds)} ago" if seconds >= 0 else f"in {show_seconds(-seconds)}"
