"""The file in which Apache Hudi 1.x names the columns of the partition `column_stats` (format reference 15.7)."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence

from tideline_table.errors import MALFORMED, CorruptMetadata, ObjectNotFound
from tideline_table.hudi import properties as p
from tideline_table.hudi.format import TableFormat
from tideline_table.log.metadata import COLUMN_STATS
from tideline_table.metadata_table.layout import INDEX_DEFINITIONS_PATH
from tideline_table.storage import Storage


def index_definitions(form: TableFormat, columns: Sequence[str]) -> bytes:
    """Return the content of the file for these columns."""
    definition: dict[str, object] = {
        **dict.fromkeys(("indexName", "indexType", "indexFunction"), COLUMN_STATS),
        "sourceFields": list(columns),
        "indexOptions": {},
        "version": _version(form),
    }
    return json.dumps({"indexDefinitions": {COLUMN_STATS: definition}}, indent=2).encode()


def _version(form: TableFormat) -> str:
    return "V2" if form.has_typed_statistics else "V1"


def read_indexed_columns(storage: Storage, form: TableFormat, properties: Mapping[str, str]) -> tuple[str, ...]:
    """Return the columns that the newest writer of Apache Hudi named, in its order: its readers use statistics of no others.

    Raises `CorruptMetadata` for a definition without columns or of another version than the format writes, `ObjectNotFound` without
    the file.
    """
    path = properties.get(p.INDEX_DEFINITIONS) or INDEX_DEFINITIONS_PATH
    try:
        found = json.loads(storage.read(path))["indexDefinitions"][COLUMN_STATS]
        columns = tuple(str(name) for name in found["sourceFields"])
        if not columns or found.get("version", "V1") != _version(form):
            raise ValueError(f"version {found.get('version')}, columns {', '.join(columns)}")
    except MALFORMED as error:
        raise CorruptMetadata(
            f"{path} without a definition of column statistics that is understood ({type(error).__name__}: {error})",
            expected=f"columns of statistics in version {_version(form)}",
        ) from None
    return columns


def forget_definitions(storage: Storage, properties: Mapping[str, str], names: Collection[str] | None = None) -> None:
    """Remove the definitions of dropped partitions (None: of all), with which Apache Hudi's next writer would make them again.

    Leaves a file that is not understood as it is. The caller holds the lock.
    """
    path = properties.get(p.INDEX_DEFINITIONS) or INDEX_DEFINITIONS_PATH
    try:
        document = json.loads(storage.read(path))
        left = {name: found for name, found in document["indexDefinitions"].items() if names is not None and name not in names}
    except (*MALFORMED, ObjectNotFound):
        return
    if left != document["indexDefinitions"]:
        storage.put(path, json.dumps({**document, "indexDefinitions": left}, indent=2).encode())
