"""Compare the partition `column_stats` of a shared table's metadata table with the footers of the base files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import ThreadPoolExecutor
from decimal import MAX_PREC, Context, Decimal
from typing import Any

import pyarrow as pa

from tideline_table.errors import MALFORMED, CorruptMetadata, ObjectNotFound
from tideline_table.log.metadata import COLUMN_STATS
from tideline_table.log.state import TableState
from tideline_table.metadata_table.column_records import decode_column_stats, has_records_of, statistics_datum
from tideline_table.metadata_table.column_stats import record_key
from tideline_table.metadata_table.finding import Finding, FindingKind
from tideline_table.metadata_table.index_definitions import read_indexed_columns
from tideline_table.metadata_table.records import record_schema_json
from tideline_table.metadata_table.stored import StoredMetadata
from tideline_table.metadata_table.stored_partition import StoredPartition
from tideline_table.reader.base_file import FooterRange, read_column_ranges, read_statistics
from tideline_table.statistics import ColumnStatistics, FileStatistics, stored_value
from tideline_table.storage import Storage

_FOOTERS_AT_ONCE = 16


def statistics_findings(
    storage: Storage, state: TableState, properties: Mapping[str, str], stored: StoredMetadata, valid: AbstractSet[str]
) -> Iterator[Finding]:
    """Yield files that readers would leave out although they have rows that match, and files of Tideline without records.

    `valid` are the instants whose log blocks count. Reads the footers of all base files. Records of files that are gone are left
    alone: readers ignore them. Raises `CorruptMetadata`, `ObjectNotFound` if the partition cannot be read.
    """
    columns = read_indexed_columns(storage, stored.form, properties)
    held = _records(storage, stored.partition(storage, COLUMN_STATS), valid)
    paths = sorted(s.path for s in state.every_slice() if s.base_file)

    def compared(path: str) -> list[Finding]:
        found = {name: held[key] for name in columns if (key := record_key(name, path).encode()) in held}
        try:
            return [*_compared(storage, path, columns, found)]
        except (ObjectNotFound, CorruptMetadata):
            return []  # a data file that is gone or damaged: its statistics are not the problem

    with ThreadPoolExecutor(_FOOTERS_AT_ONCE) as pool:
        for findings in pool.map(compared, paths):
            yield from findings


def _records(storage: Storage, statistics: StoredPartition, valid: AbstractSet[str]) -> dict[bytes, list[dict[str, Any]]]:
    """Return the records by key. Readers merge several records of a key, unless one was deleted in between."""
    held: dict[bytes, list[dict[str, Any]]] = {}
    for group in statistics.groups:
        for content in group.contents(storage, valid):
            for key in content.deletes:
                held.pop(key, None)
            for key, record in _decoded(content.updates, content.schema_json, content.path).items():
                if record["isDeleted"]:
                    held.pop(key, None)
                else:
                    held.setdefault(key, []).append(record)
    return held


def _decoded(updates: Sequence[tuple[bytes, bytes]], schema_json: str, path: str) -> dict[bytes, dict[str, Any]]:
    try:
        return {key.encode(): record for key, record in decode_column_stats(updates, schema_json).items()}
    except Exception as error:  # noqa: BLE001 - fastavro raises many kinds on arbitrary bytes
        raise CorruptMetadata(
            f"{path} with records that cannot be read ({type(error).__name__}: {error})", expected="column statistics"
        ) from None


def _compared(
    storage: Storage, path: str, columns: Sequence[str], found: Mapping[str, Sequence[Mapping[str, Any]]]
) -> Iterator[Finding]:
    if not found:
        known = read_statistics(storage, path, columns)
        if known is not None and known.rows and all(has_records_of(known, name) for name in columns):
            yield Finding(FindingKind.NOT_LISTED, path, f"no record in {COLUMN_STATS}")
        return
    for name, footer in read_column_ranges(storage, path, columns).items():
        if name not in found:
            yield Finding(
                FindingKind.WRONG_RECORD,
                path,
                f"{COLUMN_STATS} has no record of {name}, but of other columns: readers take {name} for a column of nulls only",
            )
        elif why := _why_wrong(path, name, footer, found[name]):
            yield Finding(FindingKind.WRONG_RECORD, path, f"{COLUMN_STATS} says that {name} {why}")


def _why_wrong(path: str, name: str, footer: FooterRange, records: Sequence[Mapping[str, Any]]) -> str:
    """Return what the records exclude although the footer shows it; empty for nothing."""
    wanted = _as_record(path, name, footer)
    if wanted is None:
        return ""
    nulls, values = (sum(record[key] or 0 for record in records) for key in ("nullCount", "valueCount"))
    if footer.nulls > 0 and not nulls:
        return f"has no nulls, its footer {footer.nulls}"
    if nulls >= values:
        return "has nulls only"
    ends = [[_value(record, end) for record in records if record[end] is not None] for end in ("minValue", "maxValue")]
    low, high = wanted["minValue"]["value"], wanted["maxValue"]["value"]
    if not ends[0] or min(ends[0]) > low or max(ends[1]) < high:
        shown = f"{min(ends[0])!r} to {max(ends[1])!r}" if ends[0] else "none"
        return f"has values from {shown}, its footer from {low!r} to {high!r}"
    return ""


def _value(record: Mapping[str, Any], end: str) -> Any:
    """Return a bound as records of version 1 have it: in version 2 a decimal number is without its point."""
    value, named = record[end]["value"], record.get("valueType")
    if named is None or not isinstance(value, bytes) or not named["additionalInfo"]:
        return value
    scale = int(named["additionalInfo"].rpartition(",")[2])
    return Decimal(int.from_bytes(value, "big", signed=True)).scaleb(-scale, Context(prec=MAX_PREC))


def _as_record(path: str, name: str, footer: FooterRange) -> dict[str, Any] | None:
    """Return the footer's range as a record, so that both compare; None if a record cannot hold its type."""
    try:
        low, high = (stored_value(pa.scalar(value, footer.kind)) for value in (footer.minimum, footer.maximum))
        held = FileStatistics(1, {name: ColumnStatistics(str(footer.kind), low, high, 0)})
        if not has_records_of(held, name):
            return None
        datum = statistics_datum(path.rpartition("/")[2], name, held)
        return decode_column_stats([(b"", datum)], record_schema_json(with_meta_fields=True))[""]
    except (*MALFORMED, pa.ArrowException):  # statistics that the stored type cannot hold
        return None
