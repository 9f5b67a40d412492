-- Waking up. A NOTIFY takes a database-wide lock at commit, so one is sent only if somebody waits for that kind:
-- an idle client holds a shared advisory lock per kind; an enqueuer that gets it exclusively knows that nobody waits.
--
-- Lock keys: (1785815921, hashtext(kind)) waits for the kind, (1785815922, hashtext(kind)) has a handler for it.
-- A hash collision costs a spurious wake-up, nothing else.

create or replace function jobq._idle_class() returns int
language sql immutable parallel safe
as 'select 1785815921';

comment on function jobq._idle_class() is 'First key of the advisory locks that idle clients hold, shared, one per kind.';

create or replace function jobq._presence_class() returns int
language sql immutable parallel safe
as 'select 1785815922';

comment on function jobq._presence_class() is
'First key of the advisory locks that clients with a handler hold, shared, one per kind.';

-- Try and unlock are one expression: as two statements a cancelled backend kept the lock.
create or replace function jobq._wake(kinds text[]) returns void
language sql
as $$
select pg_notify('jobq', k.kind)
from unnest(kinds) k(kind)
where not (
  pg_try_advisory_lock(jobq._idle_class(), hashtext(k.kind))
  and pg_advisory_unlock(jobq._idle_class(), hashtext(k.kind))
)
$$;

comment on function jobq._wake(text[]) is 'Notifies channel jobq once per kind that somebody waits for; payload: the kind.';

create or replace function jobq._hold(class int, kinds text[]) returns boolean
language sql
set search_path = pg_catalog, jobq, pg_temp
as $$
-- Session locks count; what this session holds already is not taken twice.
select coalesce(bool_and(h.held or pg_try_advisory_lock_shared(_hold.class, h.key)), true)
from (
  select k.key, exists (
    select from pg_locks l
    where l.locktype = 'advisory' and l.pid = pg_backend_pid() and l.classid = _hold.class::oid
      and l.objid = k.key::oid and l.objsubid = 2 and l.mode = 'ShareLock' and l.granted
  ) as held
  from (select distinct hashtext(u.kind) as key from unnest(_hold.kinds) u(kind)) k
) h
$$;

comment on function jobq._hold(int, text[]) is
'Tries the shared session locks of a class for these kinds, without waiting; true if all of them are held.';

create or replace function jobq.listen(kinds text[]) returns boolean
language plpgsql security definer
set search_path = pg_catalog, jobq, pg_temp
as $$
begin
  if listen.kinds is null or array_position(listen.kinds, null) is not null then
    perform jobq._raise('JQ006', 'kinds must be an array without nulls', 'Name the kinds that this connection waits for.');
  end if;
  listen jobq;
  perform jobq._hold(jobq._presence_class(), listen.kinds);
  return jobq._hold(jobq._idle_class(), listen.kinds);
end
$$;

comment on function jobq.listen(text[]) is
'Makes this session idle: LISTENs on channel jobq and takes the shared locks that tell enqueuers somebody waits for these kinds. '
'True: all are held. False: an enqueuer was just asking for one; call again in some milliseconds. '
'After it, claim once more: a job that committed before is not notified. Its own enqueues wake it only when another session '
'waits for that kind as well: a session''s own lock does not stand in its way. Errors: JQ006 for null kinds.';

create or replace function jobq.unlisten() returns void
language sql security definer
set search_path = pg_catalog, jobq, pg_temp
as $$
select count(pg_advisory_unlock_shared(l.classid::int, l.objid::int))
from pg_locks l
where l.locktype = 'advisory' and l.pid = pg_backend_pid() and l.classid = jobq._idle_class()::oid
  and l.objsubid = 2 and l.mode = 'ShareLock' and l.granted;
$$;

comment on function jobq.unlisten() is
'Makes this session busy: gives back the locks that listen() took, so that enqueuers need not notify. LISTEN itself stays.';

create or replace function jobq.present(kinds text[]) returns boolean
language sql security definer
set search_path = pg_catalog, jobq, pg_temp
as $$ select jobq._hold(jobq._presence_class(), present.kinds) $$;

comment on function jobq.present(text[]) is
'Says, for the life of this session, that a live worker has handlers for these kinds. explain() reads it.';

create or replace function jobq.next_due(kinds text[] default null) returns double precision
language plpgsql stable security definer
set search_path = pg_catalog, jobq, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $$
declare
  v_now timestamptz := clock_timestamp();
  v_kinds text[];
  v_since timestamptz;
begin
  v_kinds := next_due.kinds;
  if cardinality(v_kinds) > 1 then
    v_kinds := array(select distinct k.kind from unnest(v_kinds) k(kind) order by k.kind);
  end if;
  -- What falls due between a claim and this question is seen by neither, unless this looks back to the claim.
  v_since := jobq._claimed_at(v_kinds, v_now);
  -- All 201 priorities by descent: known ones would have to be found by walking past dead entries. Foreign kinds are
  -- passed over within the first 1,000 rows of a priority; past them the answer is early, never late.
  return (
    select extract(epoch from min(d.available_at) - v_now)::float8
    from generate_series(-100, 100) p(priority)
    cross join lateral (
      select min(w.available_at) as available_at
      from (
        select j.available_at, j.kind, row_number() over () as place
        from (
          select s.available_at, s.kind
          from jobq.jobs s
          where s.status = 'queued' and s.priority = p.priority::smallint
            and s.available_at > v_since and s.available_at <= v_now + interval '60 seconds'
          order by s.available_at, s.created_at, s.id
          limit 1000
        ) j
      ) w
      where next_due.kinds is null or w.kind = any(next_due.kinds) or w.place = 1000
    ) d
  );
end
$$;

comment on function jobq.next_due(text[]) is
'Seconds until a job of these kinds (null: any) falls due, if one does within 60 s; else null. What fell due since this session''s '
'last claim of the same kinds counts, with zero or less: so ask after a claim. May be early where many other kinds wait; never late, '
'but where a pooler in transaction mode gives this session to others in between.';
