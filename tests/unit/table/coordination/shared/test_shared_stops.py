"""Writers of shared tables that are stopped for longer than the lock lasts, at one place after the other: found by simulated
histories."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.plans import schedule_clustering
from tests.simulation.crashes_of_shared import FaultyObjects, check_sound
from tests.simulation.faults import SimulatedCrash
from tests.unit.table.shared import before_commit, opened, peer_of, put, shared_table
from tests.unit.table.tables import DEATH_S, cluster, contents

from tideline_locks import open_hudi_lock
from tideline_table.action import roll_back_dead
from tideline_table.action.write.transaction import WriteTransaction
from tideline_table.clock import ManualClock
from tideline_table.coordination import roll_back
from tideline_table.coordination.heartbeat import heartbeat_path
from tideline_table.errors import UnsupportedTable, WriteConflict
from tideline_table.hudi.instant import Action, State
from tideline_table.hudi.plans import ROLLBACK_METADATA, ROLLBACK_PLAN, encode_document
from tideline_table.hudi.write_stats import CommitMetadata
from tideline_table.log.checkpoint import write_checkpoint
from tideline_table.storage import MemoryStorage
from tideline_table.writer import Operation

FIRST = [("a", "p", 1, "1"), ("b", "p", 1, "1"), ("c", "q", 1, "1")]
LOCK_S = 60
"""Longer than the lease of the lock."""


@pytest.fixture
def disk() -> tuple[MemoryStorage, ManualClock]:
    ours, storage, clock = shared_table()
    put(ours, FIRST)
    assert isinstance(storage, MemoryStorage)
    return storage, clock


def stopping(disk: MemoryStorage, call: str, ending: str, meanwhile: Callable[[], object]) -> FaultyObjects:
    """A way to the storage on which `meanwhile` happens once: when it is called so with such a path."""
    faulty = FaultyObjects(disk)

    def before(_: int, made: str, path: str) -> None:
        if made == call and path.endswith(ending):
            faulty.before = lambda number, made, path: None
            meanwhile()

    faulty.before = before
    return faulty


def after_creating(disk: MemoryStorage, ending: str, meanwhile: Callable[[], object]) -> FaultyObjects:
    """As `stopping`, behind the creation of a file."""
    faulty = FaultyObjects(disk)

    def after(_: int, made: str, path: str) -> None:
        if made == "put_if_absent" and path.endswith(ending):
            faulty.after = lambda number, made, path: None
            meanwhile()

    faulty.after = after
    return faulty


def timeline_of(storage: MemoryStorage, instant: str) -> list[str]:
    return sorted(o.path.rpartition("/")[2] for o in storage.list_folder(".hoodie").objects if instant in o.path)


def hudi_rolls_back(storage: MemoryStorage, clock: ManualClock, instant: str, *, ends: bool = True) -> None:
    """All that Apache Hudi's rollback of a write without files leaves; no process of Tideline has seen it yet.

    Unless it `ends`, it died before its last step.
    """
    table = opened(storage, clock)
    at = table.timeline.mint(table.state)
    info = {"commitTime": instant, "action": "commit"}
    plan = {"instantToRollback": info, "RollbackRequests": [], "version": 1}
    done = {
        "startRollbackTime": at,
        "timeTakenInMillis": 0,
        "totalFilesDeleted": 0,
        "commitsRollback": [instant],
        "partitionMetadata": {},
        "version": 1,
        "instantsRollback": [info],
    }
    storage.put(f".hoodie/{at}.rollback.requested", encode_document(ROLLBACK_PLAN, plan))
    storage.put(f".hoodie/{at}.rollback.inflight", b"")
    for name in timeline_of(storage, instant):
        storage.delete(f".hoodie/{name}")
    if ends:
        storage.put(f".hoodie/{at}.rollback", encode_document(ROLLBACK_METADATA, done))


def test_writer_that_was_rolled_back_between_its_first_two_files_begins_again(disk: tuple[MemoryStorage, ManualClock]) -> None:
    """Its entry would be one that nobody may fold, and its second file would make the instant look pending for ever."""
    storage, clock = disk
    undone: list[str] = []

    def meanwhile() -> None:
        clock.advance(DEATH_S)
        undone.extend(roll_back_dead(opened(storage, clock, "other")))

    slow = opened(stopping(storage, "put_if_absent", ".inflight", meanwhile), clock, "slow")
    assert put(slow, [("a", "p", 2, "2")]).attempts == 2
    assert len(undone) == 1
    assert not [name for name in timeline_of(storage, undone[0]) if "rollback" not in name]
    check_sound(storage, clock, [sorted([("a", "p", 2, "2"), *FIRST[1:]])])


def test_writer_that_hudi_undid_between_its_first_two_files_before_anybody_saw_it_begins_again(
    disk: tuple[MemoryStorage, ManualClock],
) -> None:
    """Found by a history: the log knew the rollback and not its target, and the write was committed behind it."""
    storage, clock = disk
    undone: list[str] = []

    def meanwhile() -> None:
        undone.extend(
            o.path[8:25] for o in storage.list_folder(".hoodie").objects if o.path.endswith(".requested") and o.path[8:25] > last
        )
        clock.advance(DEATH_S)
        hudi_rolls_back(storage, clock, undone[0])
        put(opened(storage, clock, "other"), [("z", "other", 2, "2")])

    last = opened(storage, clock).state.last_instant
    slow = opened(stopping(storage, "put_if_absent", ".inflight", meanwhile), clock, "slow")
    put(slow, [("a", "p", 2, "2")])
    assert len(undone) == 1
    assert not [name for name in timeline_of(storage, undone[0]) if "rollback" not in name]
    check_sound(storage, clock, [sorted([("a", "p", 2, "2"), ("z", "other", 2, "2"), *FIRST[1:]])])


def test_what_an_old_listing_does_not_show_was_not_taken_back(disk: tuple[MemoryStorage, ManualClock]) -> None:
    storage, clock = disk
    theirs = peer_of(storage, clock)
    put(theirs, [("d", "p", 1, "theirs")])
    begun: list[str] = []

    def meanwhile() -> None:
        clock.advance(LOCK_S)
        begun.append(WriteTransaction.begin(theirs.timeline, theirs.lock, "upsert").instant)
        opened(storage, clock, "other").timeline.heal(0.0)

    slow = opened(stopping(storage, "put_if_absent", ".json", meanwhile), clock, "slow")
    slow.timeline.heal(0.0)
    assert opened(storage, clock).state.actions[begun[0]].is_pending


def test_file_of_a_write_that_was_rolled_back_comes_late(disk: tuple[MemoryStorage, ManualClock]) -> None:
    storage, clock = disk
    ours, theirs = opened(storage, clock), peer_of(storage, clock)
    dead = WriteTransaction.begin(theirs.timeline, theirs.lock, "upsert")
    ours.timeline.heal(0.0)
    dead.abandon()
    clock.advance(DEATH_S)
    assert roll_back_dead(theirs) == [dead.instant]
    clock.advance(1)
    storage.put(f".hoodie/{dead.instant}.inflight", b"")
    assert contents(opened(storage, clock)) == FIRST
    put(ours, [("a", "p", 2, "2")])
    assert not timeline_of(storage, dead.instant)
    check_sound(storage, clock, [sorted([("a", "p", 2, "2"), *FIRST[1:]])])


def test_rollback_that_came_late_takes_itself_back(disk: tuple[MemoryStorage, ManualClock]) -> None:
    """Its target completed under the lock that the rollback had lost: what it wrote is nobody's to delete."""
    storage, clock = disk
    theirs = peer_of(storage, clock)
    alive = WriteTransaction.begin(theirs.timeline, theirs.lock, "upsert")
    clock.advance(DEATH_S)

    def meanwhile() -> None:
        clock.advance(LOCK_S)
        storage.put(f".hoodie/{alive.instant}.commit", CommitMetadata("UPSERT", (), {"schema": theirs.schema_json}).to_bytes())

    slow = opened(stopping(storage, "put_if_absent", ".rollback.requested", meanwhile), clock, "slow")
    assert roll_back_dead(slow) == []
    assert not [o.path for o in storage.list_folder(".hoodie").objects if "rollback" in o.path]
    assert opened(storage, clock).state.actions[alive.instant].state is State.COMPLETED
    alive.abandon()
    check_sound(storage, clock, [FIRST])


