"""Tables that Apache Hudi's writers and ours share: adoption, conflicts, recovery and refusals, without Spark."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import pytest
from tests.unit.table.shared import SHARING, before_commit, opened, peer_of, put, roll_back_as_hudi, shared_table, upgrade
from tests.unit.table.tables import DEATH_S, History, base_stat, contents, instant, new_table, open_table, set_properties, write

from tideline_locks import open_hudi_lock
from tideline_table.action import roll_back_dead
from tideline_table.action.write.transaction import WriteTransaction
from tideline_table.clock import ManualClock
from tideline_table.coordination import SharedTimeline, roll_back
from tideline_table.coordination.shared.hudi_rules import check_not_bucketed, hold_to_rules
from tideline_table.errors import (
    CorruptMetadata,
    InvalidOption,
    StorageError,
    TableFrozen,
    TableUpgraded,
    TransactionRolledBack,
    UnsupportedTable,
    WriteConflict,
)
from tideline_table.hudi import properties as p
from tideline_table.hudi.formats import WRITTEN
from tideline_table.hudi.instant import Action, State, instant_from_time
from tideline_table.hudi.plans import REQUESTED_REPLACE, encode_document
from tideline_table.hudi.properties import read_properties
from tideline_table.index.partition_rules import RulesFile
from tideline_table.log.adopted import AdoptedTable
from tideline_table.log.checkpoint import read_opening, write_checkpoint
from tideline_table.log.sharing import HUDI_WRITER, HudiLockKind, Sharing
from tideline_table.log.state import TableState
from tideline_table.storage import MemoryStorage
from tideline_table.table import Table, TableType, share_table, taking_in
from tideline_table.writer import input as written_input

FIRST = [("a", "p", 1, "1"), ("b", "p", 1, "1"), ("c", "q", 1, "1")]


def test_a_table_of_ours_is_shared_from_an_empty_commit_on() -> None:
    clock = ManualClock()
    exclusive, storage, _ = new_table(clock, MemoryStorage(clock=clock))
    write(exclusive, FIRST)
    still_open = open_table(storage, clock)
    shared = share_table(exclusive, SHARING, open_hudi_lock)
    assert (shared.sharing is not None, shared.capabilities.log_is_truth, shared.sharing) == (True, False, SHARING)
    assert shared.uid == exclusive.uid
    with pytest.raises(TableFrozen, match="shared with Apache Hudi"):
        write(still_open, FIRST)
    put(shared, [("a", "p", 2, "2")])
    assert contents(open_table(storage, clock)) == sorted([("a", "p", 2, "2"), *FIRST[1:]])
    assert share_table(shared, SHARING, open_hudi_lock) is shared
    with pytest.raises(InvalidOption):
        share_table(shared, Sharing(HudiLockKind.STORAGE, expire_min=3), open_hudi_lock)


def test_without_the_lock_a_shared_table_is_read_only() -> None:
    shared, storage, clock = shared_table()
    put(shared, FIRST)
    reader = open_table(storage, clock)
    assert contents(reader) == FIRST
    with pytest.raises(UnsupportedTable, match="without their lock"):
        write(reader, FIRST)


@pytest.mark.parametrize("kind", list(TableType))
def test_what_the_other_side_did_is_read_at_once_and_logged_by_the_next_step(kind: TableType) -> None:
    ours, storage, clock = shared_table(kind)
    put(ours, FIRST)
    theirs = peer_of(storage, clock)
    done = put(theirs, [("a", "p", 2, "2"), ("d", "q", 2, "2")])
    expected = [("a", "p", 2, "2"), ("b", "p", 1, "1"), ("c", "q", 1, "1"), ("d", "q", 2, "2")]
    reader = open_table(storage, clock)
    assert contents(reader) == expected
    head = reader.timeline.log.trimmed_to(), reader.timeline.state.sequence
    ours.refresh()
    put(ours, [("a", "p", 3, "3")])
    assert contents(ours) == [("a", "p", 3, "3"), *expected[1:]]
    theirs.refresh()
    assert contents(theirs) == contents(ours)
    entries = list(ours.timeline.log.after(0))
    assert [e.sequence for e in entries] == list(range(1, len(entries) + 1))
    adopted = [(e.before, e.after) for e in entries if e.instant == done.instant]
    assert adopted[-1] == (State.INFLIGHT, State.COMPLETED)
    assert {e.writer_id for e in entries if e.instant == done.instant} == {HUDI_WRITER}
    assert head[1] < len(entries)


def test_update_of_a_group_that_the_other_side_wrote_is_done_again() -> None:
    ours, storage, clock = shared_table()
    put(ours, FIRST)
    theirs = peer_of(storage, clock)
    with before_commit(ours, lambda: put(theirs, [("a", "p", 2, "theirs")])):
        done = put(ours, [("b", "p", 2, "ours")])
    assert done.attempts == 2
    assert contents(ours) == [("a", "p", 2, "theirs"), ("b", "p", 2, "ours"), FIRST[2]]
    with before_commit(ours, lambda: put(theirs, [("c", "q", 3, "theirs")])):
        assert put(ours, [("b", "p", 3, "ours")]).attempts == 1


@pytest.mark.parametrize("order", ["ab", "ba"])
def test_append_is_done_again_whichever_log_file_of_the_other_side_holds_its_row(order: str) -> None:
    """Apache Hudi writes no key indexes: the keys of both log files are read from their blocks."""
    ours, storage, clock = shared_table(TableType.MOR)
    put(ours, FIRST)
    theirs = peer_of(storage, clock)

    def append() -> None:
        for key in order:
            put(theirs, [(key, "p", 2, "theirs")], **{"tideline.log.index.clique.files": 0})

    with before_commit(ours, append):
        assert put(ours, [("a", "p", 3, "ours")]).attempts == 2
    assert contents(ours) == [("a", "p", 3, "ours"), ("b", "p", 2, "theirs"), FIRST[2]]


def test_key_that_the_other_side_inserted_meanwhile_is_not_inserted_twice() -> None:
    ours, storage, clock = shared_table()
    put(ours, FIRST)
    theirs = peer_of(storage, clock)
    with before_commit(ours, lambda: put(theirs, [("x", "p", 2, "theirs")])):
        done = put(ours, [("x", "p", 3, "ours")])
    assert done.attempts == 2
    assert [row for row in contents(ours) if row[0] == "x"] == [("x", "p", 3, "ours")]


def test_writer_that_was_rolled_back_by_the_other_side_finds_out_and_begins_again() -> None:
    ours, storage, clock = shared_table()
    put(ours, FIRST)
    theirs = peer_of(storage, clock)

    def lose() -> None:
        clock.advance(DEATH_S)
        pending = [a.instant for a in theirs.refresh().pending()]
        storage.delete(f".hoodie/.heartbeat/{pending[0]}")
        assert roll_back_dead(theirs) == pending

    with before_commit(ours, lose):
        done = put(ours, [("a", "p", 2, "2")])
    assert done.attempts == 2
    assert contents(ours)[0] == ("a", "p", 2, "2")


def test_the_error_of_a_rolled_back_writer_names_eager_cleaning() -> None:
    ours, storage, clock = shared_table()
    put(ours, FIRST)
    theirs = peer_of(storage, clock)
    transaction = WriteTransaction.begin(ours.timeline, ours.lock, "upsert")
    clock.advance(DEATH_S)
    theirs.refresh()
    assert roll_back_dead(theirs) == [transaction.instant]
    with pytest.raises(TransactionRolledBack, match=r"failed\.writes=LAZY"):
        transaction.commit([], ours.schema_json, {}, None)
    transaction.roll_back()
    assert ours.refresh().actions[transaction.instant].state is State.ROLLED_BACK


def test_pending_write_of_a_dead_peer_is_rolled_back_by_us() -> None:
    ours, storage, clock = shared_table()
    put(ours, FIRST)
    theirs = peer_of(storage, clock)
    transaction = WriteTransaction.begin(theirs.timeline, theirs.lock, "upsert")
    storage.put(f"p/dead_0-0-0_{transaction.instant}.parquet", b"rows")
    marker = f".hoodie/.temp/{transaction.instant}/MARKERS0"
    storage.put(marker, f"p/dead_0-0-0_{transaction.instant}.parquet.marker.CREATE\n".encode())
    ours.refresh()
    assert roll_back_dead(ours) == []
    transaction.abandon()
    clock.advance(DEATH_S)
    assert roll_back_dead(ours) == [transaction.instant]
    left = {o.path for o in storage.list_objects("")}
    assert not [path for path in left if transaction.instant in path and "/.tideline/" not in path]
    assert contents(ours) == FIRST


def test_peer_that_rolls_back_the_living_is_found_out_and_refused_for_a_while() -> None:
    ours, storage, clock = shared_table()
    put(ours, FIRST)
    transaction = WriteTransaction.begin(ours.timeline, ours.lock, "upsert")
    theirs = peer_of(storage, clock)
    assert roll_back(theirs.timeline, transaction.instant, force=True) is not None
    storage.put(f".hoodie/.heartbeat/{transaction.instant}", b"")
    ours.timeline.heal(0.0)
    with pytest.raises(UnsupportedTable, match=r"hoodie\.cleaner\.policy\.failed\.writes=LAZY"):
        put(ours, FIRST)
    transaction.roll_back()
    clock.advance(DEATH_S)
    put(ours, FIRST)


def test_living_write_that_was_rolled_back_does_not_begin_again() -> None:
    ours, storage, clock = shared_table()
    put(ours, FIRST)
    theirs = peer_of(storage, clock)
    undone: list[str] = []

    def eager() -> None:
        undone.extend(a.instant for a in theirs.refresh().pending())
        assert roll_back(theirs.timeline, undone[0], force=True) is not None
        storage.put(f".hoodie/.heartbeat/{undone[0]}", b"")

    with before_commit(ours, eager), pytest.raises(UnsupportedTable, match="undid a write that was alive"):
        put(ours, [("a", "p", 2, "2")])
    assert [a.instant for a in ours.refresh().actions.values() if a.state is State.ROLLED_BACK] == undone
    assert contents(ours) == FIRST
    clock.advance(DEATH_S)
    assert put(ours, [("a", "p", 3, "3")]).attempts == 1


def test_pending_instant_that_its_writer_took_back_ends() -> None:
    ours, storage, clock = shared_table()
    theirs = peer_of(storage, clock)
    transaction = WriteTransaction.begin(theirs.timeline, theirs.lock, "upsert")
    put(ours, FIRST)
    for suffix in ("commit.requested", "inflight"):
        storage.delete(f".hoodie/{transaction.instant}.{suffix}")
    put(ours, [("a", "p", 2, "2")])
    assert ours.state.actions[transaction.instant].state is State.ROLLED_BACK
    transaction.abandon()


def test_version_that_somebody_upgraded_is_refused() -> None:
    ours, storage, _ = shared_table()
    put(ours, FIRST)
    set_properties(storage, {**read_properties(storage), p.VERSION: "9"})
    with pytest.raises(UnsupportedTable, match=r"hoodie\.write\.auto\.upgrade=false"):
        put(ours, FIRST)


def test_upgraded_table_is_read_where_its_timeline_is_now() -> None:
    ours, storage, clock = shared_table()
    put(ours, FIRST)
    upgrade(storage)
    for step in (ours.refresh, opened(storage, clock).check_writable):
        with pytest.raises(UnsupportedTable, match=r"downgrade it .* hoodie\.write\.auto\.upgrade=false"):
            step()
    reader = Table.open(storage.root, clock=clock, storage=storage)
    assert (reader.sharing is not None, reader.capabilities.keeps_log) == (False, False)
    assert contents(reader) == FIRST


@pytest.mark.parametrize("dies_at", ["", "before the identity"])
def test_upgraded_table_goes_on_in_its_new_version_with_its_log(dies_at: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also by the next process, if the first one dies before the identity says the version."""
    ours, storage, clock = shared_table()
    known = put(ours, FIRST)
    theirs = put(peer_of(storage, clock), [("a", "p", 2, "2")])  # its steps are not in the log yet
    pending = WriteTransaction.begin(ours.timeline, ours.lock, "upsert")  # the upgrade rolls it back, and leaves no trace
    pending.abandon()
    before = ours.refresh()
    for suffix in ("commit.requested", "inflight"):
        storage.delete(f".hoodie/{pending.instant}.{suffix}")
    upgrade(storage)
    if dies_at:

        def die(*_: object) -> None:
            raise StorageError(dies_at)

        with monkeypatch.context() as patched:
            patched.setattr(taking_in, "change_declared", die)
            with pytest.raises(StorageError, match=dies_at):
                share_table(opened(storage, clock), SHARING, open_hudi_lock)
        assert contents(opened(storage, clock)) == [("a", "p", 2, "2"), *FIRST[1:]]
    shared = share_table(opened(storage, clock), SHARING, open_hudi_lock)
    assert (shared.uid, shared.definition.version) == (ours.uid, 9)
    assert shared.identity is not None
    assert shared.identity.is_created_here, "ingestion needs no mode, and its keys stay as they were declared"
    state = shared.refresh()
    assert (sequence := state.sequence) > before.sequence
    assert [state.actions[done.instant].state for done in (known, theirs)] == [State.COMPLETED] * 2
    assert state.actions[known.instant].sequence == before.actions[known.instant].sequence, "consumers have seen it"
    assert state.actions[pending.instant].state is State.ROLLED_BACK
    assert put(shared, [("b", "p", 3, "3")]).sequence > sequence
    again = opened(storage, clock)
    assert contents(again) == contents(shared)
    assert ("b", "p", 3, "3") in contents(again)
    with pytest.raises(TableUpgraded, match="open it again"):
        put(ours, FIRST)


