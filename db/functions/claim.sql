-- Claiming. Due jobs are taken in queue order: higher priority first, then available_at, created_at, id.
--
-- By priority band: the priorities that have queued rows are found by index descents, and within each the due rows are
-- read in index order. A million jobs due tomorrow in a high band cost one descent; a plain ordered scan walks them all.
--
-- From a floor: each claimed job leaves a dead index entry, and while any old snapshot is open nothing can remove it.
-- So a session remembers, per priority, the index position of the first row that its last claim took, and starts the
-- next scan there. The floor is a hint in the session setting jobq.floor, for one list of kinds; a rolled-back claim
-- rolls it back, a malformed one is ignored. What may lie below it (a late commit, a released job) is found by the
-- next full scan: when the last one is older than 5 s and than 20 times its cost, or, if the floor gave nothing, than
-- 20 times its cost.

create or replace function jobq._queued_priorities(known smallint[]) returns smallint[]
language plpgsql stable
set search_path = pg_catalog, jobq, pg_temp
as $$
declare
  v_above int := 101;
  v_found smallint;
  v_known smallint;
  v_all smallint[] := '{}';
begin
  -- Only the gaps between known priorities are probed: inside a known one a descent could meet its dead entries.
  foreach v_known in array _queued_priorities.known || '-101'::smallint loop
    while v_above - v_known > 1 loop
      select j.priority into v_found
      from jobq.jobs j
      where j.status = 'queued' and j.priority < v_above::smallint and j.priority > v_known
      order by j.priority desc
      limit 1;
      exit when not found;
      v_all := v_all || v_found;
      v_above := v_found;
    end loop;
    v_all := v_all || v_known;
    v_above := v_known;
  end loop;
  return trim_array(v_all, 1);
end
$$;

comment on function jobq._queued_priorities(smallint[]) is
'The known priorities (descending) and every other one that has queued jobs, descending.';

create or replace function jobq._read_floor(
  kinds text[], now timestamptz,
  out full_at timestamptz, out cost float8,
  out priority smallint[], out available_at timestamptz[], out created_at timestamptz[], out id bigint[]
)
language plpgsql stable
set search_path = pg_catalog, jobq, pg_temp
as $$
declare
  v_floor jsonb;
begin
  -- Not in the declaration, whose errors this block would not catch.
  v_floor := nullif(current_setting('jobq.floor', true), '')::jsonb;
  if v_floor is null or v_floor -> 'kinds' is distinct from coalesce(to_jsonb(_read_floor.kinds), 'null') then
    return;
  end if;
  -- JSON arrays to PostgreSQL's by their brackets: with a query over their elements a claim among 201 priorities took a third longer.
  _read_floor.priority := translate(v_floor ->> 'priority', '[]', '{}')::smallint[];
  _read_floor.available_at := translate(v_floor ->> 'available_at', '[]', '{}')::timestamptz[];
  _read_floor.created_at := translate(v_floor ->> 'created_at', '[]', '{}')::timestamptz[];
  _read_floor.id := translate(v_floor ->> 'id', '[]', '{}')::bigint[];
  _read_floor.cost := (v_floor ->> 'cost')::float8;
  if _read_floor.cost between 0 and 60 and (v_floor ->> 'full_at')::timestamptz between '2000-01-01' and _read_floor.now
    and cardinality(_read_floor.priority) = cardinality(_read_floor.available_at)
    and cardinality(_read_floor.priority) = cardinality(_read_floor.created_at)
    and cardinality(_read_floor.priority) = cardinality(_read_floor.id)
    and _read_floor.now >= all(_read_floor.available_at)
    and array_position(_read_floor.priority, null) is null and array_position(_read_floor.created_at, null) is null
    and array_position(_read_floor.id, null) is null
  then
    _read_floor.full_at := (v_floor ->> 'full_at')::timestamptz;
  else
    _read_floor.priority := null;
  end if;
exception
  when others then
    _read_floor.full_at := null;
    _read_floor.priority := null;
end
$$;

comment on function jobq._read_floor(text[], timestamptz) is
'The session''s floor: the index position per priority, time and cost (seconds) of the last full scan. full_at is null where there '
'is none that holds: unset, malformed, of other kinds, or of a time to come.';

create or replace function jobq._claimed_at(kinds text[], now timestamptz) returns timestamptz
language plpgsql stable
set search_path = pg_catalog, jobq, pg_temp
as $$
declare
  v_floor jsonb;
begin
  v_floor := nullif(current_setting('jobq.floor', true), '')::jsonb;
  if v_floor -> 'kinds' is not distinct from coalesce(to_jsonb(_claimed_at.kinds), 'null')
    and (v_floor ->> 'at')::timestamptz between _claimed_at.now - interval '1 minute' and _claimed_at.now
  then
    return (v_floor ->> 'at')::timestamptz;
  end if;
  return _claimed_at.now;
exception
  when others then
    return _claimed_at.now;
end
$$;

comment on function jobq._claimed_at(text[], timestamptz) is
'When this session last claimed these kinds (sorted, each once), if that is at most a minute ago; else now.';

create or replace function jobq.claim(
  worker text, max_jobs int default 1, kinds text[] default null, lease interval default '60 seconds'
) returns setof jobq.jobs
language plpgsql security definer
set search_path = pg_catalog, jobq, pg_temp
set enable_seqscan = off
set enable_tidscan = on
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
set plan_cache_mode = force_generic_plan
as $$
declare
  v_now timestamptz := clock_timestamp();
  v_until timestamptz := jobq._after(v_now, jobq._lease_seconds(claim.lease));
  v_kinds text[];
  v_full_at timestamptz;
  v_cost float8;
  v_known smallint[];
  v_available timestamptz[];
  v_created timestamptz[];
  v_id bigint[];
  v_floor record;
  v_full boolean;
  v_bands smallint[];
  v_place int;
  v_first int;
  v_took record;
  v_token uuid := gen_random_uuid();