def test_both_sides_roll_the_same_write_back(disk: tuple[MemoryStorage, ManualClock]) -> None:
    storage, clock = disk
    theirs = peer_of(storage, clock)
    dead = WriteTransaction.begin(theirs.timeline, theirs.lock, "upsert")
    dead.abandon()
    clock.advance(DEATH_S)

    def meanwhile() -> None:
        clock.advance(LOCK_S)
        hudi_rolls_back(storage, clock, dead.instant)

    roll_back_dead(opened(after_creating(storage, ".rollback.inflight", meanwhile), clock, "slow"))
    check_sound(storage, clock, [FIRST])
    assert not opened(storage, clock).state.rewritten


def test_rollback_of_a_clustering_that_died_before_its_entry_is_taken_back(disk: tuple[MemoryStorage, ManualClock]) -> None:
    """On the timeline it looks like one of Hudi's that leaves the plan: nothing waits for it, so nobody ended it."""
    storage, clock = disk
    put(opened(storage, clock), [("e", "p", 1, "1")], Operation.INSERT)
    plan = schedule_clustering(opened(storage, clock), {"hoodie.clustering.plan.strategy.small.file.limit": 10**9})
    assert plan is not None

    def die() -> None:
        raise SimulatedCrash

    dying = opened(after_creating(storage, ".rollback.inflight", die), clock, "dying")
    with pytest.raises(SimulatedCrash):
        roll_back(dying.timeline, plan, force=True)
    other = opened(storage, clock, "other")
    roll_back_dead(other)
    assert [a.action for a in other.state.pending() if a.action is Action.ROLLBACK], "its process may live"
    clock.advance(DEATH_S)
    roll_back_dead(other)
    assert [a.instant for a in other.state.pending()] == [plan]
    assert cluster(other) is not None
    check_sound(storage, clock, [[*FIRST, ("e", "p", 1, "1")]])


