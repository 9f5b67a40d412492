"""One run of the demo: enqueue, let a worker die, work, measure, compare, report, stay."""

import contextlib
import os
import secrets
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from jobq._children import Child, sigterm_as_ctrl_c, stop_all
from jobq.cli.database import Target, connect_cli
from jobq.cli.exits import FAILED, OK, CommandError
from jobq.cli.output import complain, counted
from jobq.cli.times import show_seconds
from jobq.dashboard import Dashboard, DashboardError
from jobq.demo.files import SourceFile, compare, find_files, standard_library
from jobq.demo.processes import WorkerProcess
from jobq.demo.queue import Counts, RunQueue
from jobq.demo.report import Findings, faults, print_report
from jobq.demo.screen import Screen, say
from jobq.demo.stories import CRASH, ENDLESS, stories
from jobq.migrate import migrate

__all__ = ["command_name", "run"]

_VICTIM_SECONDS = 30.0
_STALLED_SECONDS = 60.0
_LOOK_SECONDS = 0.2


def run(target: Target, path: Path | None, dashboard_port: int, *, headless: bool) -> int:
    """Run the demo and return its exit code; unless headless, stay up until Ctrl-C."""
    name = secrets.token_hex(4)
    with sigterm_as_ctrl_c(), target.serving() as dsn:
        report = migrate(dsn)
        with connect_cli(dsn) as conn:
            server = conn.info.server_version // 10000
            where = "jobq's own, data in .jobq" if target.embedded else "the one you named"
            say(f"PostgreSQL {server} ({where}), schema version {report.schema_version}")
            queue = RunQueue(conn, name)
            if not queue.lock():
                raise CommandError(FAILED, "another demo runs on this database: stop it first")
            demo = _Demo(target, dsn, queue, path and path.resolve())
            try:
                if not headless:
                    demo.open_dashboard(dashboard_port)
                off = demo.play()
                if not headless:
                    off += demo.stay()
            finally:
                stop_all(demo.beside)
    for line in off:
        complain(f"off: {line}")
    return FAILED if off else OK


