"""The metadata table of a shared table of version 9 or 8: each step adds to it, and what the dead left there is taken out."""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace
from typing import Any

import pytest
from tests.plans import schedule_clean, schedule_clustering, schedule_compaction
from tests.simulation.layout2_reader import advertised, check_readers_miss_nothing, keys_for_readers
from tests.unit.table.coordination.shared.test_shared_metadata import FIRST, WHOLE
from tests.unit.table.hudi_metadata import dying
from tests.unit.table.shared import SHARING, before_commit, opened, put, rows_of
from tests.unit.table.tables import DEATH_S, QUIET, cluster, compact, contents, new_table, set_properties

from tideline_locks import open_hudi_lock
from tideline_table.action import check_table, create_metadata, delete_partitions, roll_back_dead, run_clean, write_rows
from tideline_table.clock import ManualClock
from tideline_table.config import METADATA_COMPACTION_DELTA_COMMITS, SHARED_METADATA
from tideline_table.errors import UnsupportedTable
from tideline_table.hudi.instant import Action, Instant, State, shifted
from tideline_table.hudi.listing import list_timeline, timeline_listing
from tideline_table.hudi.properties import CREATE_SCHEMA, METADATA_FOLDER, METADATA_PARTITIONS, read_properties
from tideline_table.log.metadata import PARTITION_STATS
from tideline_table.metadata_table import listed_by_metadata
from tideline_table.metadata_table.column_records import PARTITION_TYPE, ColumnStats, ValueType, encode
from tideline_table.metadata_table.file_keys import hash_text
from tideline_table.metadata_table.instant_files import begin_instant
from tideline_table.metadata_table.layout import INDEX_DEFINITIONS_PATH, file_id_of, folder_of, timeline_folder, timeline_path
from tideline_table.metadata_table.log_file import log_file_bytes
from tideline_table.metadata_table.partition import Records
from tideline_table.storage import MemoryStorage
from tideline_table.table import Table, TableType, share_table
from tideline_table.writer import Operation

ALL = ["bloom_filters", "column_stats", "files", "record_index"]
KEPT = {SHARED_METADATA.key: ",".join(ALL)}
TABLES = [(9, TableType.COW), (9, TableType.MOR), (8, TableType.MOR)]
AT_ONCE = {"hoodie.compact.inline.max.delta.commits": 1}


def kept_table(kind: TableType, version: int) -> tuple[Table, MemoryStorage, ManualClock]:
    """A shared table with three rows that, like one of Apache Hudi, had a metadata table before it was shared."""
    clock = ManualClock()
    table, storage, _ = new_table(clock, MemoryStorage(clock=clock), type=kind, version=version)
    assert isinstance(storage, MemoryStorage)
    put(table, FIRST)
    create_metadata(table, ALL)
    storage.delete_below(".hoodie/.tideline")
    clock.advance(1)
    found = Table.open(storage.root, options={**QUIET, **KEPT}, clock=clock, storage=storage)
    share_table(found, SHARING, open_hudi_lock)
    return opened(storage, clock, **KEPT), storage, clock


def sound(table: Table) -> None:
    """Readers use the metadata table, miss nothing in it, and find nothing else in it; our reader of Hudi's tables believes it."""
    storage, form = table.storage, table.timeline.format
    assert isinstance(storage, MemoryStorage)
    assert advertised(storage) == ALL
    check_readers_miss_nothing(storage)
    assert check_table(table) == []
    assert listed_by_metadata(storage, form, list_timeline(storage, form)) is not None
    rows = contents(table)
    assert set(keys_for_readers(storage)) == {row[0] for row in rows}


def times_in_metadata(table: Table) -> dict[str, str]:
    found = table.storage.list_folder(timeline_folder(table.timeline.format)).objects
    return dict(timeline_listing(table.timeline.format, (o.path for o in found)).completion)


