"""Read partitions of the metadata table as Apache Hudi's readers merge them.

The newest slice, base file first, then log files by version.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, MutableMapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

import pyarrow as pa

from tideline_table.errors import CorruptMetadata, ObjectNotFound
from tideline_table.file_group.partition_listing import PARTITION_METAFILE
from tideline_table.hudi.file_names import parse_base_file_name, parse_log_file_name
from tideline_table.hudi.format import TableFormat
from tideline_table.hudi.instant import Action, Instant, State
from tideline_table.hudi.write_stats import CommitMetadata, WriteStat
from tideline_table.log.metadata import MetadataPartition
from tideline_table.log_format import BlockType, scan_log
from tideline_table.log_format.block import LogBlock, read_content
from tideline_table.log_format.delete_block import read_deletes
from tideline_table.log_format.hfile import HFile
from tideline_table.metadata_table.layout import base_name, file_id_of, file_path, folder_of, log_name, timeline_path
from tideline_table.metadata_table.partition import Source, newest_records
from tideline_table.metadata_table.records import DELETED, FilesRecords, decode_records, record_schema_json
from tideline_table.schema.meta_fields import MetaField
from tideline_table.storage import Storage

_LOGGER = logging.getLogger(__name__)


@dataclass(slots=True)
class GroupFiles:
    """The files of a file group in one slice."""

    has_base: bool = False
    versions: dict[int, str] = field(default_factory=dict)
    """Version of each log file → its name, in order."""


@dataclass(frozen=True, slots=True)
class SliceFiles:
    """The files of a slice of a partition on storage."""

    groups: tuple[GroupFiles, ...]
    foreign: tuple[str, ...]
    """Files that are none of the metadata table's, or of a newer slice than the log knows."""


def slice_files(storage: Storage, part: MetadataPartition) -> SliceFiles:
    """List the folder of the partition, for the newest slice.

    Files of other slices are left out: they are being cleaned, or a late writer made them.
    """
    written, newest = part.log_instants, max(part.log_instants)
    numbers = {file_id_of(part.name, group): group for group in range(part.file_groups)}
    groups, foreign = tuple(GroupFiles() for _ in numbers), []
    for found in storage.list_folder(folder_of(part.name)).objects:
        name = found.path.rpartition("/")[2]
        log, data = parse_log_file_name(name), parse_base_file_name(name)
        named = log or data
        begun = log.instant if log else data.instant if data else ""
        if named is None or named.file_id not in numbers or begun > newest:
            if name != PARTITION_METAFILE and not name.endswith(".crc"):
                foreign.append(name)
        elif name == base_name(part.base, named.file_id):
            groups[numbers[named.file_id]].has_base = True
        elif log is not None and begun in written:
            groups[numbers[named.file_id]].versions[log.version] = name
    for group in groups:
        group.versions = dict(sorted(group.versions.items()))
    return SliceFiles(groups, tuple(foreign))


def recorded_names(
    storage: Storage,
    form: TableFormat,
    part: MetadataPartition,
    *,
    older: bool = False,
    known: MutableMapping[str, frozenset[str]] | None = None,
) -> frozenset[str]:
    """Return the names of the files of the newest (or the older) slice that completed instants record.

    The first log file of a group is not recorded. `known` has the names that instants record, by path, and takes those that are
    read: of one partition, and of its newest slice. Raises `ObjectNotFound` for a missing instant, `CorruptMetadata` for a
    damaged one.
    """
    base, deltas = (part.older_base, part.older_deltas) if older else (part.base, part.deltas)
    begun = Action.DELTA_COMMIT if base == part.first_base else Action.COMMIT
    first = (base, begun, part.older_completion if older else part.completion)
    found: dict[str, frozenset[str]] = {}
    written = ((delta.instant, Action.DELTA_COMMIT, delta.completion) for delta in deltas if delta.version)
    for at, action, completion in (first, *written):
        path = timeline_path(form, Instant(at, action, State.COMPLETED), completion)
        names = known.get(path) if known is not None else None
        if names is None:
            names = names_in(_recorded_by(storage.read(path), path), part.name)
        found[path] = names
    if known is not None:
        known.clear()
        known.update(found)
    return frozenset[str]().union(*found.values())


def _recorded_by(content: bytes, path: str) -> Sequence[WriteStat]:
    # In a table, an empty file is a commit without files. Here it is a torn one, and without its files keys would be missing.
    if not content:
        raise CorruptMetadata(f"{path}, which is empty", expected="the files that the instant made")
    return CommitMetadata.from_bytes(content, path).stats


def names_in(stats: Iterable[WriteStat], partition: str) -> frozenset[str]:
    """Return the names of the files of a partition in these write stats."""
    return frozenset(stat.path.rpartition("/")[2] for stat in stats if stat.partition_path == partition)


def recorded_group(
    form: TableFormat, part: MetadataPartition, group: int, names: AbstractSet[str], *, older: bool = False
) -> GroupFiles:
    """Return the files of a file group, from the names that the instants of its slice record."""
    base, deltas = (part.older_base, part.older_deltas) if older else (part.base, part.deltas)
    file_id = file_id_of(part.name, group)
    logs = {delta.version: log_name(form, base, delta, file_id) for delta in deltas if delta.version}
    return GroupFiles(base_name(base, file_id) in names, {at: name for at, name in logs.items() if name in names})


