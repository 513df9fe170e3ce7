"""The metadata table of a shared table as its files show it: Apache Hudi's writers maintain it, too, so no log knows it.

Used under the lock of the table. Apache Hudi changes a metadata table under that lock only, so an instant that is pending then
belongs to a process that died.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from tideline_table.errors import CorruptMetadata, ObjectExists, StorageError
from tideline_table.hudi.file_names import parse_log_file_name
from tideline_table.hudi.format import TableFormat
from tideline_table.hudi.instant import Action, Instant, State, shifted
from tideline_table.hudi.listing import TimelineListing, timeline_listing
from tideline_table.hudi.properties import METADATA_FOLDER
from tideline_table.hudi.write_stats import CommitMetadata, WriteStat
from tideline_table.log.metadata import FILES
from tideline_table.metadata_table.instant_files import at_once, extra_metadata
from tideline_table.metadata_table.layout import PROPERTIES_PATH, file_path, folder_of, instant_of, timeline_folder, timeline_path
from tideline_table.metadata_table.log_file import log_file_bytes
from tideline_table.metadata_table.partition import Records, by_group
from tideline_table.metadata_table.records import DELETED, FilesRecords, decode_records
from tideline_table.metadata_table.stored_partition import StoredPartition, refuse
from tideline_table.storage import Storage

_OPERATION = "UPSERT_PREPPED"
BASE_SUFFIX = ".hfile"
_PROPERTIES = (PROPERTIES_PATH, f"{PROPERTIES_PATH}.backup")


@dataclass(frozen=True, slots=True)
class StoredMetadata:
    """The timeline of a metadata table, and the newest slices of its partition `files`."""

    form: TableFormat
    timeline: TimelineListing
    files: StoredPartition

    @classmethod
    def read(cls, storage: Storage, form: TableFormat) -> StoredMetadata:
        """List the folders.

        Raises `CorruptMetadata` for a file that is none of a metadata table's, and for a slice without a base file.
        """
        timeline = _list_timeline(storage, form)
        return cls(form, timeline, StoredPartition.read(storage, form, FILES, timeline.completion))

    def partition(self, storage: Storage, name: str) -> StoredPartition:
        """List the folder of another partition. Errors as `read`."""
        return StoredPartition.read(storage, self.form, name, self.timeline.completion)

    @property
    def pending(self) -> list[str]:
        """The instants without a completed file, in order."""
        return sorted(i.time for i in self.timeline.instants if i.state is not State.COMPLETED)

    @property
    def instants(self) -> frozenset[str]:
        """All instants of its timeline."""
        return frozenset(i.time for i in self.timeline.instants)

    @property
    def deltas(self) -> int:
        """The number of delta commits since its last compaction."""
        done = [i for i in self.timeline.instants if i.state is State.COMPLETED]
        compacted = max((i.time for i in done if i.action is Action.COMMIT), default="")
        return sum(i.action is Action.DELTA_COMMIT and i.time > compacted for i in done)

    def valid(self, pending: AbstractSet[str]) -> frozenset[str]:
        """Return the instants whose blocks readers merge: not those `pending` on the table's timeline (format reference 15.9)."""
        return frozenset(i.time for i in self.timeline.instants if i.state is State.COMPLETED) - pending

    def read_files(self, storage: Storage, pending: AbstractSet[str]) -> FilesRecords:
        """Return the files that readers find. Raises `CorruptMetadata` for damaged files, `ObjectNotFound` for a missing one."""
        merged = FilesRecords()
        for content in self.files.groups[0].contents(storage, self.valid(pending)):
            merged.merge(decode_records(content.updates, content.schema_json, content.path))
            merged.remove(key.decode() for key in content.deletes)
        return merged

    @property
    def compacted_before(self) -> str:
        """The newest instant of a compaction: what completed before it cannot be taken out again. Empty if there is none."""
        done = (i for i in self.timeline.instants if i.state is State.COMPLETED and i.action is Action.COMMIT)
        return max((i.time for i in done), default="")

    def completion_after(self, completion: str) -> str:
        """Return `completion`, or, where names have such times, a later one above all times of the metadata table.

        A log file belongs to a slice that began before its delta commit completed, and Apache Hudi compacts by its own clock.
        """
        if not completion:
            return ""
        newest = max(at for pair in self.timeline.completion.items() for at in pair)
        return completion if completion > newest else shifted(newest, 1)

    def ended_by(self, storage: Storage, cleans: AbstractSet[str]) -> set[str]:
        """Return the partitions without files, by delta commits of these cleans in the newest slice. Errors as `read_files`."""
        ended: set[str] = set()
        for content in self.files.groups[0].contents(storage, cleans) if cleans else ():
            if not content.path.endswith(BASE_SUFFIX):
                listed = decode_records(content.updates, content.schema_json, content.path).partitions or {}
                ended |= {name for name, size in listed.items() if size == DELETED}
        return ended

    def take_back(self, storage: Storage, instant: str) -> bool:
        """Remove an instant and its log files, as Apache Hudi's rollback in layout 2. Return False if it was compacted since."""
        ended = self.timeline.named_completion(instant)
        if ended and ended <= self.compacted_before:
            return False
        for folder in storage.list_folder(METADATA_FOLDER).folders:
            for found in storage.list_folder(folder_of(folder)).objects:
                log = parse_log_file_name(found.path.rpartition("/")[2])
                if log is not None and log.instant == instant:
                    storage.delete(found.path)
        for at, path in sorted(self.timeline.paths.items(), key=lambda one: one[0].state is not State.COMPLETED):
            if at.time == instant:
                storage.delete(path)
        storage.delete(f"{METADATA_FOLDER}/.hoodie/.heartbeat/{instant}")
        return True