@pytest.mark.parametrize(("version", "kind"), TABLES)
def test_each_action_is_followed(version: int, kind: TableType) -> None:
    table, _, clock = kept_table(kind, version)
    sound(table)
    for rows, operation in (
        ([("a", "p", 2, "2"), ("d", "r", 2, "2")], Operation.UPSERT),
        ([("e", "p", 2, "2")], Operation.BULK_INSERT),
        ([("b", "p", 3, "3")], Operation.DELETE),
        ([("b", "q", 4, "4")], Operation.INSERT),
        ([("c", "q", 5, "5")], Operation.INSERT_OVERWRITE),
    ):
        put(table, rows, operation)
        sound(table)
    if kind is TableType.MOR:
        put(table, [("a", "p", 5, "5")])
        assert schedule_compaction(table, AT_ONCE) is not None
        put(table, [("a", "p", 6, "6")])
        assert compact(table) is not None
        sound(table)
    clock.advance(1)
    assert schedule_clustering(table, WHOLE)
    assert cluster(table)
    sound(table)
    for ts in (7, 8, 9):
        put(table, [("a", "p", ts, str(ts))])
    clock.advance(1)
    assert schedule_clean(table, {"hoodie.cleaner.commits.retained": 1})
    assert run_clean(table)
    sound(table)
    done, ours = times_in_metadata(table), table.state.completed_writes()
    assert {a.instant for a in ours if a.instant > min(done)} <= done.keys(), "each has a delta commit"


@pytest.mark.parametrize(("version", "kind"), TABLES[:2])
@pytest.mark.parametrize("at", range(5))
def test_a_write_that_died_in_its_delta_commit_leaves_nothing(at: int, version: int, kind: TableType) -> None:
    table, storage, clock = kept_table(kind, version)
    with dying(at):
        put(table, [("a", "p", 2, "2"), ("d", "r", 2, "2")])
    sound(table)
    (died,) = (a.instant for a in table.refresh().pending())
    put(opened(storage, clock, "beside", **KEPT), [("c", "q", 2, "2")])
    sound(table)
    clock.advance(DEATH_S)
    later = opened(storage, clock, "later", **KEPT)
    assert roll_back_dead(later) == [died]
    sound(later)
    assert not [o.path for o in storage.list_objects(".hoodie/metadata") if died in o.path]
    put(later, [("a", "p", 3, "3")])
    sound(later)


@pytest.mark.parametrize("at", range(1, 5))
def test_a_clean_that_died_is_run_again(at: int) -> None:
    table, storage, clock = kept_table(TableType.COW, 9)
    for ts in (2, 3, 4):
        put(table, [("a", "p", ts, str(ts))])
    clock.advance(1)
    assert schedule_clean(table, {"hoodie.cleaner.commits.retained": 1})
    with dying(at):
        run_clean(table)
    clock.advance(DEATH_S)
    later = opened(storage, clock, "later", **KEPT)
    assert run_clean(later)
    sound(later)


def test_a_pending_delta_commit_of_a_writer_of_apache_hudi_stays() -> None:
    """Its writers begin it with their write; ours is complete before theirs."""
    table, storage, _ = kept_table(TableType.MOR, 9)
    form, instant = table.timeline.format, table.timeline.mint(table.refresh())
    begin_instant(storage, form, instant, Action.DELTA_COMMIT)
    put(table, [("a", "p", 2, "2")])
    sound(table)
    assert timeline_path(form, Instant(instant, Action.DELTA_COMMIT, State.INFLIGHT)) in {
        o.path for o in storage.list_objects(".hoodie/metadata")
    }


def test_one_that_is_made_while_we_write_gets_our_files() -> None:
    table, storage, clock = kept_table(TableType.MOR, 9)
    made = read_properties(storage)
    set_properties(storage, {**made, METADATA_PARTITIONS: ""})
    clock.advance(1)
    with before_commit(table, lambda: set_properties(storage, made)):
        done = write_rows(table, rows_of([("n", "q", 3, "3")]), Operation.UPSERT, parallelism=1)
    sound(table)
    assert done.instant in times_in_metadata(table)


def test_our_delta_commit_is_later_than_a_compaction_by_a_clock_ahead() -> None:
    table, storage, clock = kept_table(TableType.COW, 9)
    form = table.timeline.format
    ahead = str(int(max(times_in_metadata(table).values())) + 5_000)  # the compaction has nothing to merge but the first slice
    files = [o.path for o in storage.list_folder(".hoodie/metadata/files").objects if o.path.endswith(".hfile")]
    storage.put(files[0].rpartition("_")[0] + f"_{ahead}.hfile", storage.read(files[0]))
    begun = Instant(ahead, Action.COMPACTION, State.REQUESTED)
    storage.put(timeline_path(form, begun), b"")
    storage.put(timeline_path(form, Instant(ahead, Action.COMMIT, State.COMPLETED), str(int(ahead) + 1)), b"")
    done = put(opened(storage, clock, "next", **KEPT), [("a", "p", 2, "2")])
    assert done.instant < ahead < times_in_metadata(table)[done.instant]
    sound(table)


