"""Who works, and on what: live sessions, running jobs, kinds."""

from collections.abc import Iterable
from typing import Any

from sql import Connection, Row, fetch, value

__all__ = ["kinds", "workers", "workers_now"]

# One pass over what waits, one over what runs, each by its partial index.
_KINDS = """
select k.kind,
  count(*) filter (where k.queued) as queued,
  count(*) filter (where k.due) as due,
  count(*) filter (where not k.queued) as running,
  count(*) filter (where k.held) as held,
  min(k.available_at) as oldest_available_at,
  count(*) filter (where k.last) as last_attempt,
  hashtext(k.kind) as key
from (
  select q.kind, true as queued, q.available_at <= clock_timestamp() as due, q.available_at,
    q.attempt > 0 and q.attempt = q.max_attempts - 1 as last, false as held
  from jobq.job_details q
  where q.status = 'queued'
  union all
  select r.kind, false, false, null, false, r.lease_expires_at > clock_timestamp()
  from jobq.job_details r
  where r.status = 'running'
) k
group by k.kind
order by due desc, queued desc, running desc, k.kind"""

_SESSIONS = """
select s.pid, s.worker, s.threads, s.application_name, s.idle, s.kind_keys, s.kinds
from jobq.sessions s
order by s.pid"""

_RUNNING = """
select w.worker, w.running, w.expired, w.oldest_start, w.next_lease_end, l.longest_job_id,
  l.last_start, l.kinds
from jobq.workers w
join (
  select j.locked_by, (array_agg(j.id order by j.started_at, j.id))[1] as longest_job_id,
    max(j.started_at) as last_start, array_agg(distinct j.kind) as kinds
  from jobq.job_details j
  where j.status = 'running'
  group by j.locked_by
) l on l.locked_by = w.worker
order by w.worker"""

_RECENT = """
select r.worker, max(r.ended_at) as last_end
from jobq.runs('15 minutes', 5000) r
where r.worker is not null
group by r.worker"""

_HASHES = "select k.kind, hashtext(k.kind) as key from unnest(%s::text[]) k(kind)"

_NAME = 36  # characters of its name that a worker puts into application_name
_PURPOSES = ("listen", "calls", "renewal")
_MARK = " threads="


def kinds(conn: Connection) -> list[Row]:
    """Return backlog and live workers by kind; also kinds that only a live worker handles.

    `live_workers` is None where it is not known: some workers here cannot be seen.
    """
    return kinds_of(fetch(conn, _KINDS), fetch(conn, _SESSIONS), in_recovery(conn))


def workers(conn: Connection) -> list[Row]:
    """Return who is connected, holds jobs, or ended a run within 15 minutes."""
    recent = {row["worker"]: row["last_end"] for row in fetch(conn, _RECENT)}
    return workers_now(conn, recent)


def workers_now(conn: Connection, recent: dict[str, Any] | None = None) -> list[Row]:
    """Return who is connected or holds jobs, and who is in `recent` (worker -> last end)."""
    now = value(conn, "select clock_timestamp()")
    ended = recent or {}
    running = {row["worker"]: row for row in fetch(conn, _RUNNING)}
    sessions = fetch(conn, _SESSIONS)
    known = {kind for row in running.values() for kind in row["kinds"]}
    names = {row["key"]: row["kind"] for row in fetch(conn, _HASHES, (sorted(known),))}
    theirs: dict[str, list[Row]] = {name: [] for name in [*running, *ended]}
    owners = {prefix: name for name in theirs for prefix in _prefixes(name)}
    for session in sessions:
        theirs.setdefault(_owner(session, owners), []).append(session)
    found = [_worker(name, running.get(name), theirs[name], names) for name in sorted(theirs)]
    for row in found:
        moments = [row.pop("last_start"), ended.get(row["worker"])]
        row["last_seen_at"] = (
            now if row["alive"] else max((m for m in moments if m is not None), default=None)
        )
    return found


def in_recovery(conn: Connection) -> bool:
    """Whether this is a standby, which sees no locks of workers."""
    return bool(value(conn, "select pg_is_in_recovery()"))


def kinds_of(backlog: list[Row], sessions: Iterable[Row], standby: bool) -> list[Row]:
    """Put the live workers to the kinds, by the hashes of the kinds' names that they hold."""
    live: dict[int, int] = {}
    named: set[str] = set()
    for session in sessions:
        named.update(session["kinds"])
        for key in session["kind_keys"]:
            live[key] = live.get(key, 0) + 1
    # A worker without a LISTEN connection, behind a pooler say, holds no lock and is not seen.
    unseen = standby or any(row["held"] and not live.get(row["key"]) for row in backlog)
    found = []
    for row in backlog:
        shown = {name: given for name, given in row.items() if name not in ("key", "held")}
        count = live.get(row["key"], 0)
        found.append({**shown, "live_workers": count or (None if unseen else 0)})
        named.discard(row["kind"])
    return found + _idle(named, sessions)


def _idle(names: Iterable[str], sessions: Iterable[Row]) -> list[Row]:
    """The kinds of which nothing waits or runs."""
    return [
        {
            "kind": name,
            "queued": 0,
            "due": 0,
            "running": 0,
            "oldest_available_at": None,
            "last_attempt": 0,
            "live_workers": sum(name in session["kinds"] for session in sessions),
        }
        for name in sorted(names)
    ]


def _worker(name: str, held: Row | None, sessions: list[Row], names: dict[int, str]) -> Row:
    own = held or {}
    keys = {key for session in sessions for key in session["kind_keys"]}
    told = {kind for session in sessions for kind in session["kinds"]}
    told |= {names[key] for key in keys if key in names}
    threads = [session["threads"] for session in sessions if session["threads"] is not None]
    listening = [session for session in sessions if session["kind_keys"] or session["idle"]]
    return {
        "worker": name,
        "alive": bool(sessions),
        "threads": max(threads, default=None),
        "kinds": sorted(told),
        "unknown_kinds": max(len(keys) - len(told), 0),
        "idle": any(session["idle"] for session in sessions) if listening else None,
        "running": own.get("running", 0),
        "expired": own.get("expired", 0),
        "oldest_start": own.get("oldest_start"),
        "longest_job_id": own.get("longest_job_id"),
        "next_lease_end": own.get("next_lease_end"),
        "last_start": own.get("last_start"),
    }


def _owner(session: Row, owners: dict[str, str]) -> str:
    """Whose session it is: a worker that is known by its jobs, or by what the session says."""
    application: str = session["application_name"] or ""
    head, mark, _ = application.rpartition(_MARK)
    known = owners.get(head + mark) or owners.get(application)
    return known or session["worker"] or application or f"session {session['pid']}"


def _prefixes(name: str) -> tuple[str, ...]:
    """How application_name begins: cut, and what is not ASCII replaced as PostgreSQL does."""
    cut = name[:_NAME]
    printable = [chr(byte) if 32 <= byte < 127 else "" for byte in cut.encode()]
    since_16 = "".join(
        c or f"\\x{byte:02x}" for c, byte in zip(printable, cut.encode(), strict=True)
    )
    before = "".join(c or "?" for c in printable)
    return tuple(
        f"jobq {purpose} {shown}{_MARK}"[:63]
        for purpose in _PURPOSES
        for shown in dict.fromkeys((since_16, before))
    )
