"""The filters as a viewer typed them: texts, in which an age means another moment each time."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any

import search
from search import Search
from sql import Connection

__all__ = ["NAMES", "Typed", "find", "moment_of", "now"]

#: The fields that can be typed, in words.
NAMES = {
    "status": "status",
    "kind": "kind",
    "payload": "payload",
    "error": "error with",
    "key": "key",
    "worker": "worker",
    "priority": "priority",
    "created_after": "created after",
    "created_before": "created before",
}

_TIMES = ("created_after", "created_before")
_UNITS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400, "w": 604_800}
_AGE = re.compile(r"(\d+(?:\.\d+)?)\s*(s|min|m|h|d|w)", re.IGNORECASE)


@dataclass(frozen=True)
class Typed:
    """What was typed, by field, and the zone of who typed it."""

    texts: tuple[tuple[str, str], ...] = ()
    zone: tzinfo = UTC

    def search(self, at: datetime) -> Search:
        """What is asked for at that moment; there must be no problems."""
        fields, problems = self._read(at)
        assert not problems, problems
        return Search(**fields)

    def problems(self) -> list[str]:
        """What is wrong with the texts."""
        return self._read(now())[1]

    def described(self, at: datetime) -> str:
        """The filters in words, an age with the moment that it means."""
        return ", ".join(
            f"{NAMES[name]} {text}{self._meant(name, text, at)}" for name, text in self.texts
        )

    def _meant(self, name: str, text: str, at: datetime) -> str:
        if name not in _TIMES or not _AGE.fullmatch(text.strip()):
            return ""
        moment = moment_of(text, at.astimezone(self.zone)).astimezone(self.zone)
        return f" ({moment:%Y-%m-%d %H:%M %Z})"

    def _read(self, at: datetime) -> tuple[dict[str, Any], list[str]]:
        local = at.astimezone(self.zone)
        readers: dict[str, Callable[[str], Any]] = {
            "payload": search.parse_payload,
            "priority": _number,
            **dict.fromkeys(_TIMES, lambda text: moment_of(text, local)),
        }
        fields: dict[str, Any] = {}
        problems = []
        for name, text in self.texts:
            try:
                fields[name] = readers.get(name, str)(text)
            except ValueError as error:
                problems.append(f"{NAMES[name]}: {error}")
        return fields, problems


def now() -> datetime:
    """The moment from which ages count."""
    return datetime.now(UTC)


def find(
    conn: Connection, typed: Typed, after: tuple[Any, ...] | None, limit: int
) -> dict[str, Any]:
    """Return what `search.find` does for what the texts mean now.

    Shared by the texts: a reading for each minute would lose the last one, and cost without limit.
    """
    return search.find(conn, typed.search(now()), after, limit)


def moment_of(text: str, at: datetime) -> datetime:
    """A time such as 2026-11-29 14:00, in the zone of `at`, or an age such as 90 min, in UTC.

    An age counts back from `at` in whole minutes. Raises ValueError with what to write.
    """
    stripped = text.strip()
    if age := _AGE.fullmatch(stripped):
        seconds = float(age[1]) * _UNITS[age[2].lower()]
        if seconds < 1e10:
            # On UTC's clock: the zone's own jumps twice a year.
            minute = at.astimezone(UTC).replace(second=0, microsecond=0)
            return minute - timedelta(seconds=seconds)
    try:
        moment = datetime.fromisoformat(stripped)
        zoned = moment if moment.utcoffset() is not None else moment.replace(tzinfo=at.tzinfo)
        # In UTC: the zone's offset of a distant year may have seconds, which no filter takes.
        return zoned.astimezone(UTC)
    except (ValueError, OverflowError):
        raise ValueError(
            f"{text!r} is neither a time, as 2026-11-29 14:00, nor an age, as 90 min, 2 h or 7 d"
        ) from None


def _number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a whole number") from None
