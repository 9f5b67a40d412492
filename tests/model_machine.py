"""Three sessions, each on its connection: transactions, LISTEN, and the end of every step."""

from collections import Counter
from typing import Any, ClassVar, LiteralString

from hypothesis.stateful import RuleBasedStateMachine

from model import Queue
from model_clients import Client, clear
from model_store import agree
from model_values import Claim
from verbs import assert_consistent

NAMES = ("ann", "bob", "cid")


class Sessions(RuleBasedStateMachine):
    """What makes no sense where it stands does nothing, so that scripts shrink well."""

    clients: ClassVar[dict[str, Client]] = {}
    tally: ClassVar["Counter[str]"] = Counter()

    def __init__(self) -> None:
        super().__init__()
        clear(list(self.clients.values()))
        self.queue = Queue(NAMES, self.clients["ann"].now())
        self.claims: list[Claim] = []  # all that were ever made, the newest first
        self.failed = False

    def call(self, by: str, verb: str, refusal: str | None, query: str, *args: object) -> list[Any]:
        """Call a verb, which must be refused with this SQLSTATE; returns its rows."""
        is_open = self.queue.sessions[by].is_open
        self.tally[f"{verb}: {refusal}" if refusal else verb] += 1
        return self.clients[by].call(refusal, query, *args, in_transaction=is_open)

    def do(self, by: str, statement: LiteralString) -> None:
        self.tally[statement] += 1
        self.clients[by].conn.execute(statement)

    def check(self, by: str) -> None:
        """End the step: the session sees what the model has."""
        if not self.queue.sessions[by].is_open:
            self.queue.commit(by)
        client = self.clients[by]
        self.queue.observe(by, client.stored(), client.now())
        if not self.queue.sessions[by].is_open:
            self.hear(by)
        self.tally["steps"] += 1

    def hear(self, by: str) -> None:
        """Compare what the session was notified of since it was outside a transaction last."""
        heard, inbox = self.clients[by].heard, self.queue.sessions[by].inbox
        agree(sorted(heard), sorted(inbox))
        self.tally["heard"] += len(heard)
        heard.clear()
        inbox.clear()

    def begin(self, by: str) -> None:
        if not self.queue.sessions[by].is_open:
            self.do(by, "begin")
            self.queue.begin(by)
            self.check(by)

    def savepoint(self, by: str) -> None:
        if len(self.queue.sessions[by].marks) == 1:
            self.do(by, "savepoint mark")
            self.queue.savepoint(by)
            self.check(by)

    def rollback_to_savepoint(self, by: str) -> None:
        if len(self.queue.sessions[by].marks) > 1:
            self.do(by, "rollback to savepoint mark")
            self.queue.rollback_to_savepoint(by)
            self.check(by)

    def commit(self, by: str) -> None:
        if self.queue.sessions[by].is_open:
            self.do(by, "commit")
            self.queue.commit(by)
            self.check(by)
            assert_consistent(self.clients[by].conn)

    def rollback(self, by: str) -> None:
        if self.queue.sessions[by].is_open:
            self.do(by, "rollback")
            self.queue.rollback(by)
            self.check(by)
            assert_consistent(self.clients[by].conn)

    def listen(self, by: str, kinds: list[str]) -> None:
        session = self.queue.sessions[by]
        if not session.is_open:
            assert self.call(by, "listen", None, "select jobq.listen(%s)", kinds) == [(True,)]
            session.listens = True
            session.idle |= set(kinds)
            self.check(by)

    def unlisten(self, by: str) -> None:
        """Its locks are the session's: inside a transaction too."""
        if self.queue.sessions[by].idle:
            self.call(by, "unlisten", None, "select jobq.unlisten()")
            self.queue.sessions[by].idle.clear()
            self.check(by)

    def teardown(self) -> None:
        if self.failed:
            return
        for name in NAMES:
            self.rollback(name)
        for name in NAMES:
            self.check(name)
        assert_consistent(self.clients["ann"].conn)
