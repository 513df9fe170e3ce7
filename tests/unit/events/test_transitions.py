"""Events of every action of both table types, compared with the rows and files that the table has before and after it."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.plans import schedule_archival, schedule_clean, schedule_clustering, schedule_compaction, schedule_log_compaction
from tests.unit.table.tables import Row, new_table, rows_of

from tideline_events import Transition, decode, encode
from tideline_events.transitions import backfill, table_identity, transition_of
from tideline_table.action import (
    create_metadata,
    create_savepoint,
    delete_partitions,
    delete_savepoint,
    restore_to_savepoint,
    run_archival,
    run_clean,
    run_clustering,
    run_compaction,
    run_log_compaction,
    write_rows,
)
from tideline_table.action.write.transaction import WriteTransaction
from tideline_table.coordination import roll_back
from tideline_table.hudi import Action, time_from_instant
from tideline_table.log import RollbackStep
from tideline_table.log.progress import Progress
from tideline_table.storage import LocalStorage, Storage
from tideline_table.table import Table, TableType
from tideline_table.table.key_index import BucketIndex, KeyIndex
from tideline_table.writer import Operation

ROWS: list[Row] = [("a", "p", 1, "x"), ("b", "p", 1, "x"), ("c", "q", 1, "x")]
KEEP_LITTLE = {
    "hoodie.cleaner.commits.retained": 1,
    "hoodie.keep.min.commits": 2,
    "hoodie.keep.max.commits": 3,
}


VERSIONS = (6, 9)
"""The oldest and the newest version of tables that Tideline writes."""


class History:
    """A table, and what its last completed entry did: the event, and the rows before and after."""

    def __init__(self, kind: TableType, storage: Storage | None = None, version: int = 0, index: KeyIndex | None = None) -> None:
        self.table, _, self.clock = new_table(storage=storage, type=kind, version=version, index=index)
        self.events: list[Transition] = []
        self.is_late = False

    def rows(self) -> dict[tuple[str, str], tuple[object, ...]]:
        return {(r["part"], r["id"]): (r["ts"], r["v"]) for r in self.table.read().to_pylist()}

    def files(self) -> set[tuple[str, str]]:
        return {(s.group.partition_path, path) for s in self.table.refresh().latest_slices() for path in s.paths}

    def step(self, act: Callable[[Table], object]) -> Transition:
        """Do something and return its last event, after a comparison with what it did to rows and files."""
        self.clock.advance(1)
        first, rows, files = self.table.refresh().sequence + 1, self.rows(), self.files()
        act(self.table)
        last = self.table.refresh().sequence
        told = list(backfill(self.table, first, last))
        self.events += told
        (done,) = told[-1:]
        now = self.rows()
        changed = {key for key in rows.keys() | now.keys() if rows.get(key) != now.get(key)}
        moved = {partition for partition, _ in files ^ self.files()}
        assert moved | {partition for partition, _ in changed} <= set(done.partitions), (done.action, done.operation)
        assert done.datachange or not changed
        assert not any(event.datachange for event in told[:-1])
        inserted, deleted = now.keys() - rows.keys(), rows.keys() - now.keys()
        if done.rows_inserted is not None and done.operation not in ("insert_overwrite", "insert_overwrite_table"):
            assert done.rows_inserted == len(inserted), (done.action, done.operation)
            # A log file is written without a look at the ordering value that the row has.
            late = self.is_late and self.table.definition.type is TableType.MOR
            assert done.rows_updated == len(changed - inserted - deleted) + late, (done.action, done.operation)
        if done.rows_deleted is not None and done.operation not in ("insert_overwrite", "insert_overwrite_table"):
            assert done.rows_deleted == len(deleted), (done.action, done.operation)
        return done

    def write(self, *rows: Row, operation: Operation = Operation.UPSERT) -> Transition:
        return self.step(lambda table: write_rows(table, rows_of(rows), operation, parallelism=1))


def compacted(table: Table) -> None:
    schedule_compaction(table, {"hoodie.compact.inline.max.delta.commits": 1})
    run_compaction(table)


def log_compacted(table: Table) -> None:
    schedule_log_compaction(table, {"hoodie.log.compaction.blocks.threshold": 2})
    run_log_compaction(table)


def cleaned(table: Table) -> None:
    schedule_clean(table, {"hoodie.cleaner.policy": "KEEP_LATEST_FILE_VERSIONS", "hoodie.cleaner.fileversions.retained": 1})
    run_clean(table)


def history(kind: TableType, folder: Path, version: int) -> Iterator[tuple[str, Transition]]:
    """A table with every action that its version has, and the last event of each."""
    made = History(kind, LocalStorage(folder), version)
    yield "insert", made.write(*ROWS)
    yield "update", made.write(("a", "p", 2, "y"), ("c", "q", 2, "y"))
    made.is_late = True
    yield "late", made.write(("a", "p", 1, "too late"))
    made.is_late = False
    yield "delete", made.write(("b", "p", 9, ""), operation=Operation.DELETE)
    yield "delete nothing", made.write(("zz", "p", 9, ""), operation=Operation.DELETE)
    yield "insert again", made.write(("d", "p", 3, "x"), ("e", "q", 3, "x"), operation=Operation.INSERT)
    if kind is TableType.MOR:
        made.write(("a", "p", 4, "z"))
        made.write(("a", "p", 5, "z"))
        if version == 6:
            yield "log compaction", made.step(log_compacted)
        yield "compaction", made.step(compacted)
    yield "clustering", made.step(lambda t: (schedule_clustering(t, {"tideline.clustering.min.input.files": 1}), run_clustering(t)))
    yield "clean", made.step(cleaned)
    yield "savepoint", made.step(create_savepoint)
    yield "overwrite", made.write(("g", "p", 6, "x"), operation=Operation.INSERT_OVERWRITE)
    yield "deletion of a partition", made.step(lambda t: delete_partitions(t, ["q"]))
    yield "overwrite of the table", made.write(("h", "r", 6, "x"), operation=Operation.INSERT_OVERWRITE_TABLE)
    yield "dead writer", made.step(lambda t: WriteTransaction.begin(t.timeline, t.lock, "INSERT").abandon())
    dead = made.events[-1].instant
    yield "rollback", made.step(lambda t: roll_back(t.timeline, dead, force=True))
    yield "restore", made.step(lambda t: restore_to_savepoint(t, next(iter(t.state.savepoints))))
    yield "deletion of a savepoint", made.step(lambda t: delete_savepoint(t, next(iter(t.state.savepoints))))
    yield from (("", event) for event in made.events)
    indexed = History(kind, version=version)
    indexed.write(*ROWS)
    yield "index", indexed.step(create_metadata)
    archived = History(kind, version=version)
    for n in range(8):
        archived.write((f"n{n}", "p", n, "x"))
    archived.clock.advance(3601)
    yield "archival", archived.step(lambda t: (schedule_archival(t, KEEP_LITTLE), run_archival(t)))
    yield from (("", event) for event in archived.events if event.action == "archival")


@pytest.fixture(scope="module", params=itertools.product(TableType, VERSIONS), ids=lambda made: f"{made[0].name}-{made[1]}")
def made(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[TableType, list[tuple[str, Transition]]]:
    kind, version = request.param
    return kind, list(history(kind, tmp_path_factory.mktemp("table"), version))


def test_events_say_what_actions_did_to_rows_partitions_and_files(made: tuple[TableType, list[tuple[str, Transition]]]) -> None:
    kind, told = made[0], dict(made[1])
    counts = {name: (e.rows_inserted, e.rows_updated, e.rows_deleted, e.datachange, e.partitions) for name, e in told.items()}
    assert counts["insert"] == (3, 0, 0, True, ("p", "q"))
    assert counts["update"] == (0, 2, 0, True, ("p", "q"))
    assert counts["delete"] == (0, 0, 1, True, ("p",))
    assert counts["delete nothing"][:4] == (0, 0, 0, False)
    assert counts["overwrite"] == (1, 0, 2, True, ("p",))
    assert counts["deletion of a partition"] == (0, 0, 2, True, ("q",))
    assert counts["overwrite of the table"] == (1, 0, 1, True, ("p", "r"))
    assert counts["clustering"] == (0, 0, 0, False, ("p", "q"))
    assert counts["restore"] == (None, None, None, True, ("p", "q", "r"))
    assert counts["dead writer"] == (None, None, None, False, ())
    assert told["restore"].undone_instant == told["overwrite"].instant
    assert told["rollback"].undone_instant == told["dead writer"].instant
    assert told["clean"].files_deleted > 0
    if kind is TableType.MOR:
        assert (told["compaction"].files_added, told["compaction"].bytes_added > 0) == (2, True)
        assert counts["compaction"] == (0, 0, 0, False, ("p", "q"))
        assert counts.get("log compaction", (0, 0, 0, False, ("p",))) == (0, 0, 0, False, ("p",))


def test_every_field_takes_more_than_one_value(made: tuple[TableType, list[tuple[str, Transition]]]) -> None:
    events = [event for _, event in made[1]]
    # The caps are never reached here, and writer and observer are the same for all entries.
    same = {"writer_id", "observed_by", "partitions_truncated", "checkpoint", "checkpoint_truncated"}
    found = {f.name: len({str(getattr(event, f.name)) for event in events}) for f in dataclasses.fields(Transition)}
    assert {name for name, count in found.items() if count < 2} == same


def test_an_overwrite_of_many_partitions_says_that_it_cannot_name_all() -> None:
    """It named those that it wrote to, as if they were all."""
    made = History(TableType.COW)
    made.write(*((f"k{n}", f"d{n:03}", 1, "x") for n in range(120)))
    done = decode(encode(made.write(("k", "d000", 2, "x"), operation=Operation.INSERT_OVERWRITE_TABLE)))
    assert isinstance(done, Transition)
    assert (done.partitions, done.partitions_truncated) == (tuple(f"d{n:03}" for n in range(100)), True)
    assert (done.rows_inserted, done.rows_deleted, done.file_groups_replaced) == (1, 120, 120)


@pytest.mark.parametrize("index", [BucketIndex(1), BucketIndex(1, consistent=True)], ids=["simple", "ring"])
def test_what_is_appended_to_a_bucket_is_not_counted_by_its_writer(index: KeyIndex, tmp_path: Path) -> None:
    """Each row was told as an update or a deletion, also of keys that the table did not have."""
    made = History(TableType.MOR, LocalStorage(tmp_path / "mor"), index=index)

    def told(event: Transition) -> tuple[int | None, int | None, int | None]:
        return event.rows_inserted, event.rows_updated, event.rows_deleted

    assert told(made.write(*ROWS)) == (3, 0, 0)
    assert told(made.write(("a", "p", 2, "y"), ("new", "p", 2, "y"))) == (None, None, 0)
    assert told(made.write(("new", "s", 2, "y"))) == (1, 0, 0)
    assert told(made.write(("never", "p", 3, ""), operation=Operation.DELETE)) == (0, 0, None)
    assert told(made.step(compacted)) == (0, 0, 0)
    copied = History(TableType.COW, LocalStorage(tmp_path / "cow"), index=BucketIndex(1))
    copied.write(*ROWS)
    assert told(copied.write(("a", "p", 2, "y"), ("new", "p", 2, "y"))) == (1, 1, 0)
    assert told(copied.write(("never", "p", 3, ""), operation=Operation.DELETE)) == (0, 0, 0)


@pytest.mark.parametrize(("progress", "changed"), [(None, False), ({}, True)])
def test_a_rollback_of_a_completed_write_changes_rows(progress: dict[str, Progress] | None, changed: bool) -> None:
    """Apache Hudi may undo a completed write of a shared table, as its command-line tool does."""
    made = History(TableType.COW)
    made.write(*ROWS)
    written = made.table.timeline.log.read(made.table.state.sequence)
    assert written is not None
    body = RollbackStep(written.instant, "commit", metadata={"totalFilesDeleted": 2}, progress=progress)
    entry = dataclasses.replace(written, action=Action.ROLLBACK, operation="", body=body)
    event = transition_of(table_identity(made.table), made.table.definition, entry, "mirror")
    assert (event.datachange, event.rows_deleted, event.files_deleted) == (changed, None if changed else 0, 2)
    assert (event.operation, event.undone_instant) == (None, written.instant)


@pytest.mark.parametrize("version", [6, 8, 9])
@pytest.mark.parametrize("kind", TableType)
def test_events_name_timeline_files_that_are_there(kind: TableType, version: int, tmp_path: Path) -> None:
    """Those of versions 8 and 9 named completed files without the completion time, so that no consumer could open them."""
    made = History(kind, LocalStorage(tmp_path), version)
    storage, form = made.table.storage, made.table.timeline.format

    def told(event: Transition) -> str:
        storage.stat(event.timeline_file)
        return event.timeline_file.rpartition("/")[2]

    done = [made.write(*ROWS), made.write(("a", "p", 2, "y"), ("c", "q", 2, "y"))]
    if kind is TableType.MOR:
        done.append(made.step(compacted))
    done.append(made.step(lambda t: (schedule_clustering(t, {"tideline.clustering.min.input.files": 1}), run_clustering(t))))
    done += [made.step(cleaned), made.step(create_savepoint)]
    saved = done[-1]
    for event in made.events:
        storage.stat(event.timeline_file)
    named = [form.parse_timeline_file_name(told(event)) for event in done]
    assert [found[0].time for found in named if found] == [event.instant for event in done]
    if version > 6:
        assert [time_from_instant(found[1]) for found in named if found] == [event.completion_time for event in done]
        assert any(".clustering.requested" in event.timeline_file for event in made.events)
    made.write(("g", "p", 6, "x"), operation=Operation.INSERT_OVERWRITE)
    restored = made.step(lambda t: restore_to_savepoint(t, saved.instant))
    assert told(restored).endswith(".restore")
    deleted = made.step(lambda t: delete_savepoint(t, saved.instant))
    assert (deleted.timeline_file, deleted.completion_time) == (saved.timeline_file, None)
