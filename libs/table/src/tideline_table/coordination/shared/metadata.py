"""The metadata table of a shared table: kept up with Tideline's steps, or turned off, under the lock that both sides take.

The partitions that the option names are kept, if Apache Hudi's writers made them. As in Apache Hudi, the delta commit of a step
comes before the timeline file that completes it, with the same instant: readers ignore it until then. Whatever Tideline does
not follow turns the metadata table off, or drops the one partition. That is always safe: readers do without it, and Apache
Hudi's next writer makes it anew.

That of a merge-on-read table is always turned off. With a metadata table, Apache Hudi 1.2.0 does not see the log files of a
write that failed: its next write takes their names first, and claims them in its commit and, by a path that its readers cannot
parse, in the metadata table.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from tideline_table.config import INDEX_TYPE, SHARED_METADATA, Options
from tideline_table.coordination.timeline import kept_partitions
from tideline_table.errors import UnsupportedTable
from tideline_table.hudi import properties as p
from tideline_table.hudi.format import TableFormat
from tideline_table.hudi.instant import WRITE_ACTIONS, State
from tideline_table.hudi.properties import METADATA_FOLDER, change_properties, read_properties
from tideline_table.index.scope import KeyScope
from tideline_table.log.entry import Entry
from tideline_table.log.metadata import COLUMN_STATS, FILES, RECORD_INDEX, delta_instant
from tideline_table.log.plan import RollbackStep
from tideline_table.log.state import TableState
from tideline_table.metadata_table import StoredMetadata
from tideline_table.metadata_table.index_definitions import read_indexed_columns
from tideline_table.metadata_table.instant_files import UNREADABLE
from tideline_table.metadata_table.kinds import kind_of
from tideline_table.metadata_table.layout import folder_of
from tideline_table.metadata_table.partition import IndexedColumns, Records, Source
from tideline_table.metadata_table.stored import add_stored_delta
from tideline_table.metadata_table.stored_partition import StoredPartition
from tideline_table.schema import arrow_from_avro
from tideline_table.schema.meta_fields import with_meta_fields
from tideline_table.storage import Storage
from tideline_table.writer.base_file import statistics_columns

_LOGGER = logging.getLogger(__name__)
_ADVERTISED = (p.METADATA_PARTITIONS, p.METADATA_PARTITIONS_INFLIGHT)
_KEPT_TYPE = "COPY_ON_WRITE"
_MOST_DELTAS = 200
"""Delta commits after which a metadata table that no writer of Apache Hudi compacts is turned off. Hudi's writers fail at 1,000."""


def check_record_index(properties: Mapping[str, str], options: Options) -> None:
    """Raise `UnsupportedTable` if `tideline.shared.metadata` asks for a record index of a table that cannot have one."""
    if RECORD_INDEX not in kept_partitions(options):
        return
    kept = properties.get(INDEX_TYPE.key, "").upper()
    by_partition = kept and KeyScope.of(options.merged({INDEX_TYPE.key: kept})) is KeyScope.PARTITION
    no_meta_fields = properties.get(p.POPULATE_META_FIELDS, "").lower() == "false"
    if properties.get(p.TYPE) != _KEPT_TYPE or by_partition or no_meta_fields:
        raise UnsupportedTable(
            f"{SHARED_METADATA.key}={options[SHARED_METADATA]} for a table "
            + (
                f"with the index {kept}, in which keys are unique by partition"
                if by_partition
                else "of another type, or without meta fields"
            ),
            expected="a copy-on-write table with meta fields, in which a key is unique in the whole table",
            remedy=f"leave {RECORD_INDEX} out",
        )


def advertised(properties: Mapping[str, str]) -> list[str]:
    """Return the partitions of the metadata table that the properties name, and those that are being built."""
    return [name for key in _ADVERTISED for name in properties.get(key, "").split(",") if name]


def keep_only(storage: Storage, properties: Mapping[str, str], kept: Collection[str]) -> bool:
    """Drop all partitions but `kept` as Apache Hudi does; return False if `files` cannot be kept. The caller holds the lock."""
    there = _made(properties)
    if FILES not in kept or FILES not in there or properties.get(p.TYPE) != _KEPT_TYPE:
        return False
    building = properties.get(p.METADATA_PARTITIONS_INFLIGHT, "").split(",")
    dropped = sorted(
        {name for name in advertised(properties) if name != FILES and (name not in kept or name not in there or name in building)}
    )
    if dropped:
        _LOGGER.warning(
            "dropping %s from the metadata table: Tideline keeps %s in this table, which Apache Hudi also writes; give every Hudi "
            "writer the options that 'tideline share PATH --metadata %s' prints, and no other index of the metadata table",
            ", ".join(dropped),
            ", ".join(kept),
            ",".join(kept),
        )
        _drop(storage, dropped)
    return True


def _made(properties: Mapping[str, str]) -> list[str]:
    return [name for name in properties.get(p.METADATA_PARTITIONS, "").split(",") if name]


