"""Tables that Tideline writes and both peers read."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

import pyarrow as pa
from tests.conformance.matrix import Cell, Comparison, Direction, Kind, Matrix, Topic
from tests.conformance.peers.apache_hudi import ApacheHudi
from tests.conformance.peers.hudi_rs import read_hudi_rs

from tideline_table.hudi.instant import Action, State
from tideline_table.table import Table, TableRequest

AT = dt.datetime(2024, 5, 1, 10, 11, 12, 345678, tzinfo=dt.UTC)
SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        ("ts", pa.int64()),
        ("price", pa.float64()),
        ("quantity", pa.int32()),
        ("at", pa.timestamp("us", "UTC")),
        ("day", pa.date32()),
        ("amount", pa.decimal128(10, 2)),
        ("flag", pa.bool_()),
        ("blob", pa.binary()),
        ("ratio", pa.float32()),
        ("tags", pa.list_(pa.string())),
        ("place", pa.struct([("city", pa.string()), ("zip", pa.int32())])),
        ("counts", pa.map_(pa.string(), pa.int64())),
        ("part", pa.string()),
    ]
)


def rows(numbers: Iterable[int], ts: int, part: Callable[[int], str | None] = lambda n: f"p{n % 2}") -> pa.Table:
    return pa.Table.from_pylist(
        [
            {
                "id": f"k{n:04}",
                "ts": ts,
                "price": n * 1.5 if n % 5 else None,
                "quantity": n if n % 4 else None,
                "at": AT + dt.timedelta(minutes=n),
                "day": AT.date() + dt.timedelta(days=n),
                "amount": Decimal(n).scaleb(-2),
                "flag": n % 3 == 0,
                "blob": bytes([n % 256, 0, 255]),
                "ratio": n / 4,
                "tags": [f"t{n}", "é漢😀", None] if n % 2 else None,
                "place": {"city": f"c{n}", "zip": n if n % 3 else None},
                "counts": [("a", n), ("b", None)],
                "part": part(n),
            }
            for n in numbers
        ],
        schema=SCHEMA,
    )


@dataclass(frozen=True)
class Layout:
    name: str
    request: TableRequest
    part: Callable[[int], str | None] = lambda n: f"p{n % 2}"


BASE = TableRequest("trips", SCHEMA, ("id",), ("part",), "ts")
LAYOUTS = [
    Layout("partitioned", BASE),
    Layout("hive-style", replace(BASE, hive_style=True), lambda n: f"p{n % 2}" if n % 7 else None),
    Layout("url-encoded", replace(BASE, hive_style=True, url_encode=True), lambda n: f"a/b c={n % 2}"),
    Layout("non-partitioned", replace(BASE, partition_fields=())),
    Layout("complex-key", replace(BASE, key_fields=("id", "day"), partition_fields=("part", "flag"))),
    Layout("commit-time", replace(BASE, ordering_field="")),
]


# What an action is called once it is complete.
COMPLETED_AS = {Action.COMPACTION: "commit", Action.LOG_COMPACTION: "deltacommit"}
KEYS = ("_hoodie_record_key", "_hoodie_partition_path")


@dataclass
class Readers:
    """A table of Tideline and the peers that read it."""

    table: Table
    peer: ApacheHudi
    matrix: Matrix
    label: str
    telling: Collection[str] | None = None
    """The steps after which the peers read; None for all."""

    @property
    def kind(self) -> Kind:
        """The table's type as the matrix names it."""
        return Kind(self.table.definition.type.value)

    @contextmanager
    def step(self, topic: Topic, name: str, *more: Topic) -> Iterator[Step]:
        """Cells of the matrix: write inside, then let `Step.agree` compare."""
        if self.telling is not None and name not in self.telling:
            yield Step(self, Comparison(KEYS), topic, name, asks_peers=False)
            return
        cells = [Cell(each, self.kind, Direction.HERE_THERE) for each in (topic, *more)]
        with self.matrix.cells(*cells, label=f"{self.label}, {name}", key=KEYS) as compare:
            yield Step(self, compare, topic, name)

    def timeline(self) -> set[tuple[str, str, str]]:
        """Instants, actions and states that the peer has to see."""
        found = {(instant, "savepoint", "COMPLETED") for instant in self.table.refresh().savepoints}
        for record in self.table.refresh().actions.values():
            if record.state is not State.ROLLED_BACK and record.action is not Action.ARCHIVAL:
                done = record.state is State.COMPLETED
                action = COMPLETED_AS.get(record.action, record.action.value) if done else record.action.value
                if record.is_clustering and not done and self.table.timeline.format.has_completion_times:
                    action = "clustering"
                found.add((record.instant, action, record.state.name))
        return found


@dataclass
class Step:
    """One step in a cell."""

    readers: Readers
    compare: Comparison
    topic: Topic
    name: str
    asks_peers: bool = True

    def agree(self, expected: pa.Table | None = None, *, rust_differs: int = 0) -> pa.Table:
        """All readers see the same rows (and `expected`, without meta fields), timeline and file slices; returns our rows.

        `rust_differs` is the entry of docs/peer-differences.md because of which hudi-rs is not asked.
        """
        table, peer = self.readers.table, self.readers.peer
        base = table.base_path
        if not self.asks_peers:
            return self._expected(Table.open(base).read(), expected)
        _same_set({(i.instant, i.action, i.state) for i in peer.timeline(base)}, self.readers.timeline(), f"{self.name}: timelines")
        # Hudi's view lists log files of writes that are still running, and empty slices that pending compactions opened; readers of
        # it leave out what does not count. What they read is compared below.
        if not any(record.action in (Action.COMPACTION, Action.DELTA_COMMIT) for record in table.state.pending()):
            ours_slices = {
                (*s.group, s.base_instant, s.base_file or None, tuple(sorted(log.name for log in s.log_files)))
                for s in table.state.latest_slices()
            }
            theirs = {(s.partition_path, s.file_id, s.base_instant, s.base_file, s.log_files) for s in peer.file_slices(base)}
            _same_set(theirs, ours_slices, f"{self.name}: file slices")
        ours = Table.open(base).read()
        self.compare.rows(ours, peer.read(base), self.name)
        if rust_differs:
            self.compare.excused(rust_differs)
        else:
            self.compare.rows(ours, read_hudi_rs(base), self.name, "hudi-rs")
        if self.readers.kind is Kind.MOR and self.topic is Topic.COMPACTION:
            optimized = Table.open(base).read(read_optimized=True)
            self.compare.rows(optimized, peer.read(base, "read_optimized"), f"{self.name}, read-optimized")
        return self._expected(ours, expected)

    def _expected(self, ours: pa.Table, expected: pa.Table | None) -> pa.Table:
        if expected is not None:
            self.compare.rows(ours.select(expected.column_names), expected, self.name, "what was written", key=("id",))
        return ours


def _same_set(theirs: set[Any], ours: set[Any], what: str) -> None:
    assert theirs == ours, (
        f"{what}: only Apache Hudi has {sorted(theirs - ours, key=repr)}, only tideline {sorted(ours - theirs, key=repr)}"
    )
