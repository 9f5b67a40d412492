"""Finding jobs: one filter for what is listed and for what "all that match" acts on.

A list is read in the order of an index, from where the last page ended. What the index does not
tell is tested row by row, for at most 100,000 rows a call; then the page comes out short, and says
from where to look further.
"""

# ruff: noqa: S608 - queries are put together from the constants of this file; values are parameters

from dataclasses import dataclass, field
from typing import Any

from search_filter import Search, filter_text, parse_payload
from sql import Connection, Row, fetch, fetch_one

__all__ = ["Search", "by_ids", "filter_text", "find", "parse_payload"]

MOST_LOOKED_AT = 100_000

_COLUMNS = """
j.id, j.kind, j.status::text as status, j.priority, j.created_at, j.available_at, j.attempt,
j.max_attempts, j.locked_by, j.progress, j.started_at, j.finished_at, j.idempotency_key,
left(jobq.error_line(j.last_error), 200) as error, j.lease_expires_at, j.cancel_requested_at"""

_CONDITIONS = {
    "status": "j.status = %(status)s::jobq.job_status",
    "kind": "j.kind = %(kind)s",
    "key": "j.idempotency_key = %(key)s",
    "payload": "j.payload @> %(payload)s::jsonb",
    "error": "position(lower(%(error)s) in lower(j.last_error)) > 0",
    "worker": "j.locked_by = %(worker)s",
    "priority": "j.priority = %(priority)s",
    "created_after": "j.created_at >= %(created_after)s",
    "created_before": "j.created_at < %(created_before)s",
    "job_id": "j.id = %(job_id)s::bigint",
}

# Only the ways that an index leads: any other reads, and sorts, all before it shows any.
_BY_INDEX = """
select set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true)"""

# "+ 0": else it might walk the primary key until an event of the window turns up.
_CREATED = """
select min(t.job_id + 0) as low, max(t.job_id + 0) as high
from jobq.job_timeline t
where t.event = 'enqueued' and t.at >= %(created_after)s
  and t.at < coalesce(%(created_before)s::timestamptz, 'infinity')"""


@dataclass(frozen=True)
class _Order:
    """An index's order: what one names the place of a row by, and the rows beyond a place.

    `beyond`: conditions whose rows follow one another. `served`: fields that the index tells.
    """

    words: str
    order: str
    place: tuple[str, ...]
    beyond: tuple[str, ...]
    served: frozenset[str] = field(default_factory=frozenset)


_QUEUE = _Order(
    "in the order of the queue",
    "j.priority desc, j.available_at, j.created_at, j.id",
    ("priority", "available_at", "created_at", "id"),
    (
        """j.priority = %(place_0)s and (j.available_at, j.created_at, j.id)
           > (%(place_1)s::timestamptz, %(place_2)s::timestamptz, %(place_3)s::bigint)""",
        "j.priority < %(place_0)s",
    ),
    frozenset({"status", "priority"}),
)
_FINISHED = _Order(
    "the newest finish first",
    "j.finished_at desc, j.id desc",
    ("finished_at", "id"),
    ("(j.finished_at, j.id) < (%(place_0)s::timestamptz, %(place_1)s::bigint)",),
    frozenset({"status"}),
)
_RUNNING = _Order(
    "the newest job first",
    "j.id desc",
    ("id",),
    ("j.id < %(place_0)s::bigint",),
    frozenset({"status"}),
)
_NEWEST = _Order(
    "the newest job first", "j.id desc", ("id",), ("j.id < %(place_0)s::bigint",), frozenset()
)
_BY_STATUS = {
    "queued": _QUEUE,
    "running": _RUNNING,
    "failed": _FINISHED,
    "cancelled": _FINISHED,
}


def find(
    conn: Connection, search: Search, after: tuple[Any, ...] | None = None, limit: int = 50
) -> dict[str, Any]:
    """Return a page of the jobs that match, and `after`, where the next one begins.

    `looked_at` is None unless the page is short because so many rows were looked at.
    """
    order = _order_of(search)
    values = dict(vars(search))
    if order is _RUNNING:
        values["status"] = "running"  # nothing else has a worker
    found: dict[str, Any] = {"rows": [], "after": None, "looked_at": None}
    if not _possible(search):
        pass
    elif search.job_id is not None or search.key is not None:
        found["rows"] = _the_one(conn, values)
    else:
        found = _page(conn, order, values, after, limit)
    return {**found, "order": order.words}


