"""Writing to standard output: tables for people, one JSON document for scripts.

Stored text can hold anything, so it is never taken for markup, and characters that could drive a
terminal are shown as escapes. Layout follows the terminal's width; where there is none (a pipe, a
file) nothing is cut, wrapped or coloured.
"""

import json
import re
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from psycopg.adapt import Buffer, Loader
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

__all__ = [
    "ClosedPipe",
    "Column",
    "JsonText",
    "JsonTextLoader",
    "complain",
    "counted",
    "is_terminal",
    "print_json",
    "print_lines",
    "print_table",
    "shortened",
    "visible",
    "write",
]

STYLES = {
    "queued": "cyan",
    "running": "blue",
    "succeeded": "green",
    "failed": "red",
    "cancelled": "yellow",
    "lease_lost": "red",
    "off": "bold red",
}

_NOT_ASCII = re.compile(r"[^\x0a\x20-\x7e]")


class ClosedPipe(Exception):
    """Whoever read our output has gone."""


class JsonText(str):
    """JSON as the database wrote it: numbers keep every digit on their way through."""

    __slots__ = ()


class JsonTextLoader(Loader):
    """Loads jsonb as JsonText."""

    def load(self, data: Buffer) -> JsonText:
        """Return the text as it came."""
        return JsonText(bytes(data).decode())


@dataclass(frozen=True, slots=True)
class Column:
    """A column's heading; `wide` ones give way when the terminal is narrow."""

    name: str
    right: bool = False
    wide: bool = False


def is_terminal() -> bool:
    """Whether a person reads standard output."""
    return sys.stdout.isatty()


def write(text: str) -> None:
    """Write text that is safe already; raises ClosedPipe when nobody reads any more."""
    try:
        sys.stdout.write(text)
    except BrokenPipeError:
        raise ClosedPipe from None


def complain(message: str) -> None:
    """Write an error's lines to standard error."""
    first, *more = visible(message, lines=True).splitlines() or [""]
    sys.stderr.write("".join([f"jobq: {first}\n", *(f"      {line}\n" for line in more)]))


def visible(text: object, *, lines: bool = False) -> str:
    """Return text in which all that is not a printable character is an escape such as \\x1b.

    `lines` keeps line breaks, and writes tabs as spaces.
    """
    string = str(text)
    if string.isprintable():
        return string
    if lines:
        return "\n".join(visible(line.replace("\t", "    ")) for line in string.split("\n"))
    return "".join(c if c.isprintable() else _escape(c) for c in string)


def shortened(text: str, limit: int) -> str:
    """Return text cut to `limit` characters on a terminal, and whole elsewhere."""
    return f"{text[: limit - 1]}…" if is_terminal() and len(text) > limit else text


def counted(number: int, noun: str) -> str:
    """Return number and noun: 1 job, 2,000 jobs."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def print_lines(lines: Iterable[str]) -> None:
    """Print lines as they are, made visible."""
    write("".join(f"{visible(line)}\n" for line in lines))


def print_json(document: Mapping[str, Any]) -> None:
    """Print one JSON object; JsonText passes through as it is. Only ASCII comes out."""
    write(f"{_NOT_ASCII.sub(_json_escape, _json(document, 0))}\n")


def print_table(
    columns: Sequence[Column],
    rows: Sequence[Sequence[object]],
    *,
    indent: int = 0,
    styled: str | None = None,
) -> None:
    """Print rows under their headings; cells of column `styled` get the colour of their value."""
    cells = [["" if cell is None else visible(cell) for cell in row] for row in rows]
    if not is_terminal():
        write(_plain(columns, cells, indent))
        return
    table = Table(box=None, pad_edge=False, show_edge=False, padding=(0, 2, 0, 0))
    for column in columns:
        table.add_column(
            Text(column.name, "bold"),
            justify="right" if column.right else "left",
            overflow="fold",
            no_wrap=not column.wide,
            ratio=None,
        )
    place = next((i for i, column in enumerate(columns) if column.name == styled), -1)
    for row in cells:
        table.add_row(
            *(Text(c, STYLES.get(c, "") if i == place else "") for i, c in enumerate(row))
        )
    width = max(shutil.get_terminal_size().columns - indent, 20)
    console = Console(width=width, highlight=False, markup=False, emoji=False)
    with console.capture() as captured:
        console.print(table)
    write("".join(f"{' ' * indent}{line.rstrip()}\n" for line in captured.get().splitlines()))


def _plain(columns: Sequence[Column], rows: Sequence[Sequence[str]], indent: int) -> str:
    grid = [[column.name for column in columns], *rows]
    widths = [max(cell_len(row[i]) for row in grid) for i in range(len(columns))]
    lines = []
    for row in grid:
        padded = []
        for column, cell, width in zip(columns, row, widths, strict=True):
            space = " " * (width - cell_len(cell))
            padded.append(space + cell if column.right else cell + space)
        lines.append(f"{' ' * indent}{'  '.join(padded).rstrip()}\n")
    return "".join(lines)


def _escape(character: str) -> str:
    code = ord(character)
    names = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
    if character in names:
        return names[character]
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def _json(value: object, depth: int) -> str:
    """JSON of a document: objects and lists of the outer two levels one entry a line."""
    if isinstance(value, JsonText):
        return str(value)
    if isinstance(value, datetime):
        return json.dumps(value.isoformat().replace("+00:00", "Z"))
    pad, end = "  " * (depth + 1), "  " * depth
    if isinstance(value, Mapping) and value:
        items = [f"{json.dumps(key)}: {_json(item, depth + 1)}" for key, item in value.items()]
        if depth >= 2:
            return f"{{{', '.join(items)}}}"
        return "{\n" + ",\n".join(pad + item for item in items) + f"\n{end}}}"
    if isinstance(value, list | tuple) and value and depth < 2:
        return "[\n" + ",\n".join(pad + _json(item, depth + 1) for item in value) + f"\n{end}]"
    return json.dumps(value, default=str)


def _json_escape(match: re.Match[str]) -> str:
    character = match.group()
    return "\\u007f" if character == "\x7f" else json.dumps(character)[1:-1]
