"""Statistics of the data files of a table that Apache Hudi writes, from the partition `column_stats` of its metadata table.

A record is believed only for the file that it names, so neither a stale nor a foreign record can say anything of another file; and
only as far as Hudi's statistics are true for all of its writers (docs/design/data-skipping.md). Everything else is not known, and
its files are read. The union in `partition_stats` does not say which files it covers, so it is not used. Format reference of
versions 8 and 9: 8.3, 8.4.
"""

from __future__ import annotations

import io
import logging
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa

from tideline_table.errors import MALFORMED, CorruptMetadata, TidelineError
from tideline_table.hudi.file_names import is_log_path, parse_base_file_name, parse_log_file_name
from tideline_table.hudi.format import TableFormat
from tideline_table.hudi.instant import State
from tideline_table.hudi.listing import timeline_listing
from tideline_table.hudi.properties import METADATA_PARTITIONS, read_properties
from tideline_table.log.metadata import COLUMN_STATS, INSTANT_DIGITS
from tideline_table.log.state import TableState
from tideline_table.metadata_table.column_records import DECIMAL, FILE_TYPE
from tideline_table.metadata_table.column_stats import record_key
from tideline_table.metadata_table.hudi_slices import Change, changes_of, newest_slices
from tideline_table.metadata_table.layout import timeline_folder
from tideline_table.metadata_table.records import parsed_schema
from tideline_table.schema.meta_fields import META_FIELDS, MetaField
from tideline_table.statistics import ColumnStatistics, FileStatistics, PartitionBounds, Stored, array_of, type_of
from tideline_table.storage import Storage

_LOGGER = logging.getLogger(__name__)
_FIRST_UNEQUAL = "\ud800"
"""From this character on, Java orders texts otherwise than by code points, because it compares their UTF-16 units."""
_KINDS = {
    2: "bool",
    3: "int32",
    4: "int64",
    7: "string",
    12: "date32[day]",
    15: "timestamp[ms, tz=UTC]",
    16: "timestamp[us, tz=UTC]",
    17: "timestamp[ns, tz=UTC]",
    18: "timestamp[ms]",
    19: "timestamp[us]",
    20: "timestamp[ns]",
}
"""Types by their ordinals in version 2 of the records. Not floats, for with a NaN in a file Hudi says 0 and 0; nor bytes: Java
compares them as signed numbers."""
_PLAIN = {"BooleanWrapper": "bool", "IntWrapper": "int32", "LongWrapper": "int64", "StringWrapper": "string"}
"""Types by the wrappers of version 1. Dates go through the zone of the JVM there, and decimals lose their scale."""


class HudiStatistics:
    """The statistics of the files of one open table, read when a query first needs them. Thread-safe."""

    def __init__(self, storage: Storage, form: TableFormat) -> None:
        self._storage, self._form = storage, form
        self._mutex = threading.Lock()
        self._state: TableState | None = None
        self._known: dict[tuple[str, str], ColumnStatistics | None] = {}

    def of(self, paths: Sequence[str], columns: Iterable[str], state: TableState) -> list[FileStatistics | None]:
        """Return what is known of these columns of the files at `paths`, of the table in `state`.

        With a warning, nothing is known if the metadata table cannot be read.
        """
        # A column has another name in older files once Hudi has renamed it, and its old name may be that of another column.
        names = [name for name in columns if _may_be_known(name)] if not state.identified_schemas else []
        if not names:
            return [None] * len(paths)
        # In layout 1 a writer may append to a log file, which a record of an earlier commit does not cover.
        every, paths = paths, [path for path in paths if self._form.has_completion_times or not is_log_path(path)]
        with self._mutex:
            try:
                if self._state is not state:
                    self._known, self._state = {}, state
                missing = {(path, name) for path in paths for name in names} - self._known.keys()
                if missing:
                    self._known |= self._found(missing, state)
            except (TidelineError, pa.ArrowException) as error:
                _LOGGER.warning("column statistics of Apache Hudi cannot be read (%s); more data files are read instead", error)
                return [None] * len(every)
            return [_of_file({name: self._known.get((path, name)) for name in names}) for path in every]

    def of_partitions(
        self, partitions: Sequence[str], columns: Iterable[str], state: TableState, sequence: int
    ) -> PartitionBounds | None:
        """Return None: a union of files does not say which files it covers."""
        del partitions, columns, state, sequence
        return None

    def _found(self, wanted: AbstractSet[tuple[str, str]], state: TableState) -> dict[tuple[str, str], ColumnStatistics | None]:
        by_key = {record_key(name, path).encode(): (path, name) for path, name in wanted}
        records: dict[bytes, _Records] = {}
        for change in self._changes(sorted(by_key), state):
            for key in change.deletes:
                records.pop(key, None)
            for key, datum in change.updates:
                if (record := _decoded(datum, change))["isDeleted"]:
                    records.pop(key, None)
                    continue
                is_older = change.instant and change.instant < _instant_of(by_key[key][0])
                records.setdefault(key, _Records()).held.append(None if is_older else _statistics(record, *by_key[key]))
        return dict.fromkeys(wanted) | {by_key[key]: found.together() for key, found in records.items()}

    def _changes(self, keys: Sequence[bytes], state: TableState) -> Iterator[Change]:
        """Yield the records of `keys` (ascending) in the newest slices, and deletions, those of a group the oldest first."""
        if COLUMN_STATS not in read_properties(self._storage).get(METADATA_PARTITIONS, "").split(","):
            return
        listed = self._storage.list_folder(timeline_folder(self._form)).objects
        timeline = timeline_listing(self._form, (found.path for found in listed))
        done = timeline.completion or {i.time: i.time for i in timeline.instants if i.state is State.COMPLETED}
        if not done:
            raise CorruptMetadata("a metadata table without completed instants", expected="the one that made it")
        pending = {action.instant for action in state.actions.values() if action.state is not State.COMPLETED}
        valid, rolls_back = done.keys() - pending, not self._form.has_completion_times
        for slice_ in newest_slices(self._storage, self._form, done, COLUMN_STATS).values():
            yield from changes_of(self._storage, slice_, keys, valid, rolls_back=rolls_back)


