"""Replaying a history on a table of Tideline, and the checks of its rows and of the changes between every two points."""

from __future__ import annotations

import itertools
import logging
import math
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from tests.histories.history import NAN, ORDERING_TYPES, History, Rows, Step, Version, draw
from tests.plans import schedule_clean, schedule_clustering, schedule_compaction, schedule_log_compaction
from tests.simulation.recovery import compact, log_compact
from tests.unit.table.shared import SHARING
from tests.unit.table.tables import QUIET, cluster

from tideline_locks import open_hudi_lock
from tideline_table.action import create_metadata, create_savepoint, delete_partitions, restore_to_savepoint, run_clean, write_rows
from tideline_table.clock import ManualClock
from tideline_table.errors import HistoryRewritten, HistoryUnavailable
from tideline_table.storage import MemoryStorage
from tideline_table.table import BloomIndex, BucketIndex, Table, TableRequest, TableType, create_table, share_table
from tideline_table.writer import Operation

COLUMNS = ["id", "part", "ts", "v"]
KINDS = {
    "copy-on-write": TableType.COW,
    "merge-on-read": TableType.MOR,
    "compacted": TableType.MOR,
    "shared copy-on-write": TableType.COW,
    "shared merge-on-read": TableType.MOR,
}
"""The tables on which a history is replayed. Each write to a compacted one is compacted at once. Shared ones have Apache Hudi's
timeline."""
_INDEXES = {"BLOOM": "BLOOM", "GLOBAL_SIMPLE": "GLOBAL_SIMPLE", "RECORD_INDEX": "RECORD_INDEX"}
_EXCLUSIVE = ("RECORD_INDEX", "to log")
"""Layouts that shared tables do not have."""
_DUE = {"hoodie.compact.inline.max.delta.commits": 1, "hoodie.log.compaction.blocks.threshold": 2}


SAMPLED_PAIRS = 5
"""Of the pairs of points that are not neighbours, so many of each table are compared where many histories run."""


class Differs(AssertionError):
    """A table, or a replica of it, has other rows than the writes say."""


Content = dict[tuple[str, str], tuple[int | None, str]]


def schema_of(history: History) -> pa.Schema:
    """Return the schema of the table of a history."""
    kind, _ = ORDERING_TYPES[history.ordering or "int64"]
    return pa.schema([pa.field("id", pa.string(), nullable=False), ("part", pa.string()), ("ts", kind), ("v", pa.string())])


def rows_of(history: History, versions: Sequence[Version], *, deletions: bool = True) -> pa.Table:
    """Return versions as an input, with the mark of deletions if asked for."""
    kind, values = ORDERING_TYPES[history.ordering or "int64"]
    ordering = [None if v.rank is None else math.nan if v.rank == NAN else values[v.rank] for v in versions]
    columns = [pa.array([v.key for v in versions], pa.string()), pa.array([v.part for v in versions], pa.string())]
    columns += [pa.array(ordering, kind), pa.array([v.value for v in versions], pa.string())]
    rows = pa.Table.from_arrays(columns, schema=schema_of(history))
    if deletions:
        rows = rows.append_column("_hoodie_is_deleted", pa.array([v.deleted for v in versions], pa.bool_()))
    return rows


def expected(rows: Rows) -> Content:
    """Return what a table with these rows shows."""
    return {place: (version.rank, version.value) for place, version in rows.items()}


def content_of(history: History, found: Iterable[dict[str, Any]]) -> Content:
    """Return the ordering rank and the value of each row. Raises `Differs` for a key that is there twice."""
    _, values = ORDERING_TYPES[history.ordering or "int64"]
    shown: Content = {}
    for row in found:
        place = (row["part"], row["id"])
        if place in shown:
            raise Differs(f"{place} is there twice")
        shown[place] = (_rank(row["ts"], values), row["v"])
    return shown


def _rank(value: Any, values: list[Any]) -> int | None:
    if value is None:
        return None
    return NAN if isinstance(value, float) and math.isnan(value) else values.index(value)


