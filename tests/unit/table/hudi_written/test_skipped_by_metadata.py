"""Filters on tables without a table log leave out files by the statistics in the metadata table, where these can be believed."""

from __future__ import annotations

import io
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import fastavro
import pytest
from tests.unit.table.hudi_written.test_listed_by_metadata import as_written_by_hudi
from tests.unit.table.tables import compact, new_table, open_table, set_properties, write

from tideline_table.action import create_metadata
from tideline_table.hudi.file_names import parse_log_file_name
from tideline_table.hudi.properties import METADATA_PARTITIONS, read_properties
from tideline_table.log_format.block import BlockType, read_content
from tideline_table.log_format.delete_block import read_deletes
from tideline_table.log_format.framing import command_block
from tideline_table.log_format.hfile import HFile
from tideline_table.log_format.scan import scan_log
from tideline_table.metadata_table.log_file import log_file_bytes
from tideline_table.metadata_table.partition import Records
from tideline_table.metadata_table.reading import entries_of
from tideline_table.metadata_table.records import parsed_schema
from tideline_table.schema.meta_fields import MetaField
from tideline_table.storage import MemoryStorage
from tideline_table.table import Table, TableType
from tideline_table.table.query import Snapshot

NEVER = {"hoodie.metadata.compact.max.delta.commits": 1000, "hoodie.compact.inline.max.delta.commits": 1}
STATS = ".hoodie/metadata/column_stats"
WHERE = [
    "ts < 3",
    "ts >= 30",
    "v = 'x'",
    "v > 'y'",
    "id = '2'",
    "ts is null",
    "v is not null",
    "not (v = 'x')",
    "ts = 1 or v = 'z'",
]


def made(kind: TableType = TableType.COW, version: int = 9) -> tuple[Table, Any]:
    _, storage, clock = new_table(type=kind, version=version)
    table = open_table(storage, clock, **NEVER)
    create_metadata(table, ["column_stats"])
    for number, part in enumerate("abc"):
        write(table, [(f"{number}", part, number * 10 + n, "xyz"[number]) for n in range(2)])
        write(table, [(f"{number}+", part, number * 10 + 5, "xyz"[number])])
    return table, clock


def opened(copy: MemoryStorage, clock: Any) -> Table:
    return Table.open(copy.root, storage=copy, clock=clock)


def left_out(table: Table, where: str = "ts < 3") -> int:
    """Return how many slices a filter leaves out, after a comparison of the rows with those of all slices."""
    found = table.snapshot()
    every = Snapshot(found.storage, found.schema, found.rule, found.slices)
    assert sorted(found.read(["id"], where)["id"].to_pylist()) == sorted(every.read(["id"], where)["id"].to_pylist()), where
    return len(found.slices) - len(found.only(found.filtered(where)).slices)


def rewritten(copy: MemoryStorage, change: Callable[[str, dict[str, Any]], None]) -> None:
    """Let `change` alter each record in the log files of the statistics; it gets the instant and the fields of the record."""
    for found in list(copy.list_folder(STATS).objects):
        named = parse_log_file_name(found.path.rpartition("/")[2])
        if named is None:
            continue
        entries: list[tuple[bytes, bytes]] = []
        deletes: list[str] = []
        for block in scan_log(copy, found.path).blocks:
            if block.type is BlockType.DELETE:
                deletes += read_deletes(copy, block).column(MetaField.RECORD_KEY).to_pylist()
                continue
            schema = parsed_schema(block.schema_json)
            for key, datum in entries_of(HFile(read_content(copy, block, BlockType.HFILE))):
                record: Any = fastavro.schemaless_reader(io.BytesIO(datum), schema, None, return_record_name=True)
                change(named.instant, record["ColumnStatsMetadata"][1])
                sink = io.BytesIO()
                fastavro.schemaless_writer(sink, schema, record)
                entries.append((key, sink.getvalue()))
        if entries:
            copy.put(found.path, log_file_bytes("column_stats", named.instant, Records.of(entries, deletes)))


@pytest.mark.parametrize("version", [8, 9])
@pytest.mark.parametrize("kind", list(TableType), ids=lambda kind: kind.value)
def test_the_same_rows_from_fewer_files(kind: TableType, version: int) -> None:
    table, clock = made(kind, version)
    copy = opened(as_written_by_hudi(table), clock)
    assert copy.identity is None
    assert [left_out(copy, where) for where in WHERE] == [5, 6, 4, 4, 5, 6, 0, 2, 3]
    if kind is TableType.MOR:
        write(table, [("2", "c", 1, "x")])
        changed = opened(as_written_by_hudi(table), clock)
        assert [left_out(changed, where) for where in WHERE] == [4, 6, 3, 4, 5, 6, 0, 2, 3]
        compact(table)
        assert left_out(opened(as_written_by_hudi(table), clock)) == 5


@pytest.mark.parametrize("kind", list(TableType), ids=lambda kind: kind.value)
def test_version_6_leaves_out_base_files(kind: TableType) -> None:
    """A writer may append to a log file there, and the record of an earlier commit does not know."""
    table, clock = made(kind, version=6)
    copy = opened(as_written_by_hudi(table), clock)
    assert [left_out(copy, where) for where in WHERE] == [5, 6, 4, 4, 5, 6, 0, 2, 3]
    rolled_back = as_written_by_hudi(table)
    for path in [found.path for found in rolled_back.list_folder(STATS).objects if ".log." in found.path]:
        rolled_back.put(path, rolled_back.read(path) + command_block("9" * 17, "0" * 17))
    assert left_out(opened(rolled_back, clock)) == 5
    write(table, [("0", "a", 100, "x")])
    changed = opened(as_written_by_hudi(table), clock)
    assert left_out(changed, "ts < 0") == (6 if kind is TableType.COW else 5)


