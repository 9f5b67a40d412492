"""The screen SQL API: every public function, and examples that run."""

from collections.abc import Callable

import psycopg
import pytest
from helpers import Connection, scalar
from psycopg.rows import dict_row
from streamlit.testing.v1 import AppTest

import queries
from examples import EXAMPLES
from jobq.errors import translated
from screens import fresh, said

pytest_plugins = ["screens"]

PUBLIC = """
    select array_agg(distinct proname::text) from pg_proc
    where pronamespace = 'jobq'::regnamespace and proname !~ '^_'"""

#: What the examples speak of: job 4711 has failed, job 4712 is queued.
PREPARED = """
    do $$ begin create role app; exception when duplicate_object then null; end $$;
    alter table jobq.jobs alter column id restart with 4711;
    select jobq.enqueue('email.send', '{"to": "ada@example.org"}');
    select jobq.fail(id, lease_token, 'Timeout: no answer', retryable => false)
    from jobq.claim('psql');
    select jobq.enqueue('email.send', '{"to": "bob@example.org"}');"""

OpenScreen = Callable[..., AppTest]


def test_every_public_function_has_an_example_that_calls_it(conn: Connection) -> None:
    assert sorted(EXAMPLES) == sorted(scalar(conn, PUBLIC))
    for name, example in EXAMPLES.items():
        assert f"jobq.{name}(" in example
        assert example.endswith(";")


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_the_example_runs(conn: Connection, name: str) -> None:
    with conn.transaction(force_rollback=True):
        conn.execute(PREPARED)
        with translated():
            rows = conn.execute(EXAMPLES[name].encode()).fetchall()
    nothing_there = {"verify", "reap", "purge", "next_due"}
    assert rows or name in nothing_there
    if name not in nothing_there | {"unlisten", "grant_access", "log", "report_progress"}:
        assert any(value not in (None, "") for row in rows for value in row)


def test_it_shows_each_function_with_its_signature_comment_and_example(
    open_screen: OpenScreen, conn: Connection
) -> None:
    app = open_screen("sql_api")
    text = said(app)
    for name in scalar(conn, PUBLIC):
        assert f"jobq.{name}(" in text
    assert "filter jsonb,\n  dry_run boolean DEFAULT false,\n  max_jobs integer" in text
    assert "an optional result \\(JSON, at most 16 MiB\\)" in text
    for example in EXAMPLES.values():
        assert example in text
    assert [header.value for header in app.subheader] == [
        "Producer",
        "Worker",
        "Operator",
        "Reader",
        "Every level",
        "Owner",
    ]


def test_the_levels_are_those_that_grant_access_gives(
    open_screen: OpenScreen, dsn: str, conn: Connection
) -> None:
    granted = {
        level: set(scalar(conn, "select jobq._functions_of(%s)", level))
        for level in ("producer", "worker", "operator", "reader")
    }
    with psycopg.connect(dsn, row_factory=dict_row) as rows:
        for row in queries.functions(rows):
            levels = [level for level, names in granted.items() if row["name"] in names]
            assert (row["name"], row["levels"]) == (row["name"], levels)
    text = said(open_screen("sql_api", q="purge frees"))
    assert "Runs jobs." in text
    assert "Also for operator." in text


def test_the_comments_are_those_of_this_database_and_shown_as_they_are(
    open_screen: OpenScreen, conn: Connection
) -> None:
    conn.execute("comment on function jobq.unlisten() is '**Bold** words. <b>more</b> :red[x]'")
    text = said(open_screen("sql_api", q="unlisten"))
    assert r"**unlisten** · \*\*Bold\*\* words" in text
    assert r"\<b\>more\</b\> \:red\[x\]" in text


def test_the_filter_looks_at_names_arguments_and_comments(open_screen: OpenScreen) -> None:
    def found(words: str) -> list[str]:
        app.text_input(key="q").set_value(words)
        return [expander.label.split("**")[1] for expander in fresh(app).expander]

    app = open_screen("sql_api", q="off snooze")
    assert [expander.label.split("**")[1] for expander in app.expander] == ["snooze"]
    assert found("EXTRA_ATTEMPTS filter") == [r"retry\_jobs"]
    assert found("JQ005") == ["retry"]
    assert found("no such thing at all") == []
    assert "No function fits." in said(app)
    assert len(found("")) > 30


def test_so_few_that_fit_are_shown_whole(open_screen: OpenScreen) -> None:
    app = open_screen("sql_api", q="off snooze")
    assert [expander.proto.expanded for expander in app.expander] == [True]
    app.text_input(key="q").set_value("")
    assert not any(expander.proto.expanded for expander in fresh(app).expander)


def test_a_comma_in_a_default_parts_no_arguments(
    open_screen: OpenScreen, monkeypatch: pytest.MonkeyPatch
) -> None:
    signature = "a text DEFAULT 'x, (y', b numeric(4, 2) DEFAULT 1.5, c text[] DEFAULT '{a,b}'"
    row = {"name": "f", "signature": signature, "returns": "int", "comment": "", "levels": []}
    monkeypatch.setattr(queries, "functions", lambda _conn: [row])
    assert open_screen("sql_api").code[0].value == (
        "jobq.f(\n  a text DEFAULT 'x, (y',\n  b numeric(4, 2) DEFAULT 1.5,\n"
        "  c text[] DEFAULT '{a,b}'\n)\nreturns int"
    )


def test_an_example_may_not_go_stale_unnoticed(conn: Connection) -> None:
    """What the check of the examples rests on: a wrong one is refused."""
    with pytest.raises(psycopg.errors.UndefinedFunction):
        conn.execute(EXAMPLES["retry"].replace("extra_attempts", "more_attempts").encode())
