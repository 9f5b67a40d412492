"""What the demo shows while it runs: a live display on a terminal, plain lines elsewhere."""

import sys
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from jobq.cli.database import Row
from jobq.cli.output import STYLES, is_terminal, visible
from jobq.cli.times import age
from jobq.demo.queue import Counts
from jobq.demo.stories import Story

__all__ = ["Screen", "say"]

_LINE_SECONDS = 2.0
_FINAL = ("succeeded", "failed", "cancelled")


def say(text: str) -> None:
    """Print text at once, made visible."""
    sys.stdout.write(f"{visible(text, lines=True)}\n")
    sys.stdout.flush()


class Screen:
    """Progress of one run, as long as it is entered."""

    def __init__(self, files: int, told: Sequence[Story]) -> None:
        self._files = files
        self._stories = told
        self._progress = Progress(
            TextColumn("files"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            expand=True,
        )
        self._task = self._progress.add_task("files", total=files)
        console = Console(highlight=False, markup=False, emoji=False)
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._line = ""
        self._next_line = 0.0

    def __enter__(self) -> Self:
        if is_terminal():
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._live.stop()

    def update(self, counts: Counts, states: Mapping[int, Row], doing: str) -> None:
        """Show how far everything is."""
        done = sum(counts.get("demo.file", {}).get(status, 0) for status in _FINAL)
        if is_terminal():
            self._progress.update(self._task, completed=done)
            group = Group(self._progress, self._table(states), Text(doing, "dim"))
            self._live.update(group, refresh=True)
            return
        ended = sum(row["status"] in _FINAL for row in states.values())
        line = f"files {done:,} of {self._files:,}, others {ended} of {len(states)}: {doing}"
        if line != self._line and time.monotonic() >= self._next_line:
            self._line, self._next_line = line, time.monotonic() + _LINE_SECONDS
            say(line)

    def _table(self, states: Mapping[int, Row]) -> Table:
        table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
        titles, statuses = max(len(s.title) for s in self._stories), len("succeeded")
        table.add_column(no_wrap=True, width=titles)
        table.add_column(no_wrap=True, width=statuses)
        table.add_column(no_wrap=True)
        # What is left of a narrow terminal; the table itself would take from all columns alike.
        room = max(self._live.console.width - titles - statuses - 4, 8)
        for story in self._stories:
            row = states.get(story.job_id)
            if row is not None:
                status = Text(row["status"], STYLES[row["status"]])
                note = Text(_note(row))
                note.truncate(room, overflow="ellipsis")
                table.add_row(story.title, status, note)
        return table


def _note(row: Row) -> str:
    if row["status"] == "running":
        progress = "" if row["progress"] is None else f", {row['progress']:.0%}"
        return f"attempt {row['attempt']}{progress}"
    if row["status"] == "queued":
        error = (row["last_error"] or "").strip().rsplit("\n", 1)[-1]
        return visible(f"due {age(row['available_at'], row['now'])} {error}")
    return f"attempt {row['attempt']}"
