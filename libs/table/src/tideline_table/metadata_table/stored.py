"""The metadata table of a shared table, as its files show it: Apache Hudi's writers compact, clean and archive it, so no log knows it.

Used under the lock of the table. Apache Hudi changes a metadata table under that lock only, so an instant that is pending then belongs
to a process that died.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from tideline_table.errors import CorruptMetadata, ObjectExists, StorageError
from tideline_table.file_group.names import LogFileName, log_file_name, log_write_token, parse_base_file_name, parse_log_file_name
from tideline_table.file_group.partition_listing import PARTITION_METAFILE
from tideline_table.hudi.instant import Action, Instant, State, parse_timeline_file_name
from tideline_table.hudi.listing import TimelineFolders, TimelineListing, timeline_listing
from tideline_table.hudi.write_stats import CommitMetadata, WriteStat
from tideline_table.log.metadata import FILES
from tideline_table.log_format.block import BlockType, HeaderKey, read_content
from tideline_table.log_format.delete_block import delete_block, read_deletes
from tideline_table.log_format.framing import frame_block
from tideline_table.log_format.hfile import HFile
from tideline_table.log_format.hfile_writer import hfile_bytes
from tideline_table.log_format.scan import scan_log
from tideline_table.metadata_table.instant_files import epoch_ms, extra_metadata, file_info
from tideline_table.metadata_table.layout import FILES_FOLDER, FILES_ID, PROPERTIES_PATH, TIMELINE_FOLDER, file_path, timeline_path
from tideline_table.metadata_table.partition import Records
from tideline_table.metadata_table.reading import entries_of
from tideline_table.metadata_table.records import FilesRecords, decode_records, record_schema_json
from tideline_table.schema.meta_fields import MetaField
from tideline_table.storage import Storage

_OPERATION = "UPSERT_PREPPED"
_PROPERTIES = (PROPERTIES_PATH, f"{PROPERTIES_PATH}.backup")


@dataclass(frozen=True, slots=True)
class StoredMetadata:
    """The timeline of a metadata table, and the newest slice of its partition `files`."""

    timeline: TimelineListing
    base: str
    """The base instant of the newest slice."""
    base_file: str
    """The name of its base file."""
    logs: tuple[str, ...]
    """The names of its log files, in the order in which readers merge them."""

    @classmethod
    def read(cls, storage: Storage) -> StoredMetadata:
        """List the folders. Raises `CorruptMetadata` for a file that is none of a metadata table's, and for a slice without a base file."""
        timeline = _list_timeline(storage)
        bases, logs = _list_files(storage)
        base = max((*bases, *(log.base_instant for log in logs)), default="")
        if base not in bases:
            raise CorruptMetadata(f"no base file of slice {base!r} in {FILES_FOLDER}", expected="one in the newest slice")
        newest = sorted((log for log in logs if log.base_instant == base), key=lambda log: (log.version, log.write_token))
        return cls(timeline, base, bases[base], tuple(logs[log] for log in newest))

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

    def add_delta(self, storage: Storage, instant: str, records: Records) -> None:
        """Add the delta commit `instant` with these records. Raises `StorageError` if a file of it is there with another content."""
        last = parse_log_file_name(self.logs[-1]) if self.logs else None
        # The token is of this instant alone: a process that lost the lock without noticing cannot take the name for its own log file.
        name = log_file_name(FILES_ID, self.base, last.version + 1 if last else 1, log_write_token(0, 0, instant))
        count, blocks = records.updates.num_rows, _block(instant, records)
        stat = WriteStat(
            file_id=FILES_ID,
            partition_path=FILES,
            path=f"{FILES}/{name}",
            prev_commit=self.base,
            num_writes=count,
            file_size_bytes=len(blocks),
            num_updates=count,
            num_deletes=len(records.deletes),
            base_file=self.base_file,
            log_files=(*self.logs, name),
            log_version=last.version + 1 if last else 1,
        )
        completed = CommitMetadata(_OPERATION, (stat,), extra_metadata()).to_bytes()
        for state, content in ((State.REQUESTED, b""), (State.INFLIGHT, _workload(stat))):
            _create(storage, timeline_path(Instant(instant, Action.DELTA_COMMIT, state)), content)
        _create(storage, file_path(name), blocks)
        _create(storage, timeline_path(Instant(instant, Action.DELTA_COMMIT, State.COMPLETED)), completed)

    def read_files(self, storage: Storage, pending: AbstractSet[str]) -> FilesRecords:
        """Return what readers find. They ignore instants that are `pending` on the timeline of the table (format reference 15.9).

        Raises `CorruptMetadata` for damaged files, `ObjectNotFound` for a missing one.
        """
        path = file_path(self.base_file)
        merged = _decoded(storage.read(path), path)
        valid = {i.time for i in self.timeline.instants if i.state is State.COMPLETED} - pending
        blocks = [block for name in self.logs for block in scan_log(storage, file_path(name)).blocks]
        undone: set[str] = set()
        changes = []
        for block in reversed(blocks):
            if block.type is BlockType.COMMAND:
                undone.add(block.target_instant)
            elif block.type in (BlockType.HFILE, BlockType.DELETE) and block.instant in valid - undone:
                changes.append(block)
        for block in reversed(changes):
            if block.type is BlockType.DELETE:
                merged.remove(read_deletes(storage, block).column(MetaField.RECORD_KEY).to_pylist())
            else:
                merged.merge(_decoded(read_content(storage, block, BlockType.HFILE), block.path))
        return merged


