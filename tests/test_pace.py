from typing import Any

from jobq._pace import AGAIN_SECONDS, Pace


class Listener:
    """Holds its locks, has looked back, and has heard what it is told."""

    held = settled = True

    def __init__(self) -> None:
        self.news = False

    def idle(self) -> None: ...

    def heard(self) -> bool:
        heard, self.news = self.news, False
        return heard


def idle_pace(listener: Any) -> Pace:
    """A pace that has done with the short steps of going idle, at time 0."""
    pace = Pace(listener, poll_seconds=60)
    for _ in range(4):
        pace.claimed(0, 10, 0.0, probed=True, due_in=None)
    assert pace.next_at(1) == 60
    return pace


def test_who_was_told_of_a_job_and_found_none_looks_once_more() -> None:
    listener = Listener()
    pace = idle_pace(listener)
    listener.news = True
    assert pace.wants_claim(5.0)
    pace.claimed(0, 10, 5.0, probed=False, due_in=None)
    assert pace.wants_claim(5.0)  # not probed: asked once more at once
    pace.claimed(0, 10, 5.0, probed=True, due_in=None)
    assert pace.next_at(1) == 5 + AGAIN_SECONDS
    pace.claimed(0, 10, 5 + AGAIN_SECONDS, probed=True, due_in=None)
    assert pace.next_at(1) == 5 + AGAIN_SECONDS + 60


def test_who_was_told_of_a_job_and_found_one_does_not() -> None:
    listener = Listener()
    pace = idle_pace(listener)
    listener.news = True
    assert pace.wants_claim(5.0)
    pace.claimed(1, 10, 5.0, probed=True, due_in=None)
    pace.claimed(0, 10, 6.0, probed=True, due_in=None)
    assert pace.next_at(1) == 66
