"""The screen Database: what it says of the server, the proof, and the purge."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pandas as pd
import pytest
from helpers import Connection, scalar
from streamlit.testing.v1 import AppTest

import queries
from screens import fresh, said

pytest_plugins = ["screens"]

OpenScreen = Callable[..., AppTest]


def table(app: AppTest, column: str) -> pd.DataFrame:
    """The table that has such a column."""
    return next(frame.value for frame in app.dataframe if column in frame.value.columns)


def finished(conn: Connection, status: str, days: float, count: int = 1) -> list[int]:
    """Make jobs that finished so many days ago."""
    ends = {"succeeded": "succeed(j.id, j.lease_token)", "cancelled": "stop(j.id, j.lease_token)"}
    end = ends.get(status, "fail(j.id, j.lease_token, 'E: no', retryable => false)")
    conn.execute("select jobq.enqueue('old') from generate_series(1, %s)", (count,))
    query = f"select array_agg(j.id), count(jobq.{end}) from jobq.claim('w', %s) j"
    row = conn.execute(query.encode(), (count,)).fetchone()
    assert row is not None
    conn.execute("alter table jobq.jobs disable trigger user")
    conn.execute(
        """
        update jobq.jobs set created_at = created_at - make_interval(secs => %(s)s),
          started_at = started_at - make_interval(secs => %(s)s),
          available_at = available_at - make_interval(secs => %(s)s),
          finished_at = finished_at - make_interval(secs => %(s)s)
        where id = any(%(ids)s)""",
        {"s": days * 86400, "ids": row[0]},
    )
    conn.execute("alter table jobq.jobs enable trigger user")
    return list(row[0])


def left(conn: Connection) -> list[int]:
    return list(scalar(conn, "select coalesce(array_agg(id order by id), '{}') from jobq.jobs"))


def press(app: AppTest, key: str) -> AppTest:
    app.button(key=key).click().run()
    assert not app.exception
    return app


def test_it_shows_sizes_settings_and_the_schemas_version(
    open_screen: OpenScreen, conn: Connection
) -> None:
    conn.execute("select jobq.enqueue('a') from generate_series(1, 1000)")
    conn.execute("vacuum analyze jobq.jobs")
    app = open_screen("database")
    relations = table(app, "Relation").set_index("Relation")
    bytes_ = scalar(conn, "select pg_table_size('jobq.jobs')")
    assert relations.loc["jobs", "Size"] == f"{bytes_ / 1024:.4g} kB"
    assert relations.loc["jobs", "Rows"] == "≈ 1,000"
    assert relations.loc["jobs", "Last vacuum"].endswith(" ago")
    assert relations.loc["job_events", "Last analyze"] in ("never", "-") or "ago" in str(
        relations.loc["job_events", "Last analyze"]
    )
    version = scalar(conn, "select jobq.schema_version()")
    assert {metric.label: metric.value for metric in app.metric}["Schema version"] == str(version)
    settings = table(app, "Setting").set_index("Setting")
    assert settings.loc["max_connections", "Value"] == scalar(conn, "show max_connections")
    assert settings.loc["max_wal_size", "Value"] == "512 MB"
    assert settings.loc["statement_timeout", "Value"] in ("10 s", "0 (off)")


def state(**more: Any) -> dict[str, Any]:
    """What `queries.database` reads."""
    empty: dict[str, Any] = {"tables": [], "snapshots": [], "settings": []}
    return {**empty, "schema_version": 2, "hidden_sessions": 0, **more}


def test_dead_rows_are_told_as_a_share_of_the_live_ones(
    open_screen: OpenScreen, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = {"bytes": 2048, "last_autovacuum": None, "last_analyze": None}
    rows = [
        {**row, "relation": "jobs", "kind": "table", "rows": 200, "dead": 50},
        {**row, "relation": "job_events", "kind": "table", "rows": None, "dead": 0},
        {**row, "relation": "jobs_pkey", "kind": "index", "rows": 200, "dead": None},
    ]
    monkeypatch.setattr(queries, "database", lambda _conn: state(tables=rows))
    relations = table(open_screen("database"), "Relation").set_index("Relation")
    assert list(relations["Dead rows"]) == ["≈ 50 (25%)", "0", ""]
    assert list(relations["Rows"]) == ["≈ 200", "-", "≈ 200"]
    assert list(relations["Last vacuum"]) == ["never", "never", ""]


def test_settings_are_told_in_the_units_that_people_use(
    open_screen: OpenScreen, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = {
        ("16384", "8kB"): "128 MB",
        ("512", "MB"): "512 MB",
        ("0", "ms"): "0 (off)",
        ("10000", "ms"): "10 s",
        ("60", "s"): "1 min 0 s",
        ("-1", "ms"): "-1",
        ("on", None): "on",
        ("5", "parts"): "5 parts",
    }
    rows = [{"name": "n", "value": value, "unit": unit, "why": ""} for value, unit in told]
    monkeypatch.setattr(queries, "database", lambda _conn: state(settings=rows))
    assert list(table(open_screen("database"), "Setting")["Value"]) == list(told.values())


def test_of_several_old_snapshots_the_oldest_is_to_be_ended(
    open_screen: OpenScreen, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = datetime.now(UTC)
    rows = [
        {"pid": pid, "who": "w", "state": None, "xmin_age": 5, "since": since}
        for pid, since in (
            (11, now - timedelta(minutes=6)),
            (12, now - timedelta(minutes=10)),
            (13, None),
        )
    ]
    monkeypatch.setattr(queries, "database", lambda _conn: state(snapshots=rows))
    text = said(open_screen("database"))
    assert "pg_terminate_backend(12)" in text
    assert "The oldest is 10 min" in text


@pytest.mark.parametrize(
    ("hidden", "told"),
    [(0, None), (1, "1 session of another role is hidden"), (12, "12 sessions are hidden")],
)
def test_sessions_that_this_role_may_not_see_are_counted(
    open_screen: OpenScreen, monkeypatch: pytest.MonkeyPatch, hidden: int, told: str | None
) -> None:
    monkeypatch.setattr(queries, "database", lambda _conn: state(hidden_sessions=hidden))
    text = said(open_screen("database"))
    assert ("hidden from this role" in text) == bool(told)
    assert told is None or told in text


def test_it_names_who_holds_a_snapshot(
    open_screen: OpenScreen, connect: Callable[..., Connection]
) -> None:
    app = open_screen("database")
    assert "No session holds a snapshot now" in said(app)
    holder = connect(autocommit=False, application_name="<b>nightly</b>")
    holder.execute("set transaction isolation level repeatable read")
    holder.execute("select 1")
    sessions = table(fresh(app), "Session")
    assert sessions.loc[0, "Who"] == "<b>nightly</b>"
    assert sessions.loc[0, "Session"] == holder.info.backend_pid
    assert "pg_terminate_backend" not in said(app)


def test_a_long_open_transaction_is_pointed_out(
    open_screen: OpenScreen, connect: Callable[..., Connection], monkeypatch: pytest.MonkeyPatch
) -> None:
    holder = connect(autocommit=False)
    holder.execute("set transaction isolation level repeatable read")
    holder.execute("select 1")
    import queries_database

    query = queries_database._SNAPSHOTS.replace("a.xact_start as", "a.xact_start - '1 h' as")
    monkeypatch.setattr(
        queries_database, "_SNAPSHOTS", query.replace("- '1 h'", "- interval '1 h'")
    )
    text = said(open_screen("database"))
    assert f"pg_terminate_backend({holder.info.backend_pid})" in text
    assert "The oldest is 1 h 0 min old" in text


def test_the_proof_says_that_all_is_well_or_what_is_not(
    open_screen: OpenScreen, conn: Connection
) -> None:
    conn.execute("select jobq.enqueue('a') from generate_series(1, 3)")
    app = open_screen("database")
    assert "Took" not in said(app)
    assert "No problems: every job is what its history says" in said(press(app, "verify"))
    conn.execute("alter table jobq.jobs disable trigger user")
    conn.execute("update jobq.jobs set kind = '<b>x</b>' where id = 2")
    conn.execute("alter table jobq.jobs enable trigger user")
    press(app, "verify")
    assert "1 problem: jobs that are not what their history says" in said(app)
    found = table(app, "History says")
    assert found.to_dict("records") == [
        {"Job": "2", "Problem": "kind", "History says": "a", "Job says": "<b>x</b>"}
    ]
    assert "Took" in said(fresh(app))


def test_a_second_proof_is_told_that_one_is_running(open_screen: OpenScreen) -> None:
    import data

    app = open_screen("database")
    with data.source().apart(60):
        assert "Not verified: one is running already" in said(press(app, "verify")).replace(
            "\\", ""
        )
    assert "No problems" in said(press(app, "verify"))


def test_the_proof_may_take_longer_than_a_reading(
    open_screen: OpenScreen, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    import data

    monkeypatch.setitem(data.READING, "statement_timeout", "300ms")
    app = open_screen("database")
    conn.execute("""
        create or replace function jobq.verify()
        returns table (job_id bigint, problem text, ledger text, stored text)
        language sql security definer as 'select 1, pg_sleep(0.6)::text, null, null'""")
    assert "1 problem" in said(press(app, "verify"))


def test_a_purge_previews_confirms_and_deletes_in_batches_what_it_said(
    open_screen: OpenScreen, conn: Connection
) -> None:
    old = finished(conn, "succeeded", 40, count=1500)
    finished(conn, "failed", 40)
    kept = [*finished(conn, "succeeded", 20), *finished(conn, "cancelled", 40)]
    app = open_screen("database")
    app.pills(key="purge_statuses").set_value([]).run()
    assert app.button(key="purge").disabled
    app.pills(key="purge_statuses").set_value(["succeeded", "failed"]).run()
    press(app, "purge")
    assert "**1,501 jobs** will be deleted" in said(app)
    assert "succeeded or failed, finished more than 30 days ago" in said(app)
    assert len(left(conn)) == len(old) + 1 + len(kept)
    press(app, "question_confirm")
    assert "1,501 jobs were purged." in said(app)
    assert left(conn) == kept
    assert scalar(conn, "select count(distinct job_id) from jobq.job_events") == len(kept)
    press(app, "question_close")
    assert "purged" not in said(app)


def test_a_purge_can_be_left_and_one_of_nothing_is_not_offered(
    open_screen: OpenScreen, conn: Connection
) -> None:
    old = finished(conn, "cancelled", 2)
    app = press(open_screen("database"), "purge")
    assert "Nothing to purge" in said(app)
    assert not [button for button in app.button if button.key == "question_confirm"]
    press(app, "question_close")
    app.number_input(key="purge_days").set_value(1.0)
    press(app, "purge")
    assert "**1 job** will be deleted" in said(app)
    press(app, "question_close")
    assert left(conn) == old


def test_answered_twice_it_purges_once(open_screen: OpenScreen, conn: Connection) -> None:
    finished(conn, "cancelled", 40)
    app = press(open_screen("database"), "purge")
    confirm = app.button(key="question_confirm")
    confirm.click().run()
    later = finished(conn, "cancelled", 40)
    confirm.click().run()
    assert left(conn) == later


def test_a_purge_deletes_no_more_than_was_agreed_to(
    open_screen: OpenScreen, conn: Connection
) -> None:
    finished(conn, "cancelled", 40, count=2)
    app = press(open_screen("database"), "purge")
    assert "**2 jobs** will be deleted" in said(app)
    later = finished(conn, "cancelled", 40, count=3)
    press(app, "question_confirm")
    assert "2 jobs were purged." in said(app)
    assert left(conn) == later


def test_the_cutoff_of_a_purge_stays_where_it_was_when_it_was_asked(
    open_screen: OpenScreen, conn: Connection
) -> None:
    old = finished(conn, "cancelled", 40)
    app = press(open_screen("database"), "purge")
    question = app.session_state["_question"][1]
    cutoff = question.cutoff
    assert abs(datetime.now(UTC) - cutoff - timedelta(days=30)) < timedelta(minutes=1)
    fresh(app)
    assert question.cutoff == cutoff
    question.cutoff -= timedelta(days=12)  # asked 12 days ago
    assert "Nothing to purge" in said(fresh(app))

    finished(conn, "cancelled", 50)
    question.state, question.wanted, question.more = "working", 1, True
    assert "1 job was purged." in said(fresh(app))
    assert left(conn) == old


def test_a_purge_after_another_finds_what_is_older_than_where_that_one_ended(
    open_screen: OpenScreen, conn: Connection
) -> None:
    finished(conn, "cancelled", 20)
    finished(conn, "cancelled", 40)
    app = press(open_screen("database"), "purge")
    press(app, "question_confirm")
    press(app, "question_close")
    app.number_input(key="purge_days").set_value(7.0)
    press(app, "purge")
    press(app, "question_confirm")
    assert left(conn) == []


def test_a_purge_that_is_refused_midway_says_how_far_it_came(
    open_screen: OpenScreen, conn: Connection
) -> None:
    finished(conn, "cancelled", 40)
    app = press(open_screen("database"), "purge")
    conn.execute("drop function jobq.purge")
    press(app, "question_confirm")
    assert "0 jobs were purged." in said(app)
    assert "Then it stopped: " in said(app)


def test_without_the_right_to_act_there_is_no_purge_but_a_proof(
    open_screen: OpenScreen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JOB_DASHBOARD_READ_ONLY", "true")
    app = fresh(open_screen("database"))
    monkeypatch.setenv("JOB_DASHBOARD_READ_ONLY", "true")
    app = fresh(app)
    assert [button.key for button in app.button] == ["verify"]
    assert "only shows" in said(app)
