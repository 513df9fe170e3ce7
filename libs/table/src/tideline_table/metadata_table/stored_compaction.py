"""Compact the metadata table of a shared table in layout 2, as Apache Hudi does, under the lock of the table.

Each file group with log files gets a base file of what readers merge now. Then files behind the newest two slices are deleted, and
instants that no file needs any more go into the history of the metadata table (format reference of versions 8 and 9: 7.1, 8.2).
"""

from __future__ import annotations

import functools
import io
import logging
from collections.abc import Collection, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Any

import fastavro

from tideline_table.errors import CorruptMetadata
from tideline_table.hudi.file_names import parse_base_file_name, parse_log_file_name
from tideline_table.hudi.format import TableFormat
from tideline_table.hudi.instant import Action, Instant, State, shifted
from tideline_table.hudi.plans import COMPACTION_PLAN, encode_document
from tideline_table.hudi.properties import METADATA_FOLDER
from tideline_table.hudi.write_stats import NO_PREVIOUS_COMMIT, CommitMetadata, WriteStat
from tideline_table.log.metadata import COLUMN_STATS, FILES, PARTITION_STATS
from tideline_table.log_format.hfile_writer import batch_of, hfile_bytes
from tideline_table.metadata_table.hudi_slices import files_of_older_slices
from tideline_table.metadata_table.instant_files import UNREADABLE, epoch_ms, extra_metadata
from tideline_table.metadata_table.layout import base_name, file_path, folder_of, timeline_path
from tideline_table.metadata_table.records import encode_records, parsed_schema, record_schema_json
from tideline_table.metadata_table.stored import StoredMetadata
from tideline_table.metadata_table.stored_partition import StoredGroup
from tideline_table.metadata_table.widened_bounds import widened
from tideline_table.storage import Storage

_MAKER = "tideline"
"""Marks plans of Tideline, which are made and run while a process holds the lock once: a pending one is of a process that died."""
_MOST_INSTANTS, _LEAST_INSTANTS = 31, 21
"""Completed instants from which on some are archived, and how many stay: those of Apache Hudi by default."""
_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Compacted:
    group: StoredGroup
    records: Sequence[tuple[bytes, bytes]]
    schema_json: str


def compact_stored(
    storage: Storage, stored: StoredMetadata, names: Collection[str], pending: AbstractSet[str], last: str, before: str
) -> list[str]:
    """Compact these partitions; return those that cannot be read, which are as they were.

    `pending` are the pending instants of the table, `last` is the latest time of its timeline, `before` the completion time of the
    step that follows. Does nothing if the compaction has to wait: while one of Apache Hudi, or an action whose delta commit is
    complete, is pending, and while there is no time between `last` and `before`. Raises `CorruptMetadata`, `ObjectNotFound` for a
    damaged partition `files`.
    """
    form, instants = stored.form, stored.timeline.instants
    for at in [i for i in instants if i.action is Action.COMPACTION and i.state is not State.COMPLETED]:
        path = stored.timeline.paths.get(replace(at, state=State.REQUESTED))
        if path is None or _MAKER.encode() not in storage.read(path):
            return []
        _forget(storage, stored, at)
    done = stored.timeline.completion
    instant = shifted(max((last, *(i.time for i in instants), *done.values())), 1)
    if shifted(instant, 1) >= before or not pending.isdisjoint(done):
        return []
    made, lost = list[_Compacted](), list[str]()
    for name in sorted(names, key=lambda name: name != FILES):
        try:
            groups = (stored.files if name == FILES else stored.partition(storage, name)).groups
            made += [_compacted(storage, stored, group) for group in groups if group.logs]
        except UNREADABLE as error:
            if name == FILES:
                raise
            _LOGGER.warning("dropping %s from the metadata table, and Apache Hudi's next writer makes it anew: %s", name, error)
            lost.append(name)
    filled = [found for found in made if found.records]
    if filled:
        _publish(storage, form, instant, filled)
        # The first log file of a group without records is empty.
        bare = {log for found in made if not found.records and not found.group.base_file for log in found.group.logs}
        _tidy(storage, StoredMetadata.read(storage, form), [name for name in names if name not in lost], pending, bare)
    return lost


def _forget(storage: Storage, stored: StoredMetadata, dead: Instant) -> None:
    for folder in storage.list_folder(METADATA_FOLDER).folders:
        for found in storage.list_folder(folder_of(folder)).objects:
            base = parse_base_file_name(found.path.rpartition("/")[2])
            if base is not None and base.instant == dead.time:
                storage.delete(found.path)
    for state in (State.INFLIGHT, State.REQUESTED):
        if (path := stored.timeline.paths.get(replace(dead, state=state))) is not None:
            storage.delete(path)


# --- what readers merge --------------------------------------------------------------------------------------------------------


def _compacted(storage: Storage, stored: StoredMetadata, group: StoredGroup) -> _Compacted:
    if group.partition == FILES:
        files = stored.read_files(storage, frozenset())
        return _Compacted(group, encode_records(files), record_schema_json(with_meta_fields=True))
    held: dict[bytes, tuple[bytes, str]] = {}
    for content in group.contents(storage, stored.valid(frozenset())):
        for key in content.deletes:
            held.pop(key, None)
        for key, datum in content.updates:
            newer = (datum, content.schema_json)
            older = held.get(key) if group.partition in (COLUMN_STATS, PARTITION_STATS) else None
            held[key] = newer if older is None else widened(older, newer)
    return _in_one_schema(group, held)


