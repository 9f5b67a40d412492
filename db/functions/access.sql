-- Who may call what. PUBLIC may call nothing; a role is granted one or more of four levels.

create or replace function jobq._functions_of(level text) returns text[]
language sql immutable
as $$
select case level
    when 'producer' then '{enqueue,enqueue_many,cancel,retry}'
    when 'worker' then '{claim,renew,settle,succeed,fail,release,snooze,stop,report_progress,log,reap,purge,listen,unlisten,present,next_due}'
    when 'operator' then '{retry_jobs,cancel_jobs,set_priority,reschedule,clone,cancel,retry,purge,reap,stats,explain,verify,activity,runs,failures,error_class,error_line}'
    when 'reader' then '{stats,explain,verify,activity,runs,failures,error_class,error_line}'
  end::text[] || '{retry_delay,schema_version,compatible_from}'
$$;

comment on function jobq._functions_of(text) is 'Names of the functions that a level may call.';

-- A new object: made by the running migration, so that nobody has been granted it, and nobody was denied it by hand.
create or replace function jobq._is_new(acl aclitem[], owner oid, type "char") returns boolean
language sql stable
set search_path = pg_catalog, pg_temp
as $$
select _is_new.acl is null
  or exists (select from pg_default_acl d where d.defaclrole = _is_new.owner and d.defaclobjtype = _is_new.type)
    and not exists (select from aclexplode(_is_new.acl) a where a.grantee not in (0, _is_new.owner))
$$;

comment on function jobq._is_new(aclitem[], oid, "char") is
'Whether an object of the schema has no grants yet; type as in pg_default_acl: f for functions, r for views.';

create or replace function jobq._grants_of(grantee text, level text, only_new boolean default false) returns setof text
language sql stable
set search_path = pg_catalog, jobq, pg_temp
as $$
select format('grant usage on schema jobq to %I', _grants_of.grantee)
where not _grants_of.only_new
union all
select format('grant execute on function %s to %I', p.oid::regprocedure, _grants_of.grantee)
from pg_proc p
where p.pronamespace = 'jobq'::regnamespace and p.proname = any(jobq._functions_of(_grants_of.level))
  and (not _grants_of.only_new or jobq._is_new(p.proacl, p.proowner, 'f'))
union all
select format('grant select on jobq.%I to %I', c.relname, _grants_of.grantee)
from pg_class c
where c.relnamespace = 'jobq'::regnamespace and c.relkind = 'v' and _grants_of.level in ('operator', 'reader')
  and (not _grants_of.only_new or jobq._is_new(c.relacl, c.relowner, 'r'))
$$;

comment on function jobq._grants_of(text, text, boolean) is 'The statements that give a role a level; only_new: as far as new objects go.';

create or replace function jobq.grant_access(role text, level text) returns void
language plpgsql
set search_path = pg_catalog, jobq, pg_temp
as $$
declare
  v_statement text;
begin
  if grant_access.level is null or grant_access.level not in ('producer', 'worker', 'operator', 'reader') then
    perform jobq._raise('JQ006', 'level must be producer, worker, operator or reader, not '
      || coalesce(quote_literal(grant_access.level), 'null'));
  elsif to_regrole(quote_ident(grant_access.role)) is null then
    perform jobq._raise('JQ006', 'no role ' || coalesce(quote_literal(grant_access.role), 'null'),
      'Create it first. Access is never granted to PUBLIC.');
  end if;
  for v_statement in select g from jobq._grants_of(grant_access.role, grant_access.level) g loop
    execute v_statement;
  end loop;
end
$$;

comment on function jobq.grant_access(text, text) is
'Lets a role use the queue as producer (enqueue, cancel, retry), worker (claim to settle, reap, purge), operator (the verbs for many, views) or '
'reader (views, stats, explain, verify, activity, runs, failures). Levels add up. Only the schema''s owner may call it; revoke with plain REVOKE. Errors: JQ006 unknown role or level.';

-- A role has a level if it may call all of the level's functions that are not new, one that marks the level among them.
-- Only new objects are granted: what was granted or revoked one by one stays as it is.
create or replace function jobq._apply_grants() returns void
language plpgsql
set search_path = pg_catalog, jobq, pg_temp
as $$
declare
  v_statements text[] := array(
    select g.statement
    from (
      values ('producer', '{enqueue,enqueue_many}'::text[]), ('worker', '{claim,renew,settle}'),
        ('operator', '{retry_jobs,cancel_jobs,set_priority}'), ('reader', '{stats,explain,verify}')
    ) l(level, mark)
    join lateral (
      select a.grantee, array_agg(p.proname) as functions
      from pg_proc p
      cross join lateral aclexplode(p.proacl) a
      where p.pronamespace = 'jobq'::regnamespace and a.grantee not in (0, p.proowner)
      group by a.grantee
    ) h on h.functions::text[] && l.mark
    join pg_roles r on r.oid = h.grantee
    cross join lateral jobq._grants_of(r.rolname, l.level, true) g(statement)
    where not exists (
      select from pg_proc p
      where p.pronamespace = 'jobq'::regnamespace and p.proname = any(jobq._functions_of(l.level))
        and not p.proname = any(h.functions) and not jobq._is_new(p.proacl, p.proowner, 'f')
    )
  );
  v_statement text;
begin
  revoke all on all functions in schema jobq from public;
  revoke all on all tables in schema jobq from public;
  revoke all on all sequences in schema jobq from public;
  revoke all on schema jobq from public;
  foreach v_statement in array v_statements loop
    execute v_statement;
  end loop;
end
$$;

comment on function jobq._apply_grants() is
'Revokes everything from PUBLIC and gives roles the new functions and views of the levels they have. Run by each migrate.';