def too_high(fields: dict[str, Any]) -> None:
    """Make the record claim that no value of `ts` is below 100."""
    for end in ("minValue", "maxValue"):
        fields[end][1]["value"] = 100


def _of_another_file(_: str, fields: dict[str, Any]) -> None:
    too_high(fields)
    fields["fileName"] = f"other-{fields['fileName']}"


def _of_another_column(_: str, fields: dict[str, Any]) -> None:
    too_high(fields)
    fields["columnName"] = "other"


def _of_another_type(_: str, fields: dict[str, Any]) -> None:
    for end in ("minValue", "maxValue"):
        fields[end] = ("org.apache.hudi.avro.model.StringWrapper", {"value": "100"})


def _of_another_ordinal(_: str, fields: dict[str, Any]) -> None:
    too_high(fields)
    fields["valueType"][1]["typeOrdinal"] = 16


def _of_a_later_release(_: str, fields: dict[str, Any]) -> None:
    too_high(fields)
    fields["valueType"][1]["typeOrdinal"] = 99


def _of_nulls_only(_: str, fields: dict[str, Any]) -> None:
    fields["minValue"] = fields["maxValue"] = None
    fields["nullCount"] = fields["valueCount"]


def _without_counts(_: str, fields: dict[str, Any]) -> None:
    too_high(fields)
    fields["valueCount"] = fields["nullCount"] = None


def _with_less_than_no_null(_: str, fields: dict[str, Any]) -> None:
    too_high(fields)
    fields["nullCount"] = -1


def _with_one_bound(_: str, fields: dict[str, Any]) -> None:
    too_high(fields)
    fields["maxValue"] = None


def _upside_down(_: str, fields: dict[str, Any]) -> None:
    fields["minValue"][1]["value"], fields["maxValue"][1]["value"] = 200, 100


def _deleted(_: str, fields: dict[str, Any]) -> None:
    too_high(fields)
    fields["isDeleted"] = True


WRONG = [
    _of_another_file,
    _of_another_column,
    _of_another_type,
    _of_another_ordinal,
    _of_a_later_release,
    _of_nulls_only,
    _without_counts,
    _with_less_than_no_null,
    _with_one_bound,
    _upside_down,
    _deleted,
]


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: wrong.__name__.strip("_"))
def test_a_record_that_cannot_be_believed_leaves_out_nothing(wrong: Callable[[str, dict[str, Any]], None]) -> None:
    table, clock = made()
    copy = as_written_by_hudi(table)
    assert left_out(opened(copy, clock)) == 5

    def change(instant: str, fields: dict[str, Any]) -> None:
        if fields["columnName"] == "ts":
            wrong(instant, fields)

    rewritten(copy, change)
    assert left_out(opened(copy, clock)) == 0


def test_a_true_record_would_have_been_believed() -> None:
    """The test before this one can fail: the same lie in a record that nothing contradicts loses rows."""
    table, clock = made()
    copy = as_written_by_hudi(table)
    rewritten(copy, lambda _, fields: too_high(fields) if fields["columnName"] == "ts" else None)
    assert opened(copy, clock).read(["id"], "ts < 3").num_rows == 0


def test_a_record_older_than_its_file_is_not_believed() -> None:
    table, clock = made()
    copy = as_written_by_hudi(table)
    logs = sorted(found.path for found in copy.list_folder(STATS).objects if ".log." in found.path)
    newest = max(parse_log_file_name(path.rpartition("/")[2]).instant for path in logs)  # type: ignore[union-attr]
    oldest = min(done for done in table.refresh().actions if done != newest)
    before = left_out(opened(copy, clock))
    for path in [path for path in logs if newest in path]:
        content = copy.read(path)
        copy.delete(path)
        copy.put(path.replace(newest, oldest).replace(".log.1_", ".log.99_"), content.replace(newest.encode(), oldest.encode()))
    found = opened(copy, clock)
    assert left_out(found) < before


def test_a_column_that_was_renamed_has_no_statistics() -> None:
    """In older files its name may be that of another column."""
    table, clock = made()
    found = opened(as_written_by_hudi(table), clock)
    paths = [s.path for s in found.slices()]
    known = found.timeline.statistics
    assert known is not None
    assert all(known.of(paths, ["ts"], found.state))
    assert known.of(paths, ["ts"], replace(found.state, identified_schemas=("{}",))) == [None] * len(paths)


@pytest.mark.parametrize("damage", ["torn", "gone", "off"])
def test_without_a_metadata_table_that_can_be_read_all_files_are_read(damage: str, caplog: pytest.LogCaptureFixture) -> None:
    table, clock = made()
    copy = as_written_by_hudi(table)
    for found in list(copy.list_folder(STATS).objects):
        if damage == "torn":
            copy.put(found.path, copy.read(found.path)[:-20])
        elif damage == "gone":
            copy.delete(found.path)
    if damage == "off":
        set_properties(copy, {**read_properties(copy), METADATA_PARTITIONS: "files"})
    with caplog.at_level(logging.WARNING):
        assert left_out(opened(copy, clock)) == 0
    assert ("cannot be read" in caplog.text) is (damage == "torn")


def test_records_of_a_pending_write_do_not_count() -> None:
    table, clock = made()
    copy = as_written_by_hudi(table)
    last = max(table.refresh().actions)
    (completed,) = (
        f.path for f in copy.list_folder(".hoodie/timeline").objects if f.path.rpartition("/")[2].startswith(f"{last}_")
    )
    copy.delete(completed)
    assert left_out(opened(copy, clock)) == 4
