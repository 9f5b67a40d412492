-- What this schema is, for clients that must know whether they fit.

create or replace function jobq.schema_version() returns int
language sql immutable parallel safe
set search_path = pg_catalog, pg_temp
as 'select 2';

comment on function jobq.schema_version() is
'Version of the installed schema; grows with each release that changes it.';

create or replace function jobq.compatible_from() returns int
language sql immutable parallel safe
set search_path = pg_catalog, pg_temp
as 'select 1';

comment on function jobq.compatible_from() is
'Oldest schema version whose clients still work with this schema.';