@dataclass
class Replay:
    """A table on which a history is replayed."""

    history: History
    kind: str
    most_pairs: int | None = None
    """How many pairs of points that are not neighbours are compared; None: all."""
    table: Table = field(init=False)
    states: list[tuple[str, Content]] = field(init=False)
    """Points of the table, each with the rows at it."""

    def __post_init__(self) -> None:
        history, clock = self.history, ManualClock()
        storage = MemoryStorage(clock=clock)
        request = TableRequest(
            "t",
            schema_of(history),
            ("id",),
            ("part",),
            "ts" if history.ordering else "",
            KINDS[self.kind],
            index={"BLOOM": BloomIndex(), "BUCKET": BucketIndex(2)}.get(history.layout),
        )
        create_table(storage.root, request, clock, storage)
        options: dict[str, Any] = {**QUIET, "hoodie.datasource.insert.dup.policy": "drop", "tideline.log.checkpoint.interval": 5}
        if history.layout in _INDEXES:
            options |= {"hoodie.index.type": history.layout, "hoodie.record.index.update.partition.path": True}
        if history.layout == "to log":
            options |= {"tideline.insert.to.log": True, "hoodie.parquet.small.file.limit": 10**8}
        if history.layout == "Parquet logs":
            options["hoodie.logfile.data.block.format"] = "parquet"
        self.clock = clock
        self.table = Table.open(storage.root, options=options, clock=clock, writer_id="w", storage=storage)
        if history.layout == "RECORD_INDEX":
            create_metadata(self.table, ["record_index"])
        if self.is_shared:
            self.table = share_table(self.table, SHARING, open_hudi_lock)
        self.states = [(self.table.newest_point() if self.is_shared else "0", {})]
        self._saved = ""

    @property
    def is_shared(self) -> bool:
        """Whether the table is shared with Apache Hudi."""
        return self.kind.startswith("shared")

    @property
    def is_told(self) -> bool:
        """Whether the model says the rows.

        Where Hudi's rule counts, late rows behind deletions are other ones (docs/peer-differences.md).
        """
        return not (self.is_shared and KINDS[self.kind] is TableType.MOR and self.history.ordering)

    def run(self) -> None:
        """Replay all steps; check the rows behind each one, and the changes between points."""
        for number, step in enumerate(self.history.steps):
            self.clock.advance(1)
            self._do(step)
            if self.kind == "compacted" and step.kind not in ("savepoint", "restore"):
                schedule_compaction(self.table, _DUE)
                compact(self.table)
            shown = content_of(self.history, self.table.read(COLUMNS).to_pylist())
            if self.is_told and shown != expected(step.rows):
                raise Differs(f"behind step {number}: {shown} instead of {expected(step.rows)}")
            self.states.append((self.table.newest_point(), shown))
        self.check_changes()

    def check_changes(self) -> int:
        """Apply the changes between two points to the rows at the first one; return how many pairs there are."""
        compared = 0
        for number, upto in self._pairs():
            (since, before), (until, after) = self.states[number], self.states[upto]
            if since == until:
                continue
            try:
                changes = self.table.changes(since, until).scan(COLUMNS)
                found = [row for batch in changes for row in batch.to_pylist()]
            except (HistoryUnavailable, HistoryRewritten) as error:
                self._check_gone(error)
                continue
            result = applied(self.history, before, found)
            if result != after:
                raise Differs(f"changes from {number} to {upto} ({since}, {until}) give {result} instead of {after}: {found}")
            if self.is_told and upto == number + 1 and self.history.steps[number].kind != "restore":
                self._check_increment(since, until, found)
            compared += 1
        return compared

    def _pairs(self) -> list[tuple[int, int]]:
        found = list(itertools.combinations(range(len(self.states)), 2))
        apart = [(number, upto) for number, upto in found if upto > number + 1]
        if self.most_pairs is None or len(apart) <= self.most_pairs:
            return found
        chosen = random.Random(f"{self.history.seed} {self.kind}").sample(apart, self.most_pairs)
        return sorted([*(pair for pair in found if pair not in apart), *chosen])

    def _check_gone(self, error: Exception) -> None:
        cause = "restore" if isinstance(error, HistoryRewritten) else "clean"
        if not any(step.kind == cause for step in self.history.steps) and not any(s.kind == "restore" for s in self.history.steps):
            raise Differs(f"changes are refused although there was no {cause}: {error}")

    def _check_increment(self, since: str, until: str, changes: Sequence[dict[str, Any]]) -> None:
        shown = content_of(self.history, self.table.incremental(since, until).read(COLUMNS).to_pylist())
        told = content_of(self.history, (row["after"] for row in changes if row["op"] != "d"))
        if shown != told:
            raise Differs(f"the increment from {since} to {until} has {shown}, the changes say {told}")

    def _do(self, step: Step) -> None:
        table, rows = self.table, rows_of(self.history, step.versions)
        if self.is_shared and step.kind in ("savepoint", "log_compact"):
            # Apache Hudi does these in shared tables, and they change no row.
            if rows.num_rows:
                write_rows(table, rows, Operation.UPSERT, parallelism=1)
            return
        if step.kind in ("upsert", "insert", "insert_overwrite", "insert_overwrite_table"):
            write_rows(table, rows, Operation(step.kind), parallelism=1)
        elif step.kind == "delete":
            write_rows(table, rows.select(["id", "part"]), Operation.DELETE, parallelism=1)
        elif step.kind == "delete_partition":
            delete_partitions(table, list(step.partitions))
        elif step.kind in ("compact", "log_compact"):
            self._merge_logs(step, rows)
        elif step.kind == "cluster":
            schedule_clustering(table)
            cluster(table)
        elif step.kind == "clean":
            schedule_clean(table, {"hoodie.cleaner.commits.retained": step.number})
            run_clean(table)
        elif step.kind == "savepoint":
            self._saved = create_savepoint(table).instant
        else:
            restore_to_savepoint(table, self._saved)

    def _merge_logs(self, step: Step, rows: pa.Table) -> None:
        schedule, run = (schedule_compaction, compact) if step.kind == "compact" else (schedule_log_compaction, log_compact)
        planned = schedule(self.table, _DUE) if KINDS[self.kind] is TableType.MOR else None
        if rows.num_rows:
            self.clock.advance(1)
            write_rows(self.table, rows, Operation.UPSERT, parallelism=1)
        if planned is not None:
            run(self.table)


