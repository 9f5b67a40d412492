import asyncio
import ctypes
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import pytest
from helpers import wait_until

from jobq import App, Cancel, CurrentJob, Fatal, Snooze, current_job
from jobq._bell import Bell
from jobq._executor import Executor
from jobq._executor_async import AsyncExecutor, executor_for
from jobq._outcome import ERROR_BYTES, clean, element, error_text
from jobq.context import Notes


def claim(kind: str = "k", payload: bytes = b"{}", lease: float = 60) -> CurrentJob:
    deadline = time.monotonic() + lease
    return CurrentJob(deadline, Notes(), 1, kind, payload, 1, 10, "token", 0)


#: What may run an app that has only `async def` handlers: in life the first one does.
ASYNC = pytest.mark.parametrize("kind", [AsyncExecutor, Executor])
Kind = type[Executor]


@contextmanager
def executing(app: App, threads: int = 2, kind: Kind | None = None) -> Iterator[Executor]:
    executor = (kind or executor_for)(app.jobs, threads, Bell())
    executor.start()
    try:
        yield executor
    finally:
        executor.stop()


def gather(executor: Executor, done: list[CurrentJob], count: int) -> None:
    """Collect what has ended until there are so many."""

    def enough() -> bool:
        done.extend(executor.finished())
        return len(done) == count

    wait_until(enough)


def run(
    app: App, *jobs: CurrentJob, threads: int = 2, kind: Kind | None = None
) -> list[CurrentJob]:
    """Run the jobs and return them in the order in which they ended."""
    done: list[CurrentJob] = []
    with executing(app, threads, kind) as executor:
        executor.submit(jobs)
        gather(executor, done, len(jobs))
        assert executor.in_hand == 0
    return done


def handled(handler: Callable[..., Any], kind: Kind | None = None) -> CurrentJob:
    app = App("dbname=unused")
    app.job("k")(handler)
    (job,) = run(app, claim(), kind=kind)
    return job


def test_a_plain_return_is_a_success() -> None:
    job = handled(lambda: None)
    assert element(job) == '{"job_id":1,"lease_token":"token","outcome":"succeeded"}'


def test_a_result_is_json() -> None:
    assert handled(lambda: {"a": [1, "ü"]})._outcome == (
        '"outcome":"succeeded","result":{"a":[1,"ü"]}'
    )


class Unprintable(Exception):
    def __str__(self) -> str:
        raise KeyboardInterrupt


def raising(exc: BaseException) -> Callable[[], None]:
    def handler() -> None:
        raise exc

    return handler


@pytest.mark.parametrize(
    ("exc", "ended", "said"),
    [
        (ValueError("no good"), "failed", "no good"),
        (Fatal("never"), "failed", '"retryable":false'),
        (Snooze(1.5), "snoozed", '"delay_seconds":1.5'),
        (Cancel("enough"), "cancelled", '"error":"enough"'),
        (Unprintable(), "failed", "Unprintable"),
        (ValueError("a\0b\ud800"), "failed", "a\\\\x00b\\\\ud800"),
        (ValueError(), "failed", "ValueError"),
    ],
)
def test_what_a_handler_raises_decides_the_outcome(exc: Exception, ended: str, said: str) -> None:
    job = handled(raising(exc))
    assert job._ended == ended
    assert said in job._outcome


async def failing() -> None:
    await asyncio.sleep(0)
    raise ValueError("no good")


@pytest.mark.parametrize(
    ("handler", "kind"),
    [(raising(ValueError("no good")), Executor), (failing, Executor), (failing, AsyncExecutor)],
)
def test_a_failure_tells_the_handlers_lines_not_ours(
    handler: Callable[..., Any], kind: Kind
) -> None:
    text = handled(handler, kind)._outcome
    assert "raise " in text
    assert "jobq/_executor" not in text


@pytest.mark.parametrize("result", [object(), float("nan"), "\0", b"\xff"])
def test_a_result_that_cannot_be_stored_is_a_final_failure(result: object) -> None:
    job = handled(lambda: result)
    assert job._ended == "failed"
    assert "the result cannot be stored" in job._outcome
    assert '"retryable":false' in job._outcome


def test_a_payload_that_does_not_fit_is_a_retryable_failure() -> None:
    app = App("dbname=unused")

    @app.job("k")
    def handler(n: int) -> None: ...

    (job,) = run(app, claim(payload=b'{"n": "x"}'))
    assert job._ended == "failed"
    assert "does not fit" in job._outcome
    assert "retryable" not in job._outcome


