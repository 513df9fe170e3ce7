"""The metadata table of a shared table: kept up with Tideline's steps, or turned off, under the lock that both sides take.

The partitions that the option names are kept, if Apache Hudi's writers made them. As in Apache Hudi, the delta commit of a step
comes before the timeline file that completes it, with the same instant: readers ignore it until then. Whatever Tideline does
not follow turns the metadata table off, or drops the one partition. That is always safe: readers do without it, and Apache
Hudi's next writer makes it anew.

That of a merge-on-read table of version 6 is always turned off. With a metadata table, Apache Hudi 1.2.0 does not see the log
files of a write that failed: its next write takes their names first, and claims them in its commit and, by a path that its readers
cannot parse, in the metadata table. In later versions each write has names of its own for log files.

There Apache Hudi begins its delta commit while the write goes on, so a pending one stays unless its writer is rolled back. What a
dead writer left in the metadata table is taken out of it, as Apache Hudi's rollback does.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from tideline_table.config import INDEX_TYPE, METADATA_COMPACTION_DELTA_COMMITS, SHARED_METADATA, Options
from tideline_table.coordination.timeline import kept_partitions
from tideline_table.errors import UnsupportedTable
from tideline_table.hudi import properties as p
from tideline_table.hudi.format import TableFormat
from tideline_table.hudi.instant import WRITE_ACTIONS, Action, State
from tideline_table.hudi.properties import METADATA_FOLDER, change_properties, read_properties
from tideline_table.hudi.write_stats import SCHEMA_KEY
from tideline_table.index.scope import KeyScope
from tideline_table.log.body import Published
from tideline_table.log.entry import Entry
from tideline_table.log.metadata import COLUMN_STATS, FILES, PARTITION_STATS, RECORD_INDEX, delta_instant
from tideline_table.log.plan import RollbackStep
from tideline_table.log.state import TableState
from tideline_table.metadata_table import StoredMetadata
from tideline_table.metadata_table.index_definitions import forget_definitions, read_indexed_columns
from tideline_table.metadata_table.instant_files import UNREADABLE
from tideline_table.metadata_table.kinds import kind_of
from tideline_table.metadata_table.layout import folder_of
from tideline_table.metadata_table.partition import IndexedColumns, Records, Source
from tideline_table.metadata_table.partition_stats import check_same_types, partition_records
from tideline_table.metadata_table.stored import add_stored_delta
from tideline_table.metadata_table.stored_partition import StoredPartition
from tideline_table.reader.read_plan import LogRule
from tideline_table.schema import arrow_from_avro
from tideline_table.schema.meta_fields import with_meta_fields
from tideline_table.storage import Storage
from tideline_table.writer.base_file import statistics_columns

_LOGGER = logging.getLogger(__name__)
_ADVERTISED = (p.METADATA_PARTITIONS, p.METADATA_PARTITIONS_INFLIGHT)
_KEPT_TYPE = "COPY_ON_WRITE"
_STATISTICS = (COLUMN_STATS, PARTITION_STATS)
_MOST_DELTAS = 200
"""Delta commits after which a metadata table that no writer of Apache Hudi compacts is turned off. Hudi's writers fail at 1,000."""


def check_kept(properties: Mapping[str, str], form: TableFormat, options: Options) -> None:
    """Raise `UnsupportedTable` if `tideline.shared.metadata` asks for what a table cannot have.

    That is an index of keys that repeat, and statistics of partitions in version 6.
    """
    kept = kept_partitions(options)
    if PARTITION_STATS in kept and not form.has_completion_times:
        raise UnsupportedTable(
            f"{SHARED_METADATA.key}={options[SHARED_METADATA]} for a table of version {form.version}",
            expected=f"{PARTITION_STATS} in tables of version 8 and later only",
            remedy=f"leave {PARTITION_STATS} out",
        )
    if RECORD_INDEX not in kept:
        return
    index = properties.get(INDEX_TYPE.key, "").upper()
    by_partition = index and KeyScope.of(options.merged({INDEX_TYPE.key: index})) is KeyScope.PARTITION
    no_meta_fields = properties.get(p.POPULATE_META_FIELDS, "").lower() == "false"
    if not keeps_metadata(properties, form) or by_partition or no_meta_fields:
        raise UnsupportedTable(
            f"{SHARED_METADATA.key}={options[SHARED_METADATA]} for a table "
            + (
                f"with the index {index}, in which keys are unique by partition"
                if by_partition
                else "of another type, or without meta fields"
            ),
            expected="a table with meta fields, copy-on-write or of version 8 or later, whose keys are unique in the whole table",
            remedy=f"leave {RECORD_INDEX} out",
        )


