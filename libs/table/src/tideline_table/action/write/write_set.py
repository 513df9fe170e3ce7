"""The early conflict check of writes whose files are written by tasks of an external executor.

Until the tasks are done, only they know which file groups they write. Each task creates a marker before it writes a file, so the
markers of the instant name the file groups of the commit. Changes of other writers to other file groups need not concern it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tideline_table.action.write.transaction import WriteTransaction
from tideline_table.coordination.conflict import SliceGrew, find_conflict
from tideline_table.coordination.write_set import WriteSet
from tideline_table.file_group.slice import FileGroupId, SliceVersion
from tideline_table.hudi.file_names import parse_base_file_name, parse_log_file_name
from tideline_table.writer.marker import marked_files


@dataclass(frozen=True, slots=True)
class MarkedGroups:
    """File groups with files listed in markers: `rewrites` get a base file, `appends` only log files."""

    rewrites: frozenset[FileGroupId] = frozenset()
    appends: frozenset[FileGroupId] = frozenset()


def marked_groups(paths: Iterable[str]) -> MarkedGroups:
    """Return the file groups of the data files at these paths; other paths are ignored."""
    rewrites, appends = set(), set()
    for path in paths:
        partition, _, name = path.rpartition("/")
        base, log = parse_base_file_name(name), parse_log_file_name(name)
        if base is not None:
            rewrites.add(FileGroupId(partition, base.file_id))
        elif log is not None:
            appends.add(FileGroupId(partition, log.file_id))
    return MarkedGroups(frozenset(rewrites), frozenset(appends - rewrites))


class MarkerCheck:
    """A check whether a write has lost already. `visible`: the slices that it may write, in the version read. Not thread-safe."""

    def __init__(self, transaction: WriteTransaction, visible: Mapping[FileGroupId, SliceVersion]) -> None:
        self._transaction = transaction
        self._visible = dict(visible)
        self._looked_at = -1
        self._is_contested = False
        self.marked = MarkedGroups()
        """The file groups listed in markers, among `visible`, as of the last check that listed the markers."""

    def __call__(self) -> None:
        """Raise the conflict that a commit would have now, and any error of refreshing the table.

        Markers are listed only while another writer has changed a slice that the write may write.
        """
        timeline = self._transaction.timeline
        state = timeline.refresh_view()
        if state.sequence != self._looked_at:
            self._looked_at = state.sequence
            self._is_contested = find_conflict(self._write_set(self._visible), state, ()) is not None
        if not self._is_contested:
            return
        found = marked_groups(marked_files(timeline.storage, self._transaction.instant))
        self.marked = found = MarkedGroups(found.rewrites & self._visible.keys(), found.appends & self._visible.keys())
        written = {group: self._visible[group] for group in found.rewrites | found.appends}
        conflict = find_conflict(self._write_set(written, found.appends), state, ())
        if conflict is not None and not isinstance(conflict, SliceGrew):
            raise conflict

    def _write_set(self, based_on: dict[FileGroupId, SliceVersion], appends: frozenset[FileGroupId] = frozenset()) -> WriteSet:
        return WriteSet(self._transaction.instant, based_on, appends=appends, update_strategy=self._transaction.update_strategy)
