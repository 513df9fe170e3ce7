"""Carry writes over into a clustering: log files that writers appended to its input while it ran become log files of its output.

The update strategy `carry-over`. Each carried file holds the rows and deletions of one write for one output file group, under
the instant of that write. Where that could show other rows than the old file groups do, nothing is carried and the clustering
yields, as with `yield`:

- a write replaced the base file or the file group, or a log file has blocks of other kinds than rows and deletions;
- a key is in two rows of the output, or has log entries in two of the input file groups: their logs merge independently, in one
  they would not;
- a key that the output lacks, such as one whose deletion the clustering has dropped, shows another row there than before.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tideline_table.action.clustering.carried_file import CarriedEvents, NotCarried, events_of, write_carried
from tideline_table.action.clustering.task import ClusteringTask
from tideline_table.file_group.slice import FileGroupId, FileSlice, LogFile, SliceVersion, join_path
from tideline_table.hudi.format import TableFormat
from tideline_table.hudi.write_stats import WriteStat
from tideline_table.index.scope import key_hashes
from tideline_table.index.simple import SimpleIndex
from tideline_table.log.body import CARRIED_KEY, carried_text
from tideline_table.log.state import TableState
from tideline_table.reader.file_slice import read_slice
from tideline_table.row_digest import digest_rows, seed_of
from tideline_table.schema.meta_fields import MetaField, with_meta_fields
from tideline_table.storage import Storage

_LOGGER = logging.getLogger(__name__)
_SHOWN = (MetaField.RECORD_KEY.value, MetaField.COMMIT_TIME.value, MetaField.COMMIT_SEQNO.value)


@dataclass(frozen=True, slots=True)
class _Appended:
    """A log file that a write appended to an input file group after the plan."""

    sequence: int
    group: FileGroupId
    log: LogFile

    @property
    def path(self) -> str:
        return join_path(self.group.partition_path, self.log.name)


class _Group:
    """One group of the plan: its outputs with the log files carried into them, and where keys are. Not thread-safe."""

    def __init__(self, task: ClusteringTask, stats: Sequence[WriteStat]) -> None:
        self.task = task
        ids = {task.output(number)[0] for number in range(task.output_files)}
        made = [s for s in stats if s.file_id in ids and s.partition_path == task.partition_path]
        self.slices = [
            FileSlice(
                FileGroupId(s.partition_path, s.file_id),
                task.instant,
                s.path.rsplit("/", 1)[-1],
                s.file_size_bytes,
                s.num_writes,
                record=s.record,
            )
            for s in made
        ]
        self._named: dict[FileGroupId, pa.Array] = {}

    def places(self, index: SimpleIndex, keys: pa.Array) -> tuple[np.ndarray, np.ndarray]:
        """Return the number of the output for each of the distinct `keys`, and whether the output has a row of it.

        A key without a row gets an output by its hash, always the same one.
        """
        at = np.full(len(keys), -1, dtype=np.int64)
        for number, made in enumerate(self.slices):
            column = index.keys(replace(made, log_files=()))
            hits = np.asarray(pc.index_in(column.cast(pa.string()), value_set=keys).drop_null())
            if len(np.unique(hits)) != len(hits) or (at[hits] >= 0).any():
                raise NotCarried("a key that the output has twice")
            at[hits] = number
        held = at >= 0
        if not held.all():
            lacking = keys.filter(pa.array(~held))
            at[~held] = _spread(lacking, len(self.slices))
        return at, held

    def note_keys(self, group: FileGroupId, keys: pa.Array) -> None:
        """Record keys with log entries in an input file group; raise `NotCarried` if another one has entries of them, too."""
        for other, named in self._named.items():
            if other != group and pc.any(pc.is_in(keys, value_set=named)).as_py():
                raise NotCarried("a key with log entries in two file groups")
        known = self._named.get(group)
        self._named[group] = pc.unique(pa.concat_arrays([known, keys])) if known is not None else keys


class CarryOver:
    """The log files that a clustering carries over, over all rounds of its commit. Not thread-safe."""

    def __init__(
        self,
        storage: Storage,
        form: TableFormat,
        tasks: Sequence[ClusteringTask],
        stats: Sequence[WriteStat],
        based_on: Mapping[FileGroupId, SliceVersion],
        verify: str,
        stats_of_logs: list[WriteStat],
    ) -> None:
        """`stats`: the base files of the outputs. Carried log files are appended to `stats_of_logs`."""
        self.versions = dict(based_on)
        """The version of each input slice that the output includes, with what was carried."""
        self.stats = stats_of_logs
        self._storage = storage
        self._form = form
        self._verify = verify
        self._index = SimpleIndex(storage)
        groups = [_Group(task, stats) for task in tasks]
        self._of = {s.group: group for group in groups for s in group.task.inputs}
        self._files: dict[str, list[str]] = {}

    @property
    def extra(self) -> dict[str, str]:
        """The extra metadata that names the carried files; empty if there are none."""
        return {CARRIED_KEY: carried_text(self._files)} if self._files else {}

    def waiting(self, state: TableState) -> int:
        """Return the number of log files that `follow` would carry over; 0 if it cannot."""
        try:
            return len(self._appended(state)[0])
        except NotCarried:
            return 0

    def follow(self, state: TableState) -> bool:
        """Carry over what was appended since the last call; return whether anything was, and `versions` is that of `state`.

        False if there is nothing, or something that cannot be carried. Raises `VerificationFailed` if a written file differs
        from what was read.
        """
        try:
            return self._follow(state)
        except NotCarried as why:
            _LOGGER.info("writes during the clustering are not carried over: %s", why)
            return False

    def _follow(self, state: TableState) -> bool:
        appended, versions = self._appended(state)
        if not appended:
            return False
        if any(group.task.rule.keygen is not None or not group.slices for group in {self._of[a.group] for a in appended}):
            raise NotCarried("rows without record keys in meta fields, or a group without output")
        lacking: dict[FileGroupId, list[pa.Array]] = {}
        # The log files of one write in one group of the plan together: they become one file in each output.
        for _, files in itertools.groupby(appended, key=lambda a: a.sequence):
            part = list(files)
            for group in dict.fromkeys(self._of[a.group] for a in part):
                self._carry(group, [a for a in part if self._of[a.group] is group], lacking)
        self._check_lacking(state, lacking)
        self.versions = versions
        return True

    def _appended(self, state: TableState) -> tuple[list[_Appended], dict[FileGroupId, SliceVersion]]:
        found: list[_Appended] = []
        versions = dict(self.versions)
        for group, read in self.versions.items():
            latest = state.latest_slice(group)
            if latest is None:
                raise NotCarried(f"file group {group.file_id} was replaced")
            now = latest.version
            if now == read:
                continue
            if now._replace(log_files=read.log_files) != read or now.log_files < read.log_files or now.awaits_base_file:
                raise NotCarried(f"file group {group.file_id} has another base file")
            for log in [log for log in latest.log_files if not log.merges_earlier][read.log_files :]:
                record = state.actions.get(log.instant)
                if record is None:
                    raise NotCarried(f"write {log.instant} is not on the active timeline")
                found.append(_Appended(record.sequence, group, log))
            versions[group] = now
        return sorted(found, key=lambda a: (a.sequence, a.group, a.log.version)), versions

    def _carry(self, group: _Group, appended: Sequence[_Appended], lacking: dict[FileGroupId, list[pa.Array]]) -> None:
        task, instant = group.task, appended[0].log.instant
        events: list[CarriedEvents] = []
        for each in appended:
            found = events_of(self._storage, each.path, instant)
            group.note_keys(each.group, pc.unique(pa.concat_arrays([pa.array([], pa.string()), *(e.keys for e in found)])))
            events += found
        keys = pc.unique(pa.concat_arrays([pa.array([], pa.string()), *(e.keys for e in events)]))
        if not len(keys):
            return
        places, held = group.places(self._index, keys)
        for number, made in enumerate(group.slices):
            here = keys.filter(pa.array(places == number))
            if not len(here):
                continue
            added = keys.filter(pa.array((places == number) & ~held))
            stat = write_carried(self._storage, self._form, task, made, instant, events, here, added, self._verify)
            name = stat.path.rsplit("/", 1)[-1]
            log = LogFile(name, stat.file_size_bytes, instant, stat.log_version, True, stat.num_deletes > 0, record=stat.record)
            group.slices[number] = replace(made, log_files=(*made.log_files, log))
            self.stats.append(stat)
            self._files.setdefault(instant, []).append(stat.path)
        if not held.all():
            for each in appended:
                lacking.setdefault(each.group, []).append(keys.filter(pa.array(~held)))

    def _check_lacking(self, state: TableState, lacking: Mapping[FileGroupId, Sequence[pa.Array]]) -> None:
        """Raise `NotCarried` unless keys that the outputs lack show the same rows in old and new file groups."""
        by_group: dict[int, tuple[_Group, list[pa.Array]]] = {}
        for source, keys in lacking.items():
            group = self._of[source]
            by_group.setdefault(id(group), (group, []))[1].extend(keys)
        for group, found in by_group.values():
            task = group.task
            keys, schema = pc.unique(pa.concat_arrays(found)), with_meta_fields(task.schema)
            # What a query of the table does not see yet is visible here.
            new_rule, names, seed = replace(task.rule, visible=None), list(_SHOWN), seed_of(task.instant)
            latest = [s for s in (state.latest_slice(i.group) for i in task.inputs) if s is not None]
            before = [read_slice(self._storage, s, schema, task.rule, names, keys=keys) for s in latest]
            after = [read_slice(self._storage, s, schema, new_rule, names, keys=keys) for s in group.slices]
            if digest_rows(pa.concat_tables(before), names, seed) != digest_rows(pa.concat_tables(after), names, seed):
                raise NotCarried("a key that the output lacks and that merges with an earlier entry of its log")


def _spread(keys: pa.Array, outputs: int) -> np.ndarray:
    """Return an output for each key, by its hash."""
    return (key_hashes(None, pa.chunked_array([keys])) % np.uint64(outputs)).astype(np.int64)
