"""The record index holds the place of each key after each action, tags writes, and is never trusted when it is damaged."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from tests.plans import schedule_clean, schedule_clustering
from tests.unit.table.hudi_metadata import TIMELINE_FOLDER, log_name
from tests.unit.table.tables import cluster, compact, contents, new_table, open_table, write

from tideline_table.action import (
    check_table,
    create_metadata,
    create_savepoint,
    delete_partitions,
    drop_metadata,
    repair_metadata,
    restore_to_savepoint,
    run_clean,
)
from tideline_table.action.write.transaction import WriteTransaction
from tideline_table.errors import DuplicateKey, InvalidOption, InvalidRecord, MetadataDamaged, MetadataNotFound, UnsupportedTable
from tideline_table.file_group.slice import FileGroupId
from tideline_table.hudi.formats import WRITTEN
from tideline_table.hudi.instant import State, time_from_instant
from tideline_table.hudi.properties import METADATA_PARTITIONS, read_properties
from tideline_table.log import packed
from tideline_table.log import state as log_state
from tideline_table.log.metadata import COLUMN_STATS, RECORD_INDEX, MetadataPartition
from tideline_table.log.table_log import TableLog
from tideline_table.log_format.block import BlockType, HeaderKey
from tideline_table.log_format.framing import frame_block
from tideline_table.log_format.hfile_writer import hfile_bytes
from tideline_table.metadata_table import RecordIndex
from tideline_table.metadata_table.layout import file_id_of, file_path
from tideline_table.metadata_table.partition import Source, groups_of_keys, mapping_of
from tideline_table.metadata_table.reading import read_group, recorded_group, recorded_names
from tideline_table.metadata_table.record_index import RecordLocation, decode_location, encode_location, live_keys, location_of
from tideline_table.metadata_table.records import record_schema_json
from tideline_table.storage import MemoryStorage
from tideline_table.table import BucketIndex, Table, TableType
from tideline_table.writer import Operation

SOON = {
    "hoodie.cleaner.commits.retained": 1,
    "hoodie.metadata.compact.max.delta.commits": 3,
    "hoodie.metadata.record.index.min.filegroup.count": 3,
    "tideline.clustering.min.input.files": 1,
}
A = [("a", "p", 1, "x"), ("b", "q", 1, "x"), ("c", "q", 1, "x")]


def indexed(kind: TableType = TableType.COW, **options: Any) -> tuple[Table, MemoryStorage, Any]:
    table, storage, clock = new_table(type=kind)
    table = open_table(storage, clock, **SOON, **options)
    create_metadata(table, (RECORD_INDEX,))
    assert isinstance(storage, MemoryStorage)
    return table, storage, clock


def part_of(table: Table) -> MetadataPartition:
    known = table.refresh().metadata
    assert known is not None
    found = known.partition(RECORD_INDEX)
    assert found is not None
    return found


def held(table: Table) -> dict[str, RecordLocation]:
    """Key → location, as a reader of the metadata table finds it."""
    part = part_of(table)
    names = recorded_names(table.storage, WRITTEN, part)
    groups = [read_group(table.storage, part, n, recorded_group(WRITTEN, part, n, names)) for n in range(part.file_groups)]
    return {key.decode(): decode_location(datum) for group in groups for key, datum in mapping_of(group).items()}


def places(table: Table) -> dict[str, FileGroupId]:
    return {key: location.group for key, location in held(table).items()}


def stored(table: Table) -> dict[str, FileGroupId]:
    """Key → file group, from the data files."""
    source = Source(table.storage, WRITTEN, table.refresh(), table.timeline.rule)
    return {key.decode(): s.group for s in source.state.latest_slices() for key in live_keys(source, s).to_pylist()}


def agree(table: Table) -> None:
    assert places(table) == stored(table)
    assert check_table(table) == []


def rows(table: Table) -> dict[str, tuple[Any, ...]]:
    found = table.refresh() and table.read(["id", "part", "v"])
    return {row["id"]: (row["part"], row["v"]) for row in found.to_pylist()}


@pytest.mark.parametrize("kind", list(TableType), ids=lambda kind: kind.value)
def test_it_agrees_after_each_action(kind):
    table, _, clock = indexed(kind)
    write(table, A)
    agree(table)
    write(table, [("a", "p", 2, "y"), ("d", "p", 2, "y")])
    agree(table)
    write(table, [("b", "q", 9, "")], Operation.DELETE)
    agree(table)
    assert "b" not in places(table)
    write(table, [("b", "q", 10, "again")])
    agree(table)
    clock.advance(1)
    WriteTransaction.begin(table.timeline, table.lock, "UPSERT", table.write_action()).roll_back()
    agree(table)
    if kind is TableType.MOR:
        compact(table)
        agree(table)
    before = places(table)
    schedule_clustering(table)
    assert cluster(table) is not None
    agree(table)
    assert before.keys() == places(table).keys()
    assert set(before.values()).isdisjoint(places(table).values())
    saved = create_savepoint(table).instant
    at_savepoint = places(table)
    for number in range(4):
        write(table, [("a", "p", 3 + number, "z"), (f"n{number}", "r", 1, "z")])
        agree(table)
    assert part_of(table).older_base, "it was compacted"
    assert schedule_clean(table) is not None
    run_clean(table)
    agree(table)
    restore_to_savepoint(table, saved)
    agree(table)
    assert places(table) == at_savepoint
    write(table, [("a", "p", 10, "w"), ("new", "p", 1, "w")], Operation.INSERT_OVERWRITE)
    agree(table)
    clock.advance(1)
    delete_partitions(table, ["q"])
    agree(table)
    assert places(table).keys() == {"a", "new"}


def test_a_key_that_moves_has_one_place():
    table, _, _ = indexed()
    write(table, A)
    at = places(table)["a"]
    write(table, [("a", "r", 2, "stays")])
    assert places(table)["a"] == at
    write(table, [("a", "r", 3, "moves")], **{"hoodie.record.index.update.partition.path": True})
    assert places(table)["a"].partition_path == "r"
    assert rows(table)["a"] == ("r", "moves")
    write(table, [("a", "q", 1, "late")], **{"hoodie.record.index.update.partition.path": True})
    assert rows(table)["a"] == ("r", "moves")
    agree(table)


def test_instants_of_records_are_those_of_the_inserts():
    table, _, _ = indexed()
    first = write(table, A).instant
    before = held(table)
    write(table, [("a", "p", 2, "y"), ("d", "p", 2, "y")])
    after = held(table)
    assert {key: after[key] for key in "abc"} == before
    assert before["a"].instant_ms < after["d"].instant_ms
    assert before["a"].instant_ms == encode_time(first)


def encode_time(instant: str) -> int:
    return round(time_from_instant(instant).timestamp() * 1000)


def test_a_write_asks_for_the_parts_of_the_partitions_that_the_index_names(monkeypatch):
    monkeypatch.setattr(packed, "PART_GROUPS", 4)
    monkeypatch.setattr(log_state, "LEAST_PACKED", 8)
    table, storage, clock = indexed(**{"tideline.log.checkpoint.interval": 2})
    write(table, [(f"k{n:02}", f"p{n:02}", 1, "x") for n in range(40)])
    fresh = open_table(storage, clock, "other", **SOON)
    read: list[str] = []
    inner = packed.Part.rows
    monkeypatch.setattr(packed.Part, "rows", lambda part: read.append(part.first.partition_path) or inner(part))
    write(fresh, [("k07", "p13", 2, "y"), ("new", "p13", 2, "y")])
    assert set(read) == {"p04", "p12", "p36"}, "where the key is, where the rows go, the newest part for the size of a row"
    assert [row for row in contents(fresh) if row[0] in ("k07", "new")] == [("k07", "p13", 2, "y"), ("new", "p13", 2, "y")]


def test_tagging_reads_no_data_file_and_only_the_groups_of_the_keys():
    table, storage, clock = indexed()
    write(table, [(f"k{n:03}", "p", 1, "x") for n in range(40)])
    fresh = open_table(storage, clock, "other", **SOON)
    read: list[str] = []

    def recording(real):
        return lambda path, *place: read.append(path) or real(path, *place)

    for name in ("read", "read_range", "open_input"):
        setattr(storage, name, recording(getattr(storage, name)))
    group = int(groups_of_keys(pa.array(["k007"]), 3)[0])
    found = fresh.record_index.locate(part_of(fresh), fresh.state.latest_among, pa.array(["k007"]))
    assert [len(hits) for hits in found.hits] == [1]
    files = [path for path in read if "record_index/" in path]
    assert files
    assert all(file_id_of(RECORD_INDEX, group) in path for path in files)
    assert not [path for path in read if path.endswith(".parquet")]


def before_next(monkeypatch: pytest.MonkeyPatch, name: str, do: Callable[[], object]) -> None:
    """Call `do` once, before the next call of a method of the record index."""
    real, waiting = getattr(RecordIndex, name), [do]

    def call(self: RecordIndex, *args: Any) -> Any:
        while waiting:
            waiting.pop()()
        return real(self, *args)

    monkeypatch.setattr(RecordIndex, name, call)


def test_a_look_up_beside_a_thread_that_publishes_its_commit(monkeypatch):
    table, _, _ = indexed()
    write(table, A)
    real, in_log, go_on = TableLog.materialise, threading.Event(), threading.Event()

    def late(self, entry, *more):
        if threading.current_thread() is other and entry.after is State.COMPLETED:
            in_log.set()
            assert go_on.wait(30)
        return real(self, entry, *more)

    def meanwhile():
        other.start()
        assert in_log.wait(30)

    monkeypatch.setattr(TableLog, "materialise", late)
    other = threading.Thread(target=lambda: write(table, [("d", "q", 1, "other")]))
    before_next(monkeypatch, "locate", meanwhile)
    # The log has an entry whose records are not there yet.
    ended = threading.Timer(0.2, go_on.set)
    ended.start()
    write(table, [("a", "p", 2, "mine")])
    other.join()
    assert rows(table) == {"a": ("p", "mine"), "b": ("q", "x"), "c": ("q", "x"), "d": ("q", "other")}
    agree(table)


def test_a_look_up_goes_on_when_other_threads_replaced_the_files_that_it_reads(monkeypatch):
    table, _, _ = indexed()
    write(table, A)

    def meanwhile():
        for n in range(8):
            write(table, [(f"d{n}", "q", 1, "other"), ("b", "q", 2 + n, "other")])

    other = threading.Thread(target=meanwhile)
    before_next(monkeypatch, "look_up", lambda: (other.start(), other.join()))
    write(table, [("a", "p", 2, "mine"), ("d3", "q", 2, "mine")])
    found = rows(table)
    assert (found["a"], found["d3"], found["b"]) == (("p", "mine"), ("q", "mine"), ("q", "other"))
    assert len(found) == 11
    agree(table)


def test_inserts_write_each_key_once():
    table, _, _ = indexed()
    write(table, A)
    write(table, [("a", "r", 5, "new")], Operation.INSERT)
    write(table, [("b", "r", 5, "new")], Operation.BULK_INSERT)
    assert {key: v for key, (_, v) in rows(table).items()} == {"a": "new", "b": "new", "c": "x"}
    with pytest.raises(DuplicateKey):
        write(table, [("a", "z", 6, "twice")], Operation.INSERT_OVERWRITE)
    agree(table)


def damaged_log(table: Table) -> None:
    part, names = part_of(table), recorded_names(table.storage, WRITTEN, part_of(table))
    path = file_path(max(name for name in names if ".log." in name and f".log.{part.deltas[-1].version}_" in name), RECORD_INDEX)
    table.storage.put(path, table.storage.read(path)[:-9])


def missing_log(table: Table) -> None:
    names = recorded_names(table.storage, WRITTEN, part_of(table))
    table.storage.delete(file_path(max(name for name in names if ".log." in name), RECORD_INDEX))


def missing_commit(table: Table) -> None:
    table.storage.delete(f"{TIMELINE_FOLDER}/{part_of(table).deltas[-1].instant}.deltacommit")


def emptied_commit(table: Table) -> None:
    table.storage.put(f"{TIMELINE_FOLDER}/{part_of(table).deltas[-1].instant}.deltacommit", b"")


def replaced_group(table: Table) -> None:
    part = part_of(table)
    gone = encode_location(location_of(FileGroupId("p", "00000000-0000-4000-8000-000000000000-0"), "20260101000000000"))
    for group in range(part.file_groups):
        wanted = [key for key in ("a", "b", "c") if int(groups_of_keys(pa.array([key]), part.file_groups)[0]) == group]
        if wanted:
            schema = record_schema_json(with_meta_fields=True)
            content = hfile_bytes([(key.encode(), gone) for key in wanted], {"schema": schema.encode()})
            header = {HeaderKey.INSTANT_TIME: part.deltas[-1].instant, HeaderKey.SCHEMA: schema}
            name = log_name(part.base, part.deltas[-1].version, file_id_of(RECORD_INDEX, group))
            table.storage.put(file_path(name, RECORD_INDEX), frame_block(BlockType.HFILE, header, content))


@pytest.mark.parametrize("damage", [damaged_log, missing_log, missing_commit, emptied_commit, replaced_group])
def test_a_damaged_index_stops_writers_not_readers(damage, caplog):
    table, storage, clock = indexed()
    write(table, A)
    before = rows(table)
    damage(table)
    fresh = open_table(storage, clock, "other", **SOON)
    found = fresh.look_up(["a", "b", "c"], ["id", "part", "v"])
    assert {row["id"]: (row["part"], row["v"]) for row in found.to_pylist()} == before
    assert "without the record index" in caplog.text
    with pytest.raises(MetadataDamaged, match="--repair"):
        write(fresh, [("a", "p", 2, "y"), ("b", "q", 2, "y"), ("c", "q", 2, "y")])
    assert rows(fresh) == before
    assert check_table(fresh) != []
    repair_metadata(fresh)
    agree(fresh)
    write(fresh, [("a", "p", 2, "y")])
    agree(fresh)


def test_a_look_up_reads_the_slice_that_holds_the_key():
    table, _, _ = indexed()
    write(table, [(f"k{n}", f"p{n}", 1, "x") for n in range(8)])
    found = table.narrowed(table.snapshot(), pa.array(["k3"]))
    assert [s.group.partition_path for s in found.slices] == ["p3"]
    assert table.look_up(["k3"], ["part"]).column(0).to_pylist() == ["p3"]
    assert table.look_up(["absent"]).num_rows == 0


def test_tables_that_cannot_have_one_are_refused():
    table, storage, _ = new_table()
    write(table, [("a", "p", 1, "x"), ("a", "q", 1, "x")])
    with pytest.raises(DuplicateKey, match="'a' in two file groups"):
        create_metadata(table, (RECORD_INDEX,))
    write(table, [("a", "q", 2, "")], Operation.DELETE)
    create_metadata(table, (RECORD_INDEX,))
    agree(table)
    with pytest.raises(InvalidOption, match="RECORD_INDEX"):
        write(table, A, **{"hoodie.index.type": "SIMPLE"})
    drop_metadata(table, (RECORD_INDEX,))
    assert read_properties(storage)[METADATA_PARTITIONS] == "files"
    assert check_table(table) == []
    with pytest.raises(MetadataNotFound):
        drop_metadata(table, (RECORD_INDEX,))
    with pytest.raises(MetadataDamaged, match="tideline metadata create"):
        write(table, A, **{"hoodie.index.type": "RECORD_INDEX"})
    bucketed, _, _ = new_table(index=BucketIndex(2))
    with pytest.raises(UnsupportedTable):
        create_metadata(bucketed, (RECORD_INDEX,))


def index_created_by_another(table: Table, storage: MemoryStorage, clock: Any, *, before_begin: bool) -> Table:
    """Let another process create the record index once: before the next begin of a write, or before its commit."""
    other, real, once = open_table(storage, clock, "other"), table.timeline.append, iter([True])

    def appended(decide: Any, *gather: Any, **more: Any) -> Any:
        if (before_begin or gather) and next(once, False):
            create_metadata(other, (RECORD_INDEX,))
        return real(decide, *gather, **more)

    table.timeline.append = appended  # type: ignore[method-assign]
    return other


@pytest.mark.parametrize("before_begin", [True, False], ids=["look", "begin"])
@pytest.mark.parametrize("operation", [Operation.UPSERT, Operation.INSERT], ids=str)
def test_a_write_that_looked_before_the_index_repeats_by_it(operation, before_begin):
    table, storage, clock = new_table()
    write(table, A)
    other = index_created_by_another(table, storage, clock, before_begin=before_begin)
    done = write(table, [("a", "q", 2, "once"), ("d", "p", 1, "new")], operation)
    assert done.attempts == 2
    assert rows(other) == {"a": ("q", "once"), "b": ("q", "x"), "c": ("q", "x"), "d": ("p", "new")}
    assert places(other)["a"].partition_path == "p"
    agree(other)


def test_an_overwrite_that_looked_before_the_index_looks_keys_up_in_it():
    table, storage, clock = new_table()
    write(table, A)
    other = index_created_by_another(table, storage, clock, before_begin=True)
    with pytest.raises(DuplicateKey, match="partition 'q'"):
        write(table, [("b", "p", 2, "x")], Operation.INSERT_OVERWRITE)
    agree(other)


def test_a_write_that_names_its_index_is_refused_once_there_is_a_record_index():
    table, storage, clock = new_table()
    write(table, A)
    other = index_created_by_another(table, storage, clock, before_begin=False)
    with pytest.raises(InvalidOption, match="leave this option out"):
        write(table, [("a", "q", 2, "twice")], **{"hoodie.index.type": "SIMPLE"})
    agree(other)


def test_locations_survive_their_encoding():
    for file_id in ("0f0e0d0c-0b0a-4908-8706-050403020100-0", "ffffffff-ffff-4fff-bfff-ffffffffffff-12", "any-text", "a_b-3"):
        location = RecordLocation("p=1/q", file_id, 1_700_000_000_123)
        assert decode_location(encode_location(location)) == location


def test_a_data_file_that_is_gone_stops_only_writers_of_the_index(caplog):
    table, storage, clock = indexed()
    first = write(table, A)
    write(table, [("a", "p", 2, "y"), ("d", "p", 2, "y")])
    known = table.state
    real = storage.put_if_absent
    entry = f"{known.sequence + 2:020d}.json"

    def put(path: str, data: bytes) -> None:
        real(path, data)
        if path.endswith(entry):  # the commit point of the next write, whose earlier base file vanishes right behind it
            storage.delete(next(stat.path for stat in first.stats if stat.partition_path == "q"))

    storage.put_if_absent = put  # type: ignore[method-assign]
    write(table, [("b", "q", 2, "")], Operation.DELETE)
    storage.put_if_absent = real  # type: ignore[method-assign]
    assert "lacks records until it is repaired" in caplog.text
    fresh = open_table(storage, clock, "other", **SOON)
    with pytest.raises(MetadataDamaged):
        write(fresh, [("c", "q", 3, "z")])
    repair_metadata(fresh)
    write(fresh, [("c", "q", 3, "z")])
    assert places(fresh) == stored(fresh)
    assert places(fresh).keys() == {"a", "c", "d"}


def test_an_overwrite_adds_no_key_that_another_writer_put_into_another_partition(monkeypatch):
    table, storage, clock = indexed()
    write(table, A)
    other = open_table(storage, clock, "other", **SOON)
    commit = WriteTransaction.commit

    def behind_the_other(self, *args, **more):
        monkeypatch.setattr(WriteTransaction, "commit", commit)
        write(other, [("k", "q", 1, "other")])
        return commit(self, *args, **more)

    monkeypatch.setattr(WriteTransaction, "commit", behind_the_other)
    with pytest.raises(DuplicateKey, match="partition 'q'"):
        write(table, [("k", "p", 2, "x")], Operation.INSERT_OVERWRITE)
    assert [row[0] for row in contents(table)] == ["a", "b", "c", "k"]
    assert places(table)["k"].partition_path == "q"


def test_a_repair_makes_all_partitions_in_one_entry():
    table, _, _ = indexed()
    write(table, A)
    create_metadata(table, (COLUMN_STATS,))
    sequence = table.refresh().sequence
    known = repair_metadata(table)
    assert known is not None
    assert set(known.names) == {"files", COLUMN_STATS, RECORD_INDEX}
    assert table.refresh().sequence == sequence + 1, "no writer sees the table without its record index"
    assert check_table(table) == []


LONG = [("k" * 32_758, "p", 1, "x")]


@pytest.mark.parametrize("operation", [Operation.UPSERT, Operation.INSERT, Operation.BULK_INSERT, Operation.INSERT_OVERWRITE])
@pytest.mark.parametrize("kind", TableType)
def test_a_key_that_the_index_cannot_hold_is_refused_before_the_commit(kind, operation):
    table, _, _ = indexed(kind)
    write(table, A)
    with pytest.raises(InvalidRecord, match="32758 bytes"):
        write(table, LONG, operation)
    longest = [("k" * 32_757, "p", 1, "x")]
    write(table, [*A, *longest])
    assert contents(table) == sorted([*A, *longest])
    assert check_table(table) == []


@pytest.mark.parametrize("kind", TableType)
def test_a_table_with_a_committed_key_that_the_index_cannot_hold_is_healed(kind, monkeypatch):
    # As an earlier release or a write that met the creation of the index committed it.
    monkeypatch.setattr("tideline_table.writer.input.MOST_KEY_BYTES", 10**9)
    table, storage, clock = indexed(kind)
    write(table, A)
    write(table, LONG)
    monkeypatch.undo()
    table = open_table(storage, clock, **SOON)
    assert check_table(table)
    with pytest.raises(InvalidRecord, match="32758 bytes"):
        repair_metadata(table)
    with pytest.raises(MetadataDamaged):
        write(table, [("d", "p", 1, "x")])
    write(table, [("d", "p", 1, "x")], **{"hoodie.index.type": "GLOBAL_SIMPLE"})
    drop_metadata(table, (RECORD_INDEX,))
    with pytest.raises(InvalidRecord, match="32758 bytes"):
        create_metadata(table, (RECORD_INDEX,))
    write(table, LONG, Operation.DELETE)
    create_metadata(table, (RECORD_INDEX,))
    write(table, [("e", "p", 1, "x")])
    assert [row[0] for row in contents(table)] == ["a", "b", "c", "d", "e"]
    assert check_table(table) == []
