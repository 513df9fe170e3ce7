"""Key indexes of log files: what they save, what they tell of, and that they go with their log files."""

from dataclasses import replace

import pyarrow as pa
import pytest
from tests.plans import schedule_clean, schedule_compaction
from tests.unit.table.tables import DEATH_S, contents, create, open_table, write

from tideline_table.action import run_clean, run_compaction
from tideline_table.action.compaction.plan import compact_slice
from tideline_table.action.recovery import roll_back_dead
from tideline_table.clock import ManualClock
from tideline_table.errors import DamagedFile, StorageRefused, WriteConflict
from tideline_table.log_format import BlockType
from tideline_table.log_format.key_index import INDEX_FOLDER, KeySpan, index_path, read_index, read_keys
from tideline_table.reader.log_index import LogIndexes, WantedKeys
from tideline_table.reader.log_keys import held_keys, log_keys
from tideline_table.storage import MemoryStorage
from tideline_table.table import TableType
from tideline_table.writer import Operation

WINDOW = "tideline.log.index.clique.files"
NOW = {"hoodie.compact.inline.max.delta.commits": 1}


class Counted(MemoryStorage):
    """Counts requests and bytes of reads of log files and of what lies beside them."""

    def __init__(self, **more):
        super().__init__(**more)
        self.forget()

    def forget(self):
        self.requests = {"log": 0, "index": 0}
        self.read_bytes = 0

    def read_range(self, path, start, length):
        content = super().read_range(path, start, length)
        kind = "index" if path.startswith(INDEX_FOLDER) else "log" if ".log." in path else None
        if kind:
            self.requests[kind] += 1
            self.read_bytes += len(content)
        return content


def mor_table(**options):
    clock = ManualClock()
    storage = Counted(clock=clock)
    create(storage, clock, type=TableType.MOR)
    return open_table(storage, clock, **options), storage, clock


def batch(number, rows=400, width=1):
    """Rows of random-looking keys, so that ranges tell nothing."""
    return [(f"{n * 2654435761 % 2**32:08x}-{number:02d}", "p", number, f"v{number}-{n}" * 20) for n in range(rows)][::width]


def appended(writes=24, **options):
    """One file group: a base file with all keys, and one log file for each batch."""
    table, storage, clock = mor_table(**options)
    write(table, [row for number in range(writes) for row in batch(number)], Operation.BULK_INSERT)
    for number in range(writes):
        write(table, [(k, p, 100 + number, v) for k, p, _, v in batch(number)])
    (found,) = table.slices()
    assert len(found.log_files) == writes
    return table, storage, clock


def looked_up(table, storage, key, *, by_index=True):
    """A look-up by who has just opened the table.

    Or a query for the same key that reads the whole log, as before there were indexes.
    """
    reader = open_table(storage, table.clock)
    storage.forget()
    if by_index:
        rows = reader.look_up([key], ["id", "ts"]).to_pylist()
    else:
        rows = reader.snapshot().read(["id", "ts"], None, pa.array([key])).to_pylist()
    return rows, dict(storage.requests), storage.read_bytes


@pytest.mark.parametrize("log_format", ["parquet", "avro"])
def test_a_look_up_reads_only_blocks_that_can_hold_the_key(log_format):
    """The figures of docs/design/log-index.md: 24 log files of 400 keys each, keys at random, one look-up."""
    table, storage, _ = appended(**{"hoodie.logfile.data.block.format": log_format})
    key = batch(3)[7][0]
    expected, without, without_bytes = looked_up(table, storage, key, by_index=False)
    found, requests, read_bytes = looked_up(table, storage, key)
    assert found == expected == [{"id": key, "ts": 103}]
    assert without == {"log": 48, "index": 0}
    assert requests == {"log": 1, "index": 3}, "one request per index window, one for the block"
    assert sum(without.values()) / sum(requests.values()) == 12
    assert without_bytes / read_bytes > 4
    rows, requests, read_bytes = looked_up(table, storage, f"{key}!")
    assert (rows, requests["log"]) == ([], 0)
    assert without_bytes / read_bytes > 4


