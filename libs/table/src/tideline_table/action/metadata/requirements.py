"""What a table must be for a partition of its metadata table, and how many file groups the partition gets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from tideline_table.config import BLOOM_FILTERS as WRITTEN_FILTERS
from tideline_table.config import RECORD_INDEX_MAX_FILE_GROUPS, RECORD_INDEX_MIN_FILE_GROUPS
from tideline_table.errors import DuplicateKey, InvalidOption, ObjectNotFound, UnsupportedTable, WriteConflict
from tideline_table.hudi.file_names import parse_base_file_name, parse_log_file_name
from tideline_table.index.scope import RECORD_INDEX as RECORD_INDEX_TYPE
from tideline_table.index.scope import KeyScope
from tideline_table.log.metadata import BLOOM_FILTERS, COLUMN_STATS, RECORD_INDEX
from tideline_table.log.state import TableState
from tideline_table.metadata_table.bloom_filters import BLOOM_FILTERS_GROUPS
from tideline_table.metadata_table.column_records import is_indexed
from tideline_table.metadata_table.column_stats import COLUMN_STATS_GROUPS
from tideline_table.metadata_table.partition import Source
from tideline_table.metadata_table.record_index import KeysOnce
from tideline_table.schema.arrow import named_field
from tideline_table.schema.meta_fields import with_meta_fields
from tideline_table.table.facade import Table
from tideline_table.writer import check_indexed_keys
from tideline_table.writer.base_file import META_COLUMNS, statistics_columns

Result = TypeVar("Result")
_TURNS = 10
"""How often the data files of a table are read again because they were cleaned meanwhile."""
_SHARED = (
    "let Apache Hudi's writers make it (tideline.shared.metadata=files); without that option Tideline's next step turns it off"
)
_FILE_GROUPS = {COLUMN_STATS: COLUMN_STATS_GROUPS, BLOOM_FILTERS: BLOOM_FILTERS_GROUPS}
_GROWTH = 2.0
_GROUP_BYTES, _RECORD_BYTES = 1024**3, 48
"""Size of a file group of the record index, and of a record in it, by which Apache Hudi computes their number (format reference
15.7)."""


def file_groups_of(table: Table, state: TableState, name: str) -> int:
    """Return the number of file groups of a new partition."""
    if name in _FILE_GROUPS:
        return _FILE_GROUPS[name]
    if name != RECORD_INDEX:
        return 1
    rows = sum(max(found.rows, 0) for found in state.each_latest())
    wanted = -(-int(rows * _GROWTH) // (_GROUP_BYTES // _RECORD_BYTES))
    return min(max(wanted, table.options[RECORD_INDEX_MIN_FILE_GROUPS]), table.options[RECORD_INDEX_MAX_FILE_GROUPS])


def indexed_columns(table: Table, wanted: Sequence[str]) -> tuple[str, ...]:
    """Return the columns of a new partition of column statistics: the wanted ones (none: all) and meta fields with statistics.

    Raises `InvalidOption` for a column that writers with the options of `table` record no statistics of.
    """
    schema = with_meta_fields(table.schema)
    recorded = [name for name in statistics_columns(schema, table.options) if is_indexed(named_field(schema, name).type)]
    unknown = [name for name in wanted if name not in recorded]
    if unknown or not recorded:
        raise InvalidOption(
            f"column statistics of {unknown[0]!r}" if unknown else "column statistics, which the options of writers switch off",
            expected=f"one of {', '.join(recorded)}" if recorded else "tideline.column.stats.enable",
            remedy="name the column in hoodie.metadata.index.column.stats.column.list of all writers, a field of a struct by "
            "its dotted path",
        )
    return tuple(name for name in recorded if not wanted or name in wanted or name in META_COLUMNS)


def check_can_hold(table: Table, name: str) -> None:
    """Raise `UnsupportedTable` if the table cannot have the partition, `InvalidOption` where options of writers forbid it."""
    if name == BLOOM_FILTERS and not table.options[WRITTEN_FILTERS]:
        raise InvalidOption(
            "Bloom filters, which the options of writers switch off",
            expected=f"{WRITTEN_FILTERS.key}=true",
            remedy="let all writers of the table add Bloom filters to base files",
        )
    if name != RECORD_INDEX:
        return
    kept = table.definition.kept_index
    is_partitioned = bool(kept) and KeyScope.of(table.options.merged({"hoodie.index.type": kept})) is KeyScope.PARTITION
    if table.definition.buckets is not None or is_partitioned:
        raise UnsupportedTable(
            f"a record index of table {table.definition.name!r}, whose index {kept or 'BUCKET'} has a key once in each partition",
            expected=f"a table that keeps no index, or {RECORD_INDEX_TYPE} or GLOBAL_BLOOM",
        )
    if not table.definition.has_meta_fields:
        raise UnsupportedTable(
            f"a record index of table {table.definition.name!r}, which has no meta fields", expected="record keys in its files"
        )


def key_check(table: Table, name: str) -> Callable[[TableState], None]:
    """Return a check that a record index can hold the keys of a state: none is in two places, or too long.

    It raises `DuplicateKey` and `InvalidRecord`.

    It reads the keys of a state only once, and after a completed write those of the file slices that changed.
    """
    checked, keys = list[int](), KeysOnce(check_indexed_keys)

    def check(state: TableState) -> None:
        if name != RECORD_INDEX:
            return
        newest = max((a.sequence for a in state.completed_writes()), default=0)
        if checked == [newest]:
            return
        slices, source = state.latest_slices(), Source(table.storage, table.timeline.format, state, table.timeline.rule)
        key = keys.repeated(source, slices)
        if key is not None:
            raise DuplicateKey(
                f"key {key!r} in two file groups of table {table.definition.name!r}",
                expected="keys that are unique in the whole table: a record index has one place for each",
                remedy="delete one of the rows, or use an index by partition",
            )
        checked[:] = [newest]

    return check


def beside_cleans(table: Table, step: Callable[[], Result]) -> Result:
    """Return what `step` returns, which refreshes the table and reads its visible data files.

    Repeats it if other processes replaced and cleaned such files meanwhile, and raises `WriteConflict` if they do so again and
    again. Raises `ObjectNotFound` for a file that no clean deleted.
    """
    for turn in range(1, _TURNS + 1):
        try:
            return step()
        except ObjectNotFound as error:
            if not _was_cleaned(table, error.path):
                raise
            if turn == _TURNS:
                raise WriteConflict(
                    f"data files were replaced and cleaned while they were read, {_TURNS} times, the last one {error.path}",
                    with_instant="",
                    remedy="run it again while fewer writers and cleans are at work",
                ) from error
    raise AssertionError("the last turn returns or raises")


def _was_cleaned(table: Table, path: str) -> bool:
    """Return whether a missing object is a data file that the table does not show any more. Refreshes the table."""
    name = path.rpartition("/")[2]
    is_data = parse_base_file_name(name) is not None or parse_log_file_name(name) is not None
    return is_data and not any(path in found.paths for found in table.refresh().latest_slices())


def check_exclusive(table: Table) -> None:
    """Raise `UnsupportedTable` for a table that Apache Hudi writes, alone or too."""
    if not table.capabilities.log_is_truth:
        raise UnsupportedTable(
            f"table {table.definition.name!r}, which Apache Hudi also writes",
            expected="a table that only Tideline writes: its metadata table follows the table log",
            remedy=_SHARED
            if table.capabilities.keeps_log
            else "let Apache Hudi's writers keep the metadata table (hoodie.metadata.enable)",
        )
