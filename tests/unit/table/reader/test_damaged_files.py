"""A data file that a completed commit names is read whole or refused by name: no committed row is lost without a word."""

from collections.abc import Callable

import pytest
from tests.plans import schedule_clustering
from tests.unit.table.tables import DEATH_S, SCHEMA, cluster, compact, contents, new_table, open_table, write

from tideline_table.action import (
    Rules,
    TableService,
    check_table,
    create_metadata,
    maintain,
    request_log_compaction,
    run_log_compaction,
)
from tideline_table.action.log_compaction.task import merge_log
from tideline_table.clock import ManualClock
from tideline_table.errors import CorruptMetadata, DamagedFile, ObjectNotFound
from tideline_table.hudi_written import hudi_written_state
from tideline_table.log_format import scan_log
from tideline_table.metadata_table import FindingKind
from tideline_table.reader import read_slice
from tideline_table.schema.meta_fields import with_meta_fields
from tideline_table.storage import DataPath, MemoryStorage, Storage
from tideline_table.table import Table, TableType
from tideline_table.writer import Operation

LOG_MAGIC_BYTES = 6
DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "emptied": lambda _: b"",
    "truncated": lambda content: content[:-9],
    "extended by zeros": lambda content: content + bytes(64),
    "flipped": lambda content: content[:-40] + bytes([content[-40] ^ 1]) + content[-39:],
}


def _table(*, indexed: bool) -> tuple[Table, Storage, ManualClock]:
    table, storage, clock = new_table(type=TableType.MOR, partitions=())
    write(table, [("a", "p", 1, "old"), ("b", "p", 1, "old")])
    if indexed:
        create_metadata(table, ("files",), ())
    write(table, [("a", "p", 2, "new")])
    return table, storage, clock


@pytest.mark.parametrize("indexed", [False, True], ids=["listing", "metadata-table"])
@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
@pytest.mark.parametrize("is_log", [False, True], ids=["base", "log"])
def test_a_damaged_file_stops_reads_and_compactions_and_is_found(
    damage: Callable[[bytes], bytes], *, is_log: bool, indexed: bool
) -> None:
    table, storage, clock = _table(indexed=indexed)
    (found,) = table.refresh().latest_slices()
    path = str(found.log_paths[0] if is_log else found.path)
    assert check_table(table) == []
    storage.put(path, damage(storage.read(path)))
    again = open_table(storage, clock)
    writes = again.refresh().completed_writes()

    with pytest.raises(DamagedFile) as refused:
        again.read()
    with pytest.raises(DamagedFile):
        compact(again)

    assert refused.value.path == path
    assert again.refresh().completed_writes() == writes, "nothing was committed"
    findings = {(finding.kind, finding.path) for finding in check_table(again, deep=True)}
    assert (FindingKind.DAMAGED_DATA, path) in findings


def _log_compacted(table: Table) -> object:
    request_log_compaction(table, {"hoodie.log.compaction.blocks.threshold": 2})
    return run_log_compaction(table, run=lambda tasks: [merge_log(task, table.storage) for task in tasks])