def add_stored_delta(
    storage: Storage, form: TableFormat, instant: str, changes: Mapping[StoredPartition, Records], completion: str = ""
) -> None:
    """Add the delta commit `instant` with these records. `completion`: its completion time, if names have it.

    Raises `StorageError` if a file of it is there with another content.
    """
    written: list[tuple[WriteStat, bytes]] = []
    for part, records in changes.items():
        for group, held in zip(part.groups, by_group(records, len(part.groups)), strict=True):
            if held or part.name == FILES:
                blocks = log_file_bytes(part.name, instant, held)
                written.append((group.next_log(form, instant, len(blocks), held.updates.num_rows, len(held.deletes)), blocks))
    stats = tuple(stat for stat, _ in written)
    completed = form.commit_content(CommitMetadata(_OPERATION, stats, extra_metadata()))
    for state, content in ((State.REQUESTED, b""), (State.INFLIGHT, b"" if completion else _workload(stats))):
        _create(storage, timeline_path(form, Instant(instant, Action.DELTA_COMMIT, state)), content)
    at_once(functools.partial(_create, storage), [(_path_of(stat), blocks) for stat, blocks in written])
    _create(storage, timeline_path(form, Instant(instant, Action.DELTA_COMMIT, State.COMPLETED), completion), completed)


def _path_of(stat: WriteStat) -> str:
    return file_path(stat.path.rpartition("/")[2], stat.partition_path)


def _list_timeline(storage: Storage, form: TableFormat) -> TimelineListing:
    paths = [found.path for found in storage.list_folder(timeline_folder(form)).objects]
    if form.has_completion_times:
        listing = timeline_listing(form, paths)
        if not listing.completion:
            raise CorruptMetadata("a metadata table without completed instants", expected="the one that made it")
        return listing
    if PROPERTIES_PATH not in paths:
        raise CorruptMetadata(f"no {PROPERTIES_PATH}", expected="the properties of the metadata table")
    named = [path for path in paths if path not in _PROPERTIES and not path.endswith(".crc")]
    refuse(path for path in named if instant_of(form, path) is None)
    return timeline_listing(form, named)


def _workload(stats: Iterable[WriteStat]) -> bytes:
    """Return the inflight file, in which Apache Hudi's rollback finds the file groups that a dead process may have changed."""
    planned: dict[str, list[dict[str, object]]] = {}
    for stat in stats:
        begun = WriteStat(stat.file_id, stat.partition_path, "", stat.prev_commit, 0, 0, num_updates=stat.num_updates)
        planned.setdefault(stat.partition_path, []).append({**begun.to_json(), "path": None})
    document = CommitMetadata(_OPERATION, ()).to_json()
    return json.dumps({**document, "partitionToWriteStats": planned}, indent=2).encode()


def _create(storage: Storage, path: str, content: bytes) -> None:
    try:
        storage.put_if_absent(path, content)
    except ObjectExists:
        if storage.read(path) != content:
            raise StorageError(f"{path} exists already", expected="no other writer of this instant", remedy="retry") from None