begin
  if claim.worker is null or octet_length(claim.worker) not between 1 and 256 then
    perform jobq._raise('JQ006', 'worker must be a name of 1 to 256 bytes', 'Name the process that will run the jobs.');
  elsif claim.max_jobs is null or claim.max_jobs < 1 then
    perform jobq._raise('JQ006', 'max_jobs must be positive, not ' || coalesce(claim.max_jobs::text, 'null'));
  elsif array_position(claim.kinds, null) is not null then
    perform jobq._raise('JQ006', 'kinds must not contain null', 'Leave kinds out to claim every kind.');
  end if;
  v_kinds := claim.kinds;
  if cardinality(v_kinds) > 1 then  -- else a query for nothing
    v_kinds := array(select distinct k.kind from unnest(v_kinds) k(kind) order by k.kind);
  end if;

  v_floor := jobq._read_floor(v_kinds, v_now);
  v_full_at := v_floor.full_at;
  v_cost := v_floor.cost;
  -- A band that was known stays known where it is empty: finding it anew would walk its dead entries at each claim.
  v_known := coalesce(v_floor.priority, '{0}');
  v_full := v_full_at is null or v_now - v_full_at > greatest(interval '5 seconds', make_interval(secs => 20 * v_cost));
  loop
    v_bands := jobq._queued_priorities(v_known);
    if v_full then
      v_full_at := v_now;
      v_available := array_fill('-infinity'::timestamptz, array[cardinality(v_bands)]);
      v_created := v_available;
      v_id := array_fill(0::bigint, array[cardinality(v_bands)]);
    elsif v_bands = v_known then
      v_available := v_floor.available_at;
      v_created := v_floor.created_at;
      v_id := v_floor.id;
    else
      -- A new band from its start.
      for v_band in 1..cardinality(v_bands) loop
        v_place := array_position(v_known, v_bands[v_band]);
        v_available[v_band] := coalesce(v_floor.available_at[v_place], '-infinity');
        v_created[v_band] := coalesce(v_floor.created_at[v_place], '-infinity');
        v_id[v_band] := coalesce(v_floor.id[v_place], 0);
      end loop;
    end if;

    select array_agg(t.ctid) as ctid, array_agg(t.priority) as priority, array_agg(t.available_at) as available_at,
      array_agg(t.created_at) as created_at, array_agg(t.id) as id, count(*) as jobs, min(t.priority) as lowest
    into v_took
    from (
      select j.ctid, j.priority, j.available_at, j.created_at, j.id
      from unnest(v_bands) with ordinality b(priority, place)
      cross join lateral (
        select s.ctid, s.priority, s.available_at, s.created_at, s.id
        from jobq.jobs s
        where s.status = 'queued'
          and s.priority = b.priority
          and (s.available_at, s.created_at, s.id) >= (v_available[b.place], v_created[b.place], v_id[b.place])
          and s.available_at <= v_now
          and (v_kinds is null or s.kind = any(v_kinds))
        order by s.available_at, s.created_at, s.id
        limit claim.max_jobs
        for no key update skip locked
      ) j
      order by b.place
      limit claim.max_jobs
    ) t;

    if v_full then
      -- At most doubled: a scan that was stopped half-way (a paused machine, a cold cache) must not postpone the next.
      v_cost := least(extract(epoch from clock_timestamp() - v_now), greatest(2 * v_cost, 0.1));
    end if;
    exit when v_took.jobs > 0 or v_full or v_now - v_full_at <= make_interval(secs => 20 * v_cost);
    v_full := true;
  end loop;

  -- First row taken; else, of a band read to its end, a second before now (a commit may be that late); else, of a band
  -- that was not reached, as it was (after a full scan from its start).
  for v_band in 1..cardinality(v_bands) loop
    v_first := array_position(v_took.priority, v_bands[v_band]);
    if v_first is not null then
      v_available[v_band] := v_took.available_at[v_first];
      v_created[v_band] := v_took.created_at[v_first];
      v_id[v_band] := v_took.id[v_first];
    elsif v_took.jobs < claim.max_jobs or v_bands[v_band] > v_took.lowest then
      v_available[v_band] := v_now - interval '1 second';
      v_created[v_band] := '-infinity';
      v_id[v_band] := 0;
    end if;
  end loop;
  perform set_config('jobq.floor', jsonb_build_object('kinds', v_kinds, 'at', v_now, 'full_at', v_full_at, 'cost', v_cost,
    'priority', v_bands, 'available_at', v_available, 'created_at', v_created, 'id', v_id)::text, false);

  if v_took.jobs > 0 then
    perform set_config('jobq.via', 'claim', true);
    return query
    with claimed as (
      update jobq.jobs j
      set status = 'running', attempt = j.attempt + 1, started_at = v_now, locked_by = claim.worker,
        lease_token = v_token, lease_expires_at = v_until, progress = null
      where j.ctid = any(v_took.ctid)
      returning j.*
    )
    select * from claimed c order by c.priority desc, c.available_at, c.created_at, c.id;
  end if;
end
$$;

comment on function jobq.claim(text, int, text[], interval) is
'Claims up to max_jobs due jobs of these kinds (null: any) for a worker and returns them in queue order, running, each with the '
'lease_token that renew and settle ask for. A lease not renewed in time is reaped. Never waits for a row lock. '
'Errors: JQ006 for max_jobs or lease not positive, a missing worker, null kinds.';
