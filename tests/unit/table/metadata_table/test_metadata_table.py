"""The metadata table agrees with the table after each action, survives its own compactions, and its damage is found and
repaired."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.plans import schedule_clean, schedule_clustering
from tests.simulation.metadata_reader import files_for_readers
from tests.unit.table.hudi_metadata import TIMELINE_FOLDER, log_name
from tests.unit.table.tables import cluster, compact, contents, listing, new_table, open_table, set_properties, write

from tideline_locks import open_hudi_lock
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
)
from tideline_table.action.write.transaction import WriteTransaction
from tideline_table.errors import InvalidOption, MetadataExists, MetadataNotFound, UnsupportedTable
from tideline_table.hudi.avro_container import decode_document
from tideline_table.hudi.formats import WRITTEN
from tideline_table.hudi.instant import Action, State
from tideline_table.hudi.properties import METADATA_FOLDER, METADATA_PARTITIONS, read_properties
from tideline_table.log.checkpoint import read_opening, write_checkpoint
from tideline_table.log.metadata import Delta, MetadataPartition
from tideline_table.log.sharing import HudiLockKind, Sharing
from tideline_table.log_format.block import BlockType, HeaderKey
from tideline_table.log_format.framing import frame_block
from tideline_table.log_format.hfile import HFile
from tideline_table.log_format.hfile_writer import hfile_bytes
from tideline_table.metadata_table import FindingKind, StoredMetadata
from tideline_table.metadata_table.layout import FILES_FOLDER, PROPERTIES_PATH, base_name, file_path
from tideline_table.metadata_table.partition import Records, by_group, groups_of_keys, mapping_of, newest_records
from tideline_table.metadata_table.reading import live, read_files, slice_files
from tideline_table.metadata_table.records import DELETED, FilesRecords, decode_records, encode_records, record_schema_json
from tideline_table.storage import MemoryStorage
from tideline_table.table import Table, TableType, share_table
from tideline_table.writer import Operation

SHARING = Sharing(HudiLockKind.STORAGE)
A = [("a", "p", 1, "x"), ("b", "q", 1, "x")]
SOON = {
    "hoodie.cleaner.commits.retained": 1,
    "hoodie.keep.min.commits": 2,
    "hoodie.keep.max.commits": 3,
    "hoodie.metadata.compact.max.delta.commits": 3,
    "tideline.archive.min.age": 0,
    "tideline.task.max.lifetime": 0,
    "tideline.clustering.min.input.files": 1,
}


def indexed(kind: TableType = TableType.COW, **more: Any) -> tuple[Table, MemoryStorage, Any]:
    table, storage, clock = new_table(type=kind, **more)
    table = open_table(storage, clock, **SOON)
    create_metadata(table)
    assert isinstance(storage, MemoryStorage)
    return table, storage, clock


def known(table: Table) -> MetadataPartition:
    found = table.refresh().metadata
    assert found is not None
    return found.files


def listed(table: Table) -> dict[str, dict[str, int]]:
    """The files that a reader of the metadata table finds, by partition."""
    found = read_files(table.storage, known(table), slice_files(table.storage, known(table)))
    return {partition: live(names) for partition, names in found.files.items() if live(names)}


def kinds(table: Table) -> list[str]:
    return [finding.kind.value for finding in check_table(table)]


def clean(table: Table) -> int:
    assert schedule_clean(table) is not None
    deleted = run_clean(table)
    assert deleted
    return deleted


@pytest.mark.parametrize("kind", list(TableType), ids=lambda kind: kind.value)
@pytest.mark.parametrize("partitions", [("part",), ()], ids=["partitioned", "flat"])
def test_it_agrees_after_each_action(kind, partitions):
    table, _, clock = indexed(kind, partitions=partitions)
    assert listed(table) == {}

    def agree() -> None:
        assert check_table(table) == []

    write(table, A)
    agree()
    write(table, [("a", "p", 2, "y"), ("c", "p", 2, "y")])
    write(table, [("b", "q", 0, "")], Operation.DELETE)
    agree()
    clock.advance(1)
    WriteTransaction.begin(table.timeline, table.lock, "UPSERT", table.write_action()).roll_back()
    agree()
    if kind is TableType.MOR:
        compact(table)
        agree()
    schedule_clustering(table)
    assert cluster(table) is not None
    agree()
    saved = create_savepoint(table).instant
    for number in range(4):
        write(table, [("a", "p", 3 + number, "z"), (f"n{number}", "r", 1, "z")])
    clean(table)
    agree()
    before = listed(table)
    restore_to_savepoint(table, saved)
    agree()
    assert listed(table) != before
    for number in range(3):
        write(table, [("a", "p", 10 + number, "w")], Operation.INSERT_OVERWRITE)
    if partitions:
        clock.advance(1)
        delete_partitions(table, ["p"])
    write(table, A)
    agree()
    clean(table)
    archive(table)
    agree()
    assert known(table).older_base, "it was compacted"
    write(table, A)
    assert len(listed(table)) == (2 if partitions else 1)
    agree()


def test_a_commit_is_in_it_before_the_timeline_shows_the_commit():
    table, storage, _ = indexed()
    puts: list[str] = []
    real = storage.put_if_absent

    def recorded(path: str, data: bytes) -> None:
        puts.append(path)
        real(path, data)

    storage.put_if_absent = recorded  # type: ignore[method-assign]
    at = write(table, A).instant
    order = [path.rpartition("/")[2] for path in puts if METADATA_FOLDER in path or (at in path and path.startswith(".hoodie/2"))]
    assert order == [
        f"{at}.commit.requested",
        f"{at}.inflight",
        f"{at}.deltacommit.requested",
        f"{at}.deltacommit.inflight",
        log_name(known(table).base, 3),
        f"{at}.deltacommit",
        f"{at}.commit",
    ]


def test_what_a_delta_commit_says():
    table, storage, _ = indexed()
    at = write(table, A).instant
    name = log_name(known(table).base, 3)
    scanned = next(iter(known(table).deltas))
    assert scanned == Delta(at, 3)
    found = read_files(storage, known(table), slice_files(storage, known(table)))
    assert found.partitions == {"p": 0, "q": 0}
    sizes = {s.base_file: s.size_bytes for s in table.state.latest_slices()}
    assert {n: size for names in found.files.values() for n, size in names.items()} == sizes
    commit = json.loads(storage.read(f"{TIMELINE_FOLDER}/{at}.deltacommit"))
    (stat,) = commit["partitionToWriteStats"]["files"]
    assert (stat["fileId"], stat["path"], stat["logVersion"]) == ("files-0000-0", f"files/{name}", 3)
    assert stat["fileSizeInBytes"] == len(storage.read(file_path(name)))
    assert stat["logFiles"] == [name]


def test_a_clean_removes_the_record_of_a_partition_that_has_no_file_left():
    _, storage, clock = new_table()
    table = open_table(storage, clock, **{**SOON, "hoodie.metadata.compact.max.delta.commits": 100})
    create_metadata(table)
    for part in ("q", "r"):
        write(table, [("a", "p", 1, "x"), (f"b{part}", part, 1, "x")])
        clock.advance(1)
        delete_partitions(table, [part])
    write(table, [("a", "p", 2, "y")])
    assert schedule_clean(table) is not None
    # A write between the plan and the run of the clean begins r anew.
    write(table, [("c", "r", 3, "z")])
    assert run_clean(table)
    for found in (
        read_files(storage, known(table), slice_files(storage, known(table))),
        files_for_readers(storage),
        StoredMetadata.read(storage, WRITTEN).read_files(storage, frozenset()),
    ):
        assert (found.partitions, set(found.files)) == ({"p": 0, "r": 0}, {"p", "r"})
        assert live(found.files["r"]) == listing_of(table)["r"]
    write(table, [("bq", "q", 4, "z")])
    assert listed(table) == listing_of(table)
    assert kinds(table) == []


def listing_of(table: Table) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for known_slice in table.refresh().every_slice():
        found.setdefault(known_slice.group.partition_path, {})[known_slice.base_file] = known_slice.size_bytes
    return found


def test_the_documents_of_the_indexing_action():
    table, storage, _ = indexed()
    created = known(table).created
    plan = decode_document(storage.read(f".hoodie/{created}.indexing.requested"), "requested")
    done = decode_document(storage.read(f".hoodie/{created}.indexing"), "completed")
    assert plan["indexPartitionInfos"][0]["metadataPartitionPath"] == "files"
    assert (done["operationType"], done["indexPartitionInfos"]) == ("INDEX", plan["indexPartitionInfos"])
    assert storage.read(f".hoodie/{created}.indexing.inflight") == b""
    assert read_properties(storage)[METADATA_PARTITIONS] == "files"


def test_compaction_keeps_two_slices_and_their_instants():
    table, storage, _ = indexed()
    for number in range(14):
        write(table, [("a", "p", number, "x")])
    found = known(table)
    assert (len(found.deltas), len(found.older_deltas)) == (2, 3)
    names = {path.rpartition("/")[2] for path in listing(storage) if path.startswith(FILES_FOLDER)}
    expected = {base_name(at) for at in (found.base, found.older_base)} | {
        log_name(base, delta.version)
        for base, deltas in ((found.base, found.deltas), (found.older_base, found.older_deltas))
        for delta in deltas
    }
    assert names - {".hoodie_partition_metadata"} == expected
    instants = {path.rpartition("/")[2].split(".")[0] for path in listing(storage) if path.startswith(f"{TIMELINE_FOLDER}/2")}
    assert instants == found.instants
    plan = decode_document(storage.read(f"{TIMELINE_FOLDER}/{found.base}.compaction.requested"), "plan")
    assert plan["operations"][0]["deltaFilePaths"] == [log_name(found.older_base, d.version) for d in found.older_deltas]
    assert check_table(table) == []


def test_a_checkpoint_keeps_it():
    table, storage, clock = indexed()
    for number in range(5):
        write(table, [("a", "p", number, "x")])
    write_checkpoint(storage, table.state)
    assert read_opening(storage).state.metadata == table.state.metadata
    assert known(open_table(storage, clock)) == known(table)


def test_what_the_writer_of_the_last_entry_did_not_create_is_created_by_the_next():
    """Its files are a function of the log: another process makes the same ones, byte for byte."""
    table, storage, clock = indexed()
    for number in range(3):
        write(table, [("a", "p", number, "x")])
    at = write(table, A).instant
    whole = listing(storage)
    lost = [path for path in whole if path.startswith(METADATA_FOLDER) and (at in path or known(table).base in path)]
    assert len(lost) >= 8, "the files of a compaction and of a delta commit"
    for path in (*lost, f".hoodie/{at}.commit"):
        storage.delete(path)
    assert open_table(storage, clock, "healer").timeline.heal(0)
    assert {path: content for path, content in listing(storage).items() if path in whole} == whole


def test_no_partition_is_dropped_if_one_of_them_is_missing():
    table, _, _ = indexed()
    write(table, A)
    create_metadata(table, ["column_stats"])
    before = known(table)
    with pytest.raises(MetadataNotFound, match="record_index"):
        drop_metadata(table, ["column_stats", "record_index"])
    assert known(table) == before
    assert kinds(table) == []


def test_findings_about_the_files_of_the_metadata_table_name_paths():
    table, storage, _ = indexed()
    write(table, A)
    base = file_path(base_name(known(table).base))
    content = storage.read(base)
    storage.put(base, content[: len(content) // 2])
    assert [(found.kind, found.path) for found in check_table(table)] == [(FindingKind.DAMAGED_FILE, FILES_FOLDER)]
    storage.delete(base)
    assert [(found.kind, found.path) for found in check_table(table)] == [(FindingKind.MISSING_FILE, base)]


def test_creating_and_dropping_twice():
    table, storage, clock = indexed()
    write(table, A)
    with pytest.raises(MetadataExists, match="drop it first"):
        create_metadata(table)
    first = known(table)
    drop_metadata(table)
    assert read_properties(storage)[METADATA_PARTITIONS] == ""
    assert not [path for path in listing(storage) if path.startswith(METADATA_FOLDER) or "indexing" in path]
    with pytest.raises(MetadataNotFound, match="metadata create"):
        drop_metadata(table)
    at = write(table, A).instant
    assert not [path for path in listing(storage) if path.startswith(METADATA_FOLDER)]
    other = open_table(storage, clock, "other")
    create_metadata(other)
    assert known(other).created > first.created
    assert known(other).base == f"{known(other).created}010"
    assert table.refresh().actions[first.created].state is State.ROLLED_BACK
    assert any(at in name for names in listed(other).values() for name in names)
    assert kinds(other) == []
    assert contents(open_table(storage, clock)) == A


def test_unknown_types_are_refused_by_name():
    table, _, _ = new_table()
    with pytest.raises(InvalidOption, match="partition_stats', which Tideline does not write yet"):
        create_metadata(table, ["files", "partition_stats"])
    with pytest.raises(InvalidOption, match="'nonsense'"):
        create_metadata(table, ["nonsense"])
    assert not [a for a in table.refresh().actions.values() if a.action is Action.INDEXING]


# --- a metadata table that lies -----------------------------------------------------------------------------------------------


def damage_truncated_base(table: Table, storage: MemoryStorage) -> None:
    path = file_path(base_name(known(table).base))
    storage.put(path, storage.read(path)[:-10])


def damage_truncated_log(table: Table, storage: MemoryStorage) -> None:
    path = file_path(log_name(known(table).base, known(table).deltas[-1].version))
    storage.put(path, storage.read(path)[:-10])


def damage_missing_base(table: Table, storage: MemoryStorage) -> None:
    storage.delete(file_path(base_name(known(table).base)))


def damage_missing_log(table: Table, storage: MemoryStorage) -> None:
    storage.delete(file_path(log_name(known(table).base, known(table).deltas[-1].version)))


def damage_foreign_file(table: Table, storage: MemoryStorage) -> None:
    storage.put(file_path("files-0001-0_0-0-0_20260101000000000.hfile"), b"")


def damage_foreign_instant(table: Table, storage: MemoryStorage) -> None:
    storage.put(f"{TIMELINE_FOLDER}/20990101000000000.deltacommit", b"{}")


def damage_missing_instant(table: Table, storage: MemoryStorage) -> None:
    storage.delete(f"{TIMELINE_FOLDER}/{known(table).deltas[-1].instant}.deltacommit")


def damage_properties(table: Table, storage: MemoryStorage) -> None:
    storage.put(PROPERTIES_PATH, storage.read(PROPERTIES_PATH).replace(b"HFILE", b"PARQUET"))


def damage_unadvertised(table: Table, storage: MemoryStorage) -> None:
    set_properties(storage, {**read_properties(storage), METADATA_PARTITIONS: "files,column_stats"})


DAMAGES = {
    damage_truncated_base: "damaged file",
    damage_truncated_log: "damaged file",
    damage_missing_base: "missing file",
    damage_missing_log: "missing file",
    damage_foreign_file: "foreign file",
    damage_foreign_instant: "foreign file",
    damage_missing_instant: "missing file",
    damage_properties: "damaged file",
    damage_unadvertised: "not advertised",
}


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_damage_is_found_by_name_stops_no_writer_and_is_repaired(damage):
    table, storage, clock = indexed()
    write(table, A)
    write(table, [("a", "p", 2, "y")])
    assert kinds(table) == []
    damage(table, storage)
    assert DAMAGES[damage] in kinds(table)
    write(table, [("a", "p", 3, "z")])
    write(table, [("a", "p", 4, "z")])
    repair_metadata(table)
    assert kinds(table) == []
    write(table, [("c", "q", 1, "z")])
    assert kinds(open_table(storage, clock, "other")) == []


@pytest.mark.parametrize(
    ("lie", "kind"),
    [
        (lambda name, size: {name: DELETED}, "not listed"),
        (lambda name, size: {name: size + 1}, "wrong size"),
        (lambda name, size: {"0f-0_0-0-0_20260101000000000.parquet": 5}, "listed in vain"),
    ],
)
def test_a_lie_is_found_by_name(lie, kind):
    table, storage, _ = indexed()
    write(table, A)
    chosen = table.state.latest_slices()[0]
    said = encode_records(FilesRecords(None, {"p": lie(chosen.base_file, chosen.size_bytes)}))
    path = file_path(log_name(known(table).base, known(table).deltas[-1].version))
    from_here = decode_records(said, record_schema_json(with_meta_fields=True), "lie")
    assert from_here.files["p"] == lie(chosen.base_file, chosen.size_bytes)
    storage.put(file_path(log_name(known(table).base, 99)), _block_like(storage.read(path), said))
    assert [f.kind.value for f in check_table(table)] == [kind]
    repair_metadata(table)
    assert kinds(table) == []


def _block_like(log: bytes, records: list[tuple[bytes, bytes]]) -> bytes:
    schema = record_schema_json(with_meta_fields=True)
    at = log[log.index(b"2026") :][:17].decode()
    content = hfile_bytes(records, {"schema": schema.encode()})
    return frame_block(BlockType.HFILE, {HeaderKey.INSTANT_TIME: at, HeaderKey.SCHEMA: schema}, content)


def test_a_data_file_that_is_gone_or_has_another_size_is_found():
    table, storage, _ = indexed()
    write(table, A)
    first, second = table.state.latest_slices()
    storage.put(first.path, storage.read(first.path) + b"x")
    storage.delete(second.path)
    found = check_table(table)
    assert sorted((f.kind.value, f.path) for f in found) == [("damaged data", first.path), ("gone", second.path)]
    assert [f.is_repairable for f in found] == [False, False]


def test_properties_that_name_a_metadata_table_that_is_not_there():
    table, storage, _ = new_table()
    assert kinds(table) == []
    set_properties(storage, {**read_properties(storage), METADATA_PARTITIONS: "files"})
    assert kinds(table) == ["advertised without table"]
    assert repair_metadata(table) is None
    assert kinds(table) == []


# --- records -------------------------------------------------------------------------------------------------------------------


def test_records_merge_as_in_apache_hudi():
    merged = FilesRecords({"p": 0}, {"p": {"a": 5, "b": 7}})
    merged.merge(FilesRecords(None, {"p": {"a": DELETED, "c": DELETED, "b": 6}}))
    merged.merge(FilesRecords({"q": 0}, {"q": {"d": 1}}))
    assert merged.partitions == {"p": 0, "q": 0}
    assert merged.files == {"p": {"b": 7, "c": DELETED}, "q": {"d": 1}}
    merged.merge(FilesRecords({"q": DELETED}, {"p": {"c": 9}}))
    assert merged.partitions == {"p": 0}
    assert merged.files["p"] == {"b": 7, "c": 9}


def test_records_have_the_form_of_the_format():
    encoded = encode_records(FilesRecords({"": 0}, {"": {"f": 3, "g": DELETED}}))
    assert [key for key, _ in encoded] == [b".", b"__all_partitions__"]
    schema = fastavro.parse_schema(json.loads(record_schema_json(with_meta_fields=True)))
    record: Any = fastavro.schemaless_reader(io.BytesIO(encoded[0][1]), schema, None)
    assert (record["key"], record["type"], record["_hoodie_record_key"]) == ("", 2, None)
    assert record["filesystemMetadata"] == {"f": {"size": 3, "isDeleted": False}, "g": {"size": 0, "isDeleted": True}}


def test_the_base_file_embeds_its_schema():
    table, storage, _ = indexed()
    write(table, A)
    hfile = HFile(storage.read(file_path(base_name(known(table).base))))
    assert hfile.file_info["schema"].decode() == record_schema_json(with_meta_fields=True)
    assert hfile.file_info["minRecordKey"] == b"__all_partitions__"


def test_sharing_is_refused_until_it_is_dropped():
    table, storage, clock = indexed()
    write(table, A)
    with pytest.raises(UnsupportedTable, match="metadata drop"):
        share_table(table, SHARING, open_hudi_lock)
    assert open_table(storage, clock).sharing is None
    drop_metadata(table)
    shared = share_table(table, SHARING, open_hudi_lock)
    with pytest.raises(UnsupportedTable, match="which Apache Hudi also writes"):
        create_metadata(shared)


@given(
    st.lists(st.lists(st.tuples(st.sampled_from("abcdef"), st.one_of(st.none(), st.binary(max_size=2))), max_size=6), max_size=5)
)
def test_of_several_records_of_a_key_the_newest_counts(pieces):
    expected: dict[bytes, bytes | None] = {}
    for piece in pieces:
        expected |= {key.encode(): datum for key, datum in piece}
    arrays = [(pa.array([k.encode() for k, _ in p], pa.binary()), pa.array([d for _, d in p], pa.binary())) for p in pieces]
    found = newest_records(arrays)
    assert list(mapping_of(found).items()) == sorted((key, datum) for key, datum in expected.items() if datum is not None)


@pytest.mark.parametrize("file_groups", [1, 4])
@pytest.mark.parametrize("encoded", [False, True])
def test_keys_that_one_binary_array_cannot_hold(encoded, file_groups, monkeypatch):
    def piece(numbers: Iterable[int], datum: bytes) -> tuple[pa.Array, pa.Array]:
        keys = pa.array([f"k{number:03}".encode() for number in numbers], pa.binary())
        data = pa.array([datum] * len(keys), pa.binary())
        return keys, data.dictionary_encode() if encoded else data

    pieces = [piece(range(100), b"old"), piece(range(50, 200), b"new")]
    small = newest_records(pieces)
    monkeypatch.setattr("tideline_table.metadata_table.partition._MOST_OCTETS", 100)
    large = newest_records(pieces)
    assert (small.column("key").type, large.column("key").type) == (pa.binary(), pa.large_binary())
    gone = pa.array(["x1", "x2"], pa.large_string())
    found, expected = by_group(Records(large, gone), file_groups), by_group(Records(small, gone.cast(pa.string())), file_groups)
    assert [hfile_bytes(group.updates, {}) for group in found] == [hfile_bytes(group.updates, {}) for group in expected]
    for group, plain in zip(found, expected, strict=True):
        assert (group.updates.schema, group.deletes) == (plain.updates.schema, plain.deletes)


@given(st.sets(st.text(min_size=1)), st.sets(st.text(min_size=1)), st.integers(1, 12))
def test_each_record_is_in_the_file_group_of_its_key(updated, deleted, file_groups):
    records = Records.of([(key.encode(), b"") for key in updated], deleted - updated)
    groups = by_group(records, file_groups)
    assert len(groups) == file_groups
    for number, group in enumerate(groups):
        keys = [*(key.decode() for key in mapping_of(group.updates)), *group.deletes.to_pylist()]
        assert set(groups_of_keys(pa.array(keys, pa.string()), file_groups).tolist()) <= {number}
        assert [*mapping_of(group.updates)] == sorted(mapping_of(group.updates))
    assert {key for group in groups for key in mapping_of(group.updates)} == {key.encode() for key in updated}
    assert sorted(key for group in groups for key in group.deletes.to_pylist()) == sorted(deleted - updated)
