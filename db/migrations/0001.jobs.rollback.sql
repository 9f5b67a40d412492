drop schema if exists jobq cascade;