@pytest.mark.parametrize("log_format", ["parquet", "avro"])
def test_changes_read_only_blocks_that_can_hold_the_keys_of_the_new_ones(log_format, monkeypatch):
    """Of a group that only grew: an update and a deletion behind 24 log files, by who has just opened the table."""
    table, storage, _ = appended(**{"hoodie.logfile.data.block.format": log_format})
    before = table.state.sequence
    write(table, [(k, p, 500, "new") for k, p, _, _ in batch(3)[:5]])
    write(table, [(k, p, 0, "") for k, p, _, _ in batch(5)[:2]], Operation.DELETE)

    def changed():
        reader = open_table(storage, table.clock)
        storage.forget()
        images = pa.Table.from_batches(reader.changes(before).scan(["id", "ts"])).to_pylist()
        return sorted((i["op"], str(i["before"]), str(i["after"])) for i in images), dict(storage.requests), storage.read_bytes

    found, requests, read_bytes = changed()
    monkeypatch.setattr("tideline_table.table.images._appended", lambda old, new: None)
    expected, without, without_bytes = changed()
    assert found == expected
    assert [op for op, _, _ in found] == ["d"] * 2 + ["u"] * 5
    assert sum(without.values()) / sum(requests.values()) > 5
    assert without_bytes / read_bytes > 5
    # The two blocks with what was before, and those of the stretch.
    assert requests["log"] <= 12


def test_an_open_table_keeps_the_indexes_that_it_read():
    table, storage, _ = appended(6)
    table.look_up([batch(1)[0][0]])
    storage.forget()
    assert table.look_up([batch(2)[0][0]], ["ts"]).to_pylist() == [{"ts": 102}]
    assert storage.requests == {"log": 1, "index": 0}


def test_log_files_without_an_index_are_indexed_on_demand():
    table, storage, _ = appended(6, **{WINDOW: 0})
    reader = open_table(storage, table.clock)
    assert reader.look_up([batch(1)[0][0]], ["ts"]).to_pylist() == [{"ts": 101}]
    storage.forget()
    assert reader.look_up([batch(2)[0][0]], ["ts"]).to_pylist() == [{"ts": 102}]
    assert reader.look_up(["absent"]).num_rows == 0
    assert storage.requests == {"log": 1, "index": 0}


def indexes_of(table, storage):
    (found,) = table.slices()
    return [read_index(storage, path) for path in found.log_paths]


def test_an_index_window_is_told_by_its_newest_file_and_begins_anew():
    table, storage, _ = appended(5, **{WINDOW: 2})
    found = indexes_of(table, storage)
    assert [len(index.logs) for index in found] == [1, 2, 1, 2, 1]
    paths = table.slices()[0].log_paths
    assert [[log.path for log in index.logs] for index in found] == [
        [*paths[0:1]], [*paths[0:2]], [*paths[2:3]], [*paths[2:4]], [*paths[4:5]]
    ]  # fmt: skip
    assert [index.span.keys for index in found] == [400, 800, 400, 800, 400]
    for number, index in enumerate(found):
        assert [keys.to_pylist() for keys in read_keys(storage, index)] == [sorted(row[0] for row in batch(number))]
        (block,) = index.logs[-1].blocks
        ordered = sorted(row[0] for row in batch(number))
        assert block.span == KeySpan(400, ordered[0], ordered[-1])
        assert block.block.type is BlockType.PARQUET


def test_an_index_window_ends_when_its_filter_is_full():
    table, storage, _ = mor_table()
    write(table, batch(0, 3000), Operation.BULK_INSERT)
    for rows in (batch(0, 100), batch(0, 100), batch(0, 900), batch(0, 100)):
        write(table, [(k, p, 9, v) for k, p, _, v in rows])
    found = indexes_of(table, storage)
    assert [index.capacity for index in found] == [1000, 1000, 7200, 7200], "room for eight like the first, 1,000 at least"
    assert [len(index.logs) for index in found] == [1, 2, 1, 2]


def test_an_index_window_ends_with_the_slice():
    table, storage, _ = appended(2)
    schedule_compaction(table, NOW)
    write(table, batch(0))
    write(table, batch(1))
    assert [len(index.logs) for index in indexes_of(table, storage)] == [1, 2, 1, 2]
    run_compaction(table, run=lambda tasks: [compact_slice(task, storage) for task in tasks])
    assert [len(index.logs) for index in indexes_of(table, storage)] == [1, 2]


