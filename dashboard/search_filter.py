"""What is looked for, as fields and as the filter of the functions that act on many jobs."""

import json
import re
from dataclasses import dataclass
from datetime import datetime
from typing import Any

__all__ = ["Exact", "Search", "filter_text", "parse_payload"]

_WORD = re.compile(r"\s*([^\s=]+)=")


class Exact(dict[str, Any]):
    """A JSON object that knows its text, in which numbers have all their digits."""

    def __init__(self, text: str) -> None:
        super().__init__(json.loads(text))
        self.text = text


@dataclass(frozen=True)
class Search:
    """What is looked for; all that is given must hold. `payload` is the text of a JSON object."""

    status: str | None = None
    kind: str | None = None
    key: str | None = None
    payload: str | None = None
    error: str | None = None
    worker: str | None = None
    priority: int | None = None
    created_after: datetime | None = None
    created_before: datetime | None = None
    job_id: int | None = None

    def filter(self) -> dict[str, Any]:
        """Return the filter of jobq.retry_jobs and its like that matches the same jobs."""
        fields: dict[str, Any] = {
            "ids": None if self.job_id is None else [self.job_id],
            "key": self.key,
            "kind": self.kind,
            "status": self.status,
            "priority": self.priority,
            "worker": self.worker,
            "created_before": _moment(self.created_before),
            "created_after": _moment(self.created_after),
            "error": self.error,
            "payload": None if self.payload is None else Exact(self.payload),
        }
        return {name: given for name, given in fields.items() if given is not None}


def filter_text(filter: dict[str, Any]) -> str:
    """Return a filter as JSON text, its payload as it was written."""
    rest = {name: given for name, given in filter.items() if name != "payload"}
    payload = filter.get("payload")
    if payload is None:
        return json.dumps(rest)
    part = payload.text if isinstance(payload, Exact) else json.dumps(payload)
    return f'{json.dumps(rest)[:-1]}{", " if rest else ""}"payload": {part}}}'


def parse_payload(text: str) -> str:
    """Turn `to=a@b.c count=3`, or a JSON object, into JSON text; ValueError says what is wrong.

    A value that is JSON (3, true, null, "two words", [1], {"a": 1}) is taken as that, any other
    as a string.
    """
    stripped = text.strip()
    if not stripped:
        raise ValueError('nothing to look for: write name=value, or {"name": "value"}')
    if stripped.startswith("{"):
        found, written = _decoded(stripped), stripped
    else:
        written = f"{{{', '.join(_members(stripped))}}}"
        found = _decoded(written)
    _check_storable(found)
    return written


def _decoded(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_no_constant)
    except RecursionError:
        raise ValueError("the JSON is nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"this is not a JSON object: {error}") from None


def _no_constant(name: str) -> Any:
    raise ValueError(f"JSON has no {name}")


def _members(text: str) -> list[str]:
    """The members of an object, from words such as `to=a@b.c`."""
    members: dict[str, str] = {}
    place = 0
    while place < len(text):
        word = _WORD.match(text, place)
        if word is None:
            rest = text[place:].strip()
            raise ValueError(f"{rest.split()[0]!r} is not name=value")
        name = word[1]
        if name in members:
            raise ValueError(f"{name!r} is given twice")
        members[name], place = _value(text, word.end())
        while place < len(text) and text[place].isspace():
            place += 1
    return [f"{json.dumps(name)}: {given}" for name, given in members.items()]


def _value(text: str, start: int) -> tuple[str, int]:
    """The JSON text of the value that starts there, and where it ends."""
    if text[start : start + 1] in ('"', "[", "{"):
        try:
            _, end = json.JSONDecoder().raw_decode(text, start)
        except (ValueError, RecursionError):
            end = start
        if end > start and (end == len(text) or text[end].isspace()):
            return text[start:end], end
    word = re.match(r"\S*", text[start:])
    given = word[0] if word else ""
    end = start + len(given)
    try:
        json.loads(given, parse_constant=_no_constant)
    except ValueError:
        return json.dumps(given), end
    return given, end


def _check_storable(found: Any) -> None:
    if not isinstance(found, dict):
        raise ValueError('this is not a JSON object: write {"name": "value"}')
    written = json.dumps(found, ensure_ascii=False)
    try:
        written.encode()
    except UnicodeEncodeError:
        raise ValueError("half a character (a lone surrogate) is in no payload") from None
    if re.search(r"(?<!\\)(\\\\)*\\u0000", written):
        raise ValueError("a NUL character is in no payload")


def _moment(time: datetime | None) -> str | None:
    return None if time is None else time.isoformat(timespec="microseconds")
