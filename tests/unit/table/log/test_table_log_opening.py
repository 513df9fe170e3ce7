"""Opening a table costs few requests, however long its log is and wherever between two checkpoints its head stands."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from tests.unit.table.tables import base_stat, create, instant, new_table, open_table, write

from tideline_table.action.write.transaction import WriteTransaction
from tideline_table.clock import ManualClock
from tideline_table.config import Options
from tideline_table.coordination import ExclusiveTimeline, LogReplica
from tideline_table.errors import StorageError
from tideline_table.hudi.formats import WRITTEN
from tideline_table.hudi.instant import Action, State
from tideline_table.hudi.write_stats import CommitMetadata
from tideline_table.log.body import Bare, Published
from tideline_table.log.checkpoint import (
    CHECKPOINT_FOLDER,
    POINTER,
    TAIL_BYTES,
    read_opening,
    write_checkpoint,
)
from tideline_table.log.entry import INLINE_BODY_BYTES, LOG_FOLDER, Entry, entry_path
from tideline_table.log.state import TableState
from tideline_table.log.table_log import Draft, LogReader
from tideline_table.storage import Folder, MemoryStorage

INSTANTS = 2000
MOST_REQUESTS = 6


class CountingStorage(MemoryStorage):
    """Counts what is asked; lists folders of the log without a look at everything else, so that long logs are made quickly."""

    def __init__(self, clock):
        super().__init__(clock=clock)
        self.requests = []
        self._levels = {}

    def _note(self, call, path):
        self.requests.append((call, path))

    def read(self, path):
        self._note("read", path)
        return super().read(path)

    def stat(self, path):
        self._note("stat", path)
        return super().stat(path)

    def list_objects(self, prefix, after=""):
        self._note("list_objects", prefix)
        return super().list_objects(prefix, after)

    def list_folder(self, path):
        self._note("list_folder", path)
        names = sorted(self._levels.get(path, ()))
        return Folder((), tuple(super(CountingStorage, self).stat(name) for name in names))

    def put(self, path, data):
        super().put(path, data)
        self._levels.setdefault(path.rpartition("/")[0], set()).add(path)

    def put_if_absent(self, path, data):
        super().put_if_absent(path, data)
        self._levels.setdefault(path.rpartition("/")[0], set()).add(path)

    def delete(self, path):
        super().delete(path)
        self._levels.get(path.rpartition("/")[0], set()).discard(path)


def begin(timeline):
    return timeline.append(
        lambda state: Draft(timeline.mint(state), Action.COMMIT, State.NONE, State.INFLIGHT, "UPSERT", Bare())
    ).instant


def committed(at, files=1):
    stats = tuple(base_stat(f"{int(at[-4:]) % 50 + n}-0", at, f"p{n % 3}") for n in range(files))
    return Published(CommitMetadata("UPSERT", stats, {"schema": '"string"'}))


def complete(timeline, at, files=1, extra=None):
    body = replace(committed(at, files), **(extra or {}))
    timeline.append(lambda state: Draft(at, Action.COMMIT, State.INFLIGHT, State.COMPLETED, "UPSERT", body))


def commit(timeline, files=1, extra=None):
    timeline.clock.advance(1)
    complete(timeline, begin(timeline), files, extra)


def opening_cost(storage, clock):
    storage.requests.clear()
    table = open_table(storage, clock, "reader")
    return len(storage.requests), table


@pytest.fixture(scope="module")
def long():
    clock = ManualClock()
    storage = CountingStorage(clock)
    create(storage, clock)
    state = TableState()
    for n in range(INSTANTS):
        at = instant(n)
        for before, after, body in (
            (State.NONE, State.INFLIGHT, Bare()),
            (State.INFLIGHT, State.COMPLETED, committed(at)),
        ):
            number, recorded = state.sequence + 1, clock.now().isoformat()
            entry = Entry(number, f"a{number}", recorded, "w", at, Action.COMMIT, before, after, "UPSERT", body)
            state.apply(entry)
            storage.put(entry.path, entry.to_bytes())
    write_checkpoint(storage, state)
    clock.advance(3600)
    timeline = ExclusiveTimeline(LogReplica(storage, clock, "w", Options(), WRITTEN))
    timeline.replica.load()
    return timeline, storage, clock


def test_two_thousand_instants_open_in_six_requests(long):
    timeline, storage, clock = long
    assert len(timeline.state.actions) >= INSTANTS
    assert len(storage.list_folder(LOG_FOLDER).objects) == 2 * INSTANTS
    heads = set()
    for _ in range(25):
        cost, table = opening_cost(storage, clock)
        assert cost <= MOST_REQUESTS, storage.requests
        assert table.state == timeline.state
        heads.add(table.state.sequence % 50)
        commit(timeline)
    assert len(heads) == 25, "every place of the head between two checkpoints"


def test_actions_in_flight_cost_nothing_more(long):
    timeline, storage, clock = long
    commit(timeline)
    begun = [begin(timeline) for _ in range(3)]
    cost, table = opening_cost(storage, clock)
    assert cost <= MOST_REQUESTS, storage.requests
    assert table.state == timeline.state
    for at in begun:
        complete(timeline, at)
    assert opening_cost(storage, clock)[0] <= MOST_REQUESTS


def test_a_new_table_opens_in_nine_requests():
    """Two listings and a look for checkpoints show that no log was lost."""
    clock = ManualClock()
    storage = CountingStorage(clock)
    create(storage, clock)
    assert opening_cost(storage, clock)[0] <= MOST_REQUESTS + 3


def test_many_writers_keep_it_cheap():
    """Each has opened at another time and knows another checkpoint as the latest."""
    clock = ManualClock()
    storage = CountingStorage(clock)
    create(storage, clock)
    timelines = []
    for n in range(200):
        if n % 40 == 0:
            timelines.append(ExclusiveTimeline(LogReplica(storage, clock, f"w{n}", Options(), WRITTEN)))
            timelines[-1].replica.load()
        commit(timelines[n * 7 % len(timelines)])
        cost, table = opening_cost(storage, clock)
        assert cost <= MOST_REQUESTS, n
        assert table.state.sequence == 2 * n + 2
    checkpoints = [o.path for o in storage.list_folder(CHECKPOINT_FOLDER).objects if o.path.endswith(".json")]
    assert len(checkpoints) == 3
    written = [int(c.rpartition("/")[2][:20]) for c in checkpoints]
    assert written == [300, 350, 400], "one checkpoint per interval, whoever writes it"


def test_a_writer_whose_turn_never_comes_writes_a_checkpoint_when_it_is_overdue():
    class NoCheckpointAtTheTurn(CountingStorage):
        def put(self, path, data):
            if path.startswith(CHECKPOINT_FOLDER) and path.endswith("0.json"):
                raise StorageError("the writer died here")
            super().put(path, data)

    clock = ManualClock()
    storage = NoCheckpointAtTheTurn(clock)
    create(storage, clock)
    timeline = ExclusiveTimeline(LogReplica(storage, clock, "w", Options({"tideline.log.checkpoint.interval": 10}), WRITTEN))
    timeline.replica.load()
    for _ in range(41):
        commit(timeline)
    assert read_opening(storage).state.sequence > 60
    assert opening_cost(storage, clock)[0] <= MOST_REQUESTS


def test_large_entries_bring_checkpoints_sooner():
    clock = ManualClock()
    storage = CountingStorage(clock)
    create(storage, clock)
    timeline = ExclusiveTimeline(LogReplica(storage, clock, "w", Options(), WRITTEN))
    timeline.replica.load()
    for _ in range(10):
        commit(timeline, files=300)
        assert len(storage.read(POINTER)) < TAIL_BYTES + 10_000
    assert read_opening(storage).state.sequence > 0
    cost, table = opening_cost(storage, clock)
    assert cost <= MOST_REQUESTS + 1
    assert table.state == timeline.state


def test_key_hashes_are_not_repeated_behind_the_checkpoint():
    table, storage, _ = new_table()
    write(table, [(f"k{n}", "p", 1, "x") for n in range(500)])
    assert b"inserted_key_hashes" in storage.read(entry_path(table.state.sequence))
    assert b"inserted_key_hashes" not in storage.read(POINTER)


def test_bodies_beside_the_log_are_read_from_there():
    clock = ManualClock()
    storage = CountingStorage(clock)
    create(storage, clock)
    timeline = ExclusiveTimeline(LogReplica(storage, clock, "w", Options(), WRITTEN))
    timeline.replica.load()
    commit(timeline, extra={"inserted_key_hashes": "y" * INLINE_BODY_BYTES})
    assert len(storage.read(POINTER)) < 10_000
    assert open_table(storage, clock).state == timeline.state


def test_what_is_repeated_may_lag_behind():
    """A writer that read an older head overwrites `latest` with what it knows: readers find the rest in the log."""
    table, storage, clock = new_table()
    write(table, [("a", "p", 1, "x")])
    old = storage.read(POINTER)
    for n in range(30):
        write(table, [("a", "p", n, "x")])
    storage.put(POINTER, old)
    assert open_table(storage, clock).state == table.state


@pytest.mark.parametrize("damage", ["gap", "order", "garbage", "number", "newer"])
def test_a_broken_tail_is_read_from_the_log(damage):
    table, storage, clock = new_table()
    for n in range(4):
        write(table, [("a", "p", n, "x")])
    document = json.loads(storage.read(POINTER))
    assert len(document["tail"]) == 8
    if damage == "gap":
        del document["tail"][3]
    elif damage == "order":
        document["tail"].reverse()
    elif damage == "garbage":
        document["tail"][2] = {"log_format": 1}
    elif damage == "newer":
        document["tail"][2]["log_format"] = 2
    else:
        document["tail"] = 7
    storage.put(POINTER, json.dumps(document).encode())
    assert open_table(storage, clock).state == table.state


def test_an_early_pointer_is_understood():
    table, storage, clock = new_table()
    table = open_table(storage, clock, **{"tideline.log.checkpoint.interval": 4})
    for n in range(3):
        write(table, [("a", "p", n, "x")])
    storage.put(POINTER, b"4")
    assert read_opening(storage).checkpoint.sequence == 4
    assert open_table(storage, clock).state == table.state


def test_without_the_pointer_the_newest_sound_checkpoint_counts():
    table, storage, clock = new_table()
    table = open_table(storage, clock, **{"tideline.log.checkpoint.interval": 4})
    for n in range(8):
        write(table, [("a", "p", n, "x")])
    storage.delete(POINTER)
    assert read_opening(storage).state.sequence == 16
    storage.put(f"{CHECKPOINT_FOLDER}/{16:020d}.json", b"{")
    assert read_opening(storage).state.sequence == 12
    assert open_table(storage, clock).state == table.state


def test_a_failing_checkpoint_does_not_fail_the_commit(caplog):
    class NoPointer(MemoryStorage):
        def put(self, path, data):
            if path == POINTER:
                raise StorageError("not today")
            super().put(path, data)

    clock = ManualClock()
    table, storage, _ = new_table(clock, NoPointer(clock=clock))
    write(table, [("a", "p", 1, "x")])
    assert "no checkpoint" in caplog.text
    assert open_table(storage, clock).state == table.state


def test_the_fold_does_not_depend_on_where_it_started():
    table, storage, clock = new_table()
    table = open_table(storage, clock, **{"tideline.log.checkpoint.interval": 6})
    for n in range(10):
        write(table, [(f"k{n}", f"p{n % 2}", n, "x")])
        if n % 3 == 0:
            transaction = WriteTransaction.begin(table.timeline, table.lock, "UPSERT")
            transaction.roll_back()
        whole = TableState()
        for entry in LogReader(storage).after(0):
            whole.apply(entry)
        assert open_table(storage, clock).state == whole == table.state


def test_a_listing_that_lags_behind_does_no_harm():
    """A mounted store may not list yet what was just written; the commit counts all the same."""

    class Lagging(MemoryStorage):
        def list_folder(self, path):
            return Folder((), ()) if path == CHECKPOINT_FOLDER else super().list_folder(path)

    clock = ManualClock()
    storage = Lagging(clock=clock)
    create(storage, clock)
    table = open_table(storage, clock, **{"tideline.log.checkpoint.interval": 2})
    for n in range(5):
        write(table, [("a", "p", n, "x")])
    assert open_table(storage, clock).state == table.state


def test_a_transition_without_the_body_that_readers_need_is_refused():
    """A log compaction that earlier releases followed in a shared table has none, and is read."""
    table, _, _ = new_table()
    at, newest = instant(900), table.state.sequence
    bare = Draft(at, Action.COMMIT, State.INFLIGHT, State.COMPLETED, "UPSERT", Bare())
    with pytest.raises(KeyError, match="metadata"):
        table.timeline.log.append(bare, newest + 1)
    assert table.timeline.log.read(newest + 1) is None
    followed = bare.entry(newest + 1, table.timeline.time.now(), "a", "apache-hudi")
    followed = replace(followed, action=Action.LOG_COMPACTION)
    assert Entry.from_bytes(followed.to_bytes(), "path").body == Bare()
