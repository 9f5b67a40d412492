"""Every verb, in any order, by three sessions whose transactions commit, roll back or dawdle.

After each step the session that made it must see exactly the rows and events of the model; and a
claim must take what the model has at the head of the queue. A verb on a row that another open
transaction holds must skip it and say so, or wait: the waits end by lock_timeout.
"""

import itertools
import os
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from helpers import Connection
from hypothesis import HealthCheck, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule, run_state_machine_as_test

from model_clients import Client
from model_machine import NAMES
from model_values import NewJob, Outcome
from model_verbs import Verbs

STEPS = int(os.environ.get("JOBQ_PROVE_STEPS", "2000"))

few = st.integers(1, 4)
kinds = st.sampled_from(["a", "b"])
jobs = st.integers(1, 6)  # ids count from 1 in each script
jobs_at_work = st.sampled_from([0, 0, 0, -1, -1, -2, 1, 2, 3])  # 0 or less: of the newest claims
claims = st.sampled_from([0, 0, 0, 1, 1, 2, 4])  # 0 is the newest
new_jobs = st.builds(
    NewJob,
    kind=kinds,
    number=st.sampled_from([0, 0, 1]),
    priority=st.sampled_from([0, 0, 0, 5, -100]),
    max_attempts=st.sampled_from([2, 1, 3]),
    key=st.sampled_from([None, None, None, "k1", "k2"]),
    later=st.sampled_from([False, False, False, True]),
)
outcomes = st.builds(
    Outcome,
    verdict=st.sampled_from(["succeeded", "failed", "released", "snoozed", "cancelled"]),
    text=st.sampled_from([None, "broken"]),
    retryable=st.sampled_from([True, True, False]),
    later=st.sampled_from([None, False, True]),
)
leases = st.sampled_from(["1 hour", "1 microsecond"])
steering: dict[str, Any] = {
    "wanted": st.fixed_dictionaries(
        {},
        optional={
            "ids": st.lists(jobs, min_size=1, max_size=4),
            "kind": kinds,
            "priority": st.sampled_from([0, 5]),
            "status": st.sampled_from(["failed", "running"]),
        },
    ),
    "max_jobs": st.sampled_from([1, 2, 10]),
    "dry_run": st.sampled_from([False, False, False, True]),
}

#: The verbs, how often each is called, and its arguments beside `by`.
MOVES: dict[str, tuple[int, dict[str, Any]]] = {
    # First what shrinks best: outside a transaction it does nothing.
    "commit": (6, {}),
    "enqueue": (6, {"new": new_jobs}),
    "enqueue_many": (6, {"batch": st.lists(new_jobs, min_size=1, max_size=4)}),
    "claim": (
        14,
        {
            "kinds": st.sampled_from([None, None, ["a"], ["b"], ["b", "a"]]),
            "max_jobs": few,
            "lease": leases,
            "anew": st.booleans(),
        },
    ),
    "settle": (9, {"outcomes": st.lists(st.tuples(claims, outcomes), min_size=1, max_size=4)}),
    "renew": (5, {"claims": st.lists(claims, min_size=1, max_size=4), "lease": leases}),
    "succeed": (4, {"claim": claims}),
    "fail": (4, {"claim": claims, "retryable": st.booleans(), "later": st.none() | st.booleans()}),
    "release": (4, {"claim": claims}),
    "snooze": (3, {"claim": claims, "later": st.booleans()}),
    "stop": (2, {"claim": claims, "reason": st.sampled_from([None, "enough"])}),
    "report_progress": (2, {"claim": claims, "progress": st.sampled_from([0.0, 0.5])}),
    "log": (2, {"claim": claims}),
    "expire": (3, {"claim": claims}),
    "reap": (6, {"max_jobs": few}),
    "cancel": (7, {"job": jobs_at_work}),
    "retry": (9, {"job": jobs_at_work, "extra_attempts": st.integers(1, 2)}),
    "cancel_jobs": (2, steering),
    "retry_jobs": (4, {**steering, "extra_attempts": st.integers(1, 2)}),
    "set_priority": (3, {**steering, "priority": st.sampled_from([0, 5, 100])}),
    "reschedule": (4, {**steering, "later": st.sampled_from([False, False, True])}),
    "clone": (2, {"job": jobs}),
    "purge": (2, {"max_jobs": few}),
    "edit": (2, {"job": jobs}),
    "begin": (9, {}),
    "savepoint": (3, {}),
    "rollback_to_savepoint": (3, {}),
    "rollback": (3, {}),
    "listen": (3, {"kinds": st.sampled_from([["a"], ["b"], ["a", "b"]])}),
    "unlisten": (2, {}),
}  # fmt: skip


@dataclass(frozen=True, repr=False)
class Move:
    """A call, written as one."""

    verb: str
    arguments: dict[str, Any]

    def __repr__(self) -> str:
        told = [f"{name}={value!r}" for name, value in self.arguments.items()]
        return f"{self.verb}({', '.join(told)})"


def moves_of(verb: str) -> st.SearchStrategy[Move]:
    arguments = {"by": st.sampled_from(NAMES), **MOVES[verb][1]}
    return st.builds(Move, st.just(verb), st.fixed_dictionaries(arguments))


STRATEGIES = {verb: moves_of(verb) for verb in MOVES}
VERBS = [verb for verb, (weight, _) in MOVES.items() for _ in range(weight)]


class Machine(Verbs):
    # One rule, for rules of their own would each be left out of half of the scripts.
    @rule(move=st.sampled_from(VERBS).flatmap(lambda verb: STRATEGIES[verb]))
    def play(self, move: Move) -> None:
        self.failed = True
        getattr(self, move.verb)(**move.arguments)
        self.failed = False

    @initialize(batch=st.lists(new_jobs, min_size=2, max_size=6))
    def start(self, batch: list[NewJob]) -> None:
        self.enqueue_many("ann", batch)


THREE_SCRIPTS = settings(
    max_examples=3,
    stateful_step_count=60,
    deadline=None,
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.timeout(400 + STEPS // 20)  # five minutes of it to shrink a failure
def test_no_interleaving_departs_from_the_model(
    connect: Callable[..., Connection],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clients = {name: Client(connect()) for name in NAMES}
    # No step may wait for anything but a row.
    for table in ("jobs", "job_events"):
        clients["ann"].conn.execute(f"alter table jobq.{table} set (autovacuum_enabled = false)")
    tally: Counter[str] = Counter()
    monkeypatch.setattr(Machine, "clients", clients)
    monkeypatch.setattr(Machine, "tally", tally)
    # By threes, each with a seed of its own: of a long run most scripts repeat parts of others.
    first_seed = 0 if os.environ.get("CI") else random.getrandbits(32)
    for number in itertools.count(first_seed):
        if tally["steps"] >= STEPS:
            break
        run_state_machine_as_test(seed(number)(Machine), settings=THREE_SCRIPTS)
    print(", ".join(f"{what}: {count}" for what, count in sorted(tally.items())))
    assert tally["steps"] >= STEPS
