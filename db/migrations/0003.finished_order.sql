-- Failed and cancelled jobs in the order of their finish, for whoever looks at the newest. The names stay: stats() asks
-- for them, before its own new version is loaded as well as after.
-- depends: 0002.job_events

-- Dropped first: that takes the table's strongest lock at once, where a lock that grows could deadlock with a worker.
-- All wait for one look at each row of jobs, some 0.3 s per million of them.
do $$
declare
  v_status text;
begin
  foreach v_status in array '{failed,cancelled}'::text[] loop
    if (select i.indnkeyatts from pg_catalog.pg_index i where i.indexrelid = to_regclass(format('jobq.jobs_%s_idx', v_status)))
      is distinct from 2
    then
      execute format('drop index if exists jobq.jobs_%s_idx', v_status);
      execute format('create index jobs_%s_idx on jobq.jobs (finished_at, id) where status = %L', v_status, v_status);
    end if;
  end loop;
end
$$;
