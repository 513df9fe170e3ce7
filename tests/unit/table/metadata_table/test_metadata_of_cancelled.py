"""The metadata table after a compaction was cancelled: its later log files got names of the slice before."""

from __future__ import annotations

import pytest
from tests.plans import schedule_clean, schedule_compaction
from tests.simulation.metadata_reader import files_for_readers
from tests.unit.table.tables import DEATH_S, compact, contents, new_table, open_table, write

from tideline_table.action import (
    METADATA_TYPES,
    cancel_plan,
    check_table,
    create_metadata,
    create_savepoint,
    restore_to_savepoint,
    roll_back_dead,
    run_clean,
)
from tideline_table.coordination import rollback
from tideline_table.errors import WriteConflict
from tideline_table.metadata_table.reading import live
from tideline_table.storage import Storage
from tideline_table.table import Table, TableType
from tideline_table.writer import Operation

AT_ONCE = {"hoodie.compact.inline.max.delta.commits": 1}
ROWS = [(key, part, 1, "x") for part in "pq" for key in (f"{part}1", f"{part}2")]
DELTAS = "hoodie.metadata.compact.max.delta.commits"


class Died(BaseException):
    """Stands for the end of the process."""


def with_later_logs(deltas: int) -> tuple[Table, Storage, object, str]:
    """Return a table with all indexes and the plan of a compaction, behind which two writes appended log files in two groups."""
    table, storage, clock = new_table(type=TableType.MOR)
    table = open_table(storage, clock, **{DELTAS: deltas})
    create_metadata(table, METADATA_TYPES)
    write(table, ROWS)
    write(table, [("p1", "p", 2, "y"), ("q1", "q", 2, "y")])
    instant = schedule_compaction(table, AT_ONCE)
    assert instant is not None
    write(table, [("p1", "p", 3, "z"), ("q2", "q", 3, "z")])
    write(table, [("p2", "p", 4, "")], Operation.DELETE)
    return table, storage, clock, instant


def agrees(table: Table) -> None:
    """The metadata table lists what the log lists, and a reader that follows Apache Hudi's rules finds the files."""
    assert check_table(table) == []
    listed = files_for_readers(table.storage).files
    found = {f"{partition}/{name}" for partition, names in listed.items() for name, size in live(names).items() if size}
    assert found == {path for s in table.state.every_slice() for path in s.paths}


@pytest.mark.parametrize("deltas", [2, 3, 4, 5, 10])
def test_it_lists_the_log_files_by_their_new_names(deltas: int) -> None:
    """Also where the rollback begins a new slice of the metadata table."""
    table, storage, clock, instant = with_later_logs(deltas)
    before = contents(table)
    agrees(table)
    assert cancel_plan(table, instant).moved_log_files == 3
    agrees(table)
    assert contents(table) == before
    write(table, [("p1", "p", 5, "after"), ("new", "q", 5, "after")])
    agrees(table)
    compact(table)
    agrees(table)
    assert len(contents(open_table(storage, clock, "reader"))) == 4  # type: ignore[arg-type]


@pytest.mark.parametrize("deltas", [2, 10])
def test_a_cancellation_that_died_halfway_ends_alike(monkeypatch: pytest.MonkeyPatch, deltas: int) -> None:
    table, storage, clock, instant = with_later_logs(deltas)
    before = contents(table)

    def die(*_: object) -> None:
        raise Died

    with monkeypatch.context() as dying:
        dying.setattr(rollback, "forget_index", die)
        with pytest.raises(Died):
            cancel_plan(table, instant)
    clock.advance(DEATH_S)  # type: ignore[attr-defined]
    again = open_table(storage, clock, "recovery", **{DELTAS: deltas})  # type: ignore[arg-type]
    assert roll_back_dead(again) == [instant]
    agrees(again)
    assert contents(again) == before


def test_a_write_beside_a_move_of_log_files_waits_for_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers of Apache Hudi merge the old log files until they are deleted, behind newer ones: an older row would win."""
    table, storage, clock, instant = with_later_logs(10)
    before, late = contents(table), open_table(storage, clock, "late", **{"tideline.write.conflict.retries": 0})  # type: ignore[arg-type]

    def die(*_: object) -> None:
        with pytest.raises(WriteConflict, match="are moved by rollback") as told:
            write(late, [("p1", "p", 9, "late")])
        assert told.value.with_instant in {record.instant for record in late.refresh().pending()}
        raise Died

    with monkeypatch.context() as dying:
        dying.setattr(rollback, "forget_index", die)
        with pytest.raises(Died):
            cancel_plan(table, instant)
    assert contents(late) == before
    clock.advance(DEATH_S)  # type: ignore[attr-defined]
    roll_back_dead(late)
    write(late, [("p1", "p", 9, "late")])
    table = open_table(storage, clock, "reader")  # type: ignore[arg-type]
    assert ("p1", "p", 9, "late") in contents(table)
    agrees(table)


def test_cleans_and_restores_behind_it_take_the_new_names() -> None:
    table, _, _, instant = with_later_logs(10)
    cancel_plan(table, instant)
    saved, before = create_savepoint(table).instant, contents(table)
    write(table, [("p1", "p", 5, "after")])
    restore_to_savepoint(table, saved)
    agrees(table)
    assert contents(table) == before
    compact(table)
    write(table, [("p1", "p", 6, "after"), ("q1", "q", 6, "after")])
    compact(table)
    assert schedule_clean(table, {"hoodie.clean.policy": "KEEP_LATEST_FILE_VERSIONS", "hoodie.clean.fileversions.retained": 1})
    assert run_clean(table)
    agrees(table)
