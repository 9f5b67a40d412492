"""A handler may fork; what it forked never goes on as a worker, however it leaves the handler."""

import os
import signal
import sys
from collections.abc import Callable

import pytest
from helpers import wait_until

from jobq._executor import Executor
from jobq._executor_async import AsyncExecutor
from test_executor import handled


def raise_error() -> None:
    raise ValueError("in the child")


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize(
    ("asynchronous", "kind"), [(False, Executor), (True, Executor), (True, AsyncExecutor)]
)
@pytest.mark.parametrize(
    ("leave", "code"),
    [
        (lambda: None, 0),
        (sys.exit, 0),
        (lambda: sys.exit(3), 3),
        (lambda: sys.exit("why"), 1),
        (raise_error, 1),
    ],
    ids=["return", "exit", "exit 3", "exit why", "raise"],
)
def test_a_forked_child_ends_where_it_leaves_the_handler(
    leave: Callable[[], None], code: int, asynchronous: bool, kind: type[Executor]
) -> None:
    children: list[int] = []

    def fork() -> None:
        child = os.fork()
        if child:
            children.append(child)
        else:
            leave()

    async def fork_async() -> None:
        fork()

    job = handled(fork_async if asynchronous else fork, kind)
    (child,) = children

    def ended() -> tuple[int, int] | None:
        pid, status = os.waitpid(child, os.WNOHANG)
        return (pid, status) if pid else None

    try:
        _, status = wait_until(ended, timeout=10)
    except BaseException:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        raise
    assert job._ended == "succeeded"
    assert os.waitstatus_to_exitcode(status) == code
