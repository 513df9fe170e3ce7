"""What a fresh process does about a crashed one, and what must hold afterwards."""

from __future__ import annotations

from collections.abc import Iterable

from tests.simulation.visible_files import is_data_file
from tests.unit.table.tables import DEATH_S, Row, cluster, contents, open_table, write

from tideline_table.action import roll_back_dead, run_clean, run_compaction, run_log_compaction
from tideline_table.action.compaction.plan import compact_slice
from tideline_table.action.log_compaction.task import merge_log
from tideline_table.clock import ManualClock
from tideline_table.coordination.committed import Committed
from tideline_table.hudi.format import TableFormat
from tideline_table.hudi.formats import WRITTEN, format_of
from tideline_table.hudi.instant import Action
from tideline_table.hudi.properties import read_properties
from tideline_table.log.body import Archived
from tideline_table.log.entry import Entry
from tideline_table.log.state import TableState
from tideline_table.log.table_log import LogReader
from tideline_table.log.timeline_files import timeline_files
from tideline_table.log_format.key_index import INDEX_FOLDER, index_path
from tideline_table.storage import Storage
from tideline_table.table import Table

OPTIONS = {"tideline.log.checkpoint.interval": 2}


def recover(storage: Storage, clock: ManualClock) -> Table:
    """Twice: what one recovery left undone, or did wrongly, the second one shows."""
    for attempt in range(2):
        clock.advance(DEATH_S)
        table = open_table(storage, clock, f"recovery-{attempt}", **OPTIONS)
        roll_back_dead(table)
        while any(a.is_clustering for a in table.state.pending()):
            cluster(table)
        while any(a.action is Action.COMPACTION for a in table.state.pending()):
            compact(table)
        while any(a.action is Action.LOG_COMPACTION for a in table.state.pending()):
            log_compact(table)
        while any(a.action is Action.CLEAN for a in table.state.pending()):
            run_clean(table)
    return table


def compact(table: Table) -> Committed | None:
    """Run the oldest pending compaction here."""
    return run_compaction(table, run=lambda tasks: [compact_slice(task, table.storage) for task in tasks])


def log_compact(table: Table) -> Committed | None:
    """Run the oldest pending log compaction here."""
    return run_log_compaction(table, run=lambda tasks: [merge_log(task, table.storage) for task in tasks])


def expected_timeline(storage: Storage, clock: ManualClock) -> dict[str, bytes]:
    """Timeline files as they follow from the log."""
    return timeline_of(LogReader(storage).after(0), format_of(read_properties(storage)))


def timeline_of(entries: Iterable[Entry], form: TableFormat = WRITTEN) -> dict[str, bytes]:
    """Timeline files as they follow from entries."""
    expected: dict[str, bytes] = {}
    for entry in entries:
        files = timeline_files(entry, form)
        expected.update(files.create)
        for path in files.delete:
            expected.pop(path, None)
        if isinstance(entry.body, Archived):
            gone = entry.body.archived.instants
            expected = {path: content for path, content in expected.items() if path.rpartition("/")[2][:17] not in gone}
    return expected


def timeline_on_disk(storage: Storage) -> dict[str, bytes]:
    form = format_of(read_properties(storage))
    objects = storage.list_folder(form.timeline_folder).objects
    return {o.path: storage.read(o.path) for o in objects if form.parse_timeline_file_name(o.path.rsplit("/", 1)[-1])}


def check_sound(storage: Storage, clock: ManualClock, allowed: list[list[Row]], *, orphans: bool = False) -> None:
    """Rows are one of `allowed`, nothing is pending, and a further write works; the timeline then equals the log."""
    table = open_table(storage, clock, "checker")
    assert list(table.state.pending()) == []
    found = contents(table)
    assert found in allowed
    whole = TableState()
    for entry in LogReader(storage).after(0):
        whole.apply(entry)
    assert table.state == whole
    write(table, [("further", "p", 1, "write")])
    assert contents(table) == sorted([*found, ("further", "p", 1, "write")], key=repr)
    assert timeline_on_disk(storage) == expected_timeline(storage, clock)
    everything = {o.path for o in storage.list_objects("")}
    known = {path for s in table.state.every_slice() for path in s.paths}
    assert known <= everything
    if not orphans:
        assert {path for path in everything if is_data_file(path)} == known
        assert {path for path in everything if path.startswith(INDEX_FOLDER)} <= {index_path(path) for path in known}
    ended = {a.instant for a in table.state.actions.values()}
    assert {o.path.split("/")[2] for o in storage.list_objects(".hoodie/.heartbeat")} <= ended
