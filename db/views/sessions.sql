-- Who is connected as a worker, by the locks of listen() and present() and by the name that a worker gives its sessions.
-- Constants, not the functions that name the lock classes: whoever reads a view must be allowed to call its functions.

create or replace view jobq.sessions as
select
  a.pid,
  substring(a.application_name from '^jobq (?:calls|renewal|listen) (.*) threads=[0-9]+$') as worker,
  substring(a.application_name from '^jobq (calls|renewal|listen) .* threads=[0-9]+$') as purpose,
  substring(a.application_name from '^jobq (?:calls|renewal|listen) .* threads=([0-9]{1,9})$')::int as threads,
  a.application_name,
  coalesce(h.idle, false) as idle,
  coalesce(h.kind_keys, '{}') as kind_keys,
  array(
    select k.kind
    from (
      select s.kind
      from jobq.jobs s tablesample system (
        least(100, 500 * current_setting('block_size')::float8 / greatest(pg_relation_size('jobq.jobs'), 1) * 100)
      )
      union
      select r.kind from jobq.jobs r where r.status = 'running'
    ) k
    where hashtext(k.kind) = any(h.kind_keys)
    order by k.kind
  ) as kinds
from pg_stat_activity a
left join (
  select
    l.pid,
    bool_or(l.classid = 1785815921::oid) as idle,
    -- As unsigned numbers there, as hashtext() gives them here.
    array_agg(distinct (l.objid::bigint - case when l.objid::bigint > 2147483647 then 4294967296 else 0 end)::int)
      filter (where l.classid = 1785815922::oid) as kind_keys
  from pg_locks l
  where l.locktype = 'advisory' and l.classid in (1785815921::oid, 1785815922::oid) and l.objsubid = 2
    and l.mode = 'ShareLock' and l.granted
    and l.database = (select d.oid from pg_database d where d.datname = current_database())
  group by l.pid
) h on h.pid = a.pid
where a.datname = current_database()
  and (h.pid is not null or a.application_name ~ '^jobq (calls|renewal|listen) .* threads=[0-9]+$');

comment on view jobq.sessions is
'Sessions of workers: by the name that jobq''s worker gives them (worker, cut at 36 characters; purpose; threads), and by the locks of listen() and '
'present(): idle; kind_keys, hashtext() of the kinds it has handlers for; kinds, as far as jobs of these kinds are found in a sample.';