def applied(history: History, before: Content, changes: Sequence[dict[str, Any]]) -> Content:
    """Return the rows of a replica behind changes. Raises `Differs` for a change that does not fit what the replica has."""
    rows = dict(before)
    for change in sorted(changes, key=lambda row: row["op"]):  # what left a place first
        old = content_of(history, [change["before"]] if change["before"] else [])
        new = content_of(history, [change["after"]] if change["after"] else [])
        for place, row in old.items():
            if rows.pop(place, None) != row:
                raise Differs(f"the change {change} does not fit the rows {before}")
        for place, row in new.items():
            if place in rows:
                raise Differs(f"the change {change} adds a row that is there: {before}")
            rows[place] = row
    return rows


def replay(history: History, most_pairs: int | None = None) -> int:
    """Replay a history on every kind of table; return how many points were compared."""
    compared = 0
    for kind in KINDS:
        if kind.startswith("shared") and (history.layout in _EXCLUSIVE or any(step.kind == "restore" for step in history.steps)):
            continue
        found = Replay(history, kind, most_pairs)
        try:
            found.run()
        except Exception as error:
            raise Differs(f"{kind} table: {type(error).__name__}: {error}\n{history}") from error
        compared += len(found.states)
    return compared


def use_one_core() -> None:
    """Let this process use one core, and say nothing of what other engines cannot read in the columns that a history draws."""
    pa.set_cpu_count(1)
    logging.getLogger("tideline_table").setLevel(logging.ERROR)


def outcome_of(seed: int) -> tuple[int, str, Counter[str]]:
    """Replay the history of a seed; return the seed, what differs (empty: nothing), and how many steps of each kind there were."""
    history = draw(seed)
    kinds = Counter(step.kind for step in history.steps)
    try:
        replay(history, SAMPLED_PAIRS)
    except Differs as error:
        return seed, str(error), kinds
    return seed, "", kinds
