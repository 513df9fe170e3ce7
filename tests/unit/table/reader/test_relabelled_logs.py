"""Relabelled timestamps in log blocks, behind deletions, and in the services and checks of shared tables."""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.unit.table.hudi_metadata import make_metadata
from tests.unit.table.shared import SHARING
from tests.unit.table.tables import QUIET, compact

from tideline_locks import open_hudi_lock
from tideline_table.action import check_table, write_rows
from tideline_table.clock import ManualClock
from tideline_table.config import SHARED_METADATA
from tideline_table.log_format import BlockType, HeaderKey, LogBlock
from tideline_table.merge import MergeMode, Merging
from tideline_table.reader.log_events import read_events
from tideline_table.reader.read_plan import LogRule, ReadPlan
from tideline_table.schema import MetaField, avro_from_arrow
from tideline_table.storage import MemoryStorage, Storage
from tideline_table.table import Table, TableRequest, TableType, create_table, share_table
from tideline_table.writer import Operation

MICROS, MILLIS = pa.timestamp("us", "UTC"), pa.timestamp("ms", "UTC")
NUMBER = 1_700_000_000_000
"""Milliseconds of 2023, which the files label as microseconds."""


def _rows(kind: pa.DataType, *found: tuple[str, int, str]) -> pa.Table:
    keys, numbers, values = zip(*found, strict=True)
    return pa.table({
        "id": pa.array(keys), "ts": pa.array([NUMBER + n for n in numbers], pa.int64()).view(kind), "v": pa.array(values),
    })  # fmt: skip


class Relabelled:
    """A table of Tideline in the hands of Apache Hudi, whose schema says milliseconds from the last write on."""

    def __init__(self, block: str = "avro", type_: TableType = TableType.MOR, storage: Storage | None = None) -> None:
        self.clock = ManualClock()
        self.storage = storage or MemoryStorage(clock=self.clock)
        schema = _rows(MICROS, ("a", 0, "x")).schema
        create_table(self.storage.root, TableRequest("t1", schema, ("id",), (), "ts", type_), self.clock, self.storage)
        self.options = {**QUIET, "hoodie.logfile.data.block.format": block}
        self.table = Table.open(self.storage.root, options=self.options, clock=self.clock, storage=self.storage)

    def write(self, *found: tuple[str, int, str], operation: Operation = Operation.UPSERT, deleted: bool = False) -> None:
        self.clock.advance(1)
        rows = _rows(MICROS, *found)
        if deleted:
            rows = rows.append_column("_hoodie_is_deleted", pa.array([True] * rows.num_rows))
        write_rows(self.table, rows, operation, parallelism=1)

    def relabelled(self) -> Table:
        """Take the table log away, name milliseconds in the schema of the newest commit, and open what is left."""
        self.storage.delete_below(".hoodie/.tideline")
        for found in list(self.storage.list_objects(".hoodie")):
            content = self.storage.read(found.path)
            if found.path.endswith((".deltacommit", ".commit")) or found.path == ".hoodie/hoodie.properties":
                self.storage.put(found.path, content.replace(b"timestamp-micros", b"timestamp-millis"))
        return self.opened()

    def opened(self) -> Table:
        return Table.open(self.storage.root, options=self.options, clock=self.clock, storage=self.storage, hudi_lock=open_hudi_lock)


def _contents(table: Table) -> dict[str, tuple[int, str]]:
    found = table.read(["id", "ts", "v"])
    assert found.schema.field("ts").type == MILLIS
    numbers = found.column("ts").cast(pa.int64()).to_pylist()
    return {k: (n - NUMBER, v) for k, n, v in zip(found["id"].to_pylist(), numbers, found["v"].to_pylist(), strict=True)}


@pytest.mark.parametrize("block", ["avro", "parquet"])
def test_blocks_of_both_formats_keep_the_numbers(block: str) -> None:
    made = Relabelled(block)
    made.write(("a", 1, "base"), ("b", 1, "base"), ("c", 1, "base"))
    made.write(("a", 2, "newer"), ("b", 0, "older"))
    table = made.relabelled()
    assert _contents(table) == {"a": (2, "newer"), "b": (1, "base"), "c": (1, "base")}
    early, late = datetime(2000, 1, 1, tzinfo=UTC), datetime(2023, 1, 1, tzinfo=UTC)
    assert table.read(where=f"ts > timestamp '{late:%Y-%m-%d %H:%M:%S}'").num_rows == 3
    assert table.read(where=f"ts < timestamp '{early:%Y-%m-%d %H:%M:%S}'").num_rows == 0


@pytest.mark.parametrize("block", ["avro", "parquet"])
def test_deletions_compare_with_relabelled_rows(block: str) -> None:
    made = Relabelled(block)
    made.write(("a", 5, "base"), ("b", 5, "base"), ("c", 5, "base"))
    made.write(("c", 7, "newer"))
    made.write(("a", 4, ""), ("b", 6, ""), ("c", 6, ""), deleted=True)
    assert _contents(made.relabelled()) == {"a": (5, "base"), "c": (7, "newer")}


