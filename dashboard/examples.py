"""An example call of each SQL function, each a statement that runs by itself.

Job 4711 has failed, job 4712 is queued; what ends a run claims it first.
"""

__all__ = ["EXAMPLES"]

EXAMPLES = {
    "activity": """\
select bucket, enqueued, started, succeeded, failed
from jobq.activity(interval '24 hours', buckets => 24)
order by bucket;""",
    "cancel": "select jobq.cancel(4712);",
    "cancel_jobs": """\
select * from jobq.cancel_jobs('{"kind": "email.send", "payload": {"campaign": 7}}',
  dry_run => true);""",
    "claim": """\
select id, kind, payload, lease_token
from jobq.claim('psql', max_jobs => 10, kinds => '{email.send}', lease => '5 min');""",
    "clone": """\
select jobq.clone(4711, '{"to": "ada@example.org"}');""",
    "compatible_from": "select jobq.compatible_from();",
    "enqueue": """\
select * from jobq.enqueue('email.send', '{"to": "ada@example.org"}',
  priority => 10, delay => '5 min', idempotency_key => 'welcome:7');""",
    "enqueue_many": """\
select * from jobq.enqueue_many('[
  {"kind": "email.send", "payload": {"to": "ada@example.org"}},
  {"kind": "email.send", "payload": {"to": "bob@example.org"}, "priority": 10, "delay": 60}
]');""",
    "error_class": """\
select jobq.error_class(j.last_error), count(*)
from jobq.job_details j
where j.status = 'failed'
group by 1
order by 2 desc;""",
    "error_line": """\
select j.id, jobq.error_line(j.last_error)
from jobq.job_details j
where j.status = 'failed'
order by j.finished_at desc
limit 20;""",
    "explain": "select reason, message from jobq.explain(4712);",
    "fail": """\
select jobq.fail(j.id, j.lease_token, 'the mail server is away', retry_in => '30 s')
from jobq.claim('psql') j;""",
    "failures": """\
select kind, error_class, failures, last_at, sample_job_id
from jobq.failures(interval '24 hours', buckets => 24)
order by failures desc;""",
    "grant_access": "select jobq.grant_access('app', 'producer');",
    "listen": """\
select jobq.listen('{email.send}') as held;""",
    "log": """\
select jobq.log(j.id, j.lease_token, 'info', 'connected to the mail server')
from jobq.claim('psql') j;""",
    "next_due": """\
select jobq.next_due('{email.send}') as seconds;""",
    "present": """\
select jobq.present('{email.send}');""",
    "purge": """\
select jobq.purge(interval '30 days', max_jobs => 1000, statuses => '{succeeded,cancelled}');""",
    "reap": "select job_id, status from jobq.reap();",
    "release": """\
select jobq.release(j.id, j.lease_token)
from jobq.claim('psql') j;""",
    "renew": """\
select r.*
from jobq.claim('psql') j, jobq.renew(array[j.id], array[j.lease_token], lease => '5 min') r;""",
    "report_progress": """\
select jobq.report_progress(j.id, j.lease_token, 0.5, 'half of the addresses')
from jobq.claim('psql') j;""",
    "reschedule": """\
select * from jobq.reschedule('{"kind": "email.send"}', delay => '1 hour', dry_run => true);""",
    "retry": "select jobq.retry(4711, extra_attempts => 3);",
    "retry_delay": """\
select attempt, jobq.retry_delay(attempt, base => 15, cap => 3600)
from generate_series(1, 10) attempt;""",
    "retry_jobs": """\
select * from jobq.retry_jobs('{"kind": "email.send", "error": "timeout"}', dry_run => true);""",
    "runs": """\
select kind, percentile_cont(0.95) within group (order by run_seconds) as p95_seconds
from jobq.runs(interval '1 hour')
group by kind
order by kind;""",
    "schema_version": "select jobq.schema_version();",
    "set_priority": """\
select * from jobq.set_priority('{"ids": [4712]}', 50);""",
    "settle": """\
select s.*
from jobq.claim('psql') j, jobq.settle(jsonb_build_array(jsonb_build_object(
  'job_id', j.id, 'lease_token', j.lease_token, 'outcome', 'succeeded', 'result', '"sent"'::jsonb
))) s;""",
    "snooze": """\
select jobq.snooze(j.id, j.lease_token, '10 min')
from jobq.claim('psql') j;""",
    "stats": "select status, jobs, estimated, oldest from jobq.stats();",
    "stop": """\
select jobq.stop(j.id, j.lease_token, 'nobody needs it any more')
from jobq.claim('psql') j;""",
    "succeed": """\
select jobq.succeed(j.id, j.lease_token, '{"pages": 12}')
from jobq.claim('psql') j;""",
    "unlisten": "select jobq.unlisten();",
    "verify": "select * from jobq.verify();",
}
