"""What goes into the verbs: new jobs, claims, and how runs ended."""

from dataclasses import dataclass, fields

from model_store import NOW, FromNow

HOUR = 3600.0
RETRY_BASE, RETRY_CAP = 3600, 10_000


@dataclass(frozen=True)
class Claim:
    """What a worker knows of its claim."""

    job_id: int
    token: str


class Terse:
    """A short repr, for scripts: what differs from the defaults."""

    def __repr__(self) -> str:
        values = [(f, getattr(self, f.name)) for f in fields(self)]  # type: ignore[arg-type]
        told = [f"{f.name}={value!r}" for f, value in values if value != f.default]
        return f"{type(self).__name__}({', '.join(told)})"


@dataclass(frozen=True, repr=False)
class Outcome(Terse):
    """How a run ended; `later`: an hour from now instead of at once (None: the backoff)."""

    verdict: str
    text: str | None = None
    retryable: bool = True
    later: bool | None = None

    @property
    def due(self) -> FromNow | None:
        return None if self.later is None else from_now(later=self.later)

    def element(self, claim: Claim) -> dict[str, object]:
        """As jobq.settle takes it."""
        seconds = None if self.later is None else HOUR * self.later
        return {
            "job_id": claim.job_id, "lease_token": claim.token, "outcome": self.verdict,
            "result": claim.job_id, "error": self.text, "retryable": self.retryable,
            "retry_in_seconds": seconds, "delay_seconds": seconds,
        }  # fmt: skip

    def call(self, claim: Claim) -> tuple[str, list[object]]:
        """As a verb of its own: its name, and its arguments after the claim."""
        delay = None if self.later is None else f"{HOUR * self.later} seconds"
        calls: dict[str, tuple[str, list[object]]] = {
            "succeeded": ("succeed", [str(claim.job_id)]),
            "failed": ("fail", [self.text, self.retryable, delay]),
            "released": ("release", []),
            "snoozed": ("snooze", [delay or "0 seconds"]),
            "cancelled": ("stop", [self.text]),
        }
        return calls[self.verdict]


@dataclass(frozen=True, repr=False)
class NewJob(Terse):
    kind: str = "a"
    number: int = 0
    priority: int = 0
    max_attempts: int = 2
    key: str | None = None
    later: bool = False

    def element(self) -> dict[str, object]:
        """As jobq.enqueue_many takes it."""
        return {
            "kind": self.kind, "payload": {"n": self.number}, "priority": self.priority,
            "delay": HOUR if self.later else None, "max_attempts": self.max_attempts,
            "idempotency_key": self.key,
            "retry_base_seconds": RETRY_BASE, "retry_cap_seconds": RETRY_CAP,
        }  # fmt: skip


def from_now(*, later: bool) -> FromNow:
    return FromNow(HOUR, HOUR) if later else NOW
