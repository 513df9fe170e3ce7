"""Read the partition `files` as Apache Hudi's readers merge it: the newest slice, base file first, then log files by version."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tideline_table.errors import CorruptMetadata
from tideline_table.file_group.names import parse_base_file_name, parse_log_file_name
from tideline_table.file_group.partition_listing import PARTITION_METAFILE
from tideline_table.log.metadata import MetadataTable
from tideline_table.log_format import BlockType, scan_log
from tideline_table.log_format.block import LogBlock, read_content
from tideline_table.log_format.hfile import HFile
from tideline_table.metadata_table.layout import FILES_FOLDER, FILES_ID, base_name, file_path
from tideline_table.metadata_table.records import DELETED, FilesRecords, decode_records, record_schema_json
from tideline_table.storage import Storage


@dataclass(frozen=True, slots=True)
class SliceFiles:
    """The files of the newest slice on storage."""

    has_base: bool
    versions: dict[int, str]
    """Version of each log file → its name."""
    foreign: tuple[str, ...]
    """Files that are none of the metadata table's, or of a newer slice than the log knows."""


def slice_files(storage: Storage, known: MetadataTable) -> SliceFiles:
    """List the folder of the partition. Files of older slices are left out: they are being cleaned, or a late writer made them."""
    has_base, versions, foreign = False, dict[int, str](), []
    for found in storage.list_folder(FILES_FOLDER).objects:
        name = found.path.rpartition("/")[2]
        log, base = parse_log_file_name(name), parse_base_file_name(name)
        named = log or base
        begun = log.base_instant if log else base.instant if base else ""
        if name == base_name(known.base):
            has_base = True
        elif named is None or named.file_id != FILES_ID or begun > known.base:
            if name != PARTITION_METAFILE and not name.endswith(".crc"):
                foreign.append(name)
        elif log is not None and begun == known.base:
            versions[log.version] = name
    return SliceFiles(has_base, dict(sorted(versions.items())), tuple(foreign))


def read_files(storage: Storage, known: MetadataTable, found: SliceFiles) -> FilesRecords:
    """Return the files that the metadata table lists. Raises `CorruptMetadata` for damaged files, `ObjectNotFound` for a missing one."""
    path = file_path(base_name(known.base))
    hfile = HFile(storage.read(path))
    schema = hfile.file_info.get("schema", b"").decode("utf-8", "replace")
    merged = decode_records(_entries(hfile), schema, path)
    for name in found.versions.values():
        for block in _blocks(storage, file_path(name)):
            content = HFile(read_content(storage, block, BlockType.HFILE))
            text = block.schema_json or record_schema_json(with_meta_fields=True)
            merged.merge(decode_records(_entries(content), text, block.path))
    return merged


def _blocks(storage: Storage, path: str) -> Iterator[LogBlock]:
    scanned = scan_log(storage, path)
    if scanned.gaps:
        raise CorruptMetadata(f"{path} with a damaged block ({scanned.gaps[0].reason})", expected="intact blocks")
    for block in scanned.blocks:
        if block.type is BlockType.HFILE:
            yield block
        elif block.type is not BlockType.DELETE:
            raise CorruptMetadata(f"{path} with a block of type {block.type.name}", expected="blocks of HFiles")


def _entries(hfile: HFile) -> Iterator[tuple[bytes, bytes]]:
    for batch in hfile.entries():
        yield from zip(batch.column("key").to_pylist(), batch.column("value").to_pylist(), strict=True)


def live(sizes: dict[str, int] | None) -> dict[str, int]:
    """Return the entries that are not deletions."""
    return {name: size for name, size in (sizes or {}).items() if size != DELETED}