def test_rollback_of_a_write_that_nobody_of_ours_saw_is_taken_back(disk: tuple[MemoryStorage, ManualClock]) -> None:
    """Hudi's writer began, died and was undone between two looks of Tideline; then the one who undid it died, too."""
    storage, clock = disk
    ours = opened(storage, clock)
    unseen = ours.timeline.mint(ours.state)
    clock.advance(DEATH_S)
    hudi_rolls_back(storage, clock, unseen, ends=False)
    other = opened(storage, clock, "other")
    roll_back_dead(other)
    assert [a.action for a in other.state.pending()] == [Action.ROLLBACK], "its process may live"
    clock.advance(DEATH_S)
    roll_back_dead(other)
    assert list(other.state.pending()) == []
    check_sound(storage, clock, [FIRST])


def test_a_write_has_its_heartbeat_before_anybody_sees_it(disk: tuple[MemoryStorage, ManualClock]) -> None:
    """Hudi's lazy cleaning takes a pending write without one for dead."""
    storage, clock = disk
    faulty = FaultyObjects(storage)
    instant = WriteTransaction.begin((table := opened(faulty, clock)).timeline, table.lock, "upsert").instant
    beaten = faulty.calls.index(("put", heartbeat_path(instant)))
    assert beaten < faulty.calls.index(("put_if_absent", f".hoodie/{instant}.commit.requested"))


def test_writer_that_was_silent_for_long_accuses_nobody_of_eager_cleaning(disk: tuple[MemoryStorage, ManualClock]) -> None:
    storage, clock = disk
    ours = opened(storage, clock)
    silent = WriteTransaction.begin(ours.timeline, ours.lock, "upsert")
    clock.advance(DEATH_S)
    hudi_rolls_back(storage, clock, silent.instant)
    clock.advance(1)
    storage.put(heartbeat_path(silent.instant), b"")
    put(ours, [("a", "p", 2, "2")])
    assert opened(storage, clock).state.eager_rollback == ""


