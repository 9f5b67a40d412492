-- Workers as their running jobs show them.

create or replace view jobq.workers as
select
  j.locked_by as worker,
  count(*) as running,
  count(*) filter (where j.lease_expires_at < clock_timestamp()) as expired,
  min(j.started_at) as oldest_start,
  min(j.lease_expires_at) as next_lease_end
from jobq.jobs j
where j.status = 'running'
group by j.locked_by;

comment on view jobq.workers is 'Workers that hold claims now: how many, how many with an expired lease, the oldest start.';