def test_async_handlers_alone_need_no_threads() -> None:
    app = App("dbname=unused")
    app.job("k")(failing)
    with executing(app, threads=3):
        assert handler_threads(3) == []
    app.job("other")(lambda: None)
    with executing(app, threads=3):
        assert len(handler_threads(3)) == 3


@ASYNC
def test_what_an_async_handler_returns_or_raises_decides_the_outcome(kind: Kind) -> None:
    async def returns() -> dict[str, int]:
        await asyncio.sleep(0)
        return {"a": 1}

    async def snoozes() -> None:
        raise Snooze(1.5)

    async def wants(n: int) -> None: ...

    assert handled(returns, kind)._outcome == '"outcome":"succeeded","result":{"a":1}'
    assert handled(snoozes, kind)._ended == "snoozed"
    assert "does not fit" in handled(wants, kind)._outcome


@ASYNC
def test_of_async_handlers_at_most_n_run_at_once_in_order(kind: Kind) -> None:
    app = App("dbname=unused")
    now, most = 0, 0
    order: list[CurrentJob] = []

    @app.job("k")
    async def handler() -> None:
        nonlocal now, most
        order.append(current_job())
        now += 1
        most = max(most, now)
        await asyncio.sleep(0.01)
        now -= 1

    jobs = [claim() for _ in range(20)]
    with executing(app, threads=3, kind=kind) as executor:
        executor.submit(jobs[:7])
        executor.submit(jobs[7:])
        done: list[CurrentJob] = []
        gather(executor, done, 20)
        assert executor.in_hand == executor.waiting == 0
        assert executor.running() == []
    assert most == 3
    if kind is AsyncExecutor:  # threads take them in order, and reach the loop as they may
        assert order == jobs


@pytest.mark.parametrize("exit_with", [SystemExit, KeyboardInterrupt, GeneratorExit])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_nothing_that_is_raised_ends_a_thread(
    exit_with: type[BaseException], asynchronous: bool
) -> None:
    app = App("dbname=unused")
    barrier = threading.Barrier(3)

    async def bad_async() -> None:
        await asyncio.sleep(0)
        raise exit_with

    app.job("bad")(bad_async if asynchronous else raising(exit_with()))
    app.job("good")(lambda: barrier.wait(10) and None)
    with executing(app, threads=3) as executor:
        executor.submit([claim("bad") for _ in range(9)])
        executor.submit([claim("good") for _ in range(3)])
        done: list[CurrentJob] = []
        gather(executor, done, 12)
    assert sorted(job._ended for job in done) == ["failed"] * 9 + ["succeeded"] * 3
    assert all(exit_with.__name__ in job._outcome for job in done if job.kind == "bad")


def test_both_kinds_together_run_at_most_n_at_once() -> None:
    app = App("dbname=unused")
    lock, now, most = threading.Lock(), 0, 0
    both = set()

    def enter(kind: str) -> None:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
            both.add(kind)

    def leave() -> None:
        nonlocal now
        with lock:
            now -= 1

    @app.job("sync")
    def sync() -> None:
        enter("sync")
        time.sleep(0.02)
        leave()

    @app.job("async")
    async def asynchronous() -> None:
        enter("async")
        await asyncio.sleep(0.02)
        leave()

    run(app, *[claim(kind) for _ in range(10) for kind in ("sync", "async")], threads=4)
    assert most == 4
    assert both == {"sync", "async"}


@ASYNC
def test_async_handlers_run_at_the_same_time(kind: Kind) -> None:
    app = App("dbname=unused")
    arrived = 0

    @app.job("k")
    async def handler() -> None:
        nonlocal arrived
        arrived += 1
        while arrived < 3:  # noqa: ASYNC110 - the others are to arrive meanwhile
            await asyncio.sleep(0.001)

    done = run(app, *[claim() for _ in range(3)], threads=3, kind=kind)
    assert [job._ended for job in done] == ["succeeded"] * 3


def test_a_plain_function_may_return_an_awaitable() -> None:
    async def later() -> str:
        await asyncio.sleep(0)
        return current_job().kind

    job = handled(lambda: later())  # noqa: PLW0108 - not a coroutine function itself
    assert job._outcome == '"outcome":"succeeded","result":"k"'