def _in_one_schema(group: StoredGroup, held: dict[bytes, tuple[bytes, str]]) -> _Compacted:
    """Encode records of other schemas anew: releases of Apache Hudi have more or fewer fields, and an HFile has one schema."""
    schemas = dict.fromkeys((schema for _, schema in held.values()))
    own = record_schema_json(with_meta_fields=True)
    forms = {_form(schema): schema for schema in (own, *schemas) if schema in schemas}
    # A schema of Apache Hudi may have fields that Tideline's lacks.
    target = next((schema for form, schema in reversed(forms.items()) if form != _form(own)), own)
    records = [
        (key, datum if _form(schema) == _form(target) else _encoded_as(datum, schema, target))
        for key, (datum, schema) in sorted(held.items())
    ]
    return _Compacted(group, records, target)


@functools.lru_cache(maxsize=16)
def _form(schema_json: str) -> str:
    try:
        return fastavro.schema.to_parsing_canonical_form(parsed_schema(schema_json))
    except Exception as error:  # noqa: BLE001 - fastavro raises many kinds on arbitrary text
        raise CorruptMetadata(f"records of the metadata table with the schema {schema_json[:80]!r} ({error})") from None


def _encoded_as(datum: bytes, schema: str, target: str) -> bytes:
    record: Any = fastavro.schemaless_reader(
        io.BytesIO(datum), parsed_schema(schema), parsed_schema(target), return_record_name=True
    )
    sink = io.BytesIO()
    fastavro.schemaless_writer(sink, parsed_schema(target), record)
    return sink.getvalue()


# --- files ---------------------------------------------------------------------------------------------------------------------


def _publish(storage: Storage, form: TableFormat, instant: str, made: Sequence[_Compacted]) -> None:
    plan = {
        "operations": [_operation(found.group) for found in made],
        "extraMetadata": {"maker": _MAKER},
        "version": 2,
        "strategy": None,
        "preserveHoodieMetadata": True,
    }
    storage.put_if_absent(_path(form, instant, State.REQUESTED), encode_document(COMPACTION_PLAN, plan))
    storage.put_if_absent(_path(form, instant, State.INFLIGHT), b"")
    stats = tuple(_put_base(storage, instant, found) for found in made)
    content = form.commit_content(CommitMetadata("COMPACT", stats, extra_metadata(), compacted=True))
    storage.put_if_absent(_path(form, instant, State.COMPLETED, shifted(instant, 1)), content)


def _path(form: TableFormat, instant: str, state: State, completion: str = "") -> str:
    return timeline_path(form, Instant(instant, Action.COMPACTION, state), completion)


def _operation(group: StoredGroup) -> dict[str, object]:
    return {
        "baseInstantTime": _base_instant(group),
        "deltaFilePaths": list(group.logs),
        "dataFilePath": group.base_file or None,
        "fileId": group.file_id,
        "partitionPath": group.partition,
        "metrics": {"TOTAL_LOG_FILES": float(len(group.logs)), "TOTAL_LOG_FILES_SIZE": 0.0},
        "bootstrapFilePath": None,
    }


def _base_instant(group: StoredGroup) -> str:
    named = parse_base_file_name(group.base_file) or parse_log_file_name(group.logs[0])
    assert named is not None
    return named.instant


def _put_base(storage: Storage, instant: str, made: _Compacted) -> WriteStat:
    group, records = made.group, batch_of(made.records)
    info = {"schema": made.schema_json.encode(), "minRecordKey": made.records[0][0], "maxRecordKey": made.records[-1][0]}
    content, name = hfile_bytes(records, info, created_ms=epoch_ms(instant)), base_name(instant, group.file_id)
    storage.put_if_absent(file_path(name, group.partition), content)
    previous, path = (_base_instant(group) if group.base_file else NO_PREVIOUS_COMMIT), f"{group.partition}/{name}"
    return WriteStat(group.file_id, group.partition, path, previous, records.num_rows, len(content), num_inserts=records.num_rows)


def _tidy(
    storage: Storage, stored: StoredMetadata, names: Collection[str], pending: AbstractSet[str], bare: AbstractSet[str]
) -> None:
    """Delete what only older slices need: readers without the lock may use the second newest, writers what they have found."""
    form, timeline = stored.form, stored.timeline
    needed_from = min(stored.pending, default=timeline.instants[-1].time)
    needed = {*pending, *stored.pending}
    for name in names:
        older, kept = files_of_older_slices(storage, form, timeline.completion, name, needed_from)
        needed |= {at for log, at in kept.items() if log not in bare}
        for path in older:
            storage.delete(path)
    done = [i for i in timeline.instants if i.state is State.COMPLETED]
    first = min(needed, default=done[-1].time)
    gone = {i.time for i in done[: len(done) - _LEAST_INSTANTS] if i.time < first} if len(done) > _MOST_INSTANTS else set()
    files = [(at, path) for at, path in timeline.paths.items() if at.time in gone]
    if not files:
        return
    replace(form, history_folder=f"{METADATA_FOLDER}/{form.history_folder}").archive(storage, 1, files, len(files))
    for _, path in sorted(files, key=lambda file: (file[0].state is State.COMPLETED, file[0].time)):
        storage.delete(path)