def _clustered(table: Table) -> object:
    schedule_clustering(table)
    return cluster(table)


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
@pytest.mark.parametrize(
    ("kind", "service", "damages_log"),
    [
        (TableType.MOR, _log_compacted, True),
        (TableType.COW, _clustered, False),
    ],
    ids=["log-compaction", "clustering"],
)
def test_services_stop_at_a_damaged_file_and_go_on_once_it_is_restored(
    damage: Callable[[bytes], bytes], kind: TableType, service: Callable[[Table], object], *, damages_log: bool
) -> None:
    """Nothing is committed and nothing deleted, so that the restored file is the whole repair."""
    table, storage, clock = new_table(type=kind, partitions=())
    for ts in (1, 2, 3):
        write(
            table,
            [("a", "p", ts, str(ts)), (f"b{ts}", "p", ts, str(ts))],
            Operation.UPSERT if kind is TableType.MOR else Operation.INSERT,
        )
    paths = [str(path) for found in table.refresh().latest_slices() for path in (found.log_paths if damages_log else found.paths)]
    expected = contents(table)
    sound = storage.read(paths[0])
    storage.put(paths[0], damage(sound))
    again = open_table(storage, clock)
    writes, files = again.refresh().completed_writes(), _data_files(storage)

    with pytest.raises(DamagedFile) as refused:
        service(again)

    assert refused.value.path == paths[0]
    assert again.refresh().completed_writes() == writes
    assert files <= _data_files(storage), "no data file was deleted"
    storage.put(paths[0], sound)
    assert contents(open_table(storage, clock)) == expected
    clock.advance(2 * DEATH_S)
    assert service(open_table(storage, clock))
    assert contents(open_table(storage, clock)) == expected


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_maintenance_says_which_file_is_damaged_and_makes_no_loss_permanent(
    damage: Callable[[bytes], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    table, storage, clock = new_table(type=TableType.MOR, partitions=())
    monkeypatch.setattr("tideline_table.action.compaction.run.open_storage", lambda _: storage)
    options = {
        "hoodie.compact.inline.max.delta.commits": 1,
        "hoodie.cleaner.commits.retained": 1,
    }
    for ts in (1, 2, 3):
        write(table, [("a", "p", ts, str(ts))])
    path = str(table.slices()[0].log_paths[0])
    sound = storage.read(path)
    storage.put(path, damage(sound))

    steps = {step.service: step for step in maintain(open_table(storage, clock), Rules(options=options))}

    assert steps[TableService.COMPACTION].outcome == "failed"
    assert path in steps[TableService.COMPACTION].error
    assert all(step.files == 0 for step in steps.values())
    with pytest.raises(DamagedFile):
        open_table(storage, clock).read()
    storage.put(path, sound)
    clock.advance(2 * DEATH_S)
    steps = {step.service: step for step in maintain(open_table(storage, clock), Rules(options=options))}
    assert steps[TableService.COMPACTION].outcome == "done"
    assert contents(open_table(storage, clock)) == [("a", "p", 3, "3")]


def _data_files(storage: Storage) -> set[str]:
    return {found.path for found in storage.list_objects("") if not found.path.startswith(".hoodie/")}


@pytest.mark.parametrize("bit", range(8))
@pytest.mark.parametrize("place", range(LOG_MAGIC_BYTES + 8, LOG_MAGIC_BYTES + 16))
def test_a_damaged_type_or_version_of_a_block_is_no_unknown_one(place: int, bit: int) -> None:
    """The remedy for an unknown block is another release, which would not help."""
    table, storage, clock = _table(indexed=False)
    path = str(table.refresh().latest_slices()[0].log_paths[0])
    content = bytearray(storage.read(path))
    content[place] ^= 1 << bit
    storage.put(path, bytes(content))
    with pytest.raises(DamagedFile):
        open_table(storage, clock).read()


def test_a_checkpoint_keeps_the_records_of_files() -> None:
    table, _, _ = _table(indexed=False)
    (found,) = table.refresh().latest_slices()

    kept = type(found).from_list(found.group, found.to_list())

    assert [path.ranges for path in kept.paths] == [path.ranges for path in found.paths]
    assert all(known.digest for path in kept.paths for known in path.ranges)


def test_a_log_file_to_which_apache_hudi_appended_may_be_longer_but_not_shorter() -> None:
    table, storage, _ = _table(indexed=False)
    (found,) = table.refresh().latest_slices()
    assert isinstance(storage, MemoryStorage)
    whole = storage.read(found.log_paths[0])
    path = DataPath(str(found.log_paths[0]), len(whole), f"0+{len(whole)}")
    storage.put(path, whole + b"#HUDI#torn")
    assert [gap.offset for gap in scan_log(storage, path).gaps] == [len(whole)]

    storage.put(path, whole[:-1])
    with pytest.raises(DamagedFile, match="at least"):
        scan_log(storage, path)


@pytest.mark.parametrize("damage", [*[*DAMAGES.values()][:2], None], ids=["emptied", "truncated", "gone"])
@pytest.mark.parametrize("is_log", [False, True], ids=["base", "log"])
def test_damage_in_a_table_without_a_table_log_is_refused(damage: Callable[[bytes], bytes] | None, *, is_log: bool) -> None:
    table, storage, _ = _table(indexed=False)
    (found,) = table.refresh().latest_slices()
    (sound,) = hudi_written_state(storage).latest_slices()
    assert [path.size_bytes for path in sound.paths] == [path.size_bytes for path in found.paths]
    path = str(found.log_paths[0] if is_log else found.path)
    if damage is None:
        storage.delete(path)
    else:
        storage.put(path, damage(storage.read(path)))

    (damaged,) = hudi_written_state(storage).latest_slices()

    with pytest.raises((CorruptMetadata, ObjectNotFound), match=path.rpartition("/")[2]):
        read_slice(storage, damaged, with_meta_fields(SCHEMA), table.log_rule())
