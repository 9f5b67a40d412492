"""When the coordinator claims: while claims find jobs, when notified, else by a schedule."""

from math import inf

from jobq._listener import Listener

__all__ = ["Batch", "Pace", "PollSchedule"]

FIRST_STEPS = (0.01, 0.05, 0.25)
LONGEST_SECONDS = 60.0
BUSY_SECONDS = 0.1
# Each notified commit waits for a lock of the whole server. So who is told so often for a while
# gives up its idle locks, looks by itself, and is idle only when these looks have found nothing.
# By what arrived, not by our own looks, which come seldom where the processor is busy; but of what
# arrived at once no more than a few count, since a statement tells of each of its kinds.
STREAM_A_SECOND = 100.0
STREAM_AT_ONCE = 10
LINGER_SECONDS = (0.002, 0.004, 0.008, 0.016)
# A claim may pass over a job below its session's floor, until its last full scan is 20 times its
# cost ago; so who was told of a job and found none looks once more.
AGAIN_SECONDS = 2.0


class Batch:
    """How many a statement takes: an eighth after one that ran out of time, then doubling again."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.size = most

    def shrink(self, tried: int) -> bool:
        """A statement for so many was cancelled; return whether fewer can be tried."""
        self.size = max(min(tried, self.size) // 8, 1)
        return tried > 1

    def grow(self) -> None:
        """A statement went well."""
        self.size = min(self.size * 2, self._most)


class PollSchedule:
    """When an idle worker asks again.

    10, 50 and 250 ms after it went idle, then each second while an earlier transaction may still
    commit, then at the poll interval; sooner for a job known to fall due, never later than 60 s.
    """

    def __init__(self, poll_seconds: float) -> None:
        self._poll = min(poll_seconds, LONGEST_SECONDS)
        self._step = 0

    def restart(self) -> None:
        """Begin with the short steps again."""
        self._step = 0

    def pause(self, *, settled: bool, due_in: float | None) -> float:
        """Return the seconds until the next claim, after one that found nothing."""
        if self._step < len(FIRST_STEPS):
            pause = min(FIRST_STEPS[self._step], self._poll)
            self._step += 1
        else:
            pause = self._poll if settled else min(1.0, self._poll)
        return pause if due_in is None else min(pause, max(due_in, 0.001))


class Pace:
    """Tells the listener whether we are idle, and the coordinator whether to claim."""

    def __init__(self, listener: Listener, poll_seconds: float) -> None:
        self._listener = listener
        self._schedule = PollSchedule(poll_seconds)
        self._more = True  # the last claim found jobs, and there may be more
        self._told = False  # that there may be jobs, since the last claim
        self._told_at = self._stream_since = -inf
        self._stream = 0  # notifications since then
        self._lingered = 0  # looks of our own that found nothing since we were busy
        self._poll_at = -inf
        self._busy_since: float | None = None

    @property
    def more(self) -> bool:
        """Whether the last claim leaves reason for another one at once."""
        return self._more

    def wants_claim(self, now: float) -> bool:
        """Whether to claim now, given a free thread."""
        if heard := self._listener.heard():
            self._told = True
            if self._stream < STREAM_A_SECOND * (now - self._stream_since):
                self._stream, self._stream_since = 0, now
            self._stream += min(heard, STREAM_AT_ONCE)
            self._told_at = now
        return self._told or self._more or now >= self._poll_at

    def polled(self, now: float) -> bool:
        """Whether it is the schedule that asks."""
        return not self._more and now >= self._poll_at

    def claimed(self, found: int, asked: int, now: float) -> bool:
        """Take in what a claim found; return whether to ask what falls due next, for `rest`."""
        if found and self._told and self._told_at - self._stream_since >= BUSY_SECONDS:
            self._listener.busy()
        held = self._listener.held
        self._more = found > 0 and (found == asked or not held)
        if found:
            self._lingered = 0
        elif not held and self._lingered < len(LINGER_SECONDS):
            self._poll_at = now + LINGER_SECONDS[self._lingered]
            self._lingered += not self._told  # who is told meanwhile, as others are, is not idle
            self._told = False
            return False
        if self._more:
            self._told = False
            if not held:
                self._schedule.restart()
        return not self._more

    def rest(self, found: int, now: float, due_in: float | None) -> None:
        """Wait to be notified, or for the schedule, or for the job that falls due."""
        if found:  # fewer than asked for, and any new one will be notified
            if due_in is not None:
                self._poll_at = min(self._poll_at, now + max(due_in, 0.001))
        else:
            self._listener.idle()
            pause = self._schedule.pause(settled=self._listener.settled, due_in=due_in)
            self._poll_at = now + (min(pause, AGAIN_SECONDS) if self._told else pause)
        self._told = False

    def failed(self) -> None:
        """Take in that a claim or its question failed: whatever was the reason still stands."""
        self._more = True

    def supply(self, room: int, now: float) -> None:
        """Take in for how many jobs there is room; without any for a while, we are not idle."""
        if room > 0 and not self._more:
            self._busy_since = None
        elif self._busy_since is None:
            self._busy_since = now
        elif now - self._busy_since >= BUSY_SECONDS:
            self._listener.busy()
            self._busy_since = inf  # said; nothing to look for by the clock
            self._more = True

    def next_at(self, room: int) -> float:
        """When to look again by the clock, in monotonic seconds."""
        if room > 0:
            return self._poll_at
        return inf if self._busy_since is None else self._busy_since + BUSY_SECONDS
