"""A writer that sleeps behind its commit point until its instant was archived: what it committed stays, whatever ends it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.unit.table.tables import Row, compact, contents, new_table, open_table, write

from tideline_table.action.archival.run import archive
from tideline_table.coordination import ExclusiveTimeline
from tideline_table.hudi.instant import State
from tideline_table.log.entry import Entry
from tideline_table.log.table_log import TableLog
from tideline_table.storage import Storage
from tideline_table.table import Table, TableType

DAY_S = 24 * 3600
EARLY = {
    "hoodie.keep.min.commits": 3,
    "hoodie.keep.max.commits": 4,
    "hoodie.cleaner.commits.retained": 2,
    "hoodie.compact.inline.max.delta.commits": 1,
    "tideline.log.retained.entries": 10,
    "tideline.log.checkpoint.interval": 2,
}
ROUNDS, WRITES = 2, 6
MINE: Row = ("k", "p", 1, "mine")


def archived_meanwhile(other: Table, clock: object, instant: str) -> None:
    """Others write for weeks; archival takes `instant` off the timeline, its entries leave the log."""
    begun = other.state.sequence + 1
    for round_ in range(ROUNDS):
        for number in range(WRITES):
            clock.advance(4 * DAY_S)  # type: ignore[attr-defined]
            write(other, [(f"o{round_}-{number}", "q", 1, "x")])
        if other.definition.has_logs:
            compact(other)
        clock.advance(7200)  # type: ignore[attr-defined]
        archive(other)
    assert instant not in other.state.actions
    assert instant < other.state.archived_before
    assert other.timeline.log.trimmed_to() > begun


def at_completion(act: Callable[[Entry], None]) -> Callable[[Entry], None]:
    """Once, for the first completion."""
    done: list[Entry] = []

    def look(entry: Entry) -> None:
        if entry.after is State.COMPLETED and not done:
            done.append(entry)
            act(entry)

    return look


@pytest.fixture(params=list(TableType))
def parties(request: pytest.FixtureRequest) -> tuple[Table, Table, Storage, object]:
    """A sleeper and an other writer."""
    _, storage, clock = new_table(type=request.param)
    sleeper, other = open_table(storage, clock, "sleeper", **EARLY), open_table(storage, clock, "other", **EARLY)
    write(other, [("a", "p", 1, "0")])
    write(other, [("a", "p", 2, "1")])
    sleeper.refresh()
    return sleeper, other, storage, clock


def test_interrupt_behind_the_commit_point_takes_nothing_back(parties, monkeypatch: pytest.MonkeyPatch) -> None:
    sleeper, other, storage, clock = parties
    publish = ExclusiveTimeline._publish

    def interrupt(entry: Entry) -> None:
        archived_meanwhile(other, clock, entry.instant)
        raise KeyboardInterrupt

    slow = at_completion(interrupt)

    def late(timeline: ExclusiveTimeline, entry: Entry) -> None:
        if timeline is sleeper.timeline:
            slow(entry)
        publish(timeline, entry)

    monkeypatch.setattr(ExclusiveTimeline, "_publish", late)
    with pytest.raises(KeyboardInterrupt):
        write(sleeper, [MINE])
    assert MINE in contents(open_table(storage, clock, "reader"))


def sleeps_before_it_looks(sleeper: Table, other: Table, clock: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its entry is in the log; it learns of that when nothing is left there."""
    check_place = TableLog._check_place
    slow = at_completion(lambda entry: archived_meanwhile(other, clock, entry.instant))

    def late(log: TableLog, entry: Entry) -> None:
        if log is sleeper.timeline.log:
            slow(entry)
        check_place(log, entry)

    monkeypatch.setattr(TableLog, "_check_place", late)


def test_commit_whose_place_was_trimmed_and_archived_counts_once(parties, monkeypatch: pytest.MonkeyPatch) -> None:
    sleeper, other, storage, clock = parties
    sleeps_before_it_looks(sleeper, other, clock, monkeypatch)
    done = write(sleeper, [MINE])
    assert done.attempts == 1
    found = contents(open_table(storage, clock, "reader"))
    assert found.count(MINE) == 1
    assert len(found) == 2 + ROUNDS * WRITES


def test_compaction_whose_place_was_trimmed_and_archived_keeps_its_files(monkeypatch: pytest.MonkeyPatch) -> None:
    _, storage, clock = new_table(type=TableType.MOR)
    sleeper, other = open_table(storage, clock, "sleeper", **EARLY), open_table(storage, clock, "other", **EARLY)
    write(other, [("a", "p", 1, "0")])
    write(other, [("a", "p", 2, "1")])
    sleeper.refresh()
    sleeps_before_it_looks(sleeper, other, clock, monkeypatch)
    done = compact(sleeper)
    assert done is not None
    assert ("a", "p", 2, "1") in contents(open_table(storage, clock, "reader"))