def advertised(properties: Mapping[str, str]) -> list[str]:
    """Return the partitions of the metadata table that the properties name, and those that are being built."""
    return [name for key in _ADVERTISED for name in properties.get(key, "").split(",") if name]


def keeps_metadata(properties: Mapping[str, str], form: TableFormat) -> bool:
    """Return whether Tideline can keep the metadata table of a table of this type."""
    return form.has_completion_times or properties.get(p.TYPE) == _KEPT_TYPE


def keep_only(storage: Storage, form: TableFormat, properties: Mapping[str, str], kept: Collection[str]) -> bool:
    """Drop all partitions but `kept` as Apache Hudi does; return False if `files` cannot be kept. The caller holds the lock."""
    there = _made(properties)
    if FILES not in kept or FILES not in there or not keeps_metadata(properties, form):
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
    """Remove partitions from the properties, so that no reader looks for them, then delete definitions and folders."""

    def without(properties: Mapping[str, str]) -> Mapping[str, str]:
        left = ",".join(name for name in _made(properties) if name not in dropped)
        return {**properties, p.METADATA_PARTITIONS: left, p.METADATA_PARTITIONS_INFLIGHT: ""}

    change_properties(storage, without)
    forget_definitions(storage, read_properties(storage), dropped)
    for name in dropped:
        storage.delete_below(folder_of(name))


def turn_off_metadata(storage: Storage, properties: Mapping[str, str]) -> None:
    """Remove the metadata table's partitions from the properties, then its definitions, then its folder.

    Apache Hudi 1.2.0 makes a secondary index that is still defined anew, and then its writes fail. The caller holds the lock.
    """
    if any(properties.get(key) for key in _ADVERTISED):
        change_properties(storage, lambda found: {**found, **{key: "" for key in _ADVERTISED if key in found}})
        forget_definitions(storage, properties)
    storage.delete_below(METADATA_FOLDER)


