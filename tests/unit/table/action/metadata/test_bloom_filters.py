"""The partition `bloom_filters` of the metadata table has the filter of each base file, and no other, after each action."""

from __future__ import annotations

import base64
from typing import Any

import pyarrow as pa
import pytest
from tests.plans import schedule_clean, schedule_clustering
from tests.unit.table.hudi_metadata import log_name
from tests.unit.table.tables import cluster, compact, new_table, open_table, write

from tideline_table.action import (
    check_table,
    create_metadata,
    create_savepoint,
    drop_metadata,
    repair_metadata,
    restore_to_savepoint,
    run_clean,
)
from tideline_table.bloom import BloomFilter, KeyBytes
from tideline_table.errors import CorruptMetadata, InvalidOption
from tideline_table.log.metadata import BLOOM_FILTERS, MetadataPartition
from tideline_table.metadata_table.bloom_filters import FilterRecord, decode_filter
from tideline_table.metadata_table.file_keys import file_key, hash_text
from tideline_table.metadata_table.layout import file_path
from tideline_table.metadata_table.partition import groups_of_keys, mapping_of
from tideline_table.metadata_table.reading import read_group, slice_files
from tideline_table.table import Table, TableType
from tideline_table.writer import Operation

SOON = {
    "hoodie.cleaner.commits.retained": 1,
    "hoodie.metadata.compact.max.delta.commits": 3,
    "hoodie.parquet.small.file.limit": 0,
    "tideline.task.max.lifetime": 0,
    "tideline.clustering.min.input.files": 1,
}


def made(kind: TableType = TableType.COW, **options: Any) -> Table:
    _, storage, clock = new_table(type=kind)
    table = open_table(storage, clock, **{**SOON, **options})
    write(table, [("a", "p", 1, "x"), ("b", "q", 1, "x")])
    return table


def part_of(table: Table) -> MetadataPartition:
    known = table.refresh().metadata
    part = known.partition(BLOOM_FILTERS) if known is not None else None
    assert part is not None
    return part


def held(table: Table) -> dict[str, FilterRecord]:
    """Return the records by key, read as readers of the metadata table merge them; each is in the file group of its key."""
    part = part_of(table)
    merged: dict[str, FilterRecord] = {}
    for group, files in enumerate(slice_files(table.storage, part).groups):
        found = mapping_of(read_group(table.storage, part, group, files))
        records = {key.decode(): decode_filter(datum) for key, datum in found.items()}
        assert set(groups_of_keys(pa.array([*records], pa.string()), part.file_groups).tolist()) <= {group}
        merged |= records
    return merged


def test_keys_are_those_of_the_format() -> None:
    assert (hash_text("p0"), hash_text("."), hash_text("id")) == ("Z+KNMU8CLlo=", "FXThHwelITM=", "sLZoasJosec=")
    assert file_key("f").startswith("FXThHwelITM=")
    assert len(file_key("p0/f")) == 36


@pytest.mark.parametrize("kind", list(TableType), ids=lambda kind: kind.value)
def test_every_action_keeps_the_records(kind: TableType) -> None:
    table = made(kind)
    create_metadata(table, [BLOOM_FILTERS])
    assert part_of(table).file_groups == 4
    saved = create_savepoint(table)

    def agree() -> None:
        assert check_table(table) == []
        assert held(table).keys() == {file_key(s.path) for s in table.state.every_slice() if s.base_file}

    agree()
    for step in range(3):
        write(table, [("a", "p", 2 + step, "y"), (f"n{step}", "q", 1, "y")])
        agree()
    write(table, [("b", "q", 0, "")], Operation.DELETE)
    if kind is TableType.MOR:
        assert compact(table)
    assert schedule_clustering(table)
    assert cluster(table)
    agree()
    write(table, [("o", "p", 9, "only")], Operation.INSERT_OVERWRITE)
    assert schedule_clean(table)
    assert run_clean(table)
    agree()
    restore_to_savepoint(table, saved.instant)
    agree()
    write(table, [("z", "p", 1, "z")])
    agree()
    drop_metadata(table, [BLOOM_FILTERS])
    assert check_table(table) == []


def test_what_a_record_says() -> None:
    table = made(**{"hoodie.bloom.index.filter.type": "SIMPLE"})
    create_metadata(table, [BLOOM_FILTERS])
    write(table, [("c", "r", 1, "x")])
    (found,) = (s for s in table.slices() if s.group.partition_path == "r")
    record = held(table)[file_key(found.path)]
    assert (record.form, record.instant) == ("SIMPLE", found.base_instant)
    bloom = BloomFilter.from_bytes(base64.b64decode(record.text), is_dynamic=False)
    assert bloom.may_hold(KeyBytes(pa.array(["c", "other"]))).tolist() == [True, False]
    with pytest.raises(CorruptMetadata, match="cannot be read"):
        decode_filter(b"\x00\x01")


def test_files_without_a_filter_have_no_record() -> None:
    table = made(**{"hoodie.parquet.bloom.filter.enabled": False})
    with pytest.raises(InvalidOption, match="switch off"):
        create_metadata(table, [BLOOM_FILTERS])
    assert table.refresh().metadata is None
    table = open_table(table.storage, table.clock, **SOON)
    create_metadata(table, [BLOOM_FILTERS])
    assert held(table) == {}
    assert check_table(table) == []


def test_a_lie_is_found_and_repaired() -> None:
    table = made()
    create_metadata(table, [BLOOM_FILTERS])
    write(table, [("c", "r", 1, "x")])
    part = part_of(table)
    for group in range(part.file_groups):
        table.storage.delete(file_path(log_name(part.base, part.deltas[-1].version, f"bloom-filters-000{group}-0"), BLOOM_FILTERS))
    assert {finding.kind.value for finding in check_table(table)} & {"missing file", "not listed"}
    repair_metadata(table)
    assert check_table(table) == []
    assert len(held(table)) == 3
