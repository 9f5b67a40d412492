"""What a handler's signature says about its payload, checked at both ends.

A payload is one JSON object with an entry per argument. The client converts and checks what it
was given, the worker what it gets, so an argument comes out with the type that its annotation
names. A parameter without annotation carries plain JSON values; one with a default may be absent.
"""

import inspect
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Any, NotRequired, cast, get_type_hints

from pydantic import ConfigDict, JsonValue, PydanticUserError, TypeAdapter, ValidationError
from pydantic_core import CoreConfig, PydanticSerializationError, SchemaSerializer, to_json
from typing_extensions import TypedDict

from jobq.errors import InvalidJob

__all__ = ["Arguments", "PayloadMismatch", "json_text"]

# Core schema types whose every value keeps its type in JSON, without a look at the value.
_PLAIN = frozenset(
    {"bool", "dict", "enum", "frozenset", "int", "list", "literal", "none", "nullable", "set"}
    | {"str", "tuple", "typed-dict", "typed-dict-field", "union", "uuid"}
)
_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")


class PayloadMismatch(Exception):
    """A stored payload does not fit the handler that this process has for it."""


class Arguments:
    """The payload of one handler: `encode` for the client, `decode` for the worker.

    Raises TypeError for a signature that no JSON object can feed.
    """

    def __init__(self, handler: Callable[..., Any]) -> None:
        fields, self._names, extra = _fields(handler)
        config = ConfigDict(extra="forbid", val_json_bytes="base64", arbitrary_types_allowed=False)
        if extra is not None:
            del config["extra"]
        options = {} if extra is None else {"extra_items": extra}
        model = cast("Any", TypedDict)("Arguments", fields, **options)
        model.__pydantic_config__ = config
        try:
            adapter: TypeAdapter[dict[str, Any]] = TypeAdapter(model)
        except PydanticUserError as exc:
            raise TypeError(f"{_name(handler)}: no JSON form for an annotation: {exc}") from exc
        schema = adapter.core_schema
        self._validator = adapter.validator
        self._serializer = SchemaSerializer(schema, CoreConfig(ser_json_bytes="base64"))
        self._plain = set(_types(schema)) <= _PLAIN

    def encode(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        """Return the payload as JSON text.

        Raises InvalidJob for arguments that do not fit, naive datetimes, and values that JSON or
        PostgreSQL cannot hold (NaN, infinities, NUL characters, lone surrogates).
        """
        values = dict(kwargs)
        if args:
            if len(args) > len(self._names):
                raise InvalidJob(f"{len(args)} arguments given, {len(self._names)} taken")
            for name, value in zip(self._names, args, strict=False):
                if name in values:
                    raise InvalidJob(f"argument {name!r} is given twice")
                values[name] = value
        try:
            values = self._validator.validate_python(values)
            if not self._plain:
                _refuse_unsafe(self._serializer.to_python(values))
            text = self._serializer.to_json(values, by_alias=True, round_trip=True).decode()
            if not self._plain:
                self._validator.validate_json(text)
        except ValidationError as exc:
            raise InvalidJob(_explain(exc)) from exc
        except (PydanticSerializationError, ValueError) as exc:
            raise InvalidJob(str(exc)) from exc
        if has_nul(text):
            raise InvalidJob("PostgreSQL cannot store a NUL character")
        return text

    def decode(self, payload: bytes) -> dict[str, Any]:
        """Return the handler's arguments; raises PayloadMismatch."""
        try:
            values: dict[str, Any] = self._validator.validate_json(payload)
            if not self._plain:
                _refuse_unsafe(self._serializer.to_python(values))
        except ValidationError as exc:
            raise PayloadMismatch(_explain(exc)) from None
        except (PydanticSerializationError, ValueError) as exc:
            raise PayloadMismatch(str(exc)) from None
        return values


def json_text(value: object) -> str:
    """Return `value` as JSON that PostgreSQL accepts; raises ValueError with the reason."""
    text = to_json(value).decode()
    if "NaN" in text or "Infinity" in text:
        json.loads(text, parse_constant=_refuse_constant)
    if has_nul(text):
        raise ValueError("PostgreSQL cannot store a NUL character")
    return text


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} has no JSON form")


def has_nul(text: str) -> bool:
    """Whether JSON text holds an escaped NUL, not merely a backslash before `u0000`."""
    return "\\u0000" in text and _NUL.search(text) is not None


def _fields(handler: Callable[..., Any]) -> tuple[dict[str, Any], list[str], Any]:
    """The entries of the payload, the names that may come by position, and the type of others."""
    parameters = inspect.signature(handler).parameters
    target = handler if inspect.isroutine(handler) else type(handler).__call__
    hints = get_type_hints(target, include_extras=True)
    fields: dict[str, Any] = {}
    names: list[str] = []
    extra: Any = None
    for name, parameter in parameters.items():
        hint = hints.get(name, Any)
        hint = JsonValue if hint is Any or hint is object else hint
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.VAR_POSITIONAL):
            raise TypeError(
                f"{_name(handler)}: {parameter} has no name in a payload;"
                " a job's arguments are passed by name"
            )
        if parameter.kind is parameter.VAR_KEYWORD:
            extra = hint
            continue
        if parameter.kind is parameter.POSITIONAL_OR_KEYWORD:
            names.append(name)
        fields[name] = hint if parameter.default is parameter.empty else NotRequired[hint]
    return fields, names, extra


def _types(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict):
        if isinstance(schema.get("type"), str):
            yield schema["type"]
        for key, value in schema.items():
            if key not in ("metadata", "config", "serialization"):
                yield from _types(value)
    elif isinstance(schema, list | tuple):
        for value in schema:
            yield from _types(value)


def _refuse_unsafe(value: object) -> None:
    """Refuse what JSON would change without a word, however deep it lies."""
    if isinstance(value, datetime):
        if value.tzinfo is None or value.utcoffset() is None:
            raise ValueError(f"{value.isoformat()} has no time zone; naive datetimes are refused")
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{value} has no JSON form")
    elif isinstance(value, Mapping):
        for key, item in value.items():
            _refuse_unsafe(key)
            _refuse_unsafe(item)
    elif isinstance(value, list | tuple | set | frozenset):
        for item in value:
            _refuse_unsafe(item)


def _explain(exc: ValidationError) -> str:
    problems = []
    for error in exc.errors(include_url=False, include_context=False):
        where = ".".join(str(part) for part in error["loc"]) or "payload"
        problems.append(f"{where}: {error['msg']}")
    return "; ".join(problems[:20])


def _name(handler: Callable[..., Any]) -> str:
    return getattr(handler, "__qualname__", repr(handler))
