"""Small helpers: backoff, error texts, seconds, the errors they raise."""

from datetime import UTC, datetime, timedelta

import pytest
from helpers import Connection, scalar
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ledger import refused

ANY_INT = st.integers(-(2**31), 2**31 - 1)
POSITIVE = st.integers(1, 2**31 - 1)
LIMIT = 32768

same_database = settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def retry_delay(conn: Connection, attempt: int | None, base: int = 15, cap: int = 3600) -> float:
    query = "select extract(epoch from jobq.retry_delay(%s, %s, %s))::float8"
    return float(scalar(conn, query, attempt, base, cap))


@pytest.mark.parametrize(
    ("attempt", "seconds"),
    [(1, 15), (2, 30), (3, 60), (8, 1920), (9, 3600), (31, 3600), (38, 3600), (62, 3600),
     (63, 3600), (1024, 3600), (2**31 - 1, 3600), (0, 15), (-(2**31), 15)],
)  # fmt: skip
def test_backoff_doubles_up_to_the_cap(conn: Connection, attempt: int, seconds: int) -> None:
    assert retry_delay(conn, attempt) == seconds


def test_backoff_has_defaults(conn: Connection) -> None:
    assert scalar(conn, "select jobq.retry_delay(2)") == timedelta(seconds=30)


@same_database
@given(attempt=ANY_INT, base=POSITIVE, cap=POSITIVE)
def test_backoff_is_positive_and_within_the_cap(
    conn: Connection, attempt: int, base: int, cap: int
) -> None:
    expected = min(cap, base * 2 ** min(max(attempt, 1) - 1, 62))
    assert retry_delay(conn, attempt, base, cap) == pytest.approx(expected)
    query = """
    select count(*) from generate_series(1, 20), lateral jobq._jittered_delay(%s, %s, %s) d
    where not (d > interval '0' and d <= make_interval(secs => %s))
    """
    assert scalar(conn, query, attempt, base, cap, cap) == 0


def test_jitter_adds_up_to_a_quarter(conn: Connection) -> None:
    query = """
    select min(s.seconds), max(s.seconds), count(distinct s.seconds)
    from (
      select extract(epoch from jobq._jittered_delay(1, 100, 3600)) from generate_series(1, 500)
    ) s(seconds)
    """
    low, high, different = conn.execute(query).fetchone() or (0, 0, 0)
    assert 100 <= low < 105
    assert 120 < high <= 125
    assert different > 100


def clean(conn: Connection, text: str | None) -> str | None:
    cleaned = scalar(conn, "select jobq._clean_error(%s)", text)
    return None if cleaned is None else str(cleaned)


@pytest.mark.parametrize(
    "text", [None, "", "x", "x" * LIMIT, "ä" * (LIMIT // 2), "\U0001f600" * 8192]
)
def test_an_error_that_fits_is_kept_as_it_is(conn: Connection, text: str | None) -> None:
    assert clean(conn, text) == text


@pytest.mark.parametrize("letter", ["x", "ä", "€", "\U0001f600"])
@pytest.mark.parametrize("excess", [1, 1000, 10**6])
def test_a_longer_error_keeps_both_ends(conn: Connection, letter: str, excess: int) -> None:
    size = LIMIT // len(letter.encode()) + excess
    text = "first line\n" + letter * size + "\nValueError: last line"
    cleaned = clean(conn, text)
    assert cleaned is not None
    assert len(cleaned.encode()) <= LIMIT
    assert cleaned.startswith("first line\n")
    assert cleaned.endswith("\nValueError: last line")
    head, _, rest = cleaned.partition("\n[… ")
    number, _, tail = rest.partition(" bytes left out …]\n")
    kept = len(head.encode()) + len(tail.encode())
    assert int(number) == len(text.encode()) - kept
    assert text.startswith(head)
    assert text.endswith(tail)


@same_database
@given(
    text=st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=50),
    times=st.integers(1, 5000),
)
def test_no_error_is_cut_above_the_limit(conn: Connection, text: str, times: int) -> None:
    cleaned = clean(conn, text * times)
    assert cleaned is not None
    assert len(cleaned.encode()) <= LIMIT
    if len((text * times).encode()) <= LIMIT:
        assert cleaned == text * times


def test_seconds_stay_seconds_across_a_clock_change(conn: Connection) -> None:
    conn.execute("set timezone = 'Europe/Berlin'")
    start = datetime(2026, 3, 28, 12, tzinfo=UTC)  # the night before summer time
    plain = scalar(conn, "select %s::timestamptz + interval '1 day'", start)
    assert plain - start == timedelta(hours=23)
    after = scalar(conn, "select jobq._after(%s, 86400)", start)
    assert after - start == timedelta(hours=24)


@pytest.mark.parametrize("seconds", [0, 0.000001, -86400, 3.5e9, 1e-9])
def test_seconds_are_exact_to_the_microsecond(conn: Connection, seconds: float) -> None:
    start = datetime(2026, 3, 28, 12, tzinfo=UTC)
    after = scalar(conn, "select jobq._after(%s, %s::numeric)", start, seconds)
    assert after - start == timedelta(seconds=round(seconds, 6))


@pytest.mark.parametrize(
    ("lease", "seconds"), [("1 day", 86400), ("0.5 s", 0.5), ("365 days", 31536000)]
)
def test_a_lease_is_seconds(conn: Connection, lease: str, seconds: float) -> None:
    assert float(scalar(conn, "select jobq._lease_seconds(%s)", lease)) == seconds


@pytest.mark.parametrize("lease", [None, "0", "-1 s", "365 days 1 s", "1000000 years"])
def test_a_lease_that_makes_no_sense_is_refused(conn: Connection, lease: str | None) -> None:
    with refused("JQ006", "lease must be longer than zero"):
        conn.execute("select jobq._lease_seconds(%s)", (lease,))


def test_an_infinite_lease_is_refused(conn: Connection) -> None:
    # Older servers have no infinite interval, and say so themselves.
    with refused("JQ006" if conn.info.server_version >= 170000 else "22007"):
        conn.execute("select jobq._lease_seconds('infinity')")


def test_raised_errors_carry_code_message_and_hint(conn: Connection) -> None:
    with refused("JQ006", "(?s)what.*HINT: +why"):
        conn.execute("select jobq._raise('JQ006', 'what', 'why')")
    with refused("JQ001", "100 % plain"):
        conn.execute("select jobq._raise('JQ001', '100 %% plain')".replace("%%", "%").encode())
