-- Jobs as readers see them: everything but the lease token, which is a secret of the claim.

create or replace view jobq.job_details as
select
  j.id, j.kind, j.payload, j.status, j.priority, j.created_at, j.available_at, j.attempt, j.max_attempts,
  j.retry_base_seconds, j.retry_cap_seconds, j.idempotency_key, j.locked_by, j.lease_expires_at, j.lost_leases,
  j.cancel_requested_at, j.progress, j.started_at, j.finished_at, j.result, j.last_error
from jobq.jobs j;

comment on view jobq.job_details is
'Jobs without their lease tokens. To hide payloads from a role: revoke select on the view, grant it on the other columns.';
