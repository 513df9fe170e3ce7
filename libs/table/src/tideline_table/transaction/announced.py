"""What a write announced so far: the early conflict check of writes whose files tasks elsewhere write.

Where it writes is known to nobody but those tasks, until they are done. Each announces a file before it writes it, so the markers of the
instant say which file groups the commit will name; what others did to any other group of the table may not concern it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tideline_table.file_group.names import parse_base_file_name, parse_log_file_name
from tideline_table.file_group.slice import FileGroupId, SliceVersion
from tideline_table.transaction.conflict import SliceGrew, WriteSet, find_conflict
from tideline_table.transaction.write import WriteTransaction
from tideline_table.writer.marker import marked_files


@dataclass(frozen=True, slots=True)
class AnnouncedGroups:
    """File groups that files were announced in: to write them over, and only to append log files to them."""

    rewrites: frozenset[FileGroupId] = frozenset()
    appends: frozenset[FileGroupId] = frozenset()


def announced_groups(paths: Iterable[str]) -> AnnouncedGroups:
    """The file groups of data files at these paths; others are left out."""
    rewrites, appends = set(), set()
    for path in paths:
        partition, _, name = path.rpartition("/")
        base, log = parse_base_file_name(name), parse_log_file_name(name)
        if base is not None:
            rewrites.add(FileGroupId(partition, base.file_id))
        elif log is not None:
            appends.add(FileGroupId(partition, log.file_id))
    return AnnouncedGroups(frozenset(rewrites), frozenset(appends - rewrites))


class AnnouncedCheck:
    """Asks whether a write lost already. `visible` are the slices that it may write, in the version that its tasks read. For one thread."""

    def __init__(self, transaction: WriteTransaction, visible: Mapping[FileGroupId, SliceVersion]) -> None:
        self._transaction = transaction
        self._visible = dict(visible)
        self._looked_at = -1
        self._is_contested = False
        self.announced = AnnouncedGroups()
        """Those of `visible`, as of the last look that mattered."""

    def __call__(self) -> None:
        """Raise the conflict that the commit would end with by now.

        Markers are listed only while others changed some slice that the write may meet. Raises what looking at the table raises.
        """
        timeline = self._transaction.timeline
        state = timeline.look()
        if state.sequence != self._looked_at:
            self._looked_at = state.sequence
            self._is_contested = find_conflict(self._write_set(self._visible), state, ()) is not None
        if not self._is_contested:
            return
        found = announced_groups(marked_files(timeline.storage, self._transaction.instant))
        self.announced = found = AnnouncedGroups(found.rewrites & self._visible.keys(), found.appends & self._visible.keys())
        written = {group: self._visible[group] for group in found.rewrites | found.appends}
        conflict = find_conflict(self._write_set(written, found.appends), state, ())
        if conflict is not None and not isinstance(conflict, SliceGrew):
            raise conflict

    def _write_set(self, based_on: dict[FileGroupId, SliceVersion], appends: frozenset[FileGroupId] = frozenset()) -> WriteSet:
        return WriteSet(self._transaction.instant, based_on, appends=appends, update_strategy=self._transaction.update_strategy)
