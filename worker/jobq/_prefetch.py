"""How many jobs to hold: what can start at once, plus what run times say will start within 100 ms.

More would starve other workers when jobs turn out slow, and burn the attempts of all that are held
when one of them kills the process. So a kind not measured yet gets no prefetch; a job that has cost
a lease runs alone: it starts in a free thread and nothing waits behind it; and a job on its last
attempt never waits, since it would fail without a run if this process died.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from math import inf
from typing import Protocol, TypeVar

HORIZON_SECONDS = 0.1
MOST_HELD = 1000


class Claimed(Protocol):
    """What the policy looks at in a claimed job."""

    kind: str
    attempt: int
    max_attempts: int
    _lost_leases: int


class Ended(Protocol):
    """What it looks at in a job whose run is over; monotonic seconds."""

    kind: str
    _started_at: float
    _finished_at: float


C = TypeVar("C", bound=Claimed)


class Prefetch:
    """The policy; it has no clock, no thread and no connection of its own."""

    def __init__(self, threads: int, limit: int = MOST_HELD) -> None:
        self._threads = threads
        self._limit = limit
        self._seconds: dict[str, float] = {}
        self._mix: Counter[str] = Counter()  # kinds of the last claim
        self._must_start = False  # it brought a job that may not wait
        self._grown = 0

    def learn(self, ended: Iterable[Ended]) -> None:
        """Take in how long jobs ran."""
        runs: defaultdict[str, int] = defaultdict(int)
        seconds: defaultdict[str, float] = defaultdict(float)
        for job in ended:
            runs[job.kind] += 1
            seconds[job.kind] += job._finished_at - job._started_at
        for kind, count in runs.items():
            self.measure(kind, count, seconds[kind])

    def measure(self, kind: str, runs: int, seconds: float) -> None:
        """Take in that `runs` jobs of `kind` ran for `seconds` together.

        The estimate rises at once and falls by a third with each run.
        """
        mean = seconds / runs
        known = self._seconds.get(kind, 0.0)
        self._seconds[kind] = max(mean, mean + (known - mean) * (2 / 3) ** min(runs, 100))

    def room(self, in_hand: int, running: Iterable[tuple[str, float, bool]]) -> int:
        """Return how many jobs to claim now.

        `in_hand`: jobs that run or wait for a thread. `running`: of each job that runs, its kind,
        its seconds so far, and whether it has cost a lease.
        """
        room = self._threads + self._ahead(running) - in_hand
        # Refilled by halves: a claim costs a round trip and a commit, however small.
        if in_hand >= self._threads and room * 2 < self._threads + in_hand:
            return 0
        return max(room, 0)

    def overfull(self, waiting: int, running: Iterable[tuple[str, float, bool]]) -> bool:
        """Whether more jobs wait than will start in time, by what is known now."""
        return waiting > 2 * self._ahead(running)

    def take(self, jobs: Sequence[C], free: int) -> tuple[list[C], list[C]]:
        """Split what a claim brought into what to hold, in order, and what to give back."""
        if jobs:
            self._mix = Counter([job.kind for job in jobs])
            self._must_start = any(job.attempt >= job.max_attempts for job in jobs)
        free = max(free, 0)
        if len(jobs) <= free:
            held, rest = list(jobs), []
        elif any(job._lost_leases for job in jobs):
            order = sorted(jobs, key=lambda job: not job._lost_leases)
            held, rest = order[:free], order[free:]
        elif self._must_start:
            held, rest = list(jobs[:free]), list(jobs[free:])
        else:
            place = self._horizon(jobs, free)
            held, rest = list(jobs[:place]), list(jobs[place:])
        self._grown = len(held) if rest else min(self._limit, 2 * max(self._grown, len(held)))
        return held, rest

    def _horizon(self, jobs: Sequence[C], free: int) -> int:
        """The place of the first job that would not start in time."""
        budget = HORIZON_SECONDS * self._threads
        if self._expected() * len(jobs) <= budget:
            return len(jobs)
        for place in range(free, len(jobs)):
            budget -= self._seconds.get(jobs[place].kind, inf)
            if budget < -1e-9:
                return place
        return len(jobs)

    def _ahead(self, running: Iterable[tuple[str, float, bool]]) -> int:
        if self._must_start:
            return 0
        flowing = self._threads
        for kind, elapsed, suspect in running:
            if suspect:
                return 0
            if max(elapsed, self._seconds.get(kind, inf)) > HORIZON_SECONDS:
                flowing -= 1
        expected = self._expected()
        if expected == inf:
            return 0
        soon = HORIZON_SECONDS * flowing / max(expected, 1e-6)
        return int(min(soon, self._grown, max(self._limit - self._threads, 0)))

    def _expected(self) -> float:
        """Seconds that a job of the last claim's mix takes; infinite with an unmeasured kind."""
        seconds = [self._seconds.get(kind, inf) * count for kind, count in self._mix.items()]
        return sum(seconds) / self._mix.total() if seconds else inf
