"""The rows of the list: which jobs a tick means, and what is told of each."""

from datetime import UTC, datetime, timedelta
from typing import Any

from listing import Listing, held, note, table, ticked
from typed import Typed

NOW = datetime(2026, 11, 29, 14, 30, 30, tzinfo=UTC)


def row(job_id: int, **fields: Any) -> dict[str, Any]:
    """A queued job as the list gets it."""
    return {
        "id": job_id,
        "kind": "test",
        "status": "queued",
        "priority": 0,
        "created_at": NOW,
        "available_at": NOW,
        "attempt": 0,
        "max_attempts": 10,
        "locked_by": None,
        "progress": None,
        "started_at": None,
        "finished_at": None,
        "idempotency_key": None,
        "error": None,
        "lease_expires_at": None,
        "cancel_requested_at": None,
        **fields,
    }


def test_ticks_mean_the_rows_that_were_shown() -> None:
    listing = Listing(Typed(), rows=[row(9), row(7), row(5)])
    assert ticked(listing.rows, [0, 2]) == (9, 5)
    assert ticked(listing.rows, [1, 7]) == (7,)


def test_rows_that_are_ticked_keep_their_places() -> None:
    shown = [row(9), row(7), row(5)]
    found = [row(5, status="failed"), row(9, status="running")]
    kept = held(shown, found)
    assert [(one["id"], one["status"]) for one in kept] == [
        (9, "running"),
        (7, "gone"),
        (5, "failed"),
    ]
    assert table([{**kept[1]}], NOW)["Status"] == ["✝ gone"]


def test_a_list_of_other_rows_has_no_ticks_of_the_old_one() -> None:
    listing = Listing(Typed(), rows=[row(9), row(7)])
    before = listing.key
    listing.rows = [row(9, status="failed"), row(7)]
    assert listing.key == before
    listing.rows = [row(10), row(9)]
    assert listing.key != before


def test_a_note_tells_what_matters() -> None:
    expired = {"status": "running", "lease_expires_at": NOW - timedelta(seconds=1)}
    assert note(row(1, **expired, progress=0.62), NOW) == "62% · lease expired"
    assert note(row(1, **expired, cancel_requested_at=NOW), NOW) == "lease expired · asked to stop"
    assert note(row(1, error="KeyError: 'x'", idempotency_key="k"), NOW) == "KeyError: 'x' · key k"