def by_ids(conn: Connection, ids: tuple[int, ...]) -> list[Row]:
    """Return these jobs, as far as they still exist, in the order given."""
    query = f"select {_COLUMNS} from jobq.job_details j where j.id = any(%s::bigint[])"
    found = {row["id"]: row for row in fetch(conn, query, (list(ids),))}
    return [found[job_id] for job_id in ids if job_id in found]


def _order_of(search: Search) -> _Order:
    if search.worker is not None:
        return _RUNNING
    return _BY_STATUS.get(search.status or "", _NEWEST)


def _possible(search: Search) -> bool:
    """Whether any job can match: an id is positive and has 64 bits, a worker has what runs."""
    return (search.job_id is None or 0 < search.job_id < 2**63) and (
        search.worker is None or search.status in (None, "running")
    )


def _the_one(conn: Connection, values: dict[str, Any]) -> list[Row]:
    """The job with this id or key, if the rest of what is given holds for it."""
    tests = [text for name, text in _CONDITIONS.items() if values[name] is not None]
    query = f"select {_COLUMNS} from jobq.job_details j where {' and '.join(tests)}"
    return fetch(conn, query, values)


def _page(
    conn: Connection,
    order: _Order,
    values: dict[str, Any],
    after: tuple[Any, ...] | None,
    limit: int,
) -> dict[str, Any]:
    given = {name: text for name, text in _CONDITIONS.items() if values[name] is not None}
    walked = [text for name, text in given.items() if name in order.served]
    tested = [text for name, text in given.items() if name not in order.served]
    if order is _NEWEST and values["created_after"] is not None:
        # Between these ids lie the jobs that were made in the window: by their first events.
        values.update(fetch_one(conn, _CREATED, values))
        walked.append("j.id between %(low)s::bigint and %(high)s::bigint")
    starts: tuple[str, ...] = ("true",)
    if after is not None:
        starts = order.beyond
        values.update({f"place_{number}": part for number, part in enumerate(after)})
    with conn.transaction():
        conn.execute(_BY_INDEX)
        return _walk(conn, order, values, starts, walked, tested, limit)


def _walk(
    conn: Connection,
    order: _Order,
    values: dict[str, Any],
    starts: tuple[str, ...],
    walked: list[str],
    tested: list[str],
    limit: int,
) -> dict[str, Any]:
    rows: list[Row] = []
    left = MOST_LOOKED_AT
    for start in starts:
        base = " and ".join([start, *walked])
        values["limit"] = limit + 1 - len(rows)
        values["most"] = left if tested else values["limit"]
        source = f"""
            (select * from jobq.job_details j where {base}
             order by {order.order} limit %(most)s) j"""
        rows += fetch(
            conn,
            f"select {_COLUMNS} from {source} where {' and '.join(tested) or 'true'}"
            f" order by {order.order} limit %(limit)s",
            values,
        )
        if len(rows) > limit:
            last = tuple(rows[limit - 1][name] for name in order.place)
            return {"rows": rows[:limit], "after": last, "looked_at": None}
        if tested:
            end, count = _end_of(conn, order, base, {**values, "skip": left - 1})
            if end is not None:
                return {"rows": rows, "after": end, "looked_at": MOST_LOOKED_AT}
            left -= count
    return {"rows": rows, "after": None, "looked_at": None}


def _end_of(
    conn: Connection, order: _Order, base: str, values: dict[str, Any]
) -> tuple[tuple[Any, ...] | None, int]:
    """Where a walk was cut, or None and how many rows it had."""
    names = ", ".join(f"j.{name}" for name in order.place)
    query = f"""
        select {names} from jobq.job_details j where {base}
        order by {order.order} offset %(skip)s limit 1"""
    cut = fetch(conn, query, values)
    if cut:
        return tuple(cut[0][name] for name in order.place), 0
    if len(order.beyond) == 1:
        return None, 0
    count = fetch_one(conn, f"select count(*) as rows from jobq.job_details j where {base}", values)
    return None, int(count["rows"])
