-- What an error text is about, the same for everybody who groups or shows failures.

create or replace function jobq.error_line(error text) returns text
language plpgsql immutable parallel safe
set search_path = pg_catalog, pg_temp
as $$
declare
  v_error text := error_line.error;
  v_last text := split_part(v_error, E'\n', -1);
  v_block text;
begin
  if rtrim(v_last, E' \t\r') = '' then
    v_error := rtrim(v_error, E' \t\r\n');
    v_last := split_part(v_error, E'\n', -1);
  end if;
  if v_error like '%Traceback (most recent call last):%' then
    v_block := split_part(v_error, 'Traceback (most recent call last):', -1);
    if octet_length(v_block) > 15000 then
      -- Below the place where jobq or its worker cut it.
      v_block := split_part(split_part(v_block, E' bytes left out …]\n', -1), E'\n[... cut ...]\n', -1);
    end if;
    -- In the last block the first line that is not of a frame: a message may have more lines below it.
    return coalesce(substring(v_block from E'\n(?:[ |]*[|] )?([^[:space:]|+][^\n]*)'), v_last);
  elsif v_last like ' %' or v_last like E'\t%' then
    -- Stacks of other languages, and lists of faults, are indented below their headline.
    return split_part(v_error, E'\n', 1);
  end if;
  return v_last;
end
$$;

comment on function jobq.error_line(text) is
'The line of an error text that names the error: of a Python traceback the one below its last frames, of a text whose last line is indented '
'the first, else the last. Null for null.';

create or replace function jobq.error_class(error text) returns text
language plpgsql immutable parallel safe
set search_path = pg_catalog, jobq, pg_temp
as $$
declare
  v_line text := jobq.error_line(error_class.error);
  v_name text := split_part(v_line, ':', 1);
begin
  if coalesce(v_line, '') = '' then
    return 'no error text';
  elsif v_line like 'lease lost: %' then
    return 'lease lost';
  end if;
  -- Not by \w: which letters that has is the database's locale's affair.
  return case when v_name ~ '^(([^[:space:][:punct:]]|_)+|<locals>)([.](([^[:space:][:punct:]]|_)+|<locals>))*$' then v_name else left(v_line, 60) end;
end
$$;

comment on function jobq.error_class(text) is
'What to group failures by: the exception''s name before the first colon of error_line(), "lease lost" for lost leases, else the line''s first 60 '
'characters; "no error text" without any.';
