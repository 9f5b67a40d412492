"""The demo's input: files as they were found, and whether a job's result is right about them."""

import hashlib
import os
import stat
import sysconfig
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["Comparison", "Found", "SourceFile", "compare", "find_files", "standard_library"]


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A regular file, and what would tell that it was changed."""

    path: str
    stamp: tuple[int, ...]


@dataclass(slots=True)
class Found:
    """Files below a folder in the order of their paths, and what was left out, by reason."""

    files: list[SourceFile] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)


@dataclass(slots=True)
class Comparison:
    """Results against the files themselves, by hashlib."""

    same: int = 0
    bytes: int = 0
    changed: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


def standard_library() -> Path:
    """Return the folder of Python's standard library."""
    return Path(sysconfig.get_path("stdlib"))


def find_files(folder: Path, *, without: Collection[str] = ()) -> Found:
    """Return the readable regular files below `folder`; links are not followed.

    Folders directly below it that are named in `without` are left out.
    """
    found = Found()
    for parent, folders, names in os.walk(folder):
        if parent == os.fspath(folder):
            found.skipped.update(f"folder {name}" for name in folders if name in without)
            folders[:] = [name for name in folders if name not in without]
        folders.sort()
        for name in sorted(names):
            path = os.path.join(parent, name)  # noqa: PTH118 - os.walk deals in strings
            info = os.lstat(path)
            if not stat.S_ISREG(info.st_mode):
                found.skipped["links or special files"] += 1
            elif not _is_text(path):
                found.skipped["names that are not UTF-8"] += 1
            elif not os.access(path, os.R_OK):
                found.skipped["not readable"] += 1
            else:
                found.files.append(SourceFile(path, _stamp(info)))
    return found


def compare(files: Iterable[SourceFile], results: Mapping[str, Mapping[str, Any]]) -> Comparison:
    """Read every file again and compare digest and size with its job's result.

    A file that was changed or removed since it was found says nothing about its job; it is named
    in `changed`. A difference in one that was not is in `wrong`.
    """
    comparison = Comparison()
    for file in files:
        result = results.get(file.path)
        try:
            with Path(file.path).open("rb") as stream:
                truth = {
                    "sha256": hashlib.file_digest(stream, "sha256").hexdigest(),
                    "bytes": stream.tell(),
                }
                changed = _stamp(os.fstat(stream.fileno())) != file.stamp
        except OSError:
            comparison.changed.append(file.path)
            continue
        if result is not None and truth.items() <= result.items():
            comparison.same += 1
            comparison.bytes += result["bytes"]
        elif changed:
            comparison.changed.append(file.path)
        else:
            comparison.wrong.append(file.path)
    return comparison


def _stamp(info: os.stat_result) -> tuple[int, ...]:
    return (info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns)


def _is_text(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True
