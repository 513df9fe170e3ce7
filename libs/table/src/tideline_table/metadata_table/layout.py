"""Folders, names and properties of the metadata table, which has the format of its table (format reference 15.2)."""

from __future__ import annotations

from collections.abc import Mapping

from tideline_table.hudi import properties as p
from tideline_table.hudi.format import TableFormat
from tideline_table.hudi.instant import Instant
from tideline_table.hudi.properties import METADATA_FOLDER
from tideline_table.log.metadata import FILES, Delta

INDEX_DEFINITIONS_PATH = ".hoodie/.index_defs/index.json"
"""The columns that have statistics, for readers of Apache Hudi 1.x."""
PROPERTIES_PATH = f"{METADATA_FOLDER}/{p.PROPERTIES_PATH}"
FILES_FOLDER = f"{METADATA_FOLDER}/{FILES}"
FILES_ID = "files-0000-0"
"""The only file group of the partition `files`."""
ATTEMPT = "0-0-0"
"""The write token of all files: their names derive from the table log, so that no two writers make different ones."""
FIRST_LOG_VERSION = 1
"""Version of the log file that begins the first slice, as in Apache Hudi. The versions of others are sequences of the table log,
which are larger, because the entry that creates the metadata table comes before them."""


_FILE_ID_PREFIXES = {
    "column_stats": "col-stats",
    "bloom_filters": "bloom-filters",
    "record_index": "record-index",
    "partition_stats": "partition-stats",
}


def file_id_of(partition: str, group: int) -> str:
    """Return the file id of a file group of a partition."""
    return f"{_FILE_ID_PREFIXES.get(partition, partition)}-{group:04d}-0"


def base_name(base: str, file_id: str = FILES_ID) -> str:
    """Return the name of the base file of the slice `base`."""
    return f"{file_id}_{ATTEMPT}_{base}.hfile"


def log_name(form: TableFormat, base: str, delta: Delta, file_id: str = FILES_ID) -> str:
    """Return the name of a log file of the slice `base`."""
    return form.log_file_name(file_id, base, delta.instant, delta.version, ATTEMPT)


def first_log_name(form: TableFormat, base: str, file_id: str = FILES_ID) -> str:
    """Return the name of the log file that begins the slice `base`."""
    return log_name(form, base, Delta(base, FIRST_LOG_VERSION), file_id)


def folder_of(partition: str) -> str:
    """Return the folder of a partition of the metadata table."""
    return f"{METADATA_FOLDER}/{partition}"


def file_path(name: str, partition: str = FILES) -> str:
    """Return the path of a file of a partition of the metadata table."""
    return f"{folder_of(partition)}/{name}"


def timeline_folder(form: TableFormat) -> str:
    """Return the folder of the timeline of the metadata table."""
    return f"{METADATA_FOLDER}/{form.timeline_folder}"


def timeline_path(form: TableFormat, instant: Instant, completion: str = "") -> str:
    """Return the path of a timeline file of the metadata table. `completion`: its completion time, if names have it."""
    return f"{METADATA_FOLDER}/{form.timeline_path(instant, completion)}"


def instant_of(form: TableFormat, path: str) -> Instant | None:
    """Return the instant of a path in the folder of the metadata table's timeline, None for other files."""
    parsed = form.parse_timeline_file_name(path.rpartition("/")[2])
    return None if parsed is None else parsed[0]


_KEYS = {p.KEYGEN_CLASS: "org.apache.hudi.metadata.HoodieTableMetadataKeyGenerator"}
_MERGED_BY_PAYLOAD = {
    p.KEYGEN_TYPE: "HOODIE_TABLE_METADATA",
    p.MERGE_MODE: "CUSTOM",
    p.MERGE_STRATEGY: "00000000-0000-0000-0000-000000000000",
}
"""With a merge mode, the payload class counts only if mode and strategy say so."""


def metadata_properties(form: TableFormat, table: Mapping[str, str]) -> dict[str, str]:
    """Return `hoodie.properties` of the metadata table of a table with the properties `table`."""
    properties = {
        p.NAME: f"{table[p.NAME]}_metadata",
        p.TYPE: "MERGE_ON_READ",
        **form.version_properties(),
        p.KEY_FIELDS: "key",
        p.BASE_FORMAT: "HFILE",
        p.PAYLOAD_CLASS: "org.apache.hudi.metadata.HoodieMetadataPayload",
        **(_MERGED_BY_PAYLOAD if form.has_merge_modes else _KEYS),
        p.POPULATE_META_FIELDS: "false",
        p.DROP_PARTITION_COLUMNS: "false",
    }
    return {**properties, p.CHECKSUM: p.checksum(properties)}