def carried_over(source: Source, part: MetadataPartition, group: int) -> pa.RecordBatch | None:
    """Return the records of a file group that the newest slice takes from the slice before it, in order of key.

    None if a restore began the newest slice, or, with a warning, if the slice before it is damaged: then only the table itself
    knows them. Depends on files only that are never changed: each process that begins the newest slice reads the same.
    """
    if part.begins_by_restore:
        return None
    try:
        names = recorded_names(source.storage, source.form, part, older=True)
        older = recorded_group(source.form, part, group, names, older=True)
        return read_group(source.storage, part, group, older, part.older_base)
    except (CorruptMetadata, ObjectNotFound) as error:
        _LOGGER.warning(
            "partition %s of the metadata table is made anew from the table: its older slice is damaged: %s", part.name, error
        )
        return None


def read_group(storage: Storage, part: MetadataPartition, group: int, found: GroupFiles, base: str = "") -> pa.RecordBatch:
    """Return the live records of a file group in the slice `base` (by default the newest), in order of key.

    Of several records of a key the newest counts; a delete block removes keys. All data have the schema of Tideline's records.
    Raises `CorruptMetadata` for damaged files and for records in another schema, `ObjectNotFound` for a missing file.
    """
    pieces: list[tuple[pa.Array, pa.Array]] = []
    if found.has_base:
        path = file_path(base_name(base or part.base, file_id_of(part.name, group)), part.name)
        pieces += _columns(open_base(storage, path))
    for name in found.versions.values():
        for gone, content in log_changes(storage, file_path(name, part.name)):
            if len(gone):
                pieces.append((pa.array(gone, pa.binary()), pa.nulls(len(gone), pa.binary())))
            if content is not None:
                pieces += _columns(content)
    return newest_records(pieces)


def open_base(storage: Storage, path: str) -> HFile:
    """Return a base file whose records have the schema of Tideline's. Errors as `read_group`."""
    hfile = HFile(storage.read(path))
    _check_schema(hfile.file_info.get("schema", b"").decode("utf-8", "replace"), path)
    return hfile


def log_changes(storage: Storage, path: str) -> Iterator[tuple[Sequence[bytes], HFile | None]]:
    """Yield the deleted keys, or the records, of each block of a log file, in order. Errors as `read_group`."""
    for block in _blocks(storage, path):
        if block.type is BlockType.DELETE:
            yield read_deletes(storage, block).column(MetaField.RECORD_KEY).cast(pa.binary()).to_pylist(), None
            continue
        if block.schema_json:
            _check_schema(block.schema_json, block.path)
        yield (), HFile(read_content(storage, block, BlockType.HFILE))


def _check_schema(found: str, path: str) -> None:
    if found != record_schema_json(with_meta_fields=True):
        raise CorruptMetadata(f"{path} with records in another schema", expected="the schema of Tideline's records")


def read_files(storage: Storage, part: MetadataPartition, found: SliceFiles) -> FilesRecords:
    """Return the files that the metadata table lists.

    Raises `CorruptMetadata` for damaged files, `ObjectNotFound` for a missing one.
    """
    path = file_path(base_name(part.base))
    hfile = HFile(storage.read(path))
    schema = hfile.file_info.get("schema", b"").decode("utf-8", "replace")
    merged = decode_records(entries_of(hfile), schema, path)
    for name in found.groups[0].versions.values():
        for block in _blocks(storage, file_path(name)):
            if block.type is BlockType.HFILE:
                content = HFile(read_content(storage, block, BlockType.HFILE))
                text = block.schema_json or record_schema_json(with_meta_fields=True)
                merged.merge(decode_records(entries_of(content), text, block.path))
            else:
                merged.remove(read_deletes(storage, block).column(MetaField.RECORD_KEY).to_pylist())
    return merged


def _blocks(storage: Storage, path: str) -> Iterator[LogBlock]:
    scanned = scan_log(storage, path)
    if scanned.gaps:
        raise CorruptMetadata(f"{path} with a damaged block ({scanned.gaps[0].reason})", expected="intact blocks")
    for block in scanned.blocks:
        if block.type not in (BlockType.HFILE, BlockType.DELETE):
            raise CorruptMetadata(f"{path} with a block of type {block.type.name}", expected="blocks of HFiles")
        yield block


def _columns(hfile: HFile) -> Iterator[tuple[pa.Array, pa.Array]]:
    for batch in hfile.entries():
        yield batch.column("key"), batch.column("value")


def entries_of(hfile: HFile) -> Iterator[tuple[bytes, bytes]]:
    """Yield key and datum of each record of an HFile, in order of key."""
    for batch in hfile.entries():
        yield from zip(batch.column("key").to_pylist(), batch.column("value").to_pylist(), strict=True)


def live(sizes: dict[str, int] | None) -> dict[str, int]:
    """Return the entries that are not deletions."""
    return {name: size for name, size in (sizes or {}).items() if size != DELETED}