def test_a_write_beside_a_clean_that_ended_its_partition_turns_it_off(caplog: pytest.LogCaptureFixture) -> None:
    """Readers merge log files by instant, so the partition of the older write would seem to have ended."""
    table, storage, clock = kept_table(TableType.COW, 9)
    clock.advance(1)
    delete_partitions(table, ["q"])
    for ts in (2, 3):
        put(table, [("a", "p", ts, str(ts))])
    other = opened(storage, clock, "other", **KEPT)

    def ends() -> None:
        clock.advance(1)
        assert schedule_clean(other, {"hoodie.cleaner.commits.retained": 1})
        assert run_clean(other)

    clock.advance(1)
    with before_commit(table, ends):
        write_rows(table, rows_of([("n", "q", 3, "3")]), Operation.BULK_INSERT, parallelism=1)
    assert "ended partition 'q'" in caplog.text
    assert advertised(storage) == [""]
    assert [row[0] for row in contents(table)] == ["a", "b", "n"]


def _define_index(storage: MemoryStorage) -> dict[str, Any]:
    """Let the table have a secondary index; return the definitions before."""
    name = "secondary_index_by_v"
    properties = read_properties(storage)
    set_properties(storage, {**properties, METADATA_PARTITIONS: f"{properties[METADATA_PARTITIONS]},{name}"})
    before: dict[str, Any] = json.loads(storage.read(INDEX_DEFINITIONS_PATH))["indexDefinitions"]
    with_index = {**before, name: {"indexName": name, "indexType": "secondary_index", "sourceFields": ["v"], "version": "V2"}}
    storage.put(INDEX_DEFINITIONS_PATH, json.dumps({"indexDefinitions": with_index}).encode())
    return before


def test_an_index_that_is_dropped_loses_its_definition() -> None:
    """Apache Hudi's next writer would make it again, beside the compaction of the metadata table, in which its job then fails."""
    table, storage, _ = kept_table(TableType.MOR, 9)
    before = _define_index(storage)
    put(table, [("a", "p", 2, "2")])
    assert json.loads(storage.read(INDEX_DEFINITIONS_PATH))["indexDefinitions"] == before
    sound(table)


def test_a_metadata_table_that_is_turned_off_loses_all_definitions() -> None:
    """Apache Hudi's next writer would make the secondary index again with the metadata table, and its writes would fail."""
    _, storage, clock = kept_table(TableType.MOR, 9)
    _define_index(storage)
    put(opened(storage, clock), [("a", "p", 2, "2")])
    assert advertised(storage) == [""]
    assert json.loads(storage.read(INDEX_DEFINITIONS_PATH)) == {"indexDefinitions": {}}
    assert [row[3] for row in contents(opened(storage, clock)) if row[0] == "a"] == ["2"]


def test_statistics_of_partitions_are_refused_in_version_6() -> None:
    table, _, _ = new_table()
    options: dict[str, Any] = {SHARED_METADATA.key: "files,partition_stats"}
    with pytest.raises(UnsupportedTable, match="partition_stats in tables of version 8"):
        share_table(Table.open(table.storage.root, options=options, storage=table.storage), SHARING, open_hudi_lock)


