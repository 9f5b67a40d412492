-- Small helpers of all verbs: errors, the actor, seconds, backoff, error texts.

create or replace function jobq._raise(code text, message text, hint text default null) returns text
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
  if _raise.hint is null then
    raise exception using errcode = _raise.code, message = _raise.message;
  end if;
  raise exception using errcode = _raise.code, message = _raise.message, hint = _raise.hint;
end
$$;

comment on function jobq._raise(text, text, text) is 'Raises from inside an expression. Never returns.';

-- current_setting('role') survives security definer, where current_user is the owner.
create or replace function jobq._actor() returns text
language sql stable
as $$
select coalesce(nullif(current_setting('role'), 'none'), session_user)
  || coalesce(' (claims ' || left(nullif(current_setting('jobq.actor', true), ''), 200) || ')', '')
$$;

comment on function jobq._actor() is
'Who acts: the database role, and in parentheses what the client claims to be by the setting jobq.actor.';

-- Not now() + interval: a transaction's start lies, and a day is not 86,400 s across a DST change.
create or replace function jobq._after(start timestamptz, seconds numeric) returns timestamptz
-- Stable, as the addition is: declared immutable it could not be inlined.
language sql stable parallel safe
as $$ select start + make_interval(secs => seconds::float8) $$;

comment on function jobq._after(timestamptz, numeric) is 'start plus so many seconds, the same across a DST change.';

create or replace function jobq._lease_seconds(lease interval) returns numeric
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
declare
  v_seconds numeric := extract(epoch from _lease_seconds.lease);
begin
  if v_seconds > 0 and v_seconds <= 31536000 then
    return v_seconds;
  end if;
  raise exception using
    errcode = 'JQ006',
    message = format('lease must be longer than zero and at most 365 days, not %s', coalesce(_lease_seconds.lease::text, 'null')),
    hint = 'A lease is how long a worker may stay silent; 60 seconds is the default.';
end
$$;

comment on function jobq._lease_seconds(interval) is 'A lease as seconds; JQ006 unless it is positive and at most 365 days.';

create or replace function jobq.retry_delay(attempt int, base int default 15, cap int default 3600) returns interval
language sql immutable parallel safe
set search_path = pg_catalog, pg_temp
as $$
select make_interval(secs => greatest(least(cap, base * power(2::float8, least(greatest(attempt, 1) - 1, 62))), 0))
$$;

comment on function jobq.retry_delay(int, int, int) is
'Backoff after so many attempts: least(cap, base * 2^(attempt - 1)) seconds, right for any attempt. fail adds up to 25 % of jitter, never past the cap.';

-- Above the cap keep both ends: a traceback names its error in the last line, its origin in the first.
create or replace function jobq._clean_error(error text) returns text
language sql immutable parallel safe
as $$
select case
    when octet_length(error) <= 32768 then error
    when octet_length(error) = length(error)
    then left(error, 8000) || E'\n[… ' || (octet_length(error) - 32000) || E' bytes left out …]\n' || right(error, 24000)
    else left(error, 2000)
      || E'\n[… ' || (octet_length(error) - octet_length(left(error, 2000)) - octet_length(right(error, 6000)))
      || E' bytes left out …]\n' || right(error, 6000)
  end
$$;

comment on function jobq._clean_error(text) is 'An error text cut to 32 KiB, its beginning and its end kept.';
