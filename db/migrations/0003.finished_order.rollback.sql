drop view if exists jobq.sessions;

drop function if exists jobq.activity(interval, int);

drop function if exists jobq.runs(interval, int);

drop function if exists jobq.failures(interval, int);

drop function if exists jobq.error_class(text);

drop function if exists jobq.error_line(text);

drop function if exists jobq._events_since(timestamptz, float8);

drop function if exists jobq._event_share(timestamptz, bigint);

drop function if exists jobq._bucket_size(interval, int);

drop function if exists jobq._window_start(interval, timestamptz);

drop index if exists jobq.jobs_failed_idx;

drop index if exists jobq.jobs_cancelled_idx;

create index jobs_failed_idx on jobq.jobs (id) where status = 'failed';

create index jobs_cancelled_idx on jobq.jobs (id) where status = 'cancelled';
