"""Where the SQL (and the dashboard) lie: alike from a checkout, an editable install and a wheel."""

from pathlib import Path

from jobq.errors import JobqError

_PACKAGE = Path(__file__).resolve().parent


def db_dir() -> Path:
    """Return the folder with `migrations/`, `functions/` and `views/`.

    Raises JobqError when the installation carries none.
    """
    return _find("db", "migrations")


def dashboard_dir() -> Path:
    """Return the folder with the dashboard's `app.py`; raises JobqError without one."""
    return _find("dashboard", "app.py")


def _find(name: str, marker: str) -> Path:
    # A wheel carries the folder inside the package; a checkout keeps it two levels above.
    for folder in (_PACKAGE / f"_{name}", _PACKAGE.parents[1] / name):
        if (folder / marker).exists():
            return folder
    raise JobqError(
        f"this installation of jobq has no {name}/ folder: install it again from a wheel, "
        "or from a complete checkout with `pip install -e .`"
    )
