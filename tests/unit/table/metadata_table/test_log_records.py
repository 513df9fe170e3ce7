"""Look-ups in the record index read each log file once, and answer as of the state that they are asked about."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.unit.table.tables import compact, new_table, open_table, write

from tideline_table.action import create_metadata
from tideline_table.hudi.formats import WRITTEN
from tideline_table.log.metadata import RECORD_INDEX, MetadataPartition
from tideline_table.log_format.hfile import HFile
from tideline_table.metadata_table import LogRecords, RecordIndex, base_files, log_records
from tideline_table.metadata_table.base_files import BaseFiles
from tideline_table.metadata_table.key_lookup import record_index_of
from tideline_table.table import Table, TableType
from tideline_table.writer import Operation

OPTIONS = {"hoodie.metadata.record.index.min.filegroup.count": 1, "hoodie.metadata.compact.max.delta.commits": 4}
KEYS = pa.array([f"k{number}" for number in range(6)])


@pytest.fixture
def table() -> Table:
    _, storage, clock = new_table()
    found = open_table(storage, clock, **OPTIONS)
    create_metadata(found, (RECORD_INDEX,))
    return found


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The log files that were read, in order."""
    paths: list[str] = []
    real: Callable[..., Any] = log_records.log_changes

    def counted(storage: Any, path: str) -> Any:
        paths.append(path)
        return real(storage, path)

    monkeypatch.setattr(log_records, "log_changes", counted)
    return paths


def part_of(table: Table) -> MetadataPartition:
    found = record_index_of(table.refresh())
    assert found is not None
    return found


def partitions(index: RecordIndex, part: MetadataPartition) -> list[str]:
    """The partition of each of `KEYS`, empty for a key that the index does not hold."""
    found = index.look_up(part, KEYS)
    return [found.locations[place].partition_path if place >= 0 else "" for place in found.places.tolist()]


def history(table: Table) -> list[MetadataPartition]:
    """The index after each of some writes, which insert, delete and insert again."""
    parts = []
    write(table, [("k0", "p", 1, "x"), ("k1", "q", 1, "x")])
    parts.append(part_of(table))
    write(table, [("k2", "r", 1, "x")])
    parts.append(part_of(table))
    write(table, [("k0", "p", 2, "x"), ("k2", "r", 2, "x")], Operation.DELETE)
    parts.append(part_of(table))
    write(table, [("k0", "s", 3, "x")])
    parts.append(part_of(table))
    return parts


EXPECTED = [["p", "q", "", "", "", ""], ["p", "q", "r", "", "", ""], ["", "q", "", "", "", ""], ["s", "q", "", "", "", ""]]


@pytest.mark.parametrize("most_records", [log_records.MOST_RECORDS, 2, 0])
@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0), (2, 0, 3, 1)])
def test_each_state_is_answered_as_it_was(table, most_records, order):
    parts = history(table)
    index = RecordIndex(table.storage, LogRecords(table.storage, WRITTEN, most_records))
    for number in (*order, *order):
        assert partitions(index, parts[number]) == EXPECTED[number]


def test_a_log_file_is_read_once(table, read):
    parts = history(table)
    index = RecordIndex(table.storage, LogRecords(table.storage, WRITTEN))
    read.clear()
    for number in (1, 1, 3, 3):
        partitions(index, parts[number])
    assert len(read) == len(set(read)) == 4
    read.clear()
    few = RecordIndex(table.storage, LogRecords(table.storage, WRITTEN, 0))
    partitions(few, parts[3])
    partitions(few, parts[3])
    assert len(read) > 4, "nothing is kept"


def test_a_file_with_many_more_records_than_wanted_keys_is_not_kept(table, read):
    write(table, [(f"k{number}", "p", 1, "x") for number in range(9)])
    part, index = part_of(table), RecordIndex(table.storage, LogRecords(table.storage, WRITTEN))
    read.clear()
    for _ in range(2):
        assert index.look_up(part, pa.array(["k3"])).places.tolist() == [0]
    assert len(read) == 2
    read.clear()
    partitions(index, part)
    partitions(index, part)
    assert len(read) == 1


def test_a_new_slice_begins_anew(table, read):
    index = table.record_index
    history(table)
    for number in range(5):
        write(table, [("k5", f"t{number}", 5 + number, "x")], **{"hoodie.record.index.update.partition.path": True})
        assert partitions(index, part_of(table)) == ["s", "q", "", "", "", f"t{number}"]
    assert read == [], "what a process wrote it does not read"
    fresh = RecordIndex(table.storage, LogRecords(table.storage, WRITTEN))
    for _ in range(2):
        assert partitions(fresh, part_of(table))[5] == "t4"
    assert len(read) == len(set(read)) > 0


def test_files_of_another_writer_are_read_between_own_ones(table, read):
    other = open_table(table.storage, table.clock, "other", **OPTIONS)
    write(table, [("k0", "p", 1, "x")])
    write(other, [("k1", "q", 1, "x"), ("k0", "p", 2, "x")])
    write(table, [("k1", "q", 2, "x")], Operation.DELETE)
    write(table, [("k2", "r", 1, "x")])
    read.clear()
    assert partitions(table.record_index, part_of(table)) == ["p", "", "r", "", "", ""]
    assert partitions(other.record_index, part_of(other)) == ["p", "", "r", "", "", ""]


