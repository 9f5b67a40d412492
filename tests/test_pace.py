import pytest

from jobq._listener import Listener as RealListener
from jobq._pace import AGAIN_SECONDS, BUSY_SECONDS, FIRST_STEPS, LINGER_SECONDS, Pace

POLL = 60.0


class Listener(RealListener):
    """Takes its locks at once, has looked back, and has heard what it is told."""

    held = False
    settled = True

    def __init__(self) -> None:
        self.news = 0

    def idle(self) -> None:
        self.held = True

    def busy(self) -> None:
        self.held = False

    def heard(self) -> int:
        heard, self.news = self.news, 0
        return heard


def turn(pace: Pace, now: float, found: int, due_in: float | None = None) -> None:
    """A turn of the coordinator that claims: ten are asked for."""
    assert pace.wants_claim(now)
    if pace.claimed(found, 10, now):
        pace.rest(found, now, due_in)


def idle_pace(listener: Listener) -> tuple[Pace, float]:
    """A pace that has done with the quick looks of going idle, and when."""
    pace = Pace(listener, poll_seconds=POLL)
    now = 0.0
    while True:
        turn(pace, now, 0)
        if pace.next_at(1) == now + POLL:
            return pace, now
        now = pace.next_at(1)


def test_who_finds_nothing_looks_by_itself_for_a_moment_then_says_it_is_idle() -> None:
    listener = Listener()
    pace = Pace(listener, poll_seconds=POLL)
    now, pauses = 0.0, []
    while not listener.held:
        turn(pace, now, 0)
        pauses.append(round(pace.next_at(1) - now, 6))
        now = pace.next_at(1)
    assert pauses == [*LINGER_SECONDS, FIRST_STEPS[0]]


def test_who_was_told_of_a_job_and_found_none_looks_once_more() -> None:
    listener = Listener()
    pace, now = idle_pace(listener)
    listener.news = 1
    turn(pace, now + 5, 0)
    assert pace.next_at(1) == now + 5 + AGAIN_SECONDS
    now = pace.next_at(1)
    turn(pace, now, 0)
    assert pace.next_at(1) == now + POLL


def test_who_was_told_of_a_job_and_found_one_does_not() -> None:
    listener = Listener()
    pace, now = idle_pace(listener)
    listener.news = 1
    turn(pace, now + 5, 1)
    assert not pace.more
    assert pace.next_at(1) == now + POLL


def test_who_found_the_job_it_was_told_of_looks_when_the_next_falls_due() -> None:
    listener = Listener()
    pace, now = idle_pace(listener)
    listener.news = 1
    turn(pace, now + 5, 1, due_in=2.0)
    assert pace.next_at(1) == now + 7


def test_a_claim_whose_question_failed_is_made_again() -> None:
    pace, now = idle_pace(Listener())
    now = pace.next_at(1)
    assert pace.wants_claim(now)
    assert pace.claimed(10, 10, now) is False
    assert pace.claimed(0, 10, now)
    pace.failed()
    assert pace.wants_claim(now + 0.1)


def test_who_is_told_again_and_again_gives_up_its_locks_until_it_finds_nothing() -> None:
    listener = Listener()
    pace, now = idle_pace(listener)
    began = now = now + 5
    while listener.held:
        assert now <= began + 2 * BUSY_SECONDS
        listener.news = 1
        turn(pace, now, 1)
        now += 0.004
    assert now > began + BUSY_SECONDS
    assert pace.more
    for pause in LINGER_SECONDS:
        turn(pace, now, 0)
        assert not listener.held
        now += pause
    turn(pace, now, 1)  # so it begins anew
    for pause in LINGER_SECONDS:
        turn(pace, now, 0)
        now += pause
    assert not listener.held
    turn(pace, now, 0)
    assert listener.held


def test_a_slow_claim_is_no_stream() -> None:
    listener = Listener()
    pace, now = idle_pace(listener)
    listener.news = 1
    assert pace.wants_claim(now + 5)
    assert pace.claimed(1, 10, now + 5 + 2 * BUSY_SECONDS)
    assert listener.held


def test_who_is_told_of_what_others_take_is_not_idle_sooner() -> None:
    listener = Listener()
    pace = Pace(listener, poll_seconds=POLL)
    now = 0.0
    for _ in range(10):
        listener.news = 1
        turn(pace, now, 0)
        assert pace.next_at(1) == now + LINGER_SECONDS[0]
    for _ in range(len(LINGER_SECONDS) + 1):
        assert not listener.held
        now = pace.next_at(1)
        turn(pace, now, 0)
    assert listener.held


def test_who_is_told_much_gives_up_its_locks_though_it_looks_seldom() -> None:
    listener = Listener()
    pace, now = idle_pace(listener)
    for number in range(4):
        assert listener.held
        listener.news = 30
        turn(pace, now + 5 + number * 0.05, 1)
    assert not listener.held


@pytest.mark.parametrize(
    ("gap", "told", "found"),
    [
        pytest.param(0.02, 1, 1, id="now and then"),
        pytest.param(1.5, 200, 1, id="of 200 kinds at once, now and then"),
        pytest.param(0.004, 1, 0, id="of what others take"),
    ],
)
def test_who_is_told_seldom_or_of_what_others_take_keeps_its_locks(
    gap: float, told: int, found: int
) -> None:
    listener = Listener()
    pace, now = idle_pace(listener)
    for number in range(100):
        listener.news = told
        turn(pace, now + 5 + number * gap, found)
    assert listener.held
