"""What writers record, and whether the table is what their commits say in the order of the log."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass

from tests.unit.table.tables import Row, contents

from tideline_table.hudi.instant import WRITE_ACTIONS, Action, State
from tideline_table.storage import Storage
from tideline_table.table import Table


@dataclass(frozen=True)
class Acknowledged:
    """One write that its writer was told is in."""

    instant: str
    sequence: int
    rows: tuple[Row, ...]

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Acknowledged:
        document = json.loads(text)
        return cls(document["instant"], document["sequence"], tuple(tuple(r) for r in document["rows"]))


def problems(table: Table, acknowledged: Iterable[Acknowledged]) -> list[str]:
    """Why the history is not the one that the writers were promised; empty when it is.

    For tables in which the later write wins: replaying the acknowledged writes in order of their sequence must give the table.
    """
    acknowledged = sorted(acknowledged, key=lambda a: a.sequence)
    found: list[str] = []
    done = {a.instant: a for a in table.state.actions.values() if a.state is State.COMPLETED and a.action in WRITE_ACTIONS}
    writes = {i: a for i, a in done.items() if a.action is Action.COMMIT}
    for a in acknowledged:
        if a.instant not in writes:
            found.append(f"write {a.instant} was acknowledged and is not completed in the log")
        elif writes[a.instant].sequence != a.sequence:
            found.append(f"write {a.instant} was acknowledged at {a.sequence}, the log has it at {writes[a.instant].sequence}")
    for instant in writes.keys() - {a.instant for a in acknowledged}:
        found.append(f"write {instant} is completed and nobody was told")
    expected: dict[tuple[str, str], Row] = {}
    for a in acknowledged:
        for row in a.rows:
            expected[row[0], row[1]] = row
    rows = contents(table)
    seen = [(r[0], r[1]) for r in rows]
    if len(set(seen)) < len(seen):
        found.append(f"keys that stand twice: {sorted({k for k in seen if seen.count(k) > 1})}")
    lost = set(expected.values()) - set(rows)
    if lost:
        found.append(f"rows that are lost: {sorted(lost)}")
    extra = set(rows) - set(expected.values())
    if extra:
        found.append(f"rows that nobody acknowledged or that should be overwritten: {sorted(extra)}")
    if list(table.state.pending()):
        found.append(f"pending: {list(table.state.pending())}")
    return found


def check_files(storage: Storage, table: Table) -> list[str]:
    """Every completed instant has its completed file; every visible file is there and no other."""
    names = {o.path.rsplit("/", 1)[-1] for o in storage.list_folder(".hoodie").objects}
    found = []
    for action in table.state.actions.values():
        if action.state is State.COMPLETED and f"{action.instant}.{action.action}" not in names:
            found.append(f"no completed file of {action.action} {action.instant}")
    on_disk = {o.path for o in storage.list_objects("") if o.path.endswith(".parquet")}
    known = {s.path for s in table.state.every_slice()}
    found += [f"{p} is missing" for p in known - on_disk] + [f"{p} is an orphan" for p in on_disk - known]
    return found