def test_merge_on_read_tables_answer_alike():
    _, storage, clock = new_table(type=TableType.MOR)
    table = open_table(storage, clock, **OPTIONS)
    create_metadata(table, (RECORD_INDEX,))
    history(table)
    compact(table)
    assert partitions(table.record_index, part_of(table)) == EXPECTED[-1]


def test_many_keys_are_found_in_base_files_and_in_log_files_that_this_process_wrote(read):
    """Keys that a look-up rules out by their hashes or by the range of a base file, and keys that it does not rule out."""
    _, storage, clock = new_table()
    table = open_table(storage, clock, **{**OPTIONS, "hoodie.metadata.record.index.min.filegroup.count": 3})
    create_metadata(table, (RECORD_INDEX,))
    keys = [f"{number:04}" for number in range(0, 900, 3)]
    for at in range(6):
        write(table, [(key, f"p{at}", 1, "x") for key in keys[at * 50 : at * 50 + 50]])
        if at == 3:
            write(table, [(keys[7], "p0", 2, ""), (keys[190], "p3", 2, "")], Operation.DELETE)
    part = part_of(table)
    assert part.older_base, "some keys are in base files"
    gone, wanted = (keys[7], keys[190]), pa.array([f"{number:04}" for number in range(1, 1_000)])
    expected = {key: f"p{at // 50}" for at, key in enumerate(keys) if key not in gone}
    read.clear()
    for index in (
        table.record_index,
        table.record_index,
        RecordIndex(storage, LogRecords(storage, WRITTEN)),
        RecordIndex(storage, LogRecords(storage, WRITTEN, 60)),
    ):
        for asked in (wanted, wanted.slice(870), pa.array([keys[299]]), pa.array([keys[7], "0001"])):
            found = index.look_up(part, asked)
            places = [found.locations[place].partition_path if place >= 0 else "" for place in found.places.tolist()]
            assert places == [expected.get(key, "") for key in asked.to_pylist()]
        if index is table.record_index:
            assert read == []


def test_base_files_are_kept_until_the_next_slice(table, monkeypatch):
    history(table)
    for number in range(5):
        write(table, [(f"m{number}", "p", 1, "x")])
    opened: list[str] = []
    real = base_files.open_base
    monkeypatch.setattr(base_files, "open_base", lambda storage, path: opened.append(path) or real(storage, path))
    part, kept, none = part_of(table), BaseFiles(table.storage), BaseFiles(table.storage, most_bytes=0)
    for files, times in ((kept, 1), (none, 3)):
        opened.clear()
        for _ in range(3):
            assert files.may_hold(part, 0, b"k0", b"k1")
            assert files.open(part, 0).first_key == b"k0"
        assert len(opened) == times
        assert not files.may_hold(part, 0, b"z0", b"z1")
        assert not files.may_hold(part, 0, b"a0", b"a1")
        assert files.may_hold(replace(part, base="9" * 17), 0, b"z0", b"z1"), "of a slice that was not read"


def test_blocks_of_base_files_are_decoded_once_for_random_keys(table, monkeypatch):
    rows = [(f"{number * 7919 % 10_007:05}", "p", 1, "x") for number in range(600)]
    write(table, rows)
    for number in range(5):
        write(table, [(f"m{number}", "p", 1, "x")])
    part, index = part_of(table), RecordIndex(table.storage, LogRecords(table.storage, WRITTEN))
    decoded: list[int] = []
    real = HFile._unpacked
    monkeypatch.setattr(HFile, "_unpacked", lambda *given: decoded.append(1) or real(*given))
    held = {key for key, *_ in rows}
    absent = pa.array([key for key in (f"{number:05}" for number in range(10_007)) if key not in held])
    for some in (rows[:500], rows[500:]):
        found = index.look_up(part, pa.concat_arrays([absent, pa.array([key for key, *_ in some])]))
        assert (found.places >= 0).nonzero()[0].tolist() == list(range(len(absent), len(absent) + len(some)))
    decoded.clear()
    others = pa.array([f"{number}-absent" for number in range(1_000)])
    assert (index.look_up(part, others).places < 0).all()
    assert decoded == [], "all are in the range of the base file, and none is there by its hash"
    none = RecordIndex(table.storage, LogRecords(table.storage, WRITTEN))
    none._bases = BaseFiles(table.storage, most_hashes=0)
    for _ in range(2):
        decoded.clear()
        assert (none.look_up(part, others).places < 0).all()
        assert decoded


def test_hashes_that_two_threads_add_first_are_both_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """The filter is made by the first hash: of two that were made at once, one would forget what the other thread added."""
    known, one, two = log_records._HashFilter(), np.array([1], np.uint32), np.array([2], np.uint32)
    zeros, begun = np.zeros, list[threading.Thread]()

    def interrupted(*of: Any, **options: Any) -> Any:
        made = zeros(*of, **options)
        if not begun:
            begun.append(threading.Thread(target=known.add, args=(two,)))
            begun[0].start()
            begun[0].join(0.2)
        return made

    monkeypatch.setattr(log_records.np, "zeros", interrupted)
    known.add(one)
    begun[0].join()
    assert known.may_hold(one).all()
    assert known.may_hold(two).all()