def _drop(storage: Storage, dropped: Collection[str]) -> None:
    """Remove partitions from the properties, so that no reader looks for them, then delete their folders."""

    def without(properties: Mapping[str, str]) -> Mapping[str, str]:
        left = ",".join(name for name in _made(properties) if name not in dropped)
        return {**properties, p.METADATA_PARTITIONS: left, p.METADATA_PARTITIONS_INFLIGHT: ""}

    change_properties(storage, without)
    for name in dropped:
        storage.delete_below(folder_of(name))


def turn_off_metadata(storage: Storage, properties: Mapping[str, str]) -> None:
    """Remove the metadata table's partitions from the properties, then delete its folder. The caller holds the lock."""
    if any(properties.get(key) for key in _ADVERTISED):
        change_properties(storage, lambda found: {**found, **{key: "" for key in _ADVERTISED if key in found}})
    storage.delete_below(METADATA_FOLDER)


def follow_step(storage: Storage, form: TableFormat, state: TableState, entry: Entry, options: Options) -> bool:
    """Add to the metadata table what `entry`, the step that is taken next, changes. Return whether that took requests.

    `state` is the state before the step. A step that cannot be followed turns the metadata table off; one that cannot be
    followed in one partition only drops that. The caller holds the lock.
    """
    instant = delta_instant(entry)
    if not instant and not isinstance(entry.body, RollbackStep):
        return False
    properties = read_properties(storage)
    if not advertised(properties):
        return False
    why = ""
    try:
        stored = StoredMetadata.read(storage, form)
        why = why_not_followed(stored, state, entry)
        if not why and instant:
            source = Source(storage, form, state)
            changes = {stored.files: kind_of(FILES).changed_by(source, entry)}
            further = [name for name in kept_partitions(options) if name in _made(properties) and name != FILES]
            add_stored_delta(storage, form, instant, changes | _changed_records(source, properties, entry, options, further))
    except UNREADABLE as error:
        why = str(error)
    if why:
        _turn_off(storage, properties, why)
    return True


def _changed_records(
    source: Source, properties: Mapping[str, str], entry: Entry, options: Options, names: Iterable[str]
) -> dict[StoredPartition, Records]:
    """Return what the step changes in these partitions. Those that are not understood are dropped."""
    storage, changes, dropped = source.storage, dict[StoredPartition, Records](), []
    for name in names:
        try:
            part = StoredPartition.read(storage, name)
            indexed = _indexed_columns(storage, properties, source.state, options) if name == COLUMN_STATS else None
            changes[part] = kind_of(name).changed_by(replace(source, indexed=indexed), entry)
        except UNREADABLE as error:
            _LOGGER.warning("dropping %s from the metadata table, and Apache Hudi's next writer makes it anew: %s", name, error)
            dropped.append(name)
    if dropped:
        _drop(storage, dropped)
    return changes


def _indexed_columns(storage: Storage, properties: Mapping[str, str], state: TableState, options: Options) -> IndexedColumns:
    schema = with_meta_fields(arrow_from_avro(state.schema_json))
    return IndexedColumns(read_indexed_columns(storage, properties), statistics_columns(schema, options))


def why_not_followed(stored: StoredMetadata, state: TableState, entry: Entry) -> str:
    """Return why the metadata table cannot follow the step `entry`; empty if it can. Pure."""
    if stored.pending:
        return f"instant {stored.pending[0]} of the metadata table is pending, and its process is dead"
    body = entry.body
    target = body.target if isinstance(body, RollbackStep) else ""
    known = next((instant for instant in (target, entry.instant) if instant in stored.instants), "")
    if known:
        return f"{entry.action} {entry.instant} meets a delta commit of {known}, whose writer died before it completed the instant"
    undone = {a.instant for a in state.actions.values() if a.state is State.ROLLED_BACK and a.action in WRITE_ACTIONS}
    late = sorted(undone & stored.instants)
    if late:
        return f"the writer of {late[0]}, which was rolled back, made its delta commit late"
    if stored.deltas >= _MOST_DELTAS:
        return f"{stored.deltas} delta commits were made since Apache Hudi compacted it"
    return ""


def turn_off_if_known(storage: Storage, form: TableFormat, instants: Iterable[str]) -> None:
    """Turn the metadata table off if it knows one of the `instants`, which leave the timeline without a rollback."""
    wanted = set(instants)
    properties = read_properties(storage) if wanted else {}
    if not advertised(properties):
        return
    try:
        known = sorted(StoredMetadata.read(storage, form).instants & wanted)
    except UNREADABLE as error:
        _turn_off(storage, properties, str(error))
        return
    if known:
        _turn_off(storage, properties, f"it has a delta commit of {known[0]}, which never completes")


def _turn_off(storage: Storage, properties: Mapping[str, str], why: str) -> None:
    _LOGGER.warning("the metadata table is turned off, and Apache Hudi's next writer makes it anew: %s", why)
    turn_off_metadata(storage, properties)
