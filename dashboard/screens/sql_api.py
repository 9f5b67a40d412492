"""The SQL functions, as the database itself describes them, with an example call of each."""

from collections.abc import Mapping
from typing import Any

import streamlit as st

import queries
from data import read
from examples import EXAMPLES
from ui import literal, live, shown

Row = Mapping[str, Any]

#: In the order of the page; what several levels may call stands with the first of CLOSEST.
LEVELS = {
    "producer": "Enqueues jobs, and cancels or retries single ones.",
    "worker": "Runs jobs.",
    "operator": "Looks, and steers jobs, many at once.",
    "reader": "Looks.",
    "every level": "May be called with any of the others.",
    "owner": "Only the owner of the schema may call it.",
}
CLOSEST = ("producer", "worker", "reader", "operator")
#: So few that each is shown whole.
FEW = 3


def main() -> None:
    """Draw the filter and the functions that fit it."""
    st.markdown(
        "All that programs do to the queue, they do by these functions of schema `jobq`. "
        "A role gets the right to call them by level: `select jobq.grant_access('role', 'level')`."
    )
    words = st.text_input(
        "Filter",
        key="q",
        bind="query-params",
        placeholder="part of a name, an argument, a description or an error code",
    )
    live(lambda: _functions(words or ""))


def _functions(words: str) -> None:
    found = [row for row in shown(read(queries.functions)) if _fits(row, words)]
    if not found:
        st.info("No function fits.", icon=":material/search_off:")
        return
    for level, meaning in LEVELS.items():
        rows = [row for row in found if _level(row) == level]
        if rows:
            st.subheader(level.capitalize(), anchor=False)
            st.caption(meaning)
            for row in rows:
                _function(row, expanded=len(found) <= FEW)


def _fits(row: Row, words: str) -> bool:
    text = " ".join(str(row[name] or "") for name in ("name", "signature", "returns", "comment"))
    return all(word in text.casefold() for word in words.casefold().split())


def _level(row: Row) -> str:
    if set(row["levels"]) == set(CLOSEST):
        return "every level"
    return next((level for level in CLOSEST if level in row["levels"]), "owner")


def _function(row: Row, *, expanded: bool) -> None:
    comment = str(row["comment"] or "")
    first, _, rest = comment.partition(". ")
    label = f"**{literal(row['name'])}** · {literal(first.removesuffix('.'), 300)}"
    with st.expander(label, expanded=expanded):
        st.code(call_of(row), language="sql", wrap_lines=True)
        if rest:
            st.markdown(literal(rest, 5000))
        also = [level for level in row["levels"] if level != _level(row)]
        if also and _level(row) in CLOSEST:
            st.caption(f"Also for {' and '.join(also)}.")
        if row["name"] in EXAMPLES:
            st.code(EXAMPLES[row["name"]], language="sql", wrap_lines=True)


def call_of(row: Row) -> str:
    """The signature over some lines, for reading."""
    arguments = [part for part in split_arguments(row["signature"]) if part]
    inner = ",\n".join(f"  {argument}" for argument in arguments)
    listed = f"(\n{inner}\n)" if len(arguments) > 1 else f"({arguments[0] if arguments else ''})"
    return f"jobq.{row['name']}{listed}\nreturns {row['returns']}"


def split_arguments(signature: str) -> list[str]:
    """The arguments of a signature; a comma within a default's quotes or brackets parts none."""
    parts, depth, quoted = [""], 0, False
    for character in signature:
        quoted ^= character == "'"
        depth += (character in "([") - (character in ")]") if not quoted else 0
        if character == "," and not quoted and not depth:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts]


main()
