"""`hoodie.properties`: the settings of a table (format reference 2)."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Mapping

from tideline_table.errors import CorruptMetadata, ObjectNotFound, StorageError
from tideline_table.storage import Storage, holds

PROPERTIES_FOLDER = ".hoodie"
PROPERTIES_PATH = f"{PROPERTIES_FOLDER}/hoodie.properties"
BACKUP_PATH = ".hoodie/hoodie.properties.backup"
METADATA_FOLDER = ".hoodie/metadata"
"""The folder of the metadata table."""
_MAX_BYTES = 16 * 1024 * 1024
_TURNS = 20
"""How often a change begins again because another process changed the properties meanwhile."""

NAME = "hoodie.table.name"
DATABASE = "hoodie.database.name"
TYPE = "hoodie.table.type"
VERSION = "hoodie.table.version"
LAYOUT = "hoodie.timeline.layout.version"
INITIAL_VERSION = "hoodie.table.initial.version"
"""The version that the table was created with; those of version 6 that Tideline creates lack it."""
KEY_FIELDS = "hoodie.table.recordkey.fields"
PARTITION_FIELDS = "hoodie.table.partition.fields"
PRECOMBINE_FIELD = "hoodie.table.precombine.field"
ORDERING_FIELDS = "hoodie.table.ordering.fields"
KEYGEN_CLASS = "hoodie.table.keygenerator.class"
KEYGEN_TYPE = "hoodie.table.keygenerator.type"
BASE_FORMAT = "hoodie.table.base.file.format"
BASE_FORMATS = ("PARQUET", "ORC")
"""The formats of base files that can be read and written."""
PAYLOAD_CLASS = "hoodie.compaction.payload.class"
DEFAULT_PAYLOAD = "org.apache.hudi.common.model.DefaultHoodieRecordPayload"
OVERWRITE_PAYLOAD = "org.apache.hudi.common.model.OverwriteWithLatestAvroPayload"
MERGE_STRATEGY = "hoodie.record.merge.strategy.id"
OLD_MERGE_STRATEGY = "hoodie.compaction.record.merger.strategy"
MERGE_MODE = "hoodie.record.merge.mode"
MERGER = "tideline.merger"
MERGE_PROPERTY_PREFIX = "hoodie.record.merge.property."
UNAVAILABLE_VALUE = MERGE_PROPERTY_PREFIX + "hoodie.write.partial.update.unavailable.value"
DELETE_FIELD = MERGE_PROPERTY_PREFIX + "hoodie.payload.delete.field"
DELETE_MARKER = MERGE_PROPERTY_PREFIX + "hoodie.payload.delete.marker"
PARTIAL_UPDATE_MODE = "hoodie.table.partial.update.mode"
LEGACY_PAYLOAD_CLASS = "hoodie.table.legacy.payload.class"
ARCHIVE_FOLDER = "hoodie.archivelog.folder"
TIMELINE_PATH = "hoodie.timeline.path"
HISTORY_PATH = "hoodie.timeline.history.path"
CHANGES = "hoodie.table.cdc.enabled"
CHANGES_MODE = "hoodie.table.cdc.supplemental.logging.mode"
CHANGES_MODES = {
    "DATA_BEFORE_AFTER": ("op", "ts_ms", "before", "after"),
    "DATA_BEFORE": ("op", "record_key", "before"),
    "OP_KEY_ONLY": ("op", "record_key"),
}
"""What change files say of each change. The first one is the default."""
TIMEZONE = "hoodie.table.timeline.timezone"
POPULATE_META_FIELDS = "hoodie.populate.meta.fields"
HIVE_STYLE = "hoodie.datasource.write.hive_style_partitioning"
URL_ENCODE = "hoodie.datasource.write.partitionpath.urlencode"
PARTITION_PATH_FIELD = "hoodie.datasource.write.partitionpath.field"
COMPLEX_NEW_ENCODING = "hoodie.write.complex.keygen.new.encoding"
LOGICAL_TIMESTAMPS = "hoodie.datasource.write.keygenerator.consistent.logical.timestamp.enabled"
DROP_PARTITION_COLUMNS = "hoodie.datasource.write.drop.partition.columns"
CREATE_SCHEMA = "hoodie.table.create.schema"
CHECKSUM = "hoodie.table.checksum"
BOOTSTRAP_BASE_PATH = "hoodie.bootstrap.base.path"
TABLE_FORMAT = "hoodie.table.format"
METADATA_PARTITIONS = "hoodie.table.metadata.partitions"
INDEX_DEFINITIONS = "hoodie.table.index.defs.path"
METADATA_PARTITIONS_INFLIGHT = "hoodie.table.metadata.partitions.inflight"

_KEY = re.compile(r"(?:[^\\=: \t\f]|\\(?:.|$))*", re.DOTALL)
"""Matches up to the first separator that is not escaped by a backslash."""
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def checksum(properties: Mapping[str, str]) -> str:
    """Return the CRC-32 of `<database>.<table>` in decimal (2.2)."""
    text = f"{properties.get(DATABASE, '')}.{properties.get(NAME, '')}"
    return str(zlib.crc32(text.encode()))


def parse_properties(content: bytes, path: str = PROPERTIES_PATH) -> dict[str, str]:
    """Parse Java's properties format. Raises `CorruptMetadata` for a wrong checksum, a malformed escape, and more than 16 MiB."""
    if len(content) > _MAX_BYTES:
        raise CorruptMetadata(f"{path} of {len(content)} bytes", expected=f"at most {_MAX_BYTES} bytes")
    properties: dict[str, str] = {}
    for line in _logical_lines(content.decode("iso-8859-1")):
        key, value = _split(line)
        properties[_unescape(key, path)] = _unescape(value, path)
    found = properties.get(CHECKSUM)
    if found is not None and found != checksum(properties):
        raise CorruptMetadata(
            f"{path} with checksum {found}",
            expected=f"{checksum(properties)} for this table name",
            remedy="restore the file from its backup",
        )
    return properties


