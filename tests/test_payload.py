import dataclasses
import enum
import math
import uuid
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any, Literal

import pytest
from pydantic import BaseModel

from jobq.errors import InvalidJob
from jobq.payload import Arguments, PayloadMismatch, json_text


class Colour(enum.Enum):
    RED = "red"


@dataclasses.dataclass
class Point:
    x: int
    at: datetime | None = None


class Order(BaseModel):
    number: int
    total: Decimal
    due: datetime | None = None
    weight: float = 1.0


def round_trip(annotation: Any, value: Any) -> Any:
    def handler(value: Any) -> None: ...

    handler.__annotations__["value"] = annotation
    arguments = Arguments(handler)
    return arguments.decode(arguments.encode((value,), {}).encode())["value"]


NOON = datetime(2030, 1, 1, 12, tzinfo=timezone(timedelta(hours=5, minutes=45)))


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (str, ""),
        (str, 'quotes " and \\u0000 that is no NUL'),
        (str, "zażółć 🙂\n\x01"),
        (int, 0),
        (int, 10**40),
        (int, -(2**63)),
        (float, 0.1),
        (float, 1e300),
        (float, 3.0),
        (bool, False),
        (None, None),
        (int | None, None),
        (int | str, "5"),
        (int | bool, False),
        (list[int], []),
        (dict[str, Any], {}),
        (dict[int, str], {1: "a"}),
        (tuple[int, str], (1, "a")),
        (set[int], {1, 2}),
        (frozenset[str], frozenset({"a"})),
        (datetime, NOON),
        (date, date(2030, 1, 1)),
        (timedelta, timedelta(days=-1, microseconds=1)),
        (Decimal, Decimal("12.10")),
        (bytes, b"\x00\xff binary"),
        (uuid.UUID, uuid.UUID(int=5)),
        (Colour, Colour.RED),
        (Literal["a", "b"], "b"),
        (Point, Point(1, NOON)),
        (Order, Order(number=1, total=Decimal("1.10"), due=NOON)),
        (list[Order], [Order(number=1, total=Decimal("1.10"))]),
    ],
)
def test_a_value_comes_out_as_it_went_in(annotation: Any, value: Any) -> None:
    result = round_trip(annotation, value)
    assert result == value
    assert type(result) is type(value)


@pytest.mark.parametrize("value", [{}, [], None, "", 0, False, 1.5, {"a": [1, {"b": None}]}])
def test_a_parameter_without_annotation_carries_plain_json(value: Any) -> None:
    def handler(value) -> None: ...  # type: ignore[no-untyped-def]

    arguments = Arguments(handler)
    result = arguments.decode(arguments.encode((value,), {}).encode())["value"]
    assert result == value
    assert type(result) is type(value)


@pytest.mark.parametrize("value", [NOON, (1, 2), {1}, Decimal(1), object(), {1: 2}, b"x"])
def test_without_annotation_other_types_are_refused_rather_than_changed(value: Any) -> None:
    def handler(value) -> None: ...  # type: ignore[no-untyped-def]

    with pytest.raises(InvalidJob):
        Arguments(handler).encode((value,), {})


NAIVE = datetime(2030, 1, 1)  # noqa: DTZ001 - that is the point


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (datetime, NAIVE),
        (datetime, "2030-01-01T00:00:00"),
        (list[datetime], [NOON, NAIVE]),
        (dict[str, datetime], {"a": NAIVE}),
        (Point, Point(1, NAIVE)),
        (Order, Order(number=1, total=Decimal(1), due=NAIVE)),
        (Any, NAIVE),
        (dict[str, Any], {"a": [NAIVE]}),
    ],
)
def test_naive_datetimes_are_refused_by_the_client(annotation: Any, value: Any) -> None:
    with pytest.raises(InvalidJob):
        round_trip(annotation, value)


