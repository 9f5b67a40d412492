drop table if exists jobq.job_events cascade;

drop type if exists jobq.job_event cascade;

drop function if exists jobq._sources();
