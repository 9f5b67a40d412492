-- Backlog by kind, from the partial indexes of queued and running rows.

create or replace view jobq.kinds as
select
  k.kind,
  count(*) filter (where k.status = 'queued') as queued,
  count(*) filter (where k.status = 'queued' and k.available_at <= clock_timestamp()) as due,
  count(*) filter (where k.status = 'running') as running,
  min(k.available_at) filter (where k.status = 'queued') as oldest_available_at
from (
  select q.kind, q.status, q.available_at from jobq.jobs q where q.status = 'queued'
  union all
  select r.kind, r.status, r.available_at from jobq.jobs r where r.status = 'running'
) k
group by k.kind;

comment on view jobq.kinds is 'Queued (of them due) and running jobs by kind.';
