"""What every scenario is given: a durable server, empty databases, sizes to scale, rows to fill.

A scenario is a function `scenario(bench: Bench) -> list[Row]`; the first line of its docstring is
its table's title. Within a round each variant runs once, in order, then comes the next round: a
slow minute of the machine falls on all of them, and ratios are taken within a round.
"""

import os
import re
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import inf
from pathlib import Path

import psycopg
from meter import Meter

from jobq import _binaries, embedded
from jobq.migrate import migrate

__all__ = ["SERVER", "Bench", "Curve", "Meter", "Row", "Rows", "Scenario", "open_bench"]

# Beside these fsync, full_page_writes and synchronous_commit keep their defaults: on.
SERVER = {"shared_buffers": "1GB", "max_wal_size": "4GB", "max_connections": "200"}

Points = list[tuple[float, float]]


@dataclass
class Row:
    """One line of a table: one value a round.

    `ratio_to` names the row that it is divided by, round by round. `target` ("≥ 0.9") is for the
    ratio where there is one, else for the value.
    """

    what: str
    unit: str
    values: list[float] = field(default_factory=list)
    ratio_to: str | None = None
    target: str | None = None

    @property
    def median(self) -> float:
        """The median of the rounds."""
        return statistics.median(self.values)

    def ratios(self, rows: list["Row"]) -> list[float]:
        """Its values over the other row's, round by round; none without such a row."""
        base = next((row for row in rows if row.what == self.ratio_to), None)
        if base is None:
            return []
        pairs = zip(self.values, base.values, strict=False)
        return [value / other for value, other in pairs if other]

    def met(self, rows: list["Row"]) -> bool | None:
        """Whether the median meets the target; None without one that can be read."""
        bound = re.match(r"([≥≤<>])\s*([\d.]+)", self.target or "")
        values = self.ratios(rows) if self.ratio_to else self.values
        if bound is None or not values:
            return None
        figure, limit = statistics.median(values), float(bound[2])
        return figure >= limit if bound[1] in "≥>" else figure <= limit


class Rows:
    """Rows in the order in which they were first added to."""

    def __init__(self) -> None:
        self._rows: dict[str, Row] = {}

    def add(
        self,
        what: str,
        unit: str,
        value: float,
        *,
        ratio_to: str | None = None,
        target: str | None = None,
    ) -> None:
        """Append this round's value to the row of that name."""
        row = self._rows.setdefault(what, Row(what, unit, [], ratio_to, target))
        row.values.append(value)

    def add_meter(self, what: str, meter: Meter) -> None:
        """Append what a meter measured, one row a figure."""
        for (name, unit), value in meter.per_job().items():
            self.add(f"{what}: {name}", unit, value)

    def list(self) -> list[Row]:
        """All rows."""
        return list(self._rows.values())


@dataclass
class Curve:
    """Series of (x, y) points that become one picture."""

    name: str
    title: str
    x_label: str
    y_label: str
    series: dict[str, Points]


Scenario = Callable[["Bench"], list[Row]]


class Bench:
    """The server, the sizes and the curves of one run."""

    def __init__(
        self, server: embedded.Server, folder: Path, *, rounds: int, scale: float = 1.0
    ) -> None:
        self.server = server
        self.folder = folder
        self.rounds = rounds
        self.scale = scale
        self.curves: list[Curve] = []
        self.until = inf  # on the monotonic clock: after it, no further round begins
        self._made = 0
        self._templates: set[str] = set()

    @property
    def full(self) -> bool:
        """Whether this is the long run."""
        return self.scale > 1

    def repeat(self) -> Iterator[int]:
        """Number the rounds; fewer where another one as long as the last would end too late."""
        for number in range(self.rounds):
            begun = time.monotonic()
            yield number
            if 2 * time.monotonic() - begun > self.until:
                return

    def jobs(self, count: int, full: int | None = None) -> int:
        """A number of jobs to scale; in the long run `full`, where it is given. At least 100."""
        size = full if self.full and full is not None else count * self.scale
        return max(int(size), min(count, 100))

    def seconds(self, count: float, full: float | None = None) -> float:
        """A duration to scale, as `jobs`. At least 0.3."""
        size = full if self.full and full is not None else count * self.scale
        return max(size, min(count, 0.3))

    def fresh(self, like: str = "empty", seed: Callable[[str], object] | None = None) -> str:
        """DSN of a new migrated database; the one before it is dropped.

        Empty, or a copy of the template `like`, which `seed(dsn)` fills when it is first wanted.
        """
        self._template("empty", migrate)
        if seed is not None:
            self._template(like, seed, of="empty")
        self._admin(f"drop database if exists bench_{self._made} with (force)")
        self._made += 1
        self._copy(f"bench_{self._made}", f"template_{like}")
        self._admin("checkpoint")
        return self.dsn(f"bench_{self._made}")

    def forget(self, like: str) -> None:
        """Drop a template, to give its space back."""
        self._templates.discard(like)
        self._admin(f"drop database if exists template_{like} with (force)")

    def dsn(self, database: str) -> str:
        """DSN of a database of the server."""
        return psycopg.conninfo.make_conninfo(self.server.dsn, dbname=database)

    def curve(
        self, name: str, title: str, x_label: str, y_label: str, series: dict[str, Points]
    ) -> None:
        """Hand in a picture: `name`.png in the folder."""
        self.curves.append(Curve(name, title, x_label, y_label, series))

    def _template(self, name: str, seed: Callable[[str], object], of: str = "") -> None:
        if name not in self._templates:
            self._copy(f"template_{name}", f"template_{of}" if of else "template0")
            seed(self.dsn(f"template_{name}"))
            self._templates.add(name)

    def _copy(self, database: str, template: str) -> None:
        # By files: a large one is not written to the WAL.
        self._admin(f"create database {database} template {template} strategy file_copy")

    def _admin(self, statement: str) -> None:
        with psycopg.connect(self.server.dsn, autocommit=True) as conn:
            conn.execute(statement.encode())


@contextmanager
def open_bench(folder: Path, *, rounds: int, scale: float = 1.0) -> Iterator[Bench]:
    """A bench on a throw-away server; JOBQ_TEST_PG_BINDIR names another PostgreSQL's programs."""
    bindir = os.environ.get("JOBQ_TEST_PG_BINDIR")
    binaries = _binaries.inspect_bindir(Path(bindir)) if bindir else None
    with tempfile.TemporaryDirectory(prefix="jobq-bench-") as data:
        Path(data).chmod(0o711)
        with embedded.server(data, settings=SERVER, binaries=binaries) as server:
            yield Bench(server, folder, rounds=rounds, scale=scale)