@pytest.mark.parametrize(
    ("written", "label", "number"),
    [
        (pa.array([NUMBER], pa.int64()), MICROS, NUMBER),
        (pa.array([NUMBER], pa.int64()), MILLIS, NUMBER),
        (pa.array([NUMBER], pa.int64()).view(MICROS), MICROS, NUMBER),
        (pa.array([NUMBER * 1000], pa.int64()).view(MICROS), MILLIS, NUMBER),
    ],
    ids=["numbers-of-micros", "numbers-of-millis", "micros-of-micros", "micros-of-millis"],
)
@pytest.mark.parametrize("fields", [1, 2])
def test_ordering_values_of_delete_blocks_follow_the_label_of_their_block(
    written: pa.Array, label: pa.DataType, number: int, fields: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Apache Hudi writes timestamps as numbers in the unit of the column, or as microseconds whatever the column has."""
    names = ("ts", "id")[:fields]
    plan = ReadPlan(
        _rows(MILLIS, ("a", 0, "x")).schema,
        LogRule(Merging(MergeMode.EVENT_TIME, ordering_field=",".join(names))),
        ("id",),
        None,
        None,
    )
    values = written if fields == 1 else pa.StructArray.from_arrays([written, pa.array(["a"])], ["0", "1"])
    deletes = pa.table({MetaField.RECORD_KEY: ["a"], "ordering": values, "commit_time_delete": [False]})
    monkeypatch.setattr("tideline_table.reader.log_events.read_deletes", lambda *_: deletes)
    schema = avro_from_arrow(_rows(label, ("a", 0, "x")).schema, "r")
    block = LogBlock("log", BlockType.DELETE, {HeaderKey.SCHEMA: schema}, 0, 0, 0, 0)
    found = read_events(MemoryStorage(), [block], plan)
    assert found is not None
    assert found.events.ordering is not None
    ordering = found.events.ordering.chunk(0)
    ordering = ordering if fields == 1 else ordering.field(0)
    assert (ordering.type, ordering.view(pa.int64()).to_pylist()) == (MILLIS, [number])


def test_a_compaction_of_a_shared_table_writes_the_same_moments() -> None:
    made = Relabelled()
    made.write(("a", 5, "base"), ("b", 5, "base"), ("c", 5, "base"))
    made.write(("a", 6, "newer"), ("b", 4, "older"))
    made.write(("a", 7, ""), ("c", 4, ""), deleted=True)
    table = share_table(made.relabelled(), SHARING, open_hudi_lock)
    before = _contents(table)
    assert before == {"b": (5, "base"), "c": (5, "base")}
    made.clock.advance(1)
    assert compact(table)
    again = made.opened()
    assert all(s.base_file and not s.log_files for s in again.slices())
    (stored,) = (pq.read_schema(made.storage.open_input(s.path)) for s in again.slices())
    assert stored.field("ts").type == MILLIS
    assert _contents(again) == before


@pytest.mark.parametrize("type_", list(TableType))
def test_an_upsert_of_a_shared_table_rewrites_relabelled_rows_and_compares_with_them(type_: TableType) -> None:
    made = Relabelled(type_=type_)
    made.write(("a", 5, "base"), ("b", 5, "base"), ("c", 5, "base"))
    table = share_table(made.relabelled(), SHARING, open_hudi_lock)
    made.clock.advance(1)
    write_rows(table, _rows(MILLIS, ("a", 6, "newer"), ("b", 4, "older")), Operation.UPSERT, parallelism=1)
    assert _contents(made.opened()) == {"a": (6, "newer"), "b": (5, "base"), "c": (5, "base")}


@pytest.mark.parametrize("type_", list(TableType))
def test_column_statistics_of_relabelled_files_are_checked_and_skip_no_row(type_: TableType) -> None:
    made = Relabelled(type_=type_)
    made.write(("a", 5, "base"), ("b", 5, "base"))
    made.write(("a", 6, "newer"))
    made.options[SHARED_METADATA.key] = "files,column_stats,bloom_filters"
    share_table(made.relabelled(), SHARING, open_hudi_lock)
    table = made.opened()
    make_metadata(table, ("id", "ts", "v"))
    assert check_table(table, deep=True) == []
    made.clock.advance(1)
    write_rows(table, _rows(MILLIS, ("b", 7, "newest")), Operation.UPSERT, parallelism=1)
    again = made.opened()
    assert check_table(again, deep=True) == []
    assert again.read(["id"], "ts > timestamp '2023-01-01 00:00:00'").num_rows == 2
    assert again.read(["id"], "ts < timestamp '2000-01-01 00:00:00'").num_rows == 0
