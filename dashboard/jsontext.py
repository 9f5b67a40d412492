"""What is wrong with JSON that somebody types: where, in words; digits are never touched."""

import json
from collections import Counter
from typing import Any

__all__ = ["problem_of", "repeated_names"]


def problem_of(text: str) -> str | None:
    """Why this is no JSON object, with the place of the error; None: it is one."""
    if not text.strip():
        return "Empty: a payload is a JSON object; {} is the smallest."
    try:
        value = _read(text)
    except json.JSONDecodeError as error:
        return f"Line {error.lineno}, column {error.colno}: {_words(error.msg)}"
    except (ValueError, RecursionError) as error:
        return str(error) if isinstance(error, ValueError) else "Nested too deeply."
    if not isinstance(value, _Object):
        return "A payload is a JSON object: it begins with { and ends with }."
    return None


def repeated_names(text: str) -> list[str]:
    """Names that stand twice in one object, of which the database keeps the last value."""
    found: list[str] = []
    try:
        _read(text, found)
    except (ValueError, RecursionError):
        return []
    return list(dict.fromkeys(found))


class _Object(dict[str, Any]):
    """Tells an object from other values."""


def _read(text: str, repeated: list[str] | None = None) -> Any:
    def pairs(items: list[tuple[str, Any]]) -> _Object:
        read = _Object(items)
        if repeated is not None and len(read) < len(items):
            times = Counter(name for name, _ in items)
            repeated.extend(name for name in read if times[name] > 1)
        return read

    # Numbers stay text: Python refuses integers of more than 4,300 digits, PostgreSQL does not.
    return json.loads(
        text, object_pairs_hook=pairs, parse_int=str, parse_float=str, parse_constant=_refuse
    )


def _refuse(name: str) -> Any:
    raise ValueError(f"JSON has no {name}; null is the nearest.")


def _words(message: str) -> str:
    return {
        "Expecting value": "a value is missing here",
        "Extra data": "the object has ended here, and there is more text",
        "Expecting ',' delimiter": "a comma, or the end of the object, is missing here",
        "Expecting ':' delimiter": "a colon is missing here",
        "Expecting property name enclosed in double quotes": "a name in double quotes is missing"
        " here",
        "Illegal trailing comma before end of object": "a comma before the end of the object",
        "Illegal trailing comma before end of array": "a comma before the end of the array",
        "Unterminated string starting at": "the string that begins here has no end",
        "Invalid control character at": "a line break or tab inside a string; write \\n or \\t",
    }.get(message, message[:1].lower() + message[1:])
