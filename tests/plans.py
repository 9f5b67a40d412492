"""The plans that the running functions really use, as auto_explain tells them."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from helpers import Connection
from psycopg.errors import Diagnostic

SETTINGS = (
    "load 'auto_explain'",
    "set auto_explain.log_min_duration = 0",
    "set auto_explain.log_nested_statements = on",
    "set auto_explain.log_analyze = on",
    "set auto_explain.log_buffers = on",
    "set auto_explain.log_timing = off",
    "set auto_explain.log_format = json",
    "set auto_explain.log_level = notice",
    "set client_min_messages = notice",
)


@dataclass(frozen=True)
class Plan:
    """One statement that ran inside a call, and its plan's nodes, the root first."""

    query: str
    nodes: list[dict[str, Any]]

    @property
    def buffers(self) -> int:
        root = self.nodes[0]
        return int(root["Shared Hit Blocks"] + root["Shared Read Blocks"])

    def kinds(self, relation: str | None = None) -> set[str]:
        """The types of its nodes; with a name, of those that read this table."""
        return {
            node["Node Type"]
            for node in self.nodes
            if relation is None or node.get("Relation Name") == relation
        }

    def indexes(self) -> set[str]:
        return {node["Index Name"] for node in self.nodes if "Index Name" in node}


class Explained:
    """Runs queries on a connection and returns the plans of all statements inside them."""

    def __init__(self, conn: Connection) -> None:
        self._conn = conn
        self._seen: list[str] = []
        conn.add_notice_handler(self._keep)
        for setting in SETTINGS:
            conn.execute(setting.encode())

    def _keep(self, notice: Diagnostic) -> None:
        self._seen.append(notice.message_primary or "")

    def run(self, query: str, *args: object) -> list[Plan]:
        """Run the query; returns the plans, nested statements before what called them."""
        self._seen.clear()
        self._conn.execute(query, args)
        return [_parse(text) for text in self._seen if "plan:" in text]

    def find(self, query: str, fragment: str, *args: object) -> Plan:
        """Run the query; returns the one nested statement whose text has the fragment."""
        found = [plan for plan in self.run(query, *args) if fragment in plan.query]
        assert len(found) == 1, f"{len(found)} statements contain {fragment!r}"
        return found[0]


def total_buffers(conn: Connection, query: str, *args: object) -> int:
    """Return how many buffers a query reads, with everything in its functions and triggers."""
    row = conn.execute(f"explain (analyze, buffers, timing off, format json) {query}", args)
    ((plans,),) = row.fetchall()
    root = plans[0]["Plan"]
    return int(root["Shared Hit Blocks"] + root["Shared Read Blocks"])


def _parse(text: str) -> Plan:
    told = json.loads(text.split("plan:\n", 1)[1])
    return Plan(told["Query Text"], list(_nodes(told["Plan"])))


def _nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", []):
        yield from _nodes(child)
