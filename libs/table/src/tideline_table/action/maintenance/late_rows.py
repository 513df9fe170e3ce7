"""Rows of acknowledged writes that a compaction or a clustering hides are appended again (docs/design/observed-tables.md)."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tideline_table.action.write.row_change import ChangeSource, RowChange
from tideline_table.action.write.run import write_rows
from tideline_table.errors import InstantNotFound, ObjectNotFound, UnsupportedTable
from tideline_table.file_group.slice import FileSlice
from tideline_table.hudi.instant import WRITE_ACTIONS, State
from tideline_table.hudi.write_stats import CommitMetadata
from tideline_table.log.action import ActionRecord
from tideline_table.log.hidden import HiddenFile, hidden_files
from tideline_table.log.state import REAPPENDED
from tideline_table.merge import incoming_wins
from tideline_table.schema.meta_fields import MetaField
from tideline_table.table.facade import Table
from tideline_table.table.query import Snapshot
from tideline_table.writer import Operation

_REMEDY = "write its rows again with the job that made them; then: tideline reappend PATH --written INSTANT"


@dataclass(frozen=True, slots=True)
class Reappended:
    """A hidden write, the commit that holds its rows now, and how many there are; `older` rows had been written again since."""

    instant: str
    commit: str
    rows: int
    older: int


def reappend_hidden(table: Table, written: Collection[str] = ()) -> tuple[Reappended, ...]:
    """Append the rows of each hidden write again, as one upsert for each, the newest write first. Return what was done.

    The rows are what readers would see had the write completed before the rewrite: a row with a newer version is left out. A write
    of which a pending compaction hides files waits for that compaction. Of the writes `written` no row is appended: their jobs
    wrote the rows again. Raises `InstantNotFound` if one of them is not hidden, `UnsupportedTable`, with nothing written for the
    write, where it cannot be known what readers would see: for deletions in a hidden file, rows that are gone since or are in
    another partition while later writes deleted rows, and merge rules that are code or merge cells.
    """
    table.check_writable()
    table.timeline.catch_up()
    state = table.refresh()
    by_write: dict[str, list[HiddenFile]] = {}
    for hidden in hidden_files(state):
        by_write.setdefault(hidden.instant, []).append(hidden)
    if unknown := sorted(set(written) - by_write.keys()):
        raise InstantNotFound(
            f"hidden write {unknown[0]}", expected=f"one of {', '.join(sorted(by_write)) or 'none: none is hidden'}"
        )
    ended = {write: files for write, files in by_write.items() if not any(state.is_pending(f.behind) for f in files)}
    return tuple(
        _settled(table, write) if write in written else _reappend(table, write, ended[write])
        for write in sorted(ended, key=lambda write: (write in written, write), reverse=True)
    )


def _settled(table: Table, instant: str) -> Reappended:
    none = table.snapshot().output().empty_table()
    done = write_rows(table, none.drop_columns(list(MetaField)), Operation.UPSERT, extra={REAPPENDED: instant})
    table.refresh()
    return Reappended(instant, done.instant, 0, 0)


def _reappend(table: Table, instant: str, files: list[HiddenFile]) -> Reappended:
    if table.definition.merging.needs_older_rows:
        raise _unknown(instant, "the table merges cells of rows")
    _check_deletes_nothing(table, instant, files)
    late = _Late(table, instant, tuple(f.alone for f in files))
    source = ChangeSource(table, late.change, late.selects)
    done = write_rows(table, source, Operation.UPSERT, extra={REAPPENDED: instant})
    table.refresh()
    return Reappended(instant, done.instant, late.appended, late.older)


def _check_deletes_nothing(table: Table, instant: str, files: list[HiddenFile]) -> None:
    """Raise `UnsupportedTable` if the write deleted rows in a hidden file: a base file does not show what it lacks."""
    if any(log.deletes_keys for found in files for log in found.alone.log_files):
        raise _unknown(instant, "it deleted rows")
    hidden = {found.path for found in files if found.alone.base_file}
    if not hidden:
        return
    metadata = _metadata_of(table, table.state.actions[instant])
    if metadata is None:
        raise _unknown(instant, "it was archived, and may have deleted rows")
    if any(stat.num_deletes for stat in metadata.stats if stat.path in hidden):
        raise _unknown(instant, "it deleted rows")


def _metadata_of(table: Table, write: ActionRecord) -> CommitMetadata | None:
    """Return what a completed write says of its files, None if it was archived."""
    path = table.timeline.format.timeline_path(write.at(State.COMPLETED))
    try:
        return CommitMetadata.from_bytes(table.storage.read(path), path)
    except ObjectNotFound:
        return None


class _Late:
    """The rows of one hidden write, and which of them readers would see."""

    def __init__(self, table: Table, instant: str, alone: tuple[FileSlice, ...]) -> None:
        self._table, self._instant, self._alone = table, instant, alone
        self._keys: set[str] = set()
        self.appended = self.older = 0

    def selects(self, rows: pa.Table) -> bool:
        """Return whether one of these rows has a key of the hidden write."""
        return not self._keys.isdisjoint(self._table.definition.keygen.written_keys(rows).to_pylist())

    def change(self, snapshot: Snapshot) -> RowChange:
        """Return the hidden rows that are newer than the visible ones of their keys, or that no write has changed since."""
        bare = replace(snapshot, slices=self._alone, buckets=None, skipping=None, log_indexes=None)
        late = bare.read(where=pc.field(MetaField.COMMIT_TIME) == self._instant)
        keys = late[MetaField.RECORD_KEY].to_pylist()
        self._keys = set(keys)
        visible = self._table.look_up(keys)
        places = dict(zip(_places(visible), range(visible.num_rows), strict=True))
        at = [places.get(place) for place in _places(late)]
        met = np.array([place is not None for place in at], dtype=bool)
        missing = [key for key, is_met in zip(keys, met, strict=True) if not is_met]
        if missing:
            self._check_never_there(missing, set(visible[MetaField.RECORD_KEY].to_pylist()))
        new = late.filter(pa.array(met))
        old = visible.take(pa.array([place for place in at if place is not None], pa.int64()))
        wins = pa.array(self._wins(old, new))
        self.older = int(met.sum()) - int(pc.sum(wins).as_py() or 0)
        self.appended = late.num_rows - self.older
        columns = [name for name in late.column_names if name not in set(MetaField)]
        parts = (old.filter(wins), new.filter(wins), late.slice(0, 0), late.filter(pa.array(~met)))
        return RowChange(*(part.select(columns) for part in parts))

    def _wins(self, old: pa.Table, new: pa.Table) -> np.ndarray:
        """Return True pairwise where the hidden row lies on top of the visible one."""
        later = np.asarray(pc.greater(new[MetaField.COMMIT_TIME], old[MetaField.COMMIT_TIME]))
        merging = self._table.definition.merging
        if not merging.ordering_fields or not new.num_rows:
            return later
        was, late = (merging.ordering_values(rows) for rows in (old, new))
        wins, ties = incoming_wins(was, late), incoming_wins(late, was)
        return np.asarray(wins & (~ties | later))

    def _check_never_there(self, missing: list[str], elsewhere: set[str]) -> None:
        """Raise `UnsupportedTable` if a row that no reader finds may have been deleted or moved by a later write."""
        if moved := next((key for key in missing if key in elsewhere), None):
            raise _unknown(self._instant, f"row {moved} is in another partition now")
        table = self._table
        for write in table.state.completed_writes():
            if write.instant <= self._instant or write.is_clustering or write.action not in WRITE_ACTIONS:
                continue
            metadata = _metadata_of(table, write)
            if metadata is None:
                raise _unknown(self._instant, f"write {write.instant} was archived, and may have deleted row {missing[0]}")
            if any(stat.num_deletes for stat in metadata.stats):
                raise _unknown(self._instant, f"write {write.instant} deleted rows, perhaps {missing[0]}")


def _places(rows: pa.Table) -> list[tuple[str, str]]:
    keys, partitions = (rows[name].to_pylist() for name in (MetaField.RECORD_KEY, MetaField.PARTITION_PATH))
    return list(zip(keys, partitions, strict=True))


def _unknown(instant: str, why: str) -> UnsupportedTable:
    return UnsupportedTable(
        f"hidden write {instant}, whose rows would be appended: {why}",
        expected="rows of which it is known that readers would see them",
        remedy=_REMEDY,
    )
