"""Connections that never wait for ever: a database may hang without closing them."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg

from jobq._connection import limited

__all__ = ["ANSWER_SECONDS", "Answering", "NoAnswer"]

ANSWER_SECONDS = 15.0  # a little more than the statement timeout


class NoAnswer(psycopg.OperationalError):
    """The database was asked, and said nothing for too long; the connection is cut."""


class Answering(psycopg.Connection[Any]):
    """Every wait for the server ends after `patience` seconds; raises NoAnswer."""

    patience = ANSWER_SECONDS

    @contextmanager
    def waiting_for(self, seconds: float) -> Iterator[None]:
        """Have this much patience in the block, which is in no other one."""
        self.patience = seconds
        try:
            yield
        finally:
            del self.patience

    def wait(self, *args: Any, **kwargs: Any) -> Any:
        """Wait as psycopg does for whatever was asked."""
        began = time.monotonic()
        try:
            with limited(self, self.patience):
                return super().wait(*args, **kwargs)
        except psycopg.OperationalError as error:
            waited = time.monotonic() - began
            if error.sqlstate or waited < self.patience:  # the server, or the network, did answer
                raise
            raise NoAnswer(f"no answer for {waited:.0f} s") from error