def format_properties(properties: Mapping[str, str], comment: str) -> bytes:
    """Format the file: one comment line, then `key=value` lines in order of key, the checksum last: half a file has none."""
    lines = [f"#{comment}"]
    ordered = sorted(properties.items(), key=lambda item: (item[0] == CHECKSUM, item[0]))
    lines += [f"{_escape(k, key=True)}={_escape(v, key=False)}" for k, v in ordered]
    return ("\n".join(lines) + "\n").encode("iso-8859-1")


def _logical_lines(text: str) -> list[str]:
    lines: list[str] = []
    pending = ""
    for raw in re.split(r"\r\n|\r|\n", text):
        line = raw.lstrip(" \t\f")
        if not pending and (not line or line[0] in "#!"):
            continue
        tail = len(line) - len(line.rstrip("\\"))
        if tail % 2:
            pending += line[:-1]
            continue
        lines.append(pending + line)
        pending = ""
    if pending:
        lines.append(pending)
    return lines


def _split(line: str) -> tuple[str, str]:
    key = _KEY.match(line)
    at = key.end() if key else 0
    rest = line[at:].lstrip(" \t\f")
    if rest[:1] in ("=", ":"):
        rest = rest[1:].lstrip(" \t\f")
    return line[:at], rest


def _unescape(text: str, path: str) -> str:
    if "\\" not in text:
        return text

    def replace(match: re.Match[str]) -> str:
        code = match.group(1)
        if code == "u":
            raise CorruptMetadata(f"{path} with a malformed \\u escape", expected="\\u and four hexadecimal digits")
        return chr(int(code[1:], 16)) if len(code) == 5 else _ESCAPES.get(code, code)

    joined = re.sub(r"\\(u[0-9a-fA-F]{4}|.)", replace, text, flags=re.DOTALL)
    # Characters beyond the basic plane are written as two UTF-16 surrogates.
    return joined.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _escape(text: str, *, key: bool) -> str:
    out: list[str] = []
    for at, char in enumerate(text):
        if char in "\\=:#!" or (char == " " and (key or at == 0)):
            out.append(f"\\{char}")
        elif char in "\t\n\r\f":
            out.append({"\t": "\\t", "\n": "\\n", "\r": "\\r", "\f": "\\f"}[char])
        elif " " <= char <= "~":
            out.append(char)
        else:
            units = char.encode("utf-16-be")
            out += [f"\\u{units[i]:02X}{units[i + 1]:02X}" for i in range(0, len(units), 2)]
    return "".join(out)


def read_properties(storage: Storage) -> dict[str, str]:
    """Read `hoodie.properties`, or its backup while a writer replaces the file or has died meanwhile (format reference 2.2)."""
    try:
        content = storage.read(PROPERTIES_PATH)
    except ObjectNotFound:
        return _counting(storage, None)[1]
    return _counting(storage, content)[1]


def _counting(storage: Storage, content: bytes | None) -> tuple[bytes, dict[str, str]]:
    """Return the content that counts, and what it says. `content` is that of the file, None if there is none."""
    if content is None:
        content = storage.read(BACKUP_PATH)
        return content, parse_properties(content, BACKUP_PATH)
    try:
        properties = parse_properties(content)
    except CorruptMetadata:
        backup = _whole_backup(storage)
        if backup is None:
            raise
        return backup
    # Old releases of Apache Hudi write no checksum.
    return (CHECKSUM not in properties and _whole_backup(storage)) or (content, properties)


def _whole_backup(storage: Storage) -> tuple[bytes, dict[str, str]] | None:
    try:
        content = storage.read(BACKUP_PATH)
        properties = parse_properties(content, BACKUP_PATH)
    except (ObjectNotFound, CorruptMetadata):
        return None
    return (content, properties) if CHECKSUM in properties else None


def change_properties(storage: Storage, change: Callable[[dict[str, str]], Mapping[str, str]]) -> bool:
    """Replace `hoodie.properties` by what `change` returns for the present ones. Return False if it returned them as they are.

    Of processes that do so at once none undoes the change of another one: `change` is called again with what another process wrote
    meanwhile, so it may have no side effects. By Hudi's protocol (2.2), readers always find the old or the new file, and a
    crash leaves a backup. Raises `StorageError` if other processes were always faster.
    """
    for _ in range(_TURNS):
        content, version = _versioned(storage)
        try:
            counting, found = _counting(storage, content)
        except (ObjectNotFound, CorruptMetadata):
            # Another process may have replaced a missing or broken file, and deleted the backup that was to be read.
            if _versioned(storage)[1] == version:
                raise
            continue
        changed = dict(change(dict(found)))
        if changed == found:
            return False
        written = format_properties(changed, "Updated by Tideline")
        storage.put(BACKUP_PATH, counting)
        # A refused put may be one that succeeded, if its first reply was lost.
        is_done = storage.put_if_version(PROPERTIES_PATH, written, version) or holds(storage, PROPERTIES_PATH, written)
        storage.delete(BACKUP_PATH)
        if is_done:
            return True
    raise StorageError(
        f"{PROPERTIES_PATH} was changed by other processes {_TURNS} times while it was to be changed", remedy="retry"
    )


def _versioned(storage: Storage) -> tuple[bytes | None, str]:
    try:
        return storage.read_versioned(PROPERTIES_PATH)
    except ObjectNotFound:
        return None, ""
