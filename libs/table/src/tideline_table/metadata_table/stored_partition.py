"""A partition of the metadata table of a shared table, as its folder shows it: the newest slice of each file group."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from tideline_table.errors import CorruptMetadata
from tideline_table.file_group.partition_listing import PARTITION_METAFILE
from tideline_table.hudi.file_names import LogFileName, log_write_token, parse_base_file_name, parse_log_file_name
from tideline_table.hudi.format import TableFormat
from tideline_table.hudi.write_stats import WriteStat
from tideline_table.log.metadata import COMPACTION_SUFFIX, FILES, INSTANT_DIGITS
from tideline_table.log_format.block import BlockType, HeaderKey, LogBlock, read_content
from tideline_table.log_format.delete_block import read_deletes
from tideline_table.log_format.hfile import HFile
from tideline_table.log_format.scan import scan_log
from tideline_table.metadata_table.hudi_slices import newest_slices
from tideline_table.metadata_table.layout import FIRST_LOG_VERSION, file_id_of, file_path, folder_of
from tideline_table.metadata_table.reading import entries_of
from tideline_table.metadata_table.records import record_schema_json
from tideline_table.schema.meta_fields import MetaField
from tideline_table.storage import Storage


@dataclass(frozen=True, slots=True)
class StoredGroup:
    """The newest slice of a file group."""

    partition: str
    file_id: str
    base: str
    """The base instant; in layout 2, where names of log files do not have it, it is empty."""
    base_file: str
    """The name of its base file; empty if the group got no record since it was made."""
    logs: tuple[str, ...]
    """The names of its log files, in the order in which readers merge them."""

    def next_log(self, form: TableFormat, instant: str, size_bytes: int, updates: int, deletes: int) -> WriteStat:
        """Return the write statistic of the log file of a delta commit.

        In layout 2 the name is of the delta commit alone, and as in Apache Hudi nothing is said of the slice.
        """
        of_slice = not form.has_completion_times
        last = parse_log_file_name(self.logs[-1]) if self.logs and of_slice else None
        version = last.version + 1 if last else FIRST_LOG_VERSION
        # The token is of this instant alone: a process that lost the lock without noticing cannot take the name for its own log
        # file.
        name = form.log_file_name(self.file_id, self.base, instant, version, log_write_token(0, 0, instant))
        return WriteStat(
            file_id=self.file_id,
            partition_path=self.partition,
            path=f"{self.partition}/{name}",
            prev_commit=self.base if of_slice else instant,
            num_writes=updates,
            file_size_bytes=size_bytes,
            num_updates=updates,
            num_deletes=deletes,
            base_file=self.base_file if of_slice else "",
            log_files=(*self.logs, name) if of_slice else (name,),
            log_version=version,
        )

    def contents(self, storage: Storage, valid: AbstractSet[str]) -> Iterator[StoredContent]:
        """Yield what readers merge, the oldest first: the base file, then the log blocks of `valid` instants that no block voids.

        Raises `CorruptMetadata` for damaged files, `ObjectNotFound` for a missing one.
        """
        if self.base_file:
            path = file_path(self.base_file, self.partition)
            yield _content_of(HFile(storage.read(path)), path)
        for block in _valid_blocks(storage, [file_path(name, self.partition) for name in self.logs], valid):
            if block.type is BlockType.DELETE:
                keys = read_deletes(storage, block).column(MetaField.RECORD_KEY).to_pylist()
                yield StoredContent(block.path, deletes=tuple(key.encode() for key in keys))
            else:
                yield _content_of(HFile(read_content(storage, block, BlockType.HFILE)), block.path, block.schema_json)


@dataclass(frozen=True, slots=True)
class StoredContent:
    """The content of a base file or of a log block: records, or keys of deleted records."""

    path: str
    updates: tuple[tuple[bytes, bytes], ...] = ()
    """Key and Avro datum, in order of key."""
    schema_json: str = field(default_factory=lambda: record_schema_json(with_meta_fields=True))
    """The Avro schema of the data."""
    deletes: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class StoredPartition:
    """A partition: its file groups, in order of their numbers. Apache Hudi chose how many there are when it made the partition."""

    name: str
    groups: tuple[StoredGroup, ...]

    @classmethod
    def read(cls, storage: Storage, form: TableFormat, name: str, done: Mapping[str, str]) -> StoredPartition:
        """List the folder. `done` has the completed instants of the metadata table with their completion times.

        Raises `CorruptMetadata` for a file that is none of the partition's, and for a group without its first file.
        """
        if form.has_completion_times:
            slices = newest_slices(storage, form, done, name)
            held = [
                StoredGroup(name, file_id, "", slices[file_id].base_file, tuple(slices[file_id].logs))
                for file_id in _in_order(name, slices)
            ]
            return cls(name, tuple(held))
        found: dict[str, _Files] = {}
        unknown = []
        for stored in storage.list_folder(folder_of(name)).objects:
            file_name = stored.path.rpartition("/")[2]
            base, log = parse_base_file_name(file_name), parse_log_file_name(file_name)
            if base is not None and base.instant not in (files := found.setdefault(base.file_id, _Files())).bases:
                files.bases[base.instant] = file_name
            elif log is not None:
                found.setdefault(log.file_id, _Files()).logs[log] = file_name
            elif file_name != PARTITION_METAFILE and not file_name.endswith(".crc"):
                unknown.append(stored.path)
        refuse(unknown)
        return cls(name, tuple(found[file_id].newest(name, file_id) for file_id in _in_order(name, found)))

    def live_records(self, storage: Storage, valid: AbstractSet[str]) -> dict[bytes, tuple[bytes, str]]:
        """Return key → Avro datum and its schema, of a partition in which the newest record of a key counts.

        Errors as `contents`.
        """
        held: dict[bytes, tuple[bytes, str]] = {}
        for group in self.groups:
            for content in group.contents(storage, valid):
                for key in content.deletes:
                    held.pop(key, None)
                held |= {key: (datum, content.schema_json) for key, datum in content.updates}
        return held


def _in_order(partition: str, found: Collection[str]) -> list[str]:
    """Return these file ids in the order of their numbers. Raises `CorruptMetadata` if some are missing."""
    file_ids = [file_id_of(partition, number) for number in range(len(found))]
    if not found or set(file_ids) != set(found) or (partition == FILES and len(found) > 1):
        raise CorruptMetadata(
            f"file groups {', '.join(sorted(found)) or 'none'} in {folder_of(partition)}", expected="one for each number from 0 on"
        )
    return file_ids


@dataclass(slots=True)
class _Files:
    bases: dict[str, str] = field(default_factory=dict)
    logs: dict[LogFileName, str] = field(default_factory=dict)

    def newest(self, partition: str, file_id: str) -> StoredGroup:
        base = max((*self.bases, *(log.instant for log in self.logs)))
        newest = sorted((log for log in self.logs if log.instant == base), key=lambda log: (log.version, log.write_token))
        # A group that got no record when Apache Hudi made the partition has no base file, until it is compacted.
        is_new = not self.bases and newest[0].version == FIRST_LOG_VERSION
        if base not in self.bases and (partition == FILES or not is_new or base[INSTANT_DIGITS:].endswith(COMPACTION_SUFFIX)):
            raise CorruptMetadata(
                f"no base file of slice {base!r} of {file_id} in {folder_of(partition)}", expected="one in the newest slice"
            )
        return StoredGroup(partition, file_id, base, self.bases.get(base, ""), tuple(self.logs[log] for log in newest))


def refuse(unknown: Iterable[str]) -> None:
    """Raise `CorruptMetadata` if there is a path of a file that is none of the metadata table's."""
    for path in unknown:
        raise CorruptMetadata(f"{path} in the metadata table", expected="the names of its instants, base files and log files")


def _valid_blocks(storage: Storage, paths: Iterable[str], valid: AbstractSet[str]) -> list[LogBlock]:
    """Return the blocks that count, the oldest first. A command block voids the blocks of its target that precede it."""
    blocks = [block for path in paths for block in scan_log(storage, path).blocks]
    undone: set[str] = set()
    found = []
    for block in reversed(blocks):
        if block.type is BlockType.COMMAND:
            undone.add(block.target_instant)
        elif block.type in (BlockType.HFILE, BlockType.DELETE) and block.instant in valid - undone:
            found.append(block)
            # A log compaction stands for the blocks that it merged.
            undone |= {at for at in block.header.get(HeaderKey.COMPACTED_BLOCK_TIMES, "").split(",") if at}
    return found[::-1]


def _content_of(hfile: HFile, path: str, schema_json: str = "") -> StoredContent:
    schema = schema_json or hfile.file_info.get("schema", b"").decode("utf-8", "replace")
    return StoredContent(path, tuple(entries_of(hfile)), schema or record_schema_json(with_meta_fields=True))
