"""Parse every SQL file under db/, and the bodies of the functions in them.

    python tests/parse_sql.py [FILE …]

Exits 1 if one has a syntax error; names of tables and columns are not checked.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pglast
from pglast import ast
from pglast.parser import ParseError

ROOT = Path(__file__).resolve().parents[1]
SCALAR_TYPES = {
    name
    for file in (ROOT / "db" / "migrations").glob("*.sql")
    for name in re.findall(r"create (?:type|domain) jobq\.(\w+)", file.read_text("utf-8"))
}


def main(arguments: list[str]) -> int:
    """Parse the files and report; returns the exit code."""
    files = [Path(argument) for argument in arguments] or sorted((ROOT / "db").rglob("*.sql"))
    errors = [error for file in files for error in syntax_errors(file.read_text("utf-8"), file)]
    for error in errors:
        print(error, file=sys.stderr)
    print(f"{len(files)} SQL files, {len(errors)} errors")
    return 1 if errors or not files else 0


def syntax_errors(text: str, file: Path) -> Iterator[str]:
    """Yield a message for each statement or function body that does not parse."""
    try:
        statements = pglast.parse_sql(text)
    except ParseError as error:
        yield f"{file}: {error}"
        return
    for raw in statements:
        statement = raw.stmt
        if not isinstance(statement, ast.CreateFunctionStmt):
            continue
        options = {option.defname: option.arg for option in statement.options or ()}
        name = ".".join(part.sval for part in statement.funcname or ())
        start = raw.stmt_location or 0
        try:
            if options["language"].sval == "plpgsql":
                end = start + (raw.stmt_len or len(text))
                pglast.parse_plpgsql(_plain(text[start:end], name.split(".")[-1]))
            elif "as" in options:
                pglast.parse_sql(options["as"][0].sval)
        except ParseError as error:
            yield f"{file}: body of {name}: {error}"


def _plain(function: str, name: str) -> str:
    """Spare the parser what it cannot look up: types, other schemas, results named in full."""
    for scalar in SCALAR_TYPES:
        function = re.sub(rf"\bjobq\.{scalar}\b", "text", function)
    function = re.sub(r"\bjobq\.\w+\[\]", "text[]", function).replace("jobq.", "public.")
    return re.sub(rf"\b{name}\.(?=\w)", "", function)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
