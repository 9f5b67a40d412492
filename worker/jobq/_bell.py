"""Wakes the coordinator, at next to no cost while it is not waiting."""

from collections.abc import Callable
from threading import Event


class Bell:
    """One waiter, many ringers. Whoever rings first sets what `pending` looks at."""

    def __init__(self) -> None:
        self._event = Event()
        self.waiting = False

    def ring(self) -> None:
        """Wake the waiter; when there is none, what was set is seen before the next wait."""
        if self.waiting:
            self.waiting = False
            self._event.set()

    def wait(self, seconds: float, pending: Callable[[], bool]) -> None:
        """Wait until somebody rings, at most `seconds`; not at all when something is pending."""
        self._event.clear()
        self.waiting = True  # before the look at pending: a ring after it finds the flag
        if not pending():
            self._event.wait(seconds)
        self.waiting = False