@dataclass(slots=True)
class _Records:
    """The records of one column of one file since the last deletion."""

    held: list[ColumnStatistics | None] = field(default_factory=list)

    def together(self) -> ColumnStatistics | None:
        """Return the statistics if all records are understood and of one type: readers of Hudi merge several."""
        whole: ColumnStatistics | None = None
        for found in self.held:
            if found is None or (whole is not None and whole.kind != found.kind):
                return None
            whole = found if whole is None else whole.union(found)
        return whole


def _may_be_known(name: str) -> bool:
    return "." not in name and (name not in META_FIELDS or name == MetaField.RECORD_KEY)


def _of_file(columns: Mapping[str, ColumnStatistics | None]) -> FileStatistics | None:
    known = {name: found for name, found in columns.items() if found is not None}
    return FileStatistics(1, known) if known else None


def _instant_of(path: str) -> str:
    """Return the instant of the write of a file; one after all others for a name that is none of Hudi's."""
    name = path.rpartition("/")[2]
    parsed = parse_base_file_name(name) or parse_log_file_name(name)
    return "9" * INSTANT_DIGITS if parsed is None else parsed.instant


def _decoded(datum: bytes, change: Change) -> Mapping[str, Any]:
    try:
        schema = parsed_schema(change.schema_json)
        record: Any = fastavro.schemaless_reader(io.BytesIO(datum), schema, None, return_record_name=True)
        return {"type": record["type"], **_named(record["ColumnStatsMetadata"])[1]}
    except Exception as error:  # noqa: BLE001 - fastavro raises many kinds on arbitrary bytes
        raise CorruptMetadata(
            f"{change.path} with records that cannot be read ({type(error).__name__}: {error})", expected="column statistics"
        ) from None


def _named(value: Any) -> tuple[str, Mapping[str, Any]]:
    """Return the short name of a record in a union, and its fields."""
    name, fields = value
    return str(name).rpartition(".")[2], fields


def _statistics(record: Mapping[str, Any], path: str, column: str) -> ColumnStatistics | None:
    """Return what a record says of a column of the file at `path`; None if it is not understood, or not to be believed."""
    names = (record["type"], record["fileName"], record["columnName"])
    if names != (FILE_TYPE, path.rpartition("/")[2], column):
        return None
    values, nulls = record["valueCount"], record["nullCount"]
    if values is None or nulls is None or not 0 <= nulls < values:
        return None  # of a column of nulls only, Hudi says the same as of one whose footer has no statistics
    try:
        found = _bounds(record)
    except (*MALFORMED, pa.ArrowException):
        return None
    if found is None:
        return None
    kind, low, high = found
    if kind == "string" and (nulls or any(char >= _FIRST_UNEQUAL for end in (low, high) for char in str(end))):
        # A footer has no statistics of texts of more than 4,096 bytes, which Hudi counts as nulls.
        return None
    return ColumnStatistics(kind, low, high, nulls)


def _bounds(record: Mapping[str, Any]) -> tuple[str, Stored, Stored] | None:
    ends = record["minValue"], record["maxValue"]
    if None in ends:
        return None
    (name, low), (other, high) = ((wrapper, fields["value"]) for wrapper, fields in map(_named, ends))
    if name != other:
        return None
    if record.get("valueType") is None:
        kind = _PLAIN.get(name, "")
    else:
        _, typed = _named(record["valueType"])
        if typed["typeOrdinal"] == DECIMAL:
            precision, scale = map(int, str(typed["additionalInfo"]).split(","))
            low, high = (Decimal(int.from_bytes(end, "big", signed=True)).scaleb(-scale) for end in (low, high))
            kind = str(pa.decimal128(precision, scale))
        else:
            kind = _KINDS.get(typed["typeOrdinal"], "")
    if not kind or low > high:
        return None
    array_of([low, high], type_of(kind))  # values of another type
    return kind, low, high
