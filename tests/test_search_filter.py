"""What is typed into the search becomes JSON, or a clear refusal; filters keep every digit."""

import json
from datetime import UTC, datetime, timedelta, timezone

import pytest
from helpers import Connection, scalar

import search
from search import Search, filter_text, parse_payload
from search_filter import Exact
from verbs import enqueue

GOOD = [
    ("to=a@b.c", {"to": "a@b.c"}),
    ("to=a@b.c count=3", {"to": "a@b.c", "count": 3}),
    ("  a=true\tb=null \n c=1.5 ", {"a": True, "b": None, "c": 1.5}),
    ("a=", {"a": ""}),
    ('name="Ada Lovelace" n=1', {"name": "Ada Lovelace", "n": 1}),
    ('name="say \\"hi\\""', {"name": 'say "hi"'}),
    ("tags=[1, 2]", {"tags": [1, 2]}),
    ('user={"id": 3} n=1', {"user": {"id": 3}, "n": 1}),
    ("x=a=b", {"x": "a=b"}),
    ("url=https://x.y/?a=1&b=2", {"url": "https://x.y/?a=1&b=2"}),
    ("n=007", {"n": "007"}),
    ("n=NaN", {"n": "NaN"}),
    ("n=-Infinity", {"n": "-Infinity"}),
    ('x="open', {"x": '"open'}),
    ('x="a"b', {"x": '"a"b'}),
    ("x=[1,", {"x": "[1,"}),
    ("größe=XL", {"größe": "XL"}),
    ("a.b=1", {"a.b": 1}),
    ("{}", {}),
    (' {"a": {"b": [1, null]}} ', {"a": {"b": [1, None]}}),
    ('{"a": "\\\\u0000"}', {"a": "\\u0000"}),
]
BAD = [
    ("", "nothing to look for"),
    ("   ", "nothing to look for"),
    ("hello", "'hello' is not name=value"),
    ("a=1 hello b=2", "'hello' is not name=value"),
    ("=1", "'=1' is not name=value"),
    ("a=1 a=2", "'a' is given twice"),
    ("{", "not a JSON object"),
    ('{"a": 1,}', "not a JSON object"),
    ('{"a": NaN}', "JSON has no NaN"),
    ('{"a": 1} x', "not a JSON object"),
    ('{"a": "\\u0000"}', "NUL"),
    ('a="\\u0000"', "NUL"),
    ('{"a": "\\ud800"}', "half a character"),
    ("{" + '"a":{' * 100_000, "JSON"),
]


@pytest.mark.parametrize(("text", "meaning"), GOOD)
def test_what_is_typed_means_an_object(
    conn: Connection, text: str, meaning: dict[str, object]
) -> None:
    written = parse_payload(text)
    assert json.loads(written) == meaning
    assert scalar(conn, "select %s::jsonb", written) == meaning, "PostgreSQL takes it too"


@pytest.mark.parametrize(("text", "says"), BAD)
def test_what_means_nothing_is_refused(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        parse_payload(text)


@pytest.mark.parametrize("number", ["123456789012345678901234567890", "0.10000000000000000000001"])
def test_numbers_keep_every_digit(conn: Connection, number: str) -> None:
    job_id = enqueue(conn, "k")
    other = enqueue(conn, "k")
    query = "update jobq.jobs set payload = %s::jsonb where id = %s"
    conn.execute(query, (f'{{"n": {number}}}', job_id))
    conn.execute(query, (f'{{"n": {float(number)!r}}}', other))
    for text in (f"n={number}", f'{{"n": {number}}}'):
        wanted = Search(payload=parse_payload(text), kind="k")
        sent = search.filter_text(wanted.filter())
        answer = "select sample from jobq.cancel_jobs(%s, dry_run => true)"
        assert scalar(conn, answer, sent) == [job_id]


def test_a_filter_has_what_is_given_and_nothing_else() -> None:
    assert Search().filter() == {}
    after = datetime(2026, 3, 1, 12, tzinfo=timezone(timedelta(hours=2)))
    whole = Search(
        status="queued", kind="k", key="x", payload='{"a": 1}', error="e", worker="w", priority=0,
        created_after=after, created_before=datetime(2026, 3, 2, 0, 0, 0, 5, UTC), job_id=7,
    )  # fmt: skip
    assert whole.filter() == {
        "status": "queued", "kind": "k", "key": "x", "payload": {"a": 1}, "error": "e",
        "worker": "w", "priority": 0, "created_after": "2026-03-01T12:00:00.000000+02:00",
        "created_before": "2026-03-02T00:00:00.000005+00:00", "ids": [7],
    }  # fmt: skip
    assert json.loads(filter_text(whole.filter())) == whole.filter()
    assert hash(whole) == hash(whole), "what is read is known by its arguments"


@pytest.mark.parametrize("fields", [{}, {"kind": "k"}])
def test_a_filter_becomes_text_with_and_without_a_payload(fields: dict[str, object]) -> None:
    for payload, text in ((Exact('{"n": 1.0}'), '{"n": 1.0}'), ({"n": 1}, '{"n": 1}')):
        written = filter_text({**fields, "payload": payload})
        assert text in written
        assert json.loads(written) == {**fields, "payload": payload}
    assert json.loads(filter_text(fields)) == fields


def test_the_database_takes_every_field(conn: Connection) -> None:
    moment = datetime(2026, 3, 1, tzinfo=UTC)
    for fields in (
        {"status": "queued"}, {"kind": "k"}, {"key": "x"}, {"payload": "{}"}, {"error": "e"},
        {"worker": "w"}, {"priority": 3}, {"created_after": moment}, {"created_before": moment},
        {"job_id": 3},
    ):  # fmt: skip
        wanted = Search(**fields)
        conn.execute("select jobq._check_filter(%s)", (filter_text(wanted.filter()),))