def test_current_job_is_the_one_that_runs_here() -> None:
    app = App("dbname=unused")
    seen = []

    @app.job("sync")
    def sync() -> None:
        seen.append(current_job())

    @app.job("async")
    async def asynchronous() -> None:
        await asyncio.sleep(0.01)
        seen.append(await asyncio.to_thread(current_job))

    jobs = [claim(kind) for _ in range(5) for kind in ("sync", "async")]
    run(app, *jobs)
    assert set(seen) == set(jobs)


@ASYNC
def test_a_claim_that_lapsed_or_was_lost_before_it_started_does_not_run(kind: Kind) -> None:
    app = App("dbname=unused")
    ran: list[int] = []

    @app.job("k")
    async def handler() -> None:
        ran.append(1)

    lost = claim()
    lost._lost = True
    done = run(app, claim(lease=-1), lost, kind=kind)
    assert [job._ended for job in done] == ["", ""]
    assert ran == []


@ASYNC
def test_drain_takes_back_what_has_not_started(kind: Kind) -> None:
    app = App("dbname=unused")
    go = threading.Event()

    @app.job("k")
    async def handler() -> None:
        while not go.is_set():  # noqa: ASYNC110 - set by another thread
            await asyncio.sleep(0.001)

    with executing(app, kind=kind) as executor:
        jobs = [claim() for _ in range(6)]
        executor.submit(jobs)
        wait_until(lambda: len(executor.running()) == 2)
        assert (executor.in_hand, executor.waiting) == (6, 4)
        assert set(executor.drain()) == set(jobs) - set(executor.running())
        assert (executor.in_hand, executor.waiting) == (2, 0)
        go.set()
        done: list[CurrentJob] = []
        gather(executor, done, 2)


@ASYNC
def test_interrupt_cancels_async_handlers(kind: Kind) -> None:
    app = App("dbname=unused")
    cleaned = threading.Event()

    @app.job("k")
    async def handler() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            cleaned.set()

    with executing(app, kind=kind) as executor:
        executor.submit([claim()])
        wait_until(lambda: any(job._interrupt for job in executor.running()))
        executor.interrupt()
        (job,) = wait_until(executor.finished)
    assert cleaned.is_set()
    assert job._ended == "failed"
    assert "CancelledError" in job._outcome


@ASYNC
def test_what_a_job_sets_in_its_context_stays_there(kind: Kind) -> None:
    app = App("dbname=unused")
    tenant: ContextVar[int] = ContextVar("tenant", default=0)
    seen: list[int] = []

    @app.job("k")
    async def handler() -> None:
        seen.append(tenant.get())
        tenant.set(7)
        await asyncio.sleep(0)

    run(app, *[claim() for _ in range(9)], threads=2, kind=kind)
    assert seen == [0] * 9


def test_a_handler_that_cancels_all_tasks_costs_no_job() -> None:
    app = App("dbname=unused")

    @app.job("k")
    async def handler() -> None:
        for task in asyncio.all_tasks():
            if task is not asyncio.current_task():
                task.cancel()
        await asyncio.sleep(0)

    with executing(app, threads=3) as executor:
        executor.submit([claim() for _ in range(30)])
        done: list[CurrentJob] = []
        gather(executor, done, 30)
        assert executor.in_hand == 0
    assert {job._ended for job in done} <= {"succeeded", "failed", "released"}
    assert all(job._started_at <= job._finished_at for job in done)


def test_a_task_that_never_began_gives_its_job_back() -> None:
    app = App("dbname=unused")

    @app.job("k")
    async def handler() -> None:
        for task in asyncio.all_tasks():
            if task is not asyncio.current_task():
                task.cancel()

    done = run(app, claim(), claim(), claim(), threads=3)
    assert sorted(job._ended for job in done) == ["released", "released", "succeeded"]


def test_a_handler_that_never_ends_does_not_keep_the_others() -> None:
    app = App("dbname=unused")
    go = threading.Event()
    app.job("stuck")(lambda: go.wait(30) and None)
    app.job("k")(lambda: None)
    with executing(app) as executor:
        executor.submit([claim("stuck"), *[claim() for _ in range(20)]])
        done: list[CurrentJob] = []
        gather(executor, done, 20)
        assert {job.kind for job in done} == {"k"}
        go.set()
        wait_until(executor.finished)


@pytest.mark.parametrize("letter", ["x", "\0", "ü", "🙂", "\ud800"])
def test_errors_are_capped_with_head_and_tail_kept(letter: str) -> None:
    text = error_text(ValueError(letter * 20_000_000 + "the end"))
    assert len(text.encode()) <= ERROR_BYTES
    assert text.startswith("ValueError: ")
    assert text.endswith("the end")
    assert "[... cut ...]" in text
    assert "\0" not in text