def follow_step(
    storage: Storage, form: TableFormat, state: TableState, entry: Entry, options: Options, rule: LogRule | None = None
) -> bool:
    """Add to the metadata table what `entry`, the step that is taken next, changes. Return whether that took requests.

    `state` is the state before the step, and `rule` merges the log files of the table. A step that cannot be followed turns the
    metadata table off; one that cannot be followed in one partition only drops that. The caller holds the lock.
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
        if form.has_completion_times:
            why, stored = _without_remains(storage, stored, state, entry)
            why = why or _why_ended(storage, stored, state, entry)
            instant = "" if isinstance(entry.body, RollbackStep) else instant
        why = why or why_not_followed(stored, state, entry)
        if not why and instant:
            further = [name for name in kept_partitions(options) if name in _made(properties) and name != FILES]
            if form.has_completion_times and stored.deltas >= options[METADATA_COMPACTION_DELTA_COMMITS]:
                from tideline_table.metadata_table.stored_compaction import compact_stored  # noqa: PLC0415 - rarely due

                pending = {a.instant for a in state.pending()}
                if lost := compact_stored(storage, stored, [FILES, *further], pending, state.last_instant, entry.completion):
                    _drop(storage, lost)
                further = [name for name in further if name not in lost]
            # Where keys are after the step depends on the log files before it.
            seen = _after(state, entry) if form.has_completion_times and RECORD_INDEX in further else state
            source = Source(storage, form, seen, rule or LogRule())
            changes = {stored.files: kind_of(FILES).changed_by(source, entry)}
            changes |= _changed_records(source, stored, properties, entry, options, further)
            add_stored_delta(storage, form, instant, changes, stored.completion_after(entry.completion))
    except UNREADABLE as error:
        why = str(error)
    if why:
        _turn_off(storage, properties, why)
    return True


def _after(state: TableState, entry: Entry) -> TableState:
    if not isinstance(entry.body, Published) or not entry.body.metadata.stats:
        return state
    after = state.copy()
    after.apply(entry)
    return after


def _without_remains(storage: Storage, stored: StoredMetadata, state: TableState, entry: Entry) -> tuple[str, StoredMetadata]:
    """Take out of a metadata table of layout 2 what writers that died left of the step, of its target, and of undone writes.

    Return why that is not possible (empty if it is), and what is there then.
    """
    found = _remains(stored, state, entry)
    for instant in found:
        if not stored.take_back(storage, instant):
            return f"it was compacted since {instant}, which was undone, made its delta commit", stored
    return "", StoredMetadata.read(storage, stored.form) if found else stored


def _why_ended(storage: Storage, stored: StoredMetadata, state: TableState, entry: Entry) -> str:
    """Return why readers would not see what a step publishes: a clean of a later instant ended the partition. Empty if none did.

    They merge the log files of a slice in the order of instants.
    """
    if not isinstance(entry.body, Published):
        return ""
    cleans = {a.instant for a in state.actions.values() if a.action is Action.CLEAN and a.instant > entry.instant}
    ended = stored.ended_by(storage, cleans & stored.instants) if cleans else set()
    both = sorted(ended & {stat.partition_path for stat in entry.body.metadata.stats})
    return f"a clean behind {entry.instant} ended partition {both[0]!r}" if both else ""


def _remains(stored: StoredMetadata, state: TableState, entry: Entry) -> list[str]:
    target = entry.body.target if isinstance(entry.body, RollbackStep) else ""
    undone = {a.instant for a in state.actions.values() if a.state is State.ROLLED_BACK and a.action in WRITE_ACTIONS}
    return sorted({target, entry.instant, *undone} & stored.instants)


def _changed_records(
    source: Source, stored: StoredMetadata, properties: Mapping[str, str], entry: Entry, options: Options, names: Iterable[str]
) -> dict[StoredPartition, Records]:
    """Return what the step changes in these partitions. Those that are not understood are dropped."""
    storage, changes, dropped = source.storage, dict[StoredPartition, Records](), []
    for name in names:
        try:
            part = stored.partition(storage, name)
            indexed = _indexed_columns(source, properties, options) if name in _STATISTICS else None
            changed_by = partition_records if name == PARTITION_STATS else kind_of(name).changed_by
            changes[part] = changed_by(replace(source, indexed=indexed), entry)
            if name == PARTITION_STATS and _has_changed_types(source.state, properties, entry):
                check_same_types(changes[part], part.live_records(storage, stored.valid(frozenset())))
        except UNREADABLE as error:
            _LOGGER.warning("dropping %s from the metadata table, and Apache Hudi's next writer makes it anew: %s", name, error)
            dropped.append(name)
    if dropped:
        _drop(storage, dropped)
    return changes


def _has_changed_types(state: TableState, properties: Mapping[str, str], entry: Entry) -> bool:
    """Return whether a column has, or gets by `entry`, another type than it had."""
    set_by_entry = entry.body.metadata.extra.get(SCHEMA_KEY, "") if isinstance(entry.body, Published) else ""
    texts = {properties.get(p.CREATE_SCHEMA, ""), *state.schemas.values(), state.schema_json, set_by_entry} - {""}
    columns = {(field.name, field.type) for text in texts for field in arrow_from_avro(text)}
    return len({name for name, _ in columns}) < len(columns)


def _indexed_columns(source: Source, properties: Mapping[str, str], options: Options) -> IndexedColumns:
    schema = with_meta_fields(arrow_from_avro(source.state.schema_json))
    return IndexedColumns(read_indexed_columns(source.storage, source.form, properties), statistics_columns(schema, options))


def why_not_followed(stored: StoredMetadata, state: TableState, entry: Entry) -> str:
    """Return why the metadata table cannot follow the step `entry`; empty if it can. Pure."""
    if entry.action is Action.RESTORE and stored.form.has_completion_times:
        return f"restore {entry.instant} takes writes back"
    if stored.pending and not stored.form.has_completion_times:
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
        stored = StoredMetadata.read(storage, form)
        known = sorted(stored.instants & wanted)
        if form.has_completion_times:
            known = [instant for instant in known if not stored.take_back(storage, instant)]
    except UNREADABLE as error:
        _turn_off(storage, properties, str(error))
        return
    if known:
        _turn_off(storage, properties, f"it has a delta commit of {known[0]}, which never completes")


def _turn_off(storage: Storage, properties: Mapping[str, str], why: str) -> None:
    _LOGGER.warning("the metadata table is turned off, and Apache Hudi's next writer makes it anew: %s", why)
    turn_off_metadata(storage, properties)