@pytest.mark.parametrize("annotation", [datetime, datetime | None])
def test_naive_datetimes_are_refused_by_the_worker(annotation: Any) -> None:
    def handler(value: Any) -> None: ...

    handler.__annotations__["value"] = annotation
    with pytest.raises(PayloadMismatch, match="time zone"):
        Arguments(handler).decode(b'{"value": "2030-01-01T00:00:00"}')


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (str, "a\0b"),
        (dict[str, int], {"a\0": 1}),
        (str, "\ud800"),
        (float, math.nan),
        (float, math.inf),
        (dict[str, Any], {"a": [math.nan]}),
        (Order, Order(number=1, total=Decimal(1), weight=math.inf)),
        (int, "five"),
        (int, 1.5),
        (dict[str, Any], {"a": object()}),
    ],
)
def test_what_cannot_be_stored_or_does_not_fit_is_refused(annotation: Any, value: Any) -> None:
    with pytest.raises(InvalidJob):
        round_trip(annotation, value)


def send(to: str, subject: str = "Hello", *, urgent: bool = False) -> None: ...


def test_arguments_bind_as_in_a_call_and_defaults_stay_with_the_handler() -> None:
    arguments = Arguments(send)
    assert arguments.encode(("a",), {}) == '{"to":"a"}'
    assert (
        arguments.encode(("a", "b"), {"urgent": True}) == '{"to":"a","subject":"b","urgent":true}'
    )
    assert arguments.decode(b'{"to": "a"}') == {"to": "a"}


@pytest.mark.parametrize(
    ("args", "kwargs", "named"),
    [
        ((), {}, "to"),
        (("a", "b", True), {}, "3 arguments"),
        (("a",), {"to": "b"}, "to"),
        (("a",), {"subjekt": "b"}, "subjekt"),
    ],
)
def test_a_wrong_call_is_refused_by_name(args: Any, kwargs: Any, named: str) -> None:
    with pytest.raises(InvalidJob, match=named):
        Arguments(send).encode(args, kwargs)


@pytest.mark.parametrize(
    "payload",
    [b"{}", b'{"to": 1}', b'{"to": "a", "new": 1}', b'{"to": "a"', b'{"to": "\xff"}', b""],
)
def test_a_payload_that_does_not_fit_says_why(payload: bytes) -> None:
    with pytest.raises(PayloadMismatch, match=r"\w"):
        Arguments(send).decode(payload)


def test_deep_nesting_is_a_mismatch_not_a_crash() -> None:
    def handler(value: Any) -> None: ...

    with pytest.raises(PayloadMismatch):
        Arguments(handler).decode(b'{"value": ' + b"[" * 100_000 + b"]" * 100_000 + b"}")


def test_further_keywords_are_taken_and_typed() -> None:
    def handler(a: int, **more: int) -> None: ...

    arguments = Arguments(handler)
    assert arguments.decode(arguments.encode((1,), {"b": "2"}).encode()) == {"a": 1, "b": 2}
    with pytest.raises(InvalidJob, match="b"):
        arguments.encode((1,), {"b": "x"})


def test_parameters_without_a_name_in_the_payload_are_refused() -> None:
    def positional_only(a: int, /) -> None: ...
    def variable(*args: int) -> None: ...

    for handler in (positional_only, variable):
        with pytest.raises(TypeError, match="no name in a payload"):
            Arguments(handler)


def test_an_annotation_without_a_json_form_is_refused() -> None:
    class Socket: ...

    def handler(value: Socket) -> None: ...

    handler.__annotations__["value"] = Socket
    with pytest.raises(TypeError, match="no JSON form"):
        Arguments(handler)


def test_names_that_clash_with_python_or_pydantic_are_fine() -> None:
    def handler(self_: int, model_config: int, schema: str, _private: int, json: int) -> None: ...

    arguments = Arguments(handler)
    text = arguments.encode((1, 2, "s", 3, 4), {})
    assert arguments.decode(text.encode()) == {
        "self_": 1,
        "model_config": 2,
        "schema": "s",
        "_private": 3,
        "json": 4,
    }


def test_results_become_json() -> None:
    result = {"n": 10**30, "d": Decimal("1.10"), "at": datetime(2030, 1, 1, tzinfo=UTC)}
    assert json_text(result) == (
        '{"n":1000000000000000000000000000000,"d":"1.10","at":"2030-01-01T00:00:00Z"}'
    )
    assert json_text(["NaN", "Infinity"]) == '["NaN","Infinity"]'


@pytest.mark.parametrize(
    "value", [math.nan, [math.inf], object(), "a\0", "\ud800", b"\xff", {"a": {"b": object()}}]
)
def test_results_without_a_json_form_are_refused_with_a_reason(value: Any) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        json_text(value)
