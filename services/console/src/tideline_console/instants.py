"""Instants of one table: the steps of each in one value, from the read model or from the timeline that Apache Hudi wrote."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime, tzinfo
from typing import Any

from tideline_console.model import ReadModel, Row
from tideline_console.shared import Recent
from tideline_table.action import TableService, action_name
from tideline_table.errors import CorruptMetadata
from tideline_table.hudi import State, time_from_instant
from tideline_table.table import Table

WRITES = frozenset(("commit", "deltacommit", "replacecommit"))
SERVICES = frozenset(service.value for service in TableService)
DONE, RUNNING, PLANNED, UNDONE = "completed", "running", "planned", "rolled back"
MOST_INSTANTS = 10_000
KEPT_TABLES = 8


@dataclass(frozen=True, slots=True)
class Instant:
    """One instant. Times are seconds since the epoch; `ended_s` is None while it is pending."""

    instant: str
    action: str
    operation: str
    outcome: str
    begun_s: float
    ended_s: float | None
    writer: str
    sequence: int | None = None
    undone: str = ""
    """The instant that this rollback or restore undoes."""
    rows_inserted: int | None = None
    rows_updated: int | None = None
    rows_deleted: int | None = None
    files_added: int = 0
    files_deleted: int = 0
    bytes_added: int = 0
    groups_replaced: int = 0
    ran_s: float = 0.0
    """Seconds from the last start of its run to its end."""
    partitions: tuple[str, ...] = ()
    timeline_file: str = ""

    @property
    def is_write(self) -> bool:
        """Whether a writer made it, not a service."""
        return self.action in WRITES

    def to_json(self) -> dict[str, Any]:
        """Return the document of the API."""
        named = {name: getattr(self, name) for name in self.__slots__}
        return {**named, "partitions": list(self.partitions)}


class KeptInstants:
    """The instants of the tables that pages asked for last, which they ask for every two seconds. Thread-safe."""

    def __init__(self, model: ReadModel) -> None:
        self.model = model
        self._kept = Recent[list[Instant]](KEPT_TABLES)
        self.made = Recent[Any](4 * KEPT_TABLES)
        """What pages make of them."""

    def of(self, uid: str) -> list[Instant]:
        """Return what `instants_of` returns; callers do not change it."""
        return self._kept.of(uid, lambda: instants_of(self.model, uid), self.model.steps_stamp(uid))


def instants_of(model: ReadModel, uid: str) -> list[Instant]:
    """Return the instants of a table in order of their begin: the newest `MOST_INSTANTS`."""
    newest = "SELECT DISTINCT instant FROM steps INDEXED BY steps_by_instant WHERE uid = ? ORDER BY instant DESC LIMIT 1 OFFSET ?"
    cut = model.query(newest, uid, MOST_INSTANTS - 1)
    steps = model.query(
        "SELECT * FROM steps INDEXED BY steps_by_instant WHERE uid = ? AND instant >= ? ORDER BY sequence",
        uid,
        cut[0]["instant"] if cut else "",
    )
    # A savepoint has the instant of the write that it protects.
    found: dict[tuple[str, bool], list[Row]] = {}
    for step in steps:
        found.setdefault((step["instant"], step["action"] == "savepoint"), []).append(step)
    rollbacks = [step for step in steps if step["undone"] and step["to_state"] == State.COMPLETED.value]
    undone = {step["undone"] for step in rollbacks if step["action"] == "rollback"}
    rewound = [(step["undone"], step["sequence"]) for step in rollbacks if step["action"] == "restore"]
    return sorted((_instant(own, undone, rewound) for own in found.values()), key=lambda one: (one.begun_s, one.instant))


def _instant(steps: list[Row], undone: set[str], rewound: list[tuple[str, int]]) -> Instant:
    last = steps[-1]
    is_changing = last["action"] in WRITES or last["action"] in SERVICES
    is_undone = is_changing and (
        last["instant"] in undone or any(last["instant"] >= oldest and last["sequence"] < sequence for oldest, sequence in rewound)
    )
    outcome = _outcome(last["to_state"], is_undone=is_undone)
    is_over = outcome in (DONE, UNDONE)
    ended_s = (last["completed_s"] or last["time_s"]) if is_over else None
    started_s = max((step["time_s"] for step in steps if step["to_state"] == State.INFLIGHT.value), default=None)
    return Instant(
        instant=last["instant"],
        action=last["action"],
        operation=last["operation"] or "",
        outcome=outcome,
        begun_s=min(last["requested_s"], steps[0]["time_s"]),
        ended_s=ended_s,
        writer=steps[0]["writer"] if last["action"] in WRITES else last["writer"],
        sequence=last["sequence"],
        undone=last["undone"] or "",
        rows_inserted=last["rows_inserted"],
        rows_updated=last["rows_updated"],
        rows_deleted=last["rows_deleted"],
        files_added=last["files_added"],
        files_deleted=last["files_deleted"],
        bytes_added=last["bytes_added"],
        groups_replaced=last["groups_replaced"],
        ran_s=max(0.0, ended_s - started_s) if ended_s is not None and started_s is not None else 0.0,
        partitions=tuple(json.loads(last["partitions"])),
        timeline_file=last["timeline_file"],
    )


def _outcome(state: str, *, is_undone: bool) -> str:
    if is_undone or state == State.ROLLED_BACK.value:
        return UNDONE
    if state == State.COMPLETED.value:
        return DONE
    return PLANNED if state == State.REQUESTED.value else RUNNING


def time_of(instant: str, zone: tzinfo) -> float | None:
    """Return the time of an instant in seconds since the epoch; None if it names none, as `00000000000001` of Hudi's bootstrap."""
    try:
        at_s = time_from_instant(instant, zone).timestamp()
    except CorruptMetadata:
        return None
    return at_s if at_s >= 0 else None


def instants_on_timeline(table: Table) -> list[Instant]:
    """Return the instants on the active timeline of a table that only Apache Hudi writes, in order.

    One that names no time is drawn where the next one begins.
    """
    found: list[Instant] = []
    for record in sorted(table.state.actions.values(), key=lambda one: one.instant, reverse=True):
        own_s = time_of(record.instant, table.zone)
        begun_s = own_s if own_s is not None else found[-1].begun_s if found else 0.0
        is_done = record.state is State.COMPLETED
        ended_s = None
        if is_done:
            ended = record.completion or record.instant
            since_s = datetime.fromisoformat(record.since).timestamp() if record.since else 0.0
            ended_s = max(begun_s, since_s, time_of(ended, table.zone) or 0.0)
        outcome = _outcome(record.state.value, is_undone=False)
        name = action_name(record.action, record.operation)
        found.append(Instant(record.instant, name, record.operation.lower(), outcome, begun_s, ended_s, record.writer_id))
    return found[:MOST_INSTANTS][::-1]
