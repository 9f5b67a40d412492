-- Who may call what. PUBLIC may call nothing; a role is granted one or more of four levels.

create or replace function jobq._functions_of(level text) returns text[]
language sql immutable
as $$
select case level
    when 'producer' then '{enqueue,enqueue_many,cancel,retry}'
    when 'worker' then '{claim,renew,settle,succeed,fail,release,snooze,stop,report_progress,log,reap,purge,listen,unlisten,present,next_due}'
    when 'operator' then '{retry_jobs,cancel_jobs,set_priority,reschedule,clone,cancel,retry,purge,reap,stats,explain,verify}'
    when 'reader' then '{stats,explain,verify}'
  end::text[] || '{retry_delay,schema_version,compatible_from}'
$$;

comment on function jobq._functions_of(text) is 'Names of the functions that a level may call.';

create or replace function jobq._grant_level(grantee text, level text) returns void
language plpgsql
set search_path = pg_catalog, jobq, pg_temp
as $$
declare
  v_statement text;
begin
  for v_statement in
    select format('grant usage on schema jobq to %I', _grant_level.grantee)
    union all
    select format('grant execute on function %s to %I', p.oid::regprocedure, _grant_level.grantee)
    from pg_proc p
    where p.pronamespace = 'jobq'::regnamespace and p.proname = any(jobq._functions_of(_grant_level.level))
    union all
    select format('grant select on jobq.%I to %I', c.relname, _grant_level.grantee)
    from pg_class c
    where c.relnamespace = 'jobq'::regnamespace and c.relkind = 'v' and _grant_level.level in ('operator', 'reader')
  loop
    execute v_statement;
  end loop;
end
$$;

comment on function jobq._grant_level(text, text) is 'Grants a level to a role.';

create or replace function jobq.grant_access(role text, level text) returns void
language plpgsql
set search_path = pg_catalog, jobq, pg_temp
as $$
begin
  if grant_access.level is null or grant_access.level not in ('producer', 'worker', 'operator', 'reader') then
    perform jobq._raise('JQ006', 'level must be producer, worker, operator or reader, not '
      || coalesce(quote_literal(grant_access.level), 'null'));
  elsif to_regrole(quote_ident(grant_access.role)) is null then
    perform jobq._raise('JQ006', 'no role ' || coalesce(quote_literal(grant_access.role), 'null'),
      'Create it first. Access is never granted to PUBLIC.');
  end if;
  perform jobq._grant_level(grant_access.role, grant_access.level);
end
$$;

comment on function jobq.grant_access(text, text) is
'Lets a role use the queue as producer (enqueue, cancel, retry), worker (claim to settle, reap, purge), operator (the verbs for many, views) or '
'reader (views, stats, explain, verify). Levels add up. Only the schema''s owner may call it; revoke with plain REVOKE. Errors: JQ006 unknown role or level.';

-- A function that a migration dropped and created has lost its grants: whoever may call another of the same level gets them back.
create or replace function jobq._apply_grants() returns void
language plpgsql
set search_path = pg_catalog, jobq, pg_temp
as $$
declare
  v_grant record;
begin
  revoke all on all functions in schema jobq from public;
  revoke all on all tables in schema jobq from public;
  revoke all on all sequences in schema jobq from public;
  revoke all on schema jobq from public;
  for v_grant in
    select distinct r.rolname, l.level
    from pg_proc p
    cross join lateral aclexplode(p.proacl) a
    join pg_roles r on r.oid = a.grantee
    join (
      values ('producer', '{enqueue,enqueue_many}'::text[]), ('worker', '{claim,renew,settle}'),
        ('operator', '{retry_jobs,cancel_jobs,set_priority}'), ('reader', '{stats,explain,verify}')
    ) l(level, mark) on p.proname = any(l.mark)
    where p.pronamespace = 'jobq'::regnamespace and a.grantee <> p.proowner and a.privilege_type = 'EXECUTE'
  loop
    perform jobq._grant_level(v_grant.rolname, v_grant.level);
  end loop;
end
$$;

comment on function jobq._apply_grants() is 'Revokes everything from PUBLIC and completes the levels that roles have. Run by each migrate.';
