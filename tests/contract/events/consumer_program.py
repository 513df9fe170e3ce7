"""The consumers of the story, each a process: `consumer_program.py KIND URL FOLDER NAME MEMBER`. What it says
goes to `FOLDER/NAME.log`.

`pipeline` derives each source into a target in which rows count how many versions were applied, so that nothing may come twice.
`cache` keeps rows and positions in one file, and begins with a snapshot. `alert` appends a line for each change.
"""

from __future__ import annotations

import faulthandler
import json
import os
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa

import tideline
from tideline.events import EventConsumer, TableRecord, Transition

SOURCE = pa.schema([("id", pa.int64()), ("version", pa.int64())])
TARGET = pa.schema([("id", pa.int64()), ("version", pa.int64()), ("applied", pa.int64())])


def derive(source: tideline.Table, target: tideline.Table) -> None:
    """Apply what changed in `source` to `target`, exactly once."""
    done = target.inspect.progress("story")
    changes = source.changes(since=done.get("sequence", ""))
    rows = changes.read().to_pylist()
    if not rows:
        return
    applied = {row["id"]: row["applied"] for row in target.read().to_pylist()}
    written = [
        {**row["after"], "applied": applied.get(row["after"]["id"], 0) + _versions(row)} for row in rows if row["after"] is not None
    ]
    removed = [{"id": row["before"]["id"]} for row in rows if row["after"] is None]
    target.upsert(pa.Table.from_pylist(written, TARGET), delete=removed, progress=done.moved(sequence=changes.until))


def _versions(row: dict[str, Any]) -> int:
    return int(row["after"]["version"]) - (row["before"]["version"] if row["before"] else 0)


def pipeline(events: EventConsumer, folder: Path, handled: Path) -> None:
    for event in events.changes():
        _note(handled, event.sequence)
        while True:
            try:
                derive(tideline.open(event.table.base_path), tideline.open(folder / "targets" / event.table.name))
                break
            except tideline.errors.Conflict:
                # Another member had this table before a rebalance, and went first.
                continue


class Cache:
    """Rows and positions in one file that is replaced at once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        empty: dict[str, Any] = {"positions": {}, "rows": {}, "twice": 0, "gaps": 0, "snapshots": 0}
        self.state = json.loads(path.read_text()) if path.exists() else empty

    def seen(self) -> dict[str, int]:
        return dict(self.state["positions"])

    def apply(self, event: TableRecord | Transition) -> None:
        state, name, last = self.state, event.table.name, self.state["positions"].get(event.table_uid)
        rows = state["rows"].setdefault(name, {})
        state["snapshots"] += isinstance(event, TableRecord)
        if last is not None:
            state["twice"] += event.sequence <= last
            state["gaps"] += event.sequence > last + 1
        if isinstance(event, TableRecord) or event.datachange:
            changes = tideline.open(event.table.base_path).changes("" if last is None else last, event.sequence)
            for row in changes.read().to_pylist():
                rows.pop(str((row["before"] or row["after"])["id"]), None)
                if row["after"] is not None:
                    rows[str(row["after"]["id"])] = row["after"]["version"]
        state["positions"][event.table_uid] = event.sequence
        written = self.path.with_suffix(".new")
        written.write_text(json.dumps(state))
        written.replace(self.path)


def alert(events: EventConsumer, folder: Path, handled: Path) -> None:
    with (folder / "alerts").open("ab", buffering=0) as lines:
        for event in events.changes():
            _note(handled, event.sequence)
            lines.write(f"{event.table.name} {event.sequence}\n".encode())


def _note(handled: Path, sequence: int) -> None:
    with handled.open("a") as file:
        file.write(f"{sequence}\n")


def main(kind: str, url: str, folder: Path, name: str, member: str) -> None:
    log = os.open(folder / f"{name}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(log, stream.fileno())
    faulthandler.enable()
    handled = folder / f"handled-{name}-{os.getpid()}"
    if kind == "cache":
        cache = Cache(folder / "cache.json")
        with tideline.events.consumer(url, f"cache-{folder.name}", snapshot=True, member=member, seen=cache.seen) as events:
            for event in events.events():
                assert isinstance(event, TableRecord | Transition)
                _note(handled, event.sequence)
                cache.apply(event)
        return
    with tideline.events.consumer(url, f"{kind}-{folder.name}", member=member) as events:
        (pipeline if kind == "pipeline" else alert)(events, folder, handled)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), sys.argv[4], sys.argv[5] if len(sys.argv) > 5 else "")
