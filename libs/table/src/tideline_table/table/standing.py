"""Whether Tideline's writers would refuse a table: a copy, another writer, an upgrade, a lost log.

Reads only; nothing is repaired.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from itertools import groupby, islice

from tideline_table.coordination.other_writers import check_no_other_writer, check_not_upgraded
from tideline_table.coordination.shared.hudi_rules import check_version
from tideline_table.errors import DamagedFile, ObjectNotFound, Recovery, TableIncomplete, TidelineError
from tideline_table.file_group.slice import FileSlice
from tideline_table.hudi.instant import Action, Instant, State, completed_as
from tideline_table.hudi.listing import TimelineListing
from tideline_table.hudi.properties import PROPERTIES_FOLDER, PROPERTIES_PATH, read_properties
from tideline_table.log.checkpoint import RESTORE_LOG
from tideline_table.log.entry import entry_path
from tideline_table.log.packed import PackedSlices
from tideline_table.log.state import TableState
from tideline_table.storage import DataPath, Storage, check_size, exists
from tideline_table.table.facade import Table
from tideline_table.table.identity import check_stands
from tideline_table.table.remains import check_identity_stands

_THREADS = 8
_PARTITIONS_AT_ONCE = 1000
_MOST_TASKS = 64
_ALL_PARTS = 32
_PARTS_IN_TURN = 4
_FILE_FOLLOWS = timedelta(seconds=30)


def why_refused(table: Table) -> TidelineError | None:
    """Return why writers refuse an open table whatever they write; None for nothing. Costs five requests.

    A table that only Apache Hudi writes is refused only if Tideline's writers wrote it before. Raises `StorageError`.
    """
    try:
        _check_standing(table)
    except TidelineError as error:
        if error.recovery is not Recovery.STOP:
            raise
        return error
    return None


def _check_standing(table: Table) -> None:
    if not table.capabilities.keeps_log:
        table.timeline.check_not_upgraded()
        check_identity_stands(table.timeline.replica)
        return
    assert table.identity is not None
    table.identity.check_place(table.storage.root)
    check_stands(table.storage, table.identity)
    _check_log(table)
    try:
        properties = read_properties(table.storage)
    except ObjectNotFound:
        raise TableIncomplete(
            f"a table without {PROPERTIES_PATH}, which was lost since the table was opened",
            expected="that file, which names the keys, the type and the version of the table",
            remedy="restore it from a copy, or as it was created",
        ) from None
    if not table.capabilities.log_is_truth:
        check_version(properties, table.timeline.format)
        return
    check_not_upgraded(properties, table.timeline.format)
    table.identity.check_declared(properties)
    check_no_other_writer(table.timeline, table.storage.list_folder(PROPERTIES_FOLDER), repairs=False)


def _check_log(table: Table) -> None:
    """Raise `TableIncomplete` if the entry that an open table read last is gone without having been trimmed."""
    sequence = table.timeline.state.sequence
    if sequence and not exists(table.storage, entry_path(sequence)) and table.timeline.log.trimmed_to() < sequence:
        raise TableIncomplete(
            f"a table log without entry {sequence}, which was there when the table was opened",
            expected=f"{entry_path(sequence)}: the log says what the table holds",
            remedy=RESTORE_LOG,
        )


def lost_completions(table: Table, listed: TimelineListing, state: TableState) -> list[str]:
    """Return the paths of timeline files that are gone: the log says completed, Apache Hudi finds pending and would roll back.

    `state` is one from before the listing. A rollback or restore that is pending may have deleted such a file.
    """
    # A savepoint has the instant of its write.
    pending = [i for i in listed.instants if i.state is not State.COMPLETED and i.action is not Action.SAVEPOINT]
    if any(i.action in (Action.ROLLBACK, Action.RESTORE) for i in pending):
        return []
    known = [a for i in pending if (a := state.actions.get(i.time)) is not None and a.state is State.COMPLETED]
    if table.capabilities.log_is_truth:
        # There the entry comes first, and the mirror creates the file of a writer that died in between.
        before = (table.clock.now() - _FILE_FOLLOWS).isoformat()
        known = [a for a in known if a.since < before]
    form = table.timeline.format
    return [form.timeline_path(Instant(a.instant, completed_as(a.action), State.COMPLETED), a.completion) for a in known]


def lost_files(table: Table, *, everywhere: bool = False) -> tuple[TidelineError, ...]:
    """Return an error for each file of the newest slices that is gone or has another size than its commit recorded.

    Lists each partition with files once, and opens no file. In a table with more than `_ALL_PARTS` parts of file groups, only the
    partitions of those written last and of some others, of the next ones each hour, unless `everywhere`. Refreshes the table if
    it finds one, because a clean may have deleted it.
    """
    turn = None if everywhere else int(table.clock.now().timestamp() // 3600)
    before = _done(table.state)
    found = _lost(table.storage, _looked_at(table.state, turn))
    if found and _done(table.refresh()) != before:
        found = _lost(table.storage, _looked_at(table.state, turn))
    return tuple(found)


def _looked_at(state: TableState, turn: int | None) -> Iterable[FileSlice]:
    held = state.slices
    if turn is not None and isinstance(held, PackedSlices) and len(held.parts) > _ALL_PARTS:
        return state.latest_among(held.some(turn, _PARTS_IN_TURN))
    return state.each_latest()


def _done(state: TableState) -> frozenset[tuple[str, str]]:
    return frozenset((a.instant, a.state.value) for a in list(state.actions.values()))


def _lost(storage: Storage, slices: Iterable[FileSlice]) -> list[TidelineError]:
    def compare(named: list[tuple[str, list[DataPath]]]) -> list[TidelineError]:
        lost = []
        for partition, paths in named:
            sizes = {found.path: found.size_bytes for found in storage.list_folder(partition).objects}
            lost += [error for path in paths if (error := _misfit(path, sizes.get(str(path)))) is not None]
        return lost

    by_partition = groupby(slices, lambda file_slice: file_slice.group.partition_path)
    listed = ((partition, [path for s in slices for path in s.applied.paths]) for partition, slices in by_partition)
    found: list[TidelineError] = []
    with ThreadPoolExecutor(_THREADS) as pool:
        # Some at a time: the pool would take the paths of all of them into memory.
        while some := list(islice(listed, _PARTITIONS_AT_ONCE)):
            # A task for each of very many partitions would take longer than its listing.
            step = -(-len(some) // _MOST_TASKS)
            tasks = [some[first : first + step] for first in range(0, len(some), step)]
            found += [error for errors in pool.map(compare, tasks) for error in errors]
    return found


def _misfit(path: DataPath, size_bytes: int | None) -> TidelineError | None:
    if size_bytes is None:
        return DamagedFile(path, "is gone", expected="the file, which a completed commit names")
    try:
        check_size(path, size_bytes)
    except DamagedFile as error:
        return error
    return None