def _list_timeline(storage: Storage) -> TimelineListing:
    paths = [found.path for found in storage.list_folder(TIMELINE_FOLDER).objects]
    if PROPERTIES_PATH not in paths:
        raise CorruptMetadata(f"no {PROPERTIES_PATH}", expected="the properties of the metadata table")
    named = [path for path in paths if path not in _PROPERTIES and not path.endswith(".crc")]
    _refuse(path for path in named if parse_timeline_file_name(_name(path)) is None)
    return timeline_listing(TimelineFolders(), named)


def _list_files(storage: Storage) -> tuple[dict[str, str], dict[LogFileName, str]]:
    """Return base instant → name of each base file, and the log files with their names."""
    bases: dict[str, str] = {}
    logs: dict[LogFileName, str] = {}
    unknown = []
    for found in storage.list_folder(FILES_FOLDER).objects:
        name = _name(found.path)
        base, log = parse_base_file_name(name), parse_log_file_name(name)
        if base is not None and base.file_id == FILES_ID and base.instant not in bases:
            bases[base.instant] = name
        elif log is not None and log.file_id == FILES_ID:
            logs[log] = name
        elif name != PARTITION_METAFILE and not name.endswith(".crc"):
            unknown.append(found.path)
    _refuse(unknown)
    return bases, logs


def _refuse(unknown: Iterable[str]) -> None:
    for path in unknown:
        raise CorruptMetadata(f"{path} in the metadata table", expected="the names of its instants, base files and log files")


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def _block(instant: str, records: Records) -> bytes:
    schema = record_schema_json(with_meta_fields=True)
    content = hfile_bytes(records.updates, file_info(records.updates), created_ms=epoch_ms(instant))
    updates = frame_block(BlockType.HFILE, {HeaderKey.INSTANT_TIME: instant, HeaderKey.SCHEMA: schema}, content)
    return updates + delete_block(records.deletes, FILES, None, schema, instant) if len(records.deletes) else updates


def _workload(stat: WriteStat) -> bytes:
    """Return the inflight file, in which Apache Hudi's rollback finds the file group that a process which died may have written to."""
    planned = {**WriteStat(stat.file_id, FILES, "", stat.prev_commit, 0, 0, num_updates=stat.num_updates).to_json(), "path": None}
    document = CommitMetadata(_OPERATION, ()).to_json()
    return json.dumps({**document, "partitionToWriteStats": {FILES: [planned]}}, indent=2).encode()


def _create(storage: Storage, path: str, content: bytes) -> None:
    try:
        storage.put_if_absent(path, content)
    except ObjectExists:
        if storage.read(path) != content:
            raise StorageError(f"{path} is there already", expected="no other writer of this instant", remedy="retry") from None


def _decoded(content: bytes, path: str) -> FilesRecords:
    hfile = HFile(content)
    return decode_records(entries_of(hfile), hfile.file_info.get("schema", b"").decode("utf-8", "replace"), path)