def test_deletions_and_marked_rows_are_in_the_index():
    table, storage, _ = mor_table()
    write(table, batch(0, 10), Operation.BULK_INSERT)
    gone = batch(0, 10)[3]
    write(table, [gone], Operation.DELETE)
    (index,) = indexes_of(table, storage)
    assert [b.block.type for b in index.logs[-1].blocks] == [BlockType.DELETE]
    assert looked_up(table, storage, gone[0])[0] == []
    assert [keys.to_pylist() for keys in read_keys(storage, index)] == [[gone[0]]]
    (path,) = table.slices()[0].log_paths
    assert held_keys(storage, path).to_pylist() == [], "a deletion is no place where a key is held"
    assert log_keys(storage, [path]).to_pylist() == [gone[0]]


def stored_indexes(storage):
    return {found.path for found in storage.list_objects(INDEX_FOLDER)}


def test_cleaning_removes_indexes_with_their_log_files():
    table, storage, _ = appended(2, **{"hoodie.cleaner.commits.retained": 1})
    old = {index_path(path) for path in table.slices()[0].log_paths}
    assert stored_indexes(storage) == old
    schedule_compaction(table, NOW)
    run_compaction(table, run=lambda tasks: [compact_slice(task, storage) for task in tasks])
    write(table, batch(0))
    write(table, batch(1))
    schedule_clean(table)
    run_clean(table)
    left = stored_indexes(storage)
    assert left == {index_path(path) for path in table.slices()[0].log_paths}
    assert not left & old


@pytest.mark.parametrize("died", [False, True])
def test_rolling_back_removes_indexes_with_their_log_files(died, monkeypatch):
    _, storage, clock = appended(1)
    before = stored_indexes(storage)
    other = open_table(storage, clock, "other", **{"tideline.write.conflict.retries": 0})

    def end(*_args, **_more):
        assert len(stored_indexes(storage)) == 2
        raise (SystemExit if died else WriteConflict)("lost", **({} if died else {"with_instant": "1"}))

    monkeypatch.setattr("tideline_table.action.write.run.WriteTransaction.commit", end)
    if died:
        monkeypatch.setattr("tideline_table.action.write.run.WriteTransaction.roll_back", lambda self: self.abandon())
    with pytest.raises((SystemExit, WriteConflict)):
        write(other, batch(0))
    monkeypatch.undo()
    if died:
        clock.advance(DEATH_S)
        roll_back_dead(open_table(storage, clock, "third"))
    assert stored_indexes(storage) == before


def test_a_refused_index_does_not_fail_the_write(caplog):
    class NoIndexes(MemoryStorage):
        def put(self, path, data):
            if path.startswith(INDEX_FOLDER):
                raise StorageRefused(f"put of {path}", expected="rights")
            super().put(path, data)

    clock = ManualClock()
    storage = NoIndexes(clock=clock)
    create(storage, clock, type=TableType.MOR)
    table = open_table(storage, clock)
    write(table, batch(0, 5), Operation.BULK_INSERT)
    write(table, [(k, p, 7, v) for k, p, _, v in batch(0, 5)])
    assert "has no key index" in caplog.text
    assert {r[2] for r in contents(table)} == {7}
    assert table.look_up([batch(0, 5)[0][0]], ["ts"]).to_pylist() == [{"ts": 7}]


@pytest.mark.parametrize("number", [0, 1, 2])
def test_an_index_says_nothing_about_a_file_of_another_size(number):
    """The newest file of the index or an older one: the index was written for another file of this name."""
    table, storage, _ = appended(3)
    (found,) = table.slices()
    logs = [*found.log_files]
    logs[number] = replace(logs[number], size_bytes=logs[number].size_bytes + 1)
    absent = WantedKeys(pa.array(["absent"]))
    assert LogIndexes(storage).scan(found, absent).holding(found.log_paths) == []
    narrowed = LogIndexes(storage).scan(replace(found, log_files=tuple(logs)), absent)
    assert narrowed.holding(found.log_paths) == [found.log_paths[number]]


def test_a_committed_log_file_that_does_not_match_its_index_is_refused():
    table, storage, _ = appended(3)
    path = table.slices()[0].log_paths[-1]
    content = storage.read(path)
    storage.put(path, b"#HUDI?" + content[6:])
    key = batch(2)[0][0]
    with pytest.raises(DamagedFile) as refused:
        open_table(storage, table.clock).look_up([key], ["ts"])
    assert refused.value.path == path