def test_errors_within_the_cap_stay_whole() -> None:
    assert clean("ü" * (ERROR_BYTES // 2)) == "ü" * (ERROR_BYTES // 2)
    assert "cut" in clean("ü" * (ERROR_BYTES // 2) + "x")


@pytest.mark.parametrize("delay", [-1, float("nan"), float("inf")])
def test_snooze_wants_a_delay(delay: float) -> None:
    with pytest.raises(ValueError, match="delay"):
        Snooze(delay)


@pytest.mark.parametrize("fraction", [-0.1, 1.1, float("nan")])
def test_progress_wants_a_fraction(fraction: float) -> None:
    with pytest.raises(ValueError, match="fraction"):
        claim().progress(fraction)


def test_log_wants_a_level_it_knows() -> None:
    with pytest.raises(ValueError, match="debug, info, warning, error"):
        claim().log("x", level="loud")  # type: ignore[arg-type]


class Careless(Snooze):
    def __init__(self) -> None:
        Exception.__init__(self, "careless")


class Endless(Snooze):
    def __init__(self) -> None:
        self.seconds = float("inf")


class Odd(Snooze):
    def __init__(self) -> None:
        self.seconds = "soon"  # type: ignore[assignment]


@pytest.mark.parametrize("exc", [Careless(), Endless(), Odd()])
def test_a_snooze_without_a_delay_is_a_plain_failure(exc: Exception) -> None:
    job = handled(raising(exc))
    assert job._ended == "failed"
    assert type(exc).__name__ in job._outcome


def throw(thread_id: int | None, exc: type[BaseException]) -> None:
    """Raise in another thread, as libraries for time-outs do."""
    assert thread_id is not None
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread_id), ctypes.py_object(exc))


class Thrown(BaseException): ...


def handler_threads(slots: int) -> list[threading.Thread]:
    names = {f"jobq-{slot}" for slot in range(slots)}
    return [thread for thread in threading.enumerate() if thread.name in names]


def test_an_exception_thrown_into_a_waiting_thread_costs_no_job_and_no_thread() -> None:
    app = App("dbname=unused")
    app.job("k")(lambda: None)
    with executing(app, threads=1) as executor:
        (thread,) = handler_threads(1)
        throw(thread.ident, Thrown)  # arrives once the wait for a job is over
        executor.submit([claim(), claim()])
        done: list[CurrentJob] = []
        gather(executor, done, 2)
        assert thread.is_alive()
    assert sorted(job._ended for job in done) == ["released", "succeeded"]


def test_exceptions_thrown_at_any_moment_lose_no_job() -> None:
    app = App("dbname=unused")
    app.job("k")(lambda: None)
    done: list[CurrentJob] = []
    with executing(app) as executor:
        threads = handler_threads(2)
        assert len(threads) == 2
        stop = time.monotonic() + 3
        submitted = 0
        while time.monotonic() < stop:
            executor.submit([claim() for _ in range(50)])
            submitted += 50
            for thread in threads:
                throw(thread.ident, Thrown)
                time.sleep(0.0002)
            done += executor.finished()
        gather(executor, done, submitted)
        assert all(thread.is_alive() for thread in threads)
        assert executor.in_hand == 0
    assert len(set(done)) == submitted
    assert {job._ended for job in done} <= {"succeeded", "failed", "released"}


@ASYNC
@pytest.mark.parametrize("exit_with", [SystemExit, KeyboardInterrupt])
def test_the_event_loop_outlives_a_task_that_exits(
    exit_with: type[BaseException], kind: Kind
) -> None:
    app = App("dbname=unused")

    @app.job("bad")
    async def bad() -> None:
        async def leave() -> None:
            raise exit_with

        await asyncio.create_task(leave())

    @app.job("stop")
    async def stop() -> None:
        asyncio.get_running_loop().stop()

    @app.job("good")
    async def good() -> None:
        await asyncio.sleep(0.01)

    jobs = claim("bad"), claim("stop"), *[claim("good") for _ in range(3)]
    done = run(app, *jobs, kind=kind)
    ended = sorted((job.kind, job._ended) for job in done)
    assert ended == [("bad", "failed"), *[("good", "succeeded")] * 3, ("stop", "succeeded")]