class _Demo:
    def __init__(self, target: Target, dsn: str, queue: RunQueue, folder: Path | None) -> None:
        self._target = target
        self._dsn = dsn
        self._queue = queue
        self._folder = folder
        self._stories = stories(queue.run)
        #: What runs beside this process, all stopped together.
        self.beside: list[Child] = []
        self._dashboard: Dashboard | None = None

    def open_dashboard(self, port: int) -> None:
        """Start the dashboard, to be looked at while the demo plays; without one it plays too."""
        try:
            self._dashboard = Dashboard(self._dsn, port=port)
        except DashboardError as error:
            say(f"no dashboard: {error}")
        else:
            self.beside.append(self._dashboard)

    def play(self) -> list[str]:
        """Do all of it, print the report, and return what is off."""
        started = time.monotonic()
        files = self._find()
        if left := self._queue.cancel_leftovers():
            say(f"cancelled {counted(left, 'job')} that an earlier demo left behind")
        crash = next(story for story in self._stories if story.new.kind == CRASH)
        self._queue.enqueue_story(crash)
        victim = self._start("--kinds", CRASH, victim=self._queue.run)
        found = Findings(len(files), self._queue.enqueue_files(files))
        for story in self._stories:
            if story is not crash:
                self._queue.enqueue_story(story)
        found.refusal = self._queue.try_taken_key(crash)
        others = len(self._stories)
        say(
            f"{counted(len(files), 'job')} enqueued in {show_seconds(found.enqueue_seconds)},"
            f" and {others} with a purpose"
        )
        if victim.wait(_VICTIM_SECONDS) == -signal.SIGKILL:
            say(f"worker process {victim.pid} was killed by its job; its lease brings the job back")
        else:
            found.broken.append(f"the worker that was to die did not: {victim.log_tail()}")
            victim.kill()
        self.beside.remove(victim)
        self._tell_dashboard()
        worker = self._start()
        say(f"worker process {worker.pid} started\n")
        with Screen(len(files), self._stories) as screen:
            self._work(screen, worker, found)
            self._examine(screen, worker, files, found)
        print_report(found, time.monotonic() - started)
        off = faults(found)
        say("\neverything is as it should be" if not off else f"\n{counted(len(off), 'thing')} off")
        return off

    def stay(self) -> list[str]:
        """Keep everything up until Ctrl-C; return what is off if something ends by itself."""
        with contextlib.suppress(KeyboardInterrupt):
            self._tell_how_to_look()
            while True:
                for child in self.beside:
                    if child.exit_code is not None:
                        return [f"{child.name} {child.pid} ended: {child.log_tail()}"]
                time.sleep(_LOOK_SECONDS)
        say("\nstopping")
        return []

    def _tell_how_to_look(self) -> None:
        given = "--embedded" if self._target.embedded else "--database-url …"
        long = next(story for story in self._stories if story.new.kind == "demo.long")
        payload = f'{{"run": "{self._queue.run}", "text": "hello"}}'
        if self._dashboard:
            say(f"\nThe dashboard: {self._dashboard.url}")
        say("\nThe worker stays up until Ctrl-C. From another terminal in this folder:")
        jobq = command_name()
        say(f"  {jobq} list {given}")
        say(f"  {jobq} show {long.job_id} {given}")
        say(f"  {jobq} enqueue demo.note --payload '{payload}' {given}")
        if self._target.embedded:
            say(f"  export DATABASE_URL={self._dsn}")

    def _tell_dashboard(self) -> None:
        """Say where the dashboard is once it serves; it had the victim's time to start."""
        if self._dashboard is None:
            return
        try:
            self._dashboard.wait_until_ready()
        except DashboardError as error:
            say(f"no dashboard: {error}")
            stop_all([self._dashboard])
            self.beside.remove(self._dashboard)
            self._dashboard = None
        else:
            say(f"dashboard: {self._dashboard.url}")

    def _find(self) -> list[SourceFile]:
        # The packages installed beside the standard library can be ten times as much.
        folder = self._folder or standard_library()
        without = () if self._folder else ("site-packages", "dist-packages")
        found = find_files(folder, without=without)
        skipped = ", ".join(f"{count:,} {why}" for why, count in sorted(found.skipped.items()))
        say(
            f"{counted(len(found.files), 'file')} in {folder}"
            + (f" (left out: {skipped})" if skipped else "")
        )
        if not found.files:
            raise CommandError(FAILED, f"no files to read in {folder}: name another --path")
        return found.files

    def _start(self, *options: str, victim: str | None = None) -> WorkerProcess:
        listen = None if self._target.embedded else os.environ.get("JOB_WORKER_LISTEN_URL")
        worker = WorkerProcess(self._dsn, *options, listen_url=listen, victim=victim)
        self.beside.append(worker)
        return worker

    def _work(self, screen: Screen, worker: WorkerProcess, found: Findings) -> None:
        """Look on until every job is over, cancelling the endless one once it runs."""
        endless = next(story for story in self._stories if story.new.kind == ENDLESS)
        asked, before, moved_at = False, None, time.monotonic()
        while True:
            looked_at = time.monotonic()
            counts, states = self._queue.counts(), self._queue.states(self._stories)
            # It has reported: a job that is only claimed may still be given back unstarted.
            if not asked and states[endless.job_id]["progress"] is not None:
                self._queue.cancel(endless)
                asked = True
            left = _unfinished(counts)
            screen.update(counts, states, f"{counted(left, 'job')} to go")
            if left == 0:
                return
            state = (counts, {i: (s["attempt"], s["progress"]) for i, s in states.items()})
            if state != before:
                before, moved_at = state, looked_at
            if worker.exit_code is not None:
                found.broken.append(f"the worker ended by itself: {worker.log_tail()}")
                return
            if looked_at - moved_at > _STALLED_SECONDS:
                found.broken.append(
                    f"{left:,} jobs are not finished, and nothing moved for {_STALLED_SECONDS:g} s:"
                    f" {worker.log_tail()}"
                )
                return
            # Counting a large folder's jobs must not keep the database from running them.
            time.sleep(max(_LOOK_SECONDS, 4 * (time.monotonic() - looked_at)))

    def _examine(
        self, screen: Screen, worker: WorkerProcess, files: Sequence[SourceFile], found: Findings
    ) -> None:
        queue = self._queue
        states = queue.states(self._stories)
        if worker.exit_code is None and not found.broken:
            screen.update(queue.counts(), states, "measuring how soon an idle worker starts a job")
            found.latency = queue.measure_pick_up()
        screen.update(queue.counts(), states, "comparing every result with its file")
        found.comparison = compare(files, queue.results())
        screen.update(queue.counts(), states, "replaying the history of every job")
        found.problems = queue.verify()
        found.counts = queue.counts()
        found.throughput = queue.throughput()
        found.ends = [
            (story, queue.outcome(story, found.throughput.first_start)) for story in self._stories
        ]


def command_name() -> str:
    """How to call jobq from a shell: by name, else the way that this process was started."""
    if shutil.which("jobq"):
        return "jobq"
    started = Path(sys.argv[0])
    if started.name == "__main__.py":
        return f"{shlex.quote(sys.executable)} -m jobq"
    return shlex.quote(str(started))


def _unfinished(counts: Counts) -> int:
    return sum(
        jobs
        for by_status in counts.values()
        for status, jobs in by_status.items()
        if status in ("queued", "running")
    )
