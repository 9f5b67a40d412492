"""Granting levels: whom and what it takes, and what a migrate does to grants."""

from collections.abc import Callable

import pytest
from helpers import Connection, scalar

from ledger import refused, rows
from levels import COMMON, LEVELS, READER, VIEWS, Connect, MakeRole, functions_of, relations_of


@pytest.fixture
def grant(conn: Connection, make_role: MakeRole) -> Callable[..., str]:
    """Make a role with these levels."""

    def make(*levels: str) -> str:
        role = make_role()
        for level in levels:
            conn.execute("select jobq.grant_access(%s, %s)", (role, level))
        return role

    return make


class TestGrantAccess:
    @pytest.mark.parametrize("level", [None, "", "owner", "Producer", "producer; drop schema jobq"])
    def test_an_unknown_level_is_refused(
        self, conn: Connection, make_role: MakeRole, level: str | None
    ) -> None:
        with refused("JQ006", "level must be producer, worker, operator or reader, not"):
            conn.execute("select jobq.grant_access(%s, %s)", (make_role(), level))

    @pytest.mark.parametrize("role", [None, "", "public", "PUBLIC", "no one", "0", "-", "10"])
    def test_an_unknown_role_is_refused_and_so_is_public(
        self, conn: Connection, role: str | None
    ) -> None:
        with refused("JQ006", "(?s)no role .*never granted to PUBLIC"):
            conn.execute("select jobq.grant_access(%s, 'reader')", (role,))

    def test_a_role_of_any_name_is_granted(self, conn: Connection, admin: Connection) -> None:
        name = 'It\'s "odd"; x'
        admin.execute(b'create role "It\'s ""odd""; x"')
        try:
            with conn.transaction(force_rollback=True):
                conn.execute("select jobq.grant_access(%s, 'reader')", (name,))
                assert functions_of(conn, name) == READER | COMMON
        finally:
            admin.execute(b'drop role "It\'s ""odd""; x"')

    def test_it_can_be_taken_back_by_plain_revoke(
        self, conn: Connection, connect: Connect, grant: Callable[..., str]
    ) -> None:
        role = grant("worker")
        low = connect(user=role)
        conn.execute(f"revoke all on all functions in schema jobq from {role}".encode())
        conn.execute(f"revoke all on schema jobq from {role}".encode())
        with refused("42501"):
            low.execute("select jobq.reap()")


def definition(conn: Connection, name: str) -> tuple[str, str]:
    """The statements that drop the function and make it again."""
    query = (
        "select oid::regprocedure::text, pg_get_functiondef(oid) from pg_proc"
        " where pronamespace = 'jobq'::regnamespace and proname = %s"
    )
    signature, source = conn.execute(query, (name,)).fetchone() or ("", "")
    return f"drop function {signature}", str(source)


class TestApplyGrants:
    """What each migrate does after it has loaded the functions."""

    @pytest.mark.parametrize("hardened", [False, True])
    @pytest.mark.parametrize("level", LEVELS)
    def test_a_function_made_anew_is_granted_again(
        self, conn: Connection, grant: Callable[..., str], level: str, hardened: bool
    ) -> None:
        if hardened:
            conn.execute("alter default privileges revoke execute on functions from public")
        everyone = {each: (grant(each), grant(each)) for each in LEVELS}
        for name in sorted(LEVELS[level]):
            drop, create = definition(conn, name)
            conn.execute(drop.encode())
            conn.execute(create.encode())
            assert name not in functions_of(conn, everyone[level][0]) or not hardened
            conn.execute("select jobq._apply_grants()")
        for each, roles in everyone.items():
            for role in roles:
                assert functions_of(conn, role) == LEVELS[each] | COMMON

    def test_a_new_view_is_granted_to_those_who_read(
        self, conn: Connection, grant: Callable[..., str]
    ) -> None:
        producer, reader, operator = (grant(e) for e in ("producer", "reader", "operator"))
        conn.execute("create view jobq.fresh as select 1 as one")
        conn.execute("select jobq._apply_grants()")
        for role, seen in ((producer, set()), (reader, {"fresh"}), (operator, {"fresh"})):
            assert relations_of(conn, role) - VIEWS == seen

    def test_what_was_revoked_by_hand_stays_revoked(
        self, conn: Connection, grant: Callable[..., str]
    ) -> None:
        role, other = grant("reader"), grant("worker")
        conn.execute(f"revoke select on jobq.job_details from {role}".encode())
        conn.execute(f"grant select (id, status) on jobq.job_details to {role}".encode())
        conn.execute(f"revoke select on jobq.workers from {role}".encode())
        conn.execute(f"revoke execute on function jobq.claim from {other}".encode())
        conn.execute("select jobq._apply_grants()")
        assert relations_of(conn, role) == VIEWS - {"workers"}
        query = "select has_column_privilege(%s, 'jobq.job_details', 'payload', 'select')"
        assert scalar(conn, query, role) is False
        assert functions_of(conn, other) == (LEVELS["worker"] | COMMON) - {"claim"}

    def test_a_single_grant_by_hand_does_not_grow_into_a_level(
        self, conn: Connection, make_role: MakeRole
    ) -> None:
        role = make_role()
        conn.execute(f"grant usage on schema jobq to {role}".encode())
        conn.execute(f"grant execute on function jobq.stats, jobq.claim to {role}".encode())
        drop, create = definition(conn, "verify")
        conn.execute(drop.encode())
        conn.execute(create.encode())
        conn.execute("select jobq._apply_grants()")
        assert functions_of(conn, role) == {"stats", "claim"}
        assert relations_of(conn, role) == set()

    def test_public_loses_what_it_was_given(self, conn: Connection, make_role: MakeRole) -> None:
        conn.execute("grant usage on schema jobq to public")
        conn.execute("grant execute on all functions in schema jobq to public")
        conn.execute("grant select, update on all tables in schema jobq to public")
        conn.execute("select jobq._apply_grants()")
        query = """
        select p.proname::text
        from pg_proc p, aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a
        where p.pronamespace = 'jobq'::regnamespace and a.grantee = 0
        union all
        select c.relname from pg_class c, aclexplode(c.relacl) a
        where c.relnamespace = 'jobq'::regnamespace and a.grantee = 0
        union all
        select n.nspname from pg_namespace n, aclexplode(n.nspacl) a
        where n.nspname = 'jobq' and a.grantee = 0
        """
        assert rows(conn, query) == []
