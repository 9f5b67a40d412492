-- The ledger as readers see it.

create or replace view jobq.job_timeline as
select e.job_id, e.id, e.at, e.event, e.from_status, e.to_status, e.attempt, e.worker, e.actor, e.detail
from jobq.job_events e;

comment on view jobq.job_timeline is 'Events of jobs, in the order of their id per job; job 0 is the queue itself.';