@pytest.mark.parametrize("step", [1, 2])
def test_a_process_that_lost_the_lock_while_it_followed_an_upgrade_takes_no_rows_out(
    step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it found is older than what the log of the faster process has since."""
    ours, storage, clock = shared_table()
    put(ours, FIRST)
    upgrade(storage)
    real, files = taking_in.timeline_files, []

    def suspended(*given: Any) -> Any:
        files.append(given)
        if len(files) == step:
            storage.delete(".hoodie/.locks/table_lock.json")
            put(share_table(opened(storage, clock, "faster"), SHARING, open_hudi_lock), [("z", "q", 2, "2")])
        return real(*given)

    monkeypatch.setattr(taking_in, "timeline_files", suspended)
    with pytest.raises(WriteConflict, match="open the table again"):
        share_table(opened(storage, clock), SHARING, open_hudi_lock)
    clock.advance(100)
    put(opened(storage, clock), [("y", "q", 3, "3")])
    assert contents(opened(storage, clock)) == [*FIRST, ("y", "q", 3, "3"), ("z", "q", 2, "2")]


def test_a_first_sharing_that_died_before_the_identity_is_begun_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its log says how the table is shared: it is none that was upgraded."""
    table, storage, clock = new_table()
    put(table, FIRST)
    storage.delete_below(".hoodie/.tideline")

    def die(*_: object) -> None:
        raise StorageError("died")

    with monkeypatch.context() as patched:
        patched.setattr(taking_in, "create_identity", die)
        with pytest.raises(StorageError, match="died"):
            share_table(opened(storage, clock), SHARING, open_hudi_lock)
    clock.advance(1000)
    shared = share_table(opened(storage, clock), SHARING, open_hudi_lock)
    assert shared.sharing == SHARING
    put(shared, [("z", "q", 2, "2")])
    assert contents(opened(storage, clock)) == [*FIRST, ("z", "q", 2, "2")]


def test_what_a_followed_state_knows_of_cleans_never_moves_back() -> None:
    """Apache Hudi may have archived the clean meanwhile."""
    state, none = TableState(), AdoptedTable((), {}, {}, {}, "", "", "")
    state._take_over(replace(none, last_clean_retained="3", archived_before="2", whole_since="1"), 1)
    state._take_over(none, 2)
    assert (state.last_clean_retained, state.archived_before, state.whole_since) == ("3", "2", "1")


def test_requested_files_of_a_table_that_was_downgraded_are_adopted() -> None:
    ours, storage, clock = shared_table()
    theirs = peer_of(storage, clock)
    done = put(theirs, FIRST)
    storage.put(f".hoodie/{done.instant}.commit.requested", b'{ "operationType" : "UNKNOWN" }')
    put(ours, [("a", "p", 2, "2")])
    assert contents(ours) == [("a", "p", 2, "2"), *FIRST[1:]]


def test_metadata_table_is_turned_off_before_a_step_of_ours(caplog: pytest.LogCaptureFixture) -> None:
    ours, storage, _ = shared_table()
    put(ours, FIRST)
    set_properties(storage, {**read_properties(storage), p.METADATA_PARTITIONS: "files,column_stats"})
    storage.put(".hoodie/metadata/.hoodie/hoodie.properties", b"")
    with caplog.at_level(logging.WARNING):
        put(ours, [("a", "p", 2, "2")])
    assert "hoodie.metadata.enable=false" in caplog.text
    assert read_properties(storage)[p.METADATA_PARTITIONS] == ""
    assert not list(storage.list_objects(".hoodie/metadata"))
    assert [o for o in storage.list_objects("") if o.path.endswith(".backup")] == []


BUCKET_IDS = [f"0000000{n}-1f0b-4e58-9a5b-0a6f5f3c2d1e-0" for n in range(2)]
HASHED_IDS = ["a1ba364b-fbde-3906-b865-53e4c35f3556-0", "ddd512a0-10e2-31e7-b326-8550d5f6acf3-0"]


@pytest.mark.parametrize("ids", [BUCKET_IDS, HASHED_IDS], ids=["simple", "consistent hashing"])
def test_a_shared_table_whose_file_ids_show_a_bucket_index_is_refused(ids: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    ours, storage, clock = shared_table()
    put(ours, [("a", "p", 1, "1")])
    theirs = peer_of(storage, clock)
    with monkeypatch.context() as patched:
        # As Hudi's writers name file groups by their buckets.
        patched.setattr(written_input, "new_file_id", lambda instant, task: ids[int(task)])
        put(theirs, [("b", "q", 1, "1"), ("c", "r", 1, "1")])
    with pytest.raises(UnsupportedTable, match=rf"bucket index \(file id {min(ids)}"):
        put(ours, FIRST)
    assert len(contents(opened(storage, clock))) == 3


@pytest.mark.parametrize("trace", ["folder", "property"])
def test_numbers_of_buckets_by_partition_that_came_after_the_sharing_are_refused(trace: str) -> None:
    _, storage, _ = shared_table()
    kept = {**p.read_properties(storage), "hoodie.index.type": "BUCKET", "hoodie.bucket.index.num.buckets": "4"}
    set_properties(storage, kept)
    assert not hold_to_rules(storage, WRITTEN)
    if trace == "folder":
        rules = RulesFile("20260101000000000", "p,2", 4)
        storage.put(rules.path, rules.content)
    else:
        set_properties(storage, {**kept, "hoodie.bucket.index.partition.expressions": "p,2"})
    with pytest.raises(UnsupportedTable, match="partition"):
        hold_to_rules(storage, WRITTEN)


def test_one_file_id_that_looks_like_a_bucket_is_chance_in_a_large_table() -> None:
    def state(*ids: str) -> TableState:
        found = History()
        found.commit(instant(1), *(base_stat(i, instant(1), partition=f"p{n}") for n, i in enumerate(ids)))
        return found.state

    random = [f"{n:08x}-1f0b-4e58-9a5b-0a6f5f3c2d1e-0" for n in range(0xA0000000, 0xA0000000 + 60)]
    check_not_bucketed(state(*random, BUCKET_IDS[0]), {})
    for found in (state(BUCKET_IDS[0]), state(*random, *BUCKET_IDS), state(*random, HASHED_IDS[0])):
        with pytest.raises(UnsupportedTable, match="bucket index"):
            check_not_bucketed(found, {})
    with pytest.raises(UnsupportedTable, match=r"hoodie\.index\.type=BUCKET"):
        check_not_bucketed(state(*random), {"hoodie.index.type": "BUCKET"})
    with pytest.raises(UnsupportedTable, match=r"folder \.hoodie/\.bucket_index"):
        check_not_bucketed(state(), {}, [".bucket_index"])


def test_properties_are_read_from_the_backup_while_somebody_changes_them() -> None:
    ours, storage, _ = shared_table()
    storage.put(p.BACKUP_PATH, storage.read(p.PROPERTIES_PATH))
    storage.delete(p.PROPERTIES_PATH)
    put(ours, FIRST)
    assert contents(ours) == FIRST


def test_step_whose_entry_was_lost_is_adopted_once() -> None:
    ours, storage, clock = shared_table()
    put(ours, FIRST)
    log = ours.timeline.log
    original = log.append

    def fails(*_: object) -> None:
        raise StorageError("no answer")

    log.append = fails  # type: ignore[method-assign,assignment]
    timeline = ours.timeline
    assert isinstance(timeline, SharedTimeline)
    log.append = original  # type: ignore[method-assign]
    transaction = WriteTransaction.begin(timeline, ours.lock, "upsert")
    log.append = fails  # type: ignore[method-assign,assignment]
    done = transaction.commit([], ours.schema_json, {}, None)
    log.append = original  # type: ignore[method-assign]
    other = opened(storage, clock)
    assert other.state.actions[done.instant].state is State.COMPLETED
    put(other, [("a", "p", 2, "2")])
    entries = [e for e in log.after(0) if e.instant == done.instant]
    assert [e.after for e in entries] == [State.INFLIGHT, State.COMPLETED]
    assert entries[-1].writer_id == HUDI_WRITER


def test_lock_that_was_taken_away_is_taken_again_and_everything_decided_anew() -> None:
    ours, storage, clock = shared_table()
    put(ours, FIRST)
    theirs = peer_of(storage, clock)
    timeline = ours.timeline
    assert isinstance(timeline, SharedTimeline)
    original = timeline.follower.adopt
    stolen: list[bool] = []

    def adopt() -> None:
        original()
        if not stolen:
            stolen.append(True)
            storage.delete(".hoodie/.locks/table_lock.json")
            put(theirs, [("a", "p", 2, "theirs")])

    timeline.follower.adopt = adopt  # type: ignore[method-assign]
    put(ours, [("b", "p", 2, "ours")])
    assert stolen
    assert contents(ours)[:2] == [("a", "p", 2, "theirs"), ("b", "p", 2, "ours")]


def test_rollback_of_a_completed_write_takes_its_rows_out() -> None:
    ours, storage, clock = shared_table()
    put(ours, FIRST)
    theirs = peer_of(storage, clock)
    done = put(theirs, [("a", "p", 2, "2"), ("z", "q", 2, "2")])
    put(ours, [("n", "r", 1, "1")])
    rollback = roll_back_as_hudi(ours, done)
    expected = sorted([*FIRST, ("n", "r", 1, "1")])
    assert contents(open_table(storage, clock)) == expected
    put(ours, [("a", "p", 5, "5")])
    assert contents(ours) == [("a", "p", 5, "5"), *expected[1:]]
    assert ours.state.actions[rollback].action is Action.ROLLBACK


def test_checkpoint_keeps_how_the_table_is_shared() -> None:
    ours, storage, _ = shared_table()
    put(ours, FIRST)
    write_checkpoint(storage, ours.timeline.state)
    found = read_opening(storage).state
    assert found.sharing == SHARING
    assert found.archived_before == ours.timeline.state.archived_before


def test_instants_are_minted_above_the_times_of_completed_files() -> None:
    ours, storage, clock = shared_table()
    done = put(ours, FIRST)
    later = clock.now()
    storage._objects[f".hoodie/{done.instant}.commit"] = (  # type: ignore[attr-defined]
        storage.read(f".hoodie/{done.instant}.commit"),
        later.replace(microsecond=999_999),
    )
    ours.timeline.follower.adopt()  # type: ignore[attr-defined]
    assert ours.timeline.mint(ours.state) > instant_from_time(later.replace(microsecond=999_999))


def test_opening_needs_the_table_that_it_is_shared_as() -> None:
    _, storage, clock = shared_table()
    table = Table.open(storage.root, clock=clock, storage=storage)
    assert table.sharing is not None
    assert isinstance(table.timeline, SharedTimeline)
    assert not table.timeline.can_write


def test_a_commit_of_ours_waits_until_a_peer_that_begins_has_looked_at_the_table() -> None:
    ours, storage, clock = shared_table()
    put(ours, FIRST)
    began = ours.timeline.mint(ours.state)
    requested, inflight = f".hoodie/{began}.commit.requested", f".hoodie/{began}.inflight"
    beat = f".hoodie/.heartbeat/{began}"
    waited: list[float] = []

    class Looks(ManualClock):
        def sleep(self, seconds: float) -> None:
            waited.append(seconds)
            if len(waited) == 3:
                storage.put(inflight, b"")
            super().sleep(seconds)

    storage.put(beat, b"")
    storage.put(requested, b"")
    clock.advance(1)
    waiting = opened(storage, Looks(clock.now()))
    put(waiting, [("a", "p", 2, "2")])
    assert len(waited) == 3
    storage.delete(inflight)
    storage.delete(beat)
    put(opened(storage, clock), [("a", "p", 3, "3")])


def test_a_plan_of_hudi_without_its_slices_is_a_typed_error() -> None:
    table, storage, _ = shared_table()
    at = table.timeline.mint(table.refresh())
    plan = {"operationType": "CLUSTER", "clusteringPlan": {"inputGroups": [{"slices": None}]}}
    storage.put(f".hoodie/{at}.replacecommit.requested", encode_document(REQUESTED_REPLACE, plan))
    with pytest.raises(CorruptMetadata, match=f"replacecommit {at} cannot be understood"):
        table.refresh()
