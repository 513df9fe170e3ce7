"""A fleet with `tideline-changes`, and a replica that applies the topic of a table as a Debezium-aware sink would."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.unit.services.fleet import Fleet, date_files_by

from tideline_changes.settings import ChangesSettings
from tideline_changes.streaming import ChangesService
from tideline_events import EventLog, Record, open_event_log
from tideline_table.table import Table

Read = Callable[[], list[Record]]
SHORT_S = 0.02
"""A tail knows its end only when it has waited in vain, unless the newest record of the event log is in its topic."""


@dataclass
class Replica:
    """Rows by key, as the records of one topic say; refuses what a right topic never says."""

    rows: dict[str, dict[str, Any]] = field(default_factory=dict)
    places: list[tuple[int, int]] = field(default_factory=list)
    """Sequence and row of each change since the last truncation."""
    truncations: int = 0
    ops: list[str] = field(default_factory=list)

    def apply(self, record: Record) -> None:
        key = None if record.key is None else record.key.decode()
        if record.value is None:
            assert key is not None
            assert key not in self.rows, "a tombstone follows the deletion"
            return
        value = json.loads(record.value)
        op, source = value["op"], value["source"]
        self.ops.append(op)
        if op == "t":
            assert key is None
            self.rows, self.places = {}, []
            self.truncations += 1
            return
        place = source["sequence"], source["row"]
        assert key is not None
        assert not self.places or place >= self.places[-1], "in order"
        self.places.append(place)
        assert self.rows.get(key) == value["before"] or op in "cr"
        if op == "d":
            assert value["after"] is None
            del self.rows[key]
            return
        assert op == "u" or key not in self.rows, f"{op} of a row that is there: {key}"
        self.rows[key] = value["after"]


def records_of(log: EventLog, topic: str) -> list[Record]:
    found: list[Record] = []
    with closing(log.tail([topic])) as tail:
        while not tail.is_at_end():
            found += tail.poll(SHORT_S)
    return found


def rows_of(table: Table) -> list[dict[str, Any]]:
    table.refresh()
    return table.read(table.schema.names).to_pylist()


def by_text(rows: Any) -> list[str]:
    return sorted(json.dumps(row, sort_keys=True) for row in rows)


class Changes(Fleet):
    def __init__(self, folder: Path, event_log_url: str = "") -> None:
        super().__init__(folder)
        self._url = event_log_url
        if event_log_url:
            self.event_log.close()
            self.event_log = open_event_log(event_log_url, clock=self.clock)

    def settings(self, kind: Any, **explicit: Any) -> Any:
        return super().settings(kind, **({"event_log": self._url} if self._url else {}), **explicit)

    def run(self, **settings: Any) -> ChangesService:
        return self.service(ChangesService, ChangesSettings, "changes", **{"enabled": True, "tables_rescan_s": 0.001, **settings})[
            0
        ]

    def replica(self, topic: str = "trips") -> Replica:
        replica = Replica()
        for record in records_of(self.event_log, f"tideline.changes.{topic}"):
            replica.apply(record)
        return replica

    def check(self, table: Table, topic: str = "trips") -> Replica:
        """The topic, applied from its start, equals the table."""
        replica = self.replica(topic)
        assert by_text(replica.rows.values()) == by_text(rows_of(table))
        return replica


def settle(service: ChangesService) -> None:
    while service.tick() == 0.0:
        pass


@pytest.fixture
def fleet(tmp_path, monkeypatch) -> Iterator[Changes]:
    with closing(Changes(tmp_path)) as made:
        date_files_by(made.clock, monkeypatch)
        yield made