@pytest.mark.parametrize(("written", "stays"), [("LongWrapper", True), ("IntWrapper", False)])
def test_bounds_of_a_partition_from_before_a_column_changed_its_type(
    written: str, stays: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Apache Hudi's readers would compare an Integer with a Long, and fail. It makes the partition anew, in the type of now."""
    _, storage, clock = kept_table(TableType.COW, 9)
    properties, names = read_properties(storage), sorted([*ALL, PARTITION_STATS])
    narrower = properties[CREATE_SCHEMA].replace('"long"', '"int"')
    set_properties(storage, {**properties, CREATE_SCHEMA: narrower, METADATA_PARTITIONS: ",".join(names)})
    table = opened(storage, clock, **{SHARED_METADATA.key: ",".join(names)})
    made = min(times_in_metadata(table))
    kind = ValueType(4 if stays else 3, written)
    held = ColumnStats("p", "ts", written, 1, 1, 1, 0, 1, 1, kind, PARTITION_TYPE)
    key = hash_text("ts") + hash_text("p")
    path = f"{folder_of(PARTITION_STATS)}/.{file_id_of(PARTITION_STATS, 0)}_{made}.log.1_0-0-0"
    storage.put(path, log_file_bytes(PARTITION_STATS, made, Records.of([(key.encode(), encode(held))])))
    put(table, [("a", "p", 2, "2")])
    assert advertised(storage) == (names if stays else ALL)
    assert ("bounds of two types" in caplog.text) is not stays
    assert [row for row in contents(table) if row[0] == "a"] == [("a", "p", 2, "2")]


OFTEN = {**KEPT, METADATA_COMPACTION_DELTA_COMMITS.key: 3}


def compactions(table: Table) -> list[str]:
    found = table.storage.list_folder(timeline_folder(table.timeline.format)).objects
    listed = timeline_listing(table.timeline.format, (o.path for o in found))
    return [i.time for i in listed.instants if i.action is Action.COMMIT and i.state is State.COMPLETED]


@pytest.mark.parametrize(("version", "kind"), TABLES[1:])
def test_it_is_compacted_and_its_timeline_stays_short(version: int, kind: TableType) -> None:
    _, storage, clock = kept_table(kind, version)
    table, made = opened(storage, clock, **OFTEN), dict[str, None]()
    for ts in range(2, 38):
        rows = [("a", "p", ts, str(ts)), (f"n{ts % 5}", "q", ts, "n")]
        put(table, rows[: 1 + ts % 2], Operation.DELETE if ts % 7 == 0 else Operation.UPSERT)
        made |= dict.fromkeys(compactions(table))
        if ts % 12 == 0:
            sound(table)
    sound(table)
    assert len(made) >= 9
    form = table.timeline.format
    history = replace(form, history_folder=f"{METADATA_FOLDER}/{form.history_folder}").archived_instants(storage)
    assert len(times_in_metadata(table)) < 40 < len({*times_in_metadata(table), *(found.time for found in history)})
    assert set(made) & {found.time for found in history}
    bases = [o.path for o in storage.list_folder(f"{METADATA_FOLDER}/files").objects if o.path.endswith(".hfile")]
    assert len(bases) == 2


@pytest.mark.parametrize("at", range(0, 36, 3))
def test_a_process_dies_while_it_compacts(at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody sees half of it, and the next step compacts again."""
    _, storage, clock = kept_table(TableType.MOR, 9)
    for ts in (2, 3, 4, 5):
        put(opened(storage, clock, **KEPT), [("a", "p", ts, str(ts))])
    table = opened(storage, clock, **OFTEN)
    made, create = [0], storage.put_if_absent

    def dies(path: str, content: bytes) -> None:
        if made[0] or path.endswith(".compaction.requested"):
            made[0] += 1
            if made[0] > at:
                raise KeyboardInterrupt
        create(path, content)

    with monkeypatch.context() as patched:
        patched.setattr(storage, "put_if_absent", dies)
        with contextlib.suppress(KeyboardInterrupt):
            put(table, [("b", "p", 6, "6")])
    assert made[0], "a compaction began"
    check_readers_miss_nothing(storage)
    clock.advance(DEATH_S)
    after = opened(storage, clock, **OFTEN)
    roll_back_dead(after)
    for ts in (7, 8, 9, 10):
        put(after, [("c", "q", ts, str(ts))])
        sound(after)
    assert compactions(after)
    listed = timeline_listing(
        after.timeline.format, (o.path for o in storage.list_folder(timeline_folder(after.timeline.format)).objects)
    )
    assert [i for i in listed.instants if i.action is Action.COMPACTION] == []


def test_a_compaction_of_apache_hudi_that_is_pending_is_left_to_it() -> None:
    _, storage, clock = kept_table(TableType.COW, 9)
    put(opened(storage, clock, **KEPT), [("a", "p", 2, "2")])
    table = opened(storage, clock, **OFTEN)
    begin_instant(storage, table.timeline.format, shifted(table.state.last_instant, 1), Action.COMPACTION)
    for ts in range(3, 8):
        put(table, [("a", "p", ts, str(ts))])
        sound(table)
    assert compactions(table) == []
