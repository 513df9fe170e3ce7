"""The metadata table that Tideline keeps: Apache Hudi 1.2.0 lists files from it, and reads the same rows with it as without it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.conformance.matrix import Kind
from tests.conformance.peers.apache_hudi import ApacheHudi
from tests.conformance.written_here import LAYOUTS, Layout, rows
from tests.plans import schedule_clean, schedule_clustering, schedule_compaction
from tests.unit.table.hudi_metadata import log_name

from tideline_table.action import (
    archive,
    check_table,
    create_metadata,
    create_savepoint,
    delete_partitions,
    drop_metadata,
    repair_metadata,
    restore_to_savepoint,
    run_clean,
    run_clustering,
    run_compaction,
    write_rows,
)
from tideline_table.action.metadata.run import METADATA_TYPES
from tideline_table.action.write.transaction import WriteTransaction
from tideline_table.hudi.properties import METADATA_PARTITIONS, read_properties
from tideline_table.log.metadata import FILES
from tideline_table.log_format.block import BlockType, HeaderKey
from tideline_table.log_format.framing import frame_block
from tideline_table.log_format.hfile_writer import hfile_bytes
from tideline_table.metadata_table.layout import file_path
from tideline_table.metadata_table.records import DELETED, FilesRecords, encode_records, record_schema_json
from tideline_table.reader.base_file import read_base_file
from tideline_table.table import Table, TableType, create_table
from tideline_table.writer import Operation

pytestmark = pytest.mark.timeout(900)

OPTIONS = {
    "hoodie.parquet.small.file.limit": 0,
    "hoodie.metadata.compact.max.delta.commits": 3,
    "hoodie.cleaner.commits.retained": 1,
    "hoodie.keep.min.commits": 2,
    "hoodie.keep.max.commits": 3,
    "hoodie.compact.inline.max.delta.commits": 1,
    "tideline.archive.min.age": 0,
    "tideline.task.max.lifetime": 0,
    "tideline.clustering.min.input.files": 1,
}
LAYOUT = {layout.name: layout for layout in LAYOUTS}


@dataclass
class Compared:
    """A table of ours and Apache Hudi, which reads it with and without the metadata table."""

    table: Table
    peer: ApacheHudi

    def agree(self, what: str) -> pa.Table:
        """Both ways of listing give our rows, and the metadata table agrees with the log and the storage."""
        ours = _ordered(Table.open(self.table.base_path).read())
        listed = _ordered(self.peer.read(self.table.base_path, metadata=True).select(ours.column_names))
        walked = _ordered(self.peer.read(self.table.base_path, metadata=False).select(ours.column_names))
        assert _keys(listed) == _keys(ours), f"{what}: rows of Apache Hudi by the metadata table"
        assert _keys(walked) == _keys(ours), f"{what}: rows of Apache Hudi by listing"
        assert check_table(self.table) == [], what
        return ours

    def hide(self, name_of: Callable[[Table], tuple[str, str]]) -> str:
        """Add a log file to the metadata table that says of one file that it was deleted. Return its name."""
        known = self.table.refresh().metadata
        assert known is not None
        partition, name = name_of(self.table)
        encoded = encode_records(FilesRecords(None, {partition: {name: DELETED}}))
        schema = record_schema_json(with_meta_fields=True)
        content = hfile_bytes(encoded, {"schema": schema.encode(), "minRecordKey": encoded[0][0], "maxRecordKey": encoded[-1][0]})
        instant = known.files.deltas[-1].instant if known.files.deltas else known.files.base
        block = frame_block(BlockType.HFILE, {HeaderKey.INSTANT_TIME: instant, HeaderKey.SCHEMA: schema}, content)
        self.table.storage.put(file_path(log_name(known.files.base, 1_000_000)), block)
        return name


def _ordered(found: pa.Table) -> pa.Table:
    return found.sort_by([("_hoodie_partition_path", "ascending"), ("_hoodie_record_key", "ascending")])


def _keys(found: pa.Table) -> list[tuple[Any, ...]]:
    columns = ("_hoodie_commit_time", "_hoodie_record_key", "_hoodie_partition_path", "_hoodie_file_name", "ts")
    return list(zip(*(found.column(name).to_pylist() for name in columns), strict=True))


def _opened(base: Path, kind: Kind, layout: Layout, version: int = 6) -> Table:
    create_table(str(base), replace(layout.request, type=TableType(kind.value), version=version))
    return Table.open(str(base), options=OPTIONS)


def _serve(table: Table) -> None:
    if table.definition.has_logs and schedule_compaction(table):
        run_compaction(table)
    if schedule_clean(table):
        run_clean(table)
    archive(table)


@pytest.mark.pairs
@pytest.mark.parametrize(
    ("kind", "layout", "version"),
    [
        (Kind.COW, "partitioned", 6),
        (Kind.MOR, "partitioned", 6),
        (Kind.COW, "hive-style", 6),
        (Kind.MOR, "non-partitioned", 6),
        (Kind.COW, "partitioned", 9),
        (Kind.MOR, "partitioned", 9),
        (Kind.MOR, "non-partitioned", 8),
        (Kind.COW, "hive-style", 8),
    ],
)
def test_a_history_of_every_action(apache_hudi: ApacheHudi, workdir: Path, kind: Kind, layout: str, version: int) -> None:
    chosen = LAYOUT[layout]
    table, part = _opened(workdir / "trips", kind, chosen, version), chosen.part
    compared = Compared(table, apache_hudi)
    write_rows(table, rows(range(12), 1, part), Operation.BULK_INSERT)
    create_metadata(table, METADATA_TYPES if version > 6 else [FILES])
    compared.agree("created")
    write_rows(table, rows(range(12, 20), 2, part), Operation.INSERT)
    compared.agree("inserted")
    write_rows(table, rows(range(4, 10), 3, part), Operation.UPSERT)
    write_rows(table, rows(range(2), 4, part), Operation.DELETE)
    compared.agree("updated and deleted")
    WriteTransaction.begin(table.timeline, table.lock, "UPSERT", table.write_action()).roll_back()
    assert schedule_clustering(table) is not None
    assert run_clustering(table) is not None
    compared.agree("rolled back, clustered")
    saved = create_savepoint(table).instant
    for number in range(4):
        write_rows(table, rows(range(number, number + 3), 10 + number, part), Operation.UPSERT)
        _serve(table)
    compared.agree("compacted, cleaned, archived")
    restore_to_savepoint(table, saved)
    compared.agree("restored")
    write_rows(table, rows(range(30, 34), 20, part), Operation.INSERT)
    compared.agree("written on")
    if layout == "partitioned":
        delete_partitions(table, ["p1"])
        compared.agree("partition deleted")
    write_rows(table, rows(range(50, 54), 30, part), Operation.INSERT_OVERWRITE)
    compared.agree("overwritten")
    write_rows(table, rows(range(2), 40, part), Operation.UPSERT)
    _serve(table)
    ours = compared.agree("served")
    assert ours.num_rows
    known = table.state.metadata
    assert known is not None
    assert known.files.older_base, "the metadata table was compacted"
    drop_metadata(table)
    assert read_properties(table.storage)[METADATA_PARTITIONS] == ""
    assert _keys(_ordered(apache_hudi.read(table.base_path).select(ours.column_names))) == _keys(ours)


@pytest.mark.pairs
@pytest.mark.parametrize("kind", list(Kind), ids=lambda kind: kind.value)
def test_bloom_filters_are_found_by_apache_hudi(apache_hudi: ApacheHudi, workdir: Path, kind: Kind) -> None:
    """It finds the filter of each base file, also after the metadata table was compacted, and each filter knows the keys of its
    file."""
    table = _opened(workdir / "trips", kind, LAYOUT["partitioned"])
    compared = Compared(table, apache_hudi)
    write_rows(table, rows(range(12), 1), Operation.BULK_INSERT)
    create_metadata(table, ["bloom_filters"])
    for number in range(4):
        write_rows(table, rows(range(number, number + 3), 2 + number), Operation.UPSERT)
        write_rows(table, rows(range(20 + 2 * number, 22 + 2 * number), 2 + number), Operation.INSERT)
    _serve(table)
    compared.agree("served")
    known = table.refresh().metadata
    assert known is not None
    assert known.files.older_base, "the metadata table was compacted"
    for partition in ("p0", "p1"):
        slices = [s for s in table.state.latest_slices() if s.group.partition_path == partition]
        keys = sorted({key for s in slices for key in _record_keys(table, s.path)})
        found = apache_hudi.bloom_filters(table.base_path, partition, [s.base_file for s in slices], [*keys, "absent"])
        assert found.keys() == {s.base_file for s in slices}
        for held in slices:
            answers = dict(zip([*keys, "absent"], found[held.base_file], strict=True))
            # With this rate of false positives and so few keys, a filter answers exactly.
            assert {key for key, may in answers.items() if may} == set(_record_keys(table, held.path))
    repair_metadata(table)
    compared.agree("made anew")


def _record_keys(table: Table, path: str) -> list[str]:
    keys: list[str] = read_base_file(table.storage, path, ["_hoodie_record_key"]).column(0).to_pylist()
    return keys


@pytest.mark.pairs
@pytest.mark.parametrize("kind", list(Kind), ids=lambda kind: kind.value)
def test_a_metadata_table_that_lies_is_believed_found_and_repaired(apache_hudi: ApacheHudi, workdir: Path, kind: Kind) -> None:
    """So Apache Hudi lists from it: a file that it hides is missing from the rows, though it is in the folder."""
    table = _opened(workdir / "trips", kind, LAYOUT["partitioned"])
    compared = Compared(table, apache_hudi)
    create_metadata(table)
    write_rows(table, rows(range(12), 1), Operation.BULK_INSERT)
    compared.agree("written")

    def a_base_file(table: Table) -> tuple[str, str]:
        chosen = next(s for s in table.state.latest_slices() if s.group.partition_path == "p0")
        return "p0", chosen.base_file

    hidden = compared.hide(a_base_file)
    believed = apache_hudi.read(table.base_path, metadata=True)
    assert set(believed.column("_hoodie_partition_path").to_pylist()) == {"p1"}
    assert apache_hudi.read(table.base_path, metadata=False).num_rows == 12
    assert [(found.kind.value, found.path) for found in check_table(table)] == [("not listed", f"p0/{hidden}")]
    repair_metadata(table)
    assert compared.agree("repaired").num_rows == 12
    write_rows(table, rows(range(20, 22), 2), Operation.INSERT)
    assert compared.agree("written after the repair").num_rows == 14
