"""Create, drop and repair the metadata table of an exclusive table (format reference 15.7, 15.8).

One entry of the table log creates it, and one drops it. The partition `files` needs no reading of data: it lists what the log lists as
of that entry. So there is nothing to catch up with, no writer waits, and no crash leaves half of it.
"""

from __future__ import annotations

from collections.abc import Sequence

from tideline_table.config import METADATA_COMPACTION_DELTA_COMMITS
from tideline_table.errors import IndexExists, IndexNotFound, InvalidOption, UnsupportedTable
from tideline_table.hudi import properties as p
from tideline_table.hudi.instant import Action, State
from tideline_table.hudi.properties import METADATA_FOLDER, change_properties, read_properties
from tideline_table.log.body import Bare, Indexed
from tideline_table.log.metadata import FILES, MetadataTable
from tideline_table.log.state import TableState
from tideline_table.log.table_log import HEAL_DEADLINE_S, Draft
from tideline_table.metadata_table import Finding, check_metadata
from tideline_table.metadata_table.column_stats import COLUMN_STATS, COLUMN_STATS_GROUPS
from tideline_table.table.facade import Table

OPERATION = "INDEX"
INDEX_TYPES = (FILES, COLUMN_STATS)
"""Partitions of the metadata table that Tideline writes."""
_NOT_WRITTEN = ("bloom_filters", "record_index", "partition_stats", "secondary_index", "expr_index")


def create_index(table: Table, partitions: Sequence[str] = (FILES,)) -> MetadataTable:
    """Create the metadata table of an exclusive table, beside its writers. Return it.

    Raises `IndexExists` if there is one, `InvalidOption` for partitions that Tideline does not write, `UnsupportedTable` for a table
    that Apache Hudi also writes.
    """
    wanted = _checked(partitions)
    _check_exclusive(table)
    table.check_writable(keyed=False)
    _check_absent(table.state)
    _clear(table)

    def decide(state: TableState) -> Draft:
        _check_absent(state)
        return _creation(table, state, wanted)

    table.timeline.append(decide)
    return known_index(table.state)


def drop_index(table: Table) -> MetadataTable:
    """Delete the metadata table; readers list folders again. Return what it was. Raises `IndexNotFound` if there is none."""
    _check_exclusive(table)
    table.check_writable(keyed=False)
    dropped = known_index(table.state)
    # Before the entry: after it, another process may create a metadata table here.
    _clear(table)

    def decide(state: TableState) -> Draft:
        created = known_index(state).files.created
        return Draft(created, Action.INDEXING, State.COMPLETED, State.ROLLED_BACK, OPERATION, Bare())

    table.timeline.append(decide)
    return dropped


def check_index(table: Table) -> list[Finding]:
    """Return the differences between metadata table, table log and storage. Raises `UnsupportedTable` for a table without a log.

    If the writer of the last entry died, its missing files are created first, as the next writer would. While it is alive, they may
    be reported as missing: repeat the check.
    """
    _check_exclusive(table)
    table.timeline.heal(HEAL_DEADLINE_S)
    table.refresh()
    return check_metadata(table.storage, table.state)


def repair_index(table: Table) -> MetadataTable | None:
    """Delete the metadata table and create it anew from the table log. Return it, None if the table has none.

    Readers list folders until it is there. One that only the properties name is removed from them.
    """
    _check_exclusive(table)
    table.check_writable(keyed=False)
    known = table.state.metadata
    _clear(table)
    if known is None:
        return None

    def decide(state: TableState) -> Draft:
        return _creation(table, state, known_index(state).names)

    table.timeline.append(decide)
    return known_index(table.state)


def known_index(state: TableState) -> MetadataTable:
    """Return the metadata table. Raises `IndexNotFound` if there is none."""
    if state.metadata is None:
        raise IndexNotFound(
            "a table without a metadata table", expected="one", remedy="create it: tideline index create PATH --type files"
        )
    return state.metadata


def _creation(table: Table, state: TableState, partitions: Sequence[str]) -> Draft:
    newest = max((a.instant for a in state.completed_writes()), default="")
    groups = {COLUMN_STATS: COLUMN_STATS_GROUPS} if COLUMN_STATS in partitions else {}
    body = Indexed(tuple(partitions), table.options[METADATA_COMPACTION_DELTA_COMMITS], newest, groups)
    return Draft(table.timeline.mint(state), Action.INDEXING, State.NONE, State.COMPLETED, OPERATION, body)


def _clear(table: Table) -> None:
    """Remove the partitions from the properties, so that no reader looks for them, then delete the folder."""
    properties = read_properties(table.storage)
    advertised = (p.METADATA_PARTITIONS, p.METADATA_PARTITIONS_INFLIGHT)
    if any(properties.get(key) for key in advertised):
        change_properties(table.storage, {**properties, **dict.fromkeys(advertised, "")})
    table.storage.delete_below(METADATA_FOLDER)


def _check_absent(state: TableState) -> None:
    if state.metadata is not None:
        raise IndexExists(
            f"a table with a metadata table ({', '.join(state.metadata.names)})",
            expected="none",
            remedy="drop it first: tideline index drop PATH, or mend it: tideline check PATH --repair",
        )


def _checked(partitions: Sequence[str]) -> tuple[str, ...]:
    unknown = [name for name in partitions if name not in INDEX_TYPES]
    if unknown or not partitions:
        planned = unknown and unknown[0] in _NOT_WRITTEN
        raise InvalidOption(
            f"index type {unknown[0] if unknown else ''!r}{', which Tideline does not write yet' if planned else ''}",
            expected=", ".join(INDEX_TYPES),
        )
    return tuple(dict.fromkeys(partitions))


def _check_exclusive(table: Table) -> None:
    if not table.has_log or table.is_shared:
        raise UnsupportedTable(
            f"table {table.definition.name!r}, which Apache Hudi also writes",
            expected="a table that only Tideline writes: its metadata table follows the table log",
            remedy="" if table.is_shared else "let Apache Hudi's writers keep the metadata table (hoodie.metadata.enable)",
        )
