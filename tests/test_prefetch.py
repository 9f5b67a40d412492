from dataclasses import dataclass

from jobq._prefetch import MOST_HELD, Prefetch


@dataclass(eq=False)
class Claimed:
    kind: str = "a"
    _lost_leases: int = 0
    attempt: int = 1
    max_attempts: int = 10


def jobs(count: int, kind: str = "a") -> list[Claimed]:
    return [Claimed(kind) for _ in range(count)]


def warmed_up(threads: int = 10, seconds: float = 0.0001, kind: str = "a") -> Prefetch:
    """A policy that has seen many quick jobs of one kind."""
    policy = Prefetch(threads)
    for _ in range(20):
        policy.take(jobs(policy.room(0, [])), threads)
        policy.measure(kind, 100, 100 * seconds)
    return policy


def test_a_fresh_process_claims_one_job_a_thread() -> None:
    policy = Prefetch(10)
    assert policy.room(0, []) == 10
    assert policy.room(7, [("a", 0.0, False)] * 7) == 3
    assert policy.room(10, [("a", 0.0, False)] * 10) == 0


def test_quick_jobs_are_held_up_to_the_limit() -> None:
    assert warmed_up(seconds=0.00001).room(0, []) == MOST_HELD
    held, rest = warmed_up(seconds=0.00001).take(jobs(500), 10)
    assert (len(held), len(rest)) == (500, 0)


def test_prefetch_grows_by_doubling() -> None:
    policy = Prefetch(10)
    sizes = []
    for _ in range(5):
        room = policy.room(0, [])
        sizes.append(room)
        policy.take(jobs(room), 10)
        policy.measure("a", room, room * 0.00001)
    assert sizes == [10, 30, 70, 150, 310]


def test_what_is_held_starts_within_a_tenth_of_a_second() -> None:
    # 10 ms a job and 10 threads: 100 more start within 100 ms.
    policy = warmed_up(seconds=0.01)
    assert policy.room(0, []) == 110
    held, rest = policy.take(jobs(500), 10)
    assert (len(held), len(rest)) == (110, 390)


def test_slow_jobs_are_not_prefetched() -> None:
    policy = warmed_up(seconds=5)
    assert policy.room(0, []) == 10
    assert policy.room(10, [("a", 0.0, False)] * 10) == 0


def test_an_unmeasured_kind_is_not_prefetched() -> None:
    policy = warmed_up(seconds=0.00001)
    batch = jobs(20) + jobs(30, "new")
    held, rest = policy.take(batch, 10)
    assert held == batch[:20]
    assert rest == batch[20:]
    assert policy.room(0, []) == 10


def test_one_slow_batch_stops_prefetch_at_once_and_is_forgotten_slowly() -> None:
    policy = warmed_up(seconds=0.00001)
    policy.measure("a", 1, 2.0)
    assert policy.room(0, []) == 10
    rooms = []
    for _ in range(60):
        policy.measure("a", 1, 0.00001)
        rooms.append(policy.room(0, []))
    assert rooms == sorted(rooms)
    assert rooms[0] == 10
    assert rooms[-1] > 100


def test_busy_threads_that_will_not_be_free_soon_do_not_count() -> None:
    policy = warmed_up(seconds=0.01)
    stuck = [("a", 30.0, False)] * 9
    assert policy.room(9, stuck) == 1 + 10
    assert policy.room(10, [*stuck, ("a", 30.0, False)]) == 0
    unmeasured = [("new", 0.0, False)] * 9
    assert policy.room(9, unmeasured) == 1 + 10


def test_a_job_that_cost_a_lease_starts_in_a_free_thread_with_nothing_behind_it() -> None:
    policy = warmed_up(seconds=0.00001)
    suspect = Claimed(_lost_leases=1)
    batch = [*jobs(50), suspect, *jobs(50)]
    held, rest = policy.take(batch, 3)
    assert held[0] is suspect
    assert len(held) == 3
    assert len(rest) == 98
    assert policy.room(1, [("a", 0.0, True)]) == 9


def test_a_job_that_cost_a_lease_is_given_back_when_no_thread_is_free() -> None:
    policy = warmed_up(seconds=0.00001)
    batch = [Claimed(_lost_leases=1), *jobs(5)]
    assert policy.take(batch, 0) == ([], batch)
    assert policy.take(batch, -7) == ([], batch)
    # The next claim is for free threads only, and so finds one for it.
    assert policy.room(10, [("a", 0.0, False)] * 10) == 0


def test_a_job_on_its_last_attempt_never_waits_for_a_thread() -> None:
    policy = warmed_up(seconds=0.00001)
    batch = [*jobs(5), Claimed(attempt=3, max_attempts=3), *jobs(50)]
    assert policy.take(batch, 3) == (batch[:3], batch[3:])
    # What comes next may be like it: only free threads ask, until a claim brings none.
    assert policy.room(4, [("a", 0.0, False)] * 4) == 6
    assert policy.room(10, [("a", 0.0, False)] * 10) == 0
    policy.take([Claimed(attempt=1, max_attempts=1)] * 6, 6)
    assert policy.room(4, [("a", 0.0, False)] * 4) == 6
    policy.take(jobs(6), 6)
    assert policy.room(4, [("a", 0.0, False)] * 4) > 6


def test_a_claim_is_put_off_until_half_of_what_is_held_has_gone() -> None:
    policy = warmed_up(seconds=0.00001)
    running = [("a", 0.0, False)] * 10
    assert policy.room(MOST_HELD - 1, running) == 0
    assert policy.room(MOST_HELD // 2, running) >= MOST_HELD // 2 - 10


def test_more_threads_than_the_limit_are_all_fed() -> None:
    policy = warmed_up(threads=2000, seconds=0.00001)
    assert policy.room(0, []) == 2000


def test_too_many_waiting_jobs_are_noticed() -> None:
    policy = warmed_up(seconds=0.00001)
    assert not policy.overfull(500, [("a", 0.0, False)] * 10)
    assert policy.overfull(500, [("a", 10.0, False)] * 10)
    policy.measure("a", 1, 60.0)
    assert policy.overfull(1, [])