def test_writer_that_woke_between_hudis_look_and_its_rollback_accuses_nobody(disk: tuple[MemoryStorage, ManualClock]) -> None:
    """Found by a history: Hudi's writer had seen that it was silent for long, and rolled others back first."""
    storage, clock = disk
    ours = opened(storage, clock)
    silent = WriteTransaction.begin(ours.timeline, ours.lock, "upsert")
    clock.advance(DEATH_S)  # here it looks
    storage.put(heartbeat_path(silent.instant), b"")
    clock.advance(1)
    hudi_rolls_back(storage, clock, silent.instant)
    put(ours, [("a", "p", 2, "2")])
    assert opened(storage, clock).state.eager_rollback == ""


def test_a_rollback_of_ours_that_others_adopt_is_no_eager_cleaning(disk: tuple[MemoryStorage, ManualClock]) -> None:
    storage, clock = disk

    def meanwhile() -> None:
        clock.advance(LOCK_S)
        opened(storage, clock, "adopter").timeline.heal(0.0)

    slow = opened(after_creating(storage, ".rollback.inflight", meanwhile), clock, "slow")
    other = opened(storage, clock, "other")

    with before_commit(slow, lambda: put(other, [("a", "p", 2, "other")])), pytest.raises(WriteConflict):
        put(slow, [("a", "p", 3, "slow")], **{"tideline.write.conflict.retries": 0})
    put(other, [("a", "p", 4, "other")])


def test_eager_cleaning_is_known_to_who_opens_the_table_from_a_checkpoint(disk: tuple[MemoryStorage, ManualClock]) -> None:
    storage, clock = disk
    ours, theirs = opened(storage, clock), peer_of(storage, clock)
    alive = WriteTransaction.begin(ours.timeline, ours.lock, "upsert")
    theirs.refresh()
    assert roll_back(theirs.timeline, alive.instant, force=True) is not None
    storage.put(heartbeat_path(alive.instant), b"")
    ours.timeline.heal(0.0)
    write_checkpoint(storage, ours.timeline.state)
    with pytest.raises(UnsupportedTable, match="undid a write that was alive"):
        put(opened(storage, clock, "fresh"), FIRST)
    alive.abandon()


def test_lock_is_not_held_when_its_renewal_took_as_long_as_it_lasts(disk: tuple[MemoryStorage, ManualClock]) -> None:
    storage, clock = disk
    faulty = FaultyObjects(storage)
    table = opened(storage, clock)
    assert table.sharing is not None
    lock = open_hudi_lock(faulty, table.sharing, "slow", clock, table.options)
    with lock.hold() as held:
        assert held.is_held()
        faulty.after = lambda number, call, path: clock.advance(29) if call == "put_if_version" else None
        assert not held.is_held()
        faulty.after = lambda number, call, path: None


@pytest.mark.parametrize("ending", [".rollback.requested", ".rollback"])
def test_what_is_taken_away_between_the_listing_and_its_reading_is_not_adopted(disk, ending):
    """Found by a history: a writer slept there until its lock had run out, and the rollback that it had listed took itself back."""
    storage, clock = disk
    put(peer_of(storage, clock), [("t", "q", 1, "theirs")])
    dead = WriteTransaction.begin(peer_of(storage, clock).timeline, opened(storage, clock).lock, "upsert")
    dead.abandon()
    clock.advance(DEATH_S)
    hudi_rolls_back(storage, clock, dead.instant)

    def meanwhile():
        # As archival does; what both sides wrote since stays.
        [path] = [o.path for o in storage.list_folder(".hoodie").objects if o.path.endswith(".rollback.requested")]
        at = path.rpartition("/")[2].partition(".")[0]
        for name in timeline_of(storage, at):
            storage.delete(f".hoodie/{name}")

    faulty, held = FaultyObjects(storage), []

    def before(_, call, path):
        if call.startswith("put") and path.endswith("table_lock.json"):
            held.append(path)
        if held and call == "read" and path.endswith(ending):
            faulty.before = lambda number, call, path: None
            meanwhile()

    table = opened(faulty, clock, "w")
    faulty.before = before
    put(table, [("n", "r", 1, "ours")])
    assert faulty.before is not before
    assert contents(opened(storage, clock)) == sorted([*FIRST, ("t", "q", 1, "theirs"), ("n", "r", 1, "ours")])
