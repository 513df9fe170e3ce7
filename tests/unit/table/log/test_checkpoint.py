import json
from dataclasses import replace

import pytest
from tests.plans import schedule_clean, schedule_clustering
from tests.unit.table.tables import DEATH_S, History, base_stat, cluster, contents, instant, new_table, open_table, write

from tideline_table.action import roll_back_dead, run_clean
from tideline_table.action.write.transaction import WriteTransaction
from tideline_table.errors import StorageError
from tideline_table.file_group.slice import FileGroupId
from tideline_table.log import checkpoint
from tideline_table.log.checkpoint import CHECKPOINT_FOLDER, POINTER, read_opening, write_checkpoint
from tideline_table.log.state import TableState
from tideline_table.log.table_log import LogReader
from tideline_table.storage import MemoryStorage
from tideline_table.writer import Operation

EVERY = {"tideline.log.checkpoint.interval": 2}


@pytest.fixture
def busy():
    """A table with every kind of action behind it, pending ones too, and a checkpoint at its head."""
    table, storage, clock = new_table()
    table = open_table(storage, clock, **EVERY)
    for n in range(4):
        write(table, [(f"k{n}", f"p{n % 2}", 1, "x"), ("k0", "p0", n, "y")])
    schedule_clustering(table)
    lost = WriteTransaction.begin(table.timeline, table.lock, "UPSERT")
    lost.abandon()
    cluster(table)
    write(table, [("k1", "p1", 9, "z")], Operation.DELETE)
    clock.advance(DEATH_S)
    roll_back_dead(table)
    schedule_clean(table, {"hoodie.cleaner.commits.retained": 1})
    run_clean(table)
    write(table, [("m", "p1", 1, "x")])
    write(table, [("n", "p1", 1, "x")])
    schedule_clustering(table)
    schedule_clean(table, {"hoodie.cleaner.commits.retained": 1})
    return table, storage, clock


def full_fold(storage, clock):
    state = TableState()
    for entry in LogReader(storage).after(0):
        state.apply(entry)
    return state


def test_opening_from_a_checkpoint_equals_the_whole_fold(busy):
    table, storage, clock = busy
    opened = open_table(storage, clock)
    assert read_opening(storage).state.sequence >= table.state.sequence - 1
    assert opened.state == full_fold(storage, clock) == table.state


def test_every_prefix_round_trips(busy):
    _, storage, _ = busy
    state = TableState()
    for entry in LogReader(storage).after(0):
        state.apply(entry)
        other = MemoryStorage()
        write_checkpoint(other, state)
        assert read_opening(other).state == state


def test_checkpoints_hold_no_write_stats():
    """They lie in the log and on the timeline: with them checkpoints would grow with every file that was ever written."""
    table, _, clock = new_table()
    row = [("k", "p", 1, "x")]
    sizes = []
    for _ in range(3):
        for _ in range(4):
            write(table, row)
        schedule_clean(table, {"hoodie.cleaner.commits.retained": 1})
        run_clean(table)
        other = MemoryStorage()
        write_checkpoint(other, table.state)
        (found,) = [o.path for o in other.list_objects(CHECKPOINT_FOLDER) if o.path != POINTER]
        text = other.read(found)
        assert b"partitionToWriteStats" not in text
        assert b"numWrites" not in text
        sizes.append(len(text) / len(table.state.actions))
        clock.advance(1)
    assert sizes[-1] < 250, "bytes of each action, and of few files"


def test_opening_costs_few_requests(busy):
    """The checkpoint and the tail, not the history."""
    _, storage, clock = busy
    read = []

    class Counting(MemoryStorage):
        def read(self, path):
            read.append(path)
            return storage.read(path)

        def __getattribute__(self, name):
            return object.__getattribute__(self, name) if name in {"read", "__class__"} else getattr(storage, name)

    open_table(Counting(), clock)
    assert len([p for p in read if ".tideline/" in p and "table.json" not in p]) <= 5


@pytest.mark.parametrize(
    "broken",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff",
        b"[" * 100_000,
        b'{"format": 2, "sequence": 4}',
        b'{"format": 1, "sequence": 3}',
        b'{"format": 1}',
        "wrong sequence",
        "missing actions",
        "odd slices",
    ],
)
def test_a_broken_checkpoint_is_ignored(busy, broken):
    table, storage, clock = busy
    sequence = read_opening(storage).state.sequence
    path = f"{CHECKPOINT_FOLDER}/{sequence:020d}.json"
    document = json.loads(storage.read(path))
    if broken == "wrong sequence":
        document["sequence"] += 1
    elif broken == "missing actions":
        del document["actions"]
    elif broken == "odd slices":
        document["slices"] = [["p", "f", [["only"]]]]
    storage.put(path, broken if isinstance(broken, bytes) else json.dumps(document).encode())
    opened = open_table(storage, clock)
    assert opened.state == table.state
    assert contents(opened) == contents(table)


@pytest.mark.parametrize("pointer", [b"", b"x", b"-1", b"999", b"\xff", None])
def test_a_broken_pointer_is_ignored(busy, pointer):
    table, storage, clock = busy
    if pointer is None:
        storage.delete(POINTER)
    else:
        storage.put(POINTER, pointer)
    assert open_table(storage, clock).state == table.state


def test_an_unreachable_store_is_no_missing_checkpoint():
    class Down(MemoryStorage):
        def read(self, path):
            raise StorageError("down")

    with pytest.raises(StorageError):
        read_opening(Down())


def test_excess_is_rebuilt():
    history = History()
    history.commit(instant(1), base_stat("a-0", instant(1)), base_stat("b-0", instant(1)))
    history.commit(instant(2), base_stat("a-0", instant(2)))
    storage = MemoryStorage()
    write_checkpoint(storage, history.state)
    assert read_opening(storage).state.excess == {FileGroupId("p", "a-0")}


def test_a_checkpoint_with_the_texts_of_the_one_before_holds_what_one_without_them_holds(monkeypatch):
    monkeypatch.setattr(checkpoint, "_MANY_ACTIONS", 2)
    history, storage, texts = History(), MemoryStorage(), {}
    for n in (1, 2, 3):
        history.commit(instant(n), base_stat("a-0", instant(n)))
        write_checkpoint(storage, history.state, texts=texts)
        assert read_opening(storage).state == history.state
    first, second, third = (history.state.actions[instant(n)] for n in (1, 2, 3))
    history.state.actions[second.instant] = replace(second, operation="DELETE")
    del history.state.actions[first.instant]
    kept = texts[third.instant]
    write_checkpoint(storage, history.state, texts=texts)
    assert read_opening(storage).state.actions == history.state.actions
    assert texts.keys() == history.state.actions.keys()
    assert texts[third.instant] is kept, "encoded once"
