"""Create, drop and repair the metadata table of an exclusive table (format reference 15.7, 15.8).

One entry of the table log creates a partition, and one drops it. A partition holds what the table holds as of its entry: the
process that creates the files of the entry derives them from the table. So there is nothing to catch up with, and no crash
leaves half of it. The partition `files` needs no reading of data; while the record index is made, other writers wait for it or
make it themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from tideline_table.action.metadata.requirements import (
    beside_cleans,
    check_can_hold,
    check_exclusive,
    file_groups_of,
    indexed_columns,
    key_check,
)
from tideline_table.config import METADATA_COMPACTION_DELTA_COMMITS
from tideline_table.errors import InvalidOption, MetadataExists, MetadataNotFound, WriteConflict
from tideline_table.hudi import properties as p
from tideline_table.hudi.instant import Action, State
from tideline_table.hudi.properties import METADATA_FOLDER, change_properties
from tideline_table.log.body import Bare, Indexed
from tideline_table.log.metadata import BLOOM_FILTERS, COLUMN_STATS, FILES, RECORD_INDEX, MetadataPartition, MetadataTable
from tideline_table.log.state import TableState
from tideline_table.log.table_log import Draft
from tideline_table.metadata_table.layout import folder_of
from tideline_table.storage import ObjectStorage, unwrapped
from tideline_table.table.facade import Table
from tideline_table.table.store_probe import probe_versioned_put

OPERATION = "INDEX"
METADATA_TYPES = (FILES, COLUMN_STATS, BLOOM_FILTERS, RECORD_INDEX)
"""Partitions of the metadata table that Tideline writes. The first one is created together with any other."""
_NOT_WRITTEN = ("partition_stats", "secondary_index", "expr_index")


def create_metadata(table: Table, partitions: Sequence[str] = (FILES,), columns: Sequence[str] = ()) -> MetadataTable:
    """Create the metadata table of an exclusive table, or add partitions to it, beside its writers. Return it.

    The partition `files` is created together with any other. `columns` are those with column statistics, by default all that
    writers record. Raises `MetadataExists` if all partitions are there, `InvalidOption` for partitions that Tideline does not
    write or that the options of writers exclude, `UnsupportedTable` for a table that Apache Hudi also writes, or that cannot
    have such a partition: then none is created. Raises it, too, for a table in an object store without conditional puts,
    `DuplicateKey` for a record index of keys that are in two places, and `WriteConflict` if files are always replaced and
    cleaned before their keys are read.
    """
    wanted = _checked(partitions)
    _check_can_make(table)
    present = _names(table.state)
    if present and not set(wanted) - set(present):
        raise _exists(present)
    added = [name for name in (FILES, *(name for name in wanted if name != FILES)) if name not in present]
    indexed = indexed_columns(table, columns) if COLUMN_STATS in added else ()
    for name in added:
        check_can_hold(table, name)
    for name in added:
        _add(table, name, indexed if name == COLUMN_STATS else ())
    return known_metadata(table.state)


def _add(table: Table, name: str, columns: Sequence[str]) -> None:
    check_unchanged = key_check(table, name)
    beside_cleans(table, partial(_on_fresh_state, table, check_unchanged))
    if name in _names(table.refresh()):
        raise _exists(_names(table.state))  # before its folder is cleared: another process has made it meanwhile
    _clear(table, name)

    def decide(state: TableState) -> Draft:
        if name in _names(state):
            raise _exists(_names(state))
        if name != FILES:
            known_metadata(state)
            check_unchanged(state)
        return _creation(table, state, [name], columns)

    beside_cleans(table, lambda: table.timeline.append(decide))


def drop_metadata(table: Table, partitions: Sequence[str] = (FILES,)) -> MetadataTable:
    """Delete partitions of the metadata table; readers use the table log and footers instead. Return what it was.

    Dropping `files` deletes the whole metadata table. Raises `MetadataNotFound`, and deletes nothing, if a partition is not there.
    """
    check_exclusive(table)
    table.check_writable(keyed=False)
    wanted = _checked(partitions)
    dropped = known_metadata(table.state)
    names = (FILES,) if FILES in wanted else wanted
    for name in names:
        known_partition(table.state, name)
    for name in names:
        _drop(table, name)
    return dropped


def _drop(table: Table, name: str) -> None:
    known_partition(table.state, name)
    if _made_with(table.state, name):
        _make_anew(table, without=name)
        return
    # Before the entry: after it, another process may create the partition here.
    _clear(table, name)

    def decide(state: TableState) -> Draft:
        created = known_partition(state, name).created
        if _made_with(state, name):
            raise WriteConflict("another process made the metadata table anew", with_instant=created, remedy="retry")
        return Draft(created, Action.INDEXING, State.COMPLETED, State.ROLLED_BACK, OPERATION, Bare())

    try:
        table.timeline.append(decide)
    except WriteConflict:
        # A repair went first, and the folder of the partition that it made is deleted already.
        _make_anew(table, without=name)


def _made_with(state: TableState, name: str) -> bool:
    """Return whether an entry made this partition together with others that stay without it.

    It cannot be taken back for one of them.
    """
    created = known_partition(state, name).created
    return name != FILES and any(part.created == created and part.name != name for part in known_metadata(state).partitions)


def repair_metadata(table: Table) -> MetadataTable | None:
    """Delete the metadata table and create it anew from the table log and the data files. Return it, None if the table has none.

    Readers list folders until it is there, and writers that look keys up in the record index stop. One that only the properties
    name is removed from them. Raises `WriteConflict` and `UnsupportedTable` as `create_metadata`.
    """
    _check_can_make(table)
    return _make_anew(table)


def _make_anew(table: Table, *, without: str = "") -> MetadataTable | None:
    """Delete the metadata table and create it anew, but for the partition `without`. Return it, None if the table has none."""
    known = table.refresh().metadata
    parts = [part for part in (known.partitions if known is not None else ()) if part.name != without]
    # Where a record index stays, writers have kept keys unique.
    checks = [] if without else [key_check(table, part.name) for part in parts]
    for check in checks:
        beside_cleans(table, partial(_on_fresh_state, table, check))
    _clear(table, FILES)
    if not parts:
        return None

    def decide(state: TableState) -> Draft:
        for check in checks:
            check(state)
        # Meanwhile another process may have created or dropped partitions.
        left = [part for part in (state.metadata.partitions if state.metadata is not None else ()) if part.name != without]
        if not left:
            raise WriteConflict(
                "another process dropped the metadata table meanwhile",
                with_instant="",
                remedy="nothing is left to do; to have a metadata table, create it: tideline metadata create PATH",
            )
        # In one entry: between two, writers would take the table for one without a record index, and its keys might not stay
        # unique.
        return _creation(table, state, [part.name for part in left], tuple(column for part in left for column in part.columns))

    beside_cleans(table, lambda: table.timeline.append(decide))
    return known_metadata(table.state)


def _check_can_make(table: Table) -> None:
    """Raise the errors of `create_metadata` about the whole table."""
    check_exclusive(table)
    table.check_writable(keyed=False)
    if isinstance(unwrapped(table.storage), ObjectStorage):
        # Without `If-Match`, the index could not be named in the properties, and each later step would try to do so in vain.
        probe_versioned_put(table.storage)


def _on_fresh_state(table: Table, check: Callable[[TableState], None]) -> None:
    check(table.refresh())


def known_metadata(state: TableState) -> MetadataTable:
    """Return the metadata table. Raises `MetadataNotFound` if there is none."""
    if state.metadata is None:
        raise MetadataNotFound(
            "a table without a metadata table", expected="one", remedy="create it: tideline metadata create PATH --type files"
        )
    return state.metadata


def known_partition(state: TableState, name: str) -> MetadataPartition:
    """Return a partition of the metadata table. Raises `MetadataNotFound` if there is none."""
    found = known_metadata(state).partition(name)
    if found is None:
        raise MetadataNotFound(
            f"a metadata table without the partition {name}",
            expected=", ".join(_names(state)),
            remedy=f"create it: tideline metadata create PATH --type {name}",
        )
    return found


def _names(state: TableState) -> tuple[str, ...]:
    return state.metadata.names if state.metadata is not None else ()


def _creation(table: Table, state: TableState, names: Sequence[str], columns: Sequence[str]) -> Draft:
    newest = max((a.instant for a in state.completed_writes()), default="")
    groups = {name: number for name in names if (number := file_groups_of(table, state, name)) > 1}
    body = Indexed(tuple(names), table.options[METADATA_COMPACTION_DELTA_COMMITS], newest, groups, tuple(columns))
    return Draft(table.timeline.mint(state), Action.INDEXING, State.NONE, State.COMPLETED, OPERATION, body)


def _clear(table: Table, name: str) -> None:
    """Remove a partition from the properties, so that no reader looks for it, then delete its folder; all of them for `files`."""

    def without(properties: Mapping[str, str]) -> Mapping[str, str]:
        advertised = properties.get(p.METADATA_PARTITIONS, "")
        left = "" if name == FILES else ",".join(found for found in advertised.split(",") if found != name)
        if left == advertised and not properties.get(p.METADATA_PARTITIONS_INFLIGHT):
            return properties
        return {**properties, p.METADATA_PARTITIONS: left, p.METADATA_PARTITIONS_INFLIGHT: ""}

    change_properties(table.storage, without)
    table.storage.delete_below(METADATA_FOLDER if name == FILES else folder_of(name))


def _exists(present: Sequence[str]) -> MetadataExists:
    return MetadataExists(
        f"a table with a metadata table ({', '.join(present)})",
        expected="none",
        remedy="drop it first: tideline metadata drop PATH, or mend it: tideline check PATH --repair",
    )


def _checked(partitions: Sequence[str]) -> tuple[str, ...]:
    unknown = [name for name in partitions if name not in METADATA_TYPES]
    if unknown or not partitions:
        planned = unknown and unknown[0] in _NOT_WRITTEN
        raise InvalidOption(
            f"index type {unknown[0] if unknown else ''!r}{', which Tideline does not write yet' if planned else ''}",
            expected=", ".join(METADATA_TYPES),
        )
    return tuple(dict.fromkeys(partitions))
