"""Writing of one file group: merge the rows into its next base file, or append a log file.

Runs in the caller's process or on a Spark executor: everything it needs is in its arguments.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tideline_table.config import Options
from tideline_table.file_group.slice import join_path
from tideline_table.hudi.file_names import base_file_name, write_token
from tideline_table.hudi.write_stats import NO_PREVIOUS_COMMIT, FileKeys, WriteStat
from tideline_table.merge import deleted_mask, filled_rows, lies_on_top
from tideline_table.reader.base_file import DICTIONARY, read_base_file, with_dictionaries
from tideline_table.reader.encoded_slice import encoded_as, repeated, repeated_texts, unified
from tideline_table.schema.arrow import with_column
from tideline_table.schema.evolution import conform
from tideline_table.schema.meta_fields import MetaField, with_meta_fields
from tideline_table.storage import Storage
from tideline_table.writer.base_file import write_base_file
from tideline_table.writer.log_file import append_log_file
from tideline_table.writer.marker import MarkerType, create_marker
from tideline_table.writer.task import FileGroupResult, FileGroupTask, Operation, WriteContext, live_rows, result_of, stored_rows


def write_file_group(
    context: WriteContext, task: FileGroupTask, incoming: pa.Table, storage: Storage | None = None
) -> FileGroupResult:
    """Write the next base or log file of a group. `incoming` is as `PreparedInput.rows`; keys are unique, except of blind inserts.

    The result has no stat if nothing changes (all incoming rows lost to newer ones, or a delete found nothing).
    """
    storage = storage or context.open_storage()
    if context.has_logs and (task.log_inserts or (task.base is not None and not task.adds)):
        return append_log_file(context, task, incoming, storage)
    name = base_file_name(task.file_id, write_token(task.number, task.attempt), context.instant, context.log_rule.extension)
    base = None
    if task.base is not None:
        assert not task.base.log_files, "rows are added only to groups without log files"
        base = _base_rows(context, task.base.path, storage)
        if context.buckets is not None:
            context.buckets.check_rewritten(task.partition_path, task.file_id, base.column(MetaField.RECORD_KEY))
    merged = _merge(context, base, incoming)
    if merged is None:
        return FileGroupResult(None, b"")
    output = _output(context, task, merged, name)
    path = join_path(task.partition_path, name)
    create_marker(storage, context.instant, path, MarkerType.MERGE if task.base else MarkerType.CREATE)
    # An upsert that neither inserts nor deletes leaves the keys of the file as they are.
    keeps_keys = base is not None and merged.updates and not len(merged.inserted) + merged.deletes
    known = base.schema.metadata if base is not None and keeps_keys else None
    written = write_base_file(storage, path, output, context.avro_schema, Options(context.options), known)
    changed: dict[str, int] = {}
    if context.changes and base is not None:  # all rows of a new file group are inserts, as queries of changes know
        from tideline_table.writer.change_file import write_changes  # noqa: PLC0415 - few tables have them

        gone = base.filter(pa.array(merged.gone)) if merged.gone is not None else None
        changed = write_changes(context, path, gone, merged.written, storage)
    stat = WriteStat(
        file_id=task.file_id,
        partition_path=task.partition_path,
        path=path,
        prev_commit=task.base.base_instant if task.base else NO_PREVIOUS_COMMIT,
        num_writes=output.num_rows,
        file_size_bytes=written.size_bytes,
        num_inserts=len(merged.inserted),
        num_updates=merged.updates,
        num_deletes=merged.deletes,
        changes=changed or None,
        record=written.record,
        statistics=written.statistics,
        keys=FileKeys(merged.inserted, written.bloom) if context.keeps_keys else None,
    )
    return result_of(context, task, stat, merged.inserted)


def _base_rows(context: WriteContext, path: str, storage: Storage) -> pa.Table:
    """Return the rows of a base file in the current schema, with the key-value metadata of the footer."""
    schema = with_meta_fields(context.schema)
    texts = repeated_texts(schema, context.merging) if context.has_meta_fields else frozenset()
    rows = read_base_file(storage, path, dictionaries=texts)
    conformed = conform(rows, with_dictionaries(schema, {f.name for f in rows.schema if f.type == DICTIONARY}))
    return conformed.replace_schema_metadata(rows.schema.metadata)


@dataclass(frozen=True, slots=True)
class _Merged:
    kept: pa.Table | None
    """Base rows that stay, with their meta fields."""
    written: pa.Table | None
    """Incoming rows that become visible."""
    updates: int
    deletes: int
    inserted: pa.ChunkedArray
    gone: np.ndarray | None = None
    """Which base rows do not stay; None if all do."""


def _merge(context: WriteContext, base: pa.Table | None, incoming: pa.Table) -> _Merged | None:
    """Return the rows of the next base file, None if they do not change. `base` is None for a new file group."""
    keys = incoming.column(MetaField.RECORD_KEY)
    if base is None or not context.operation.looks_up_keys:
        added = live_rows(incoming)
        return _Merged(base, added, 0, 0, added.column(MetaField.RECORD_KEY)) if added.num_rows else None
    found = pc.index_in(base.column(MetaField.RECORD_KEY), value_set=keys.combine_chunks())
    matched = np.asarray(pc.is_valid(found))
    targets = np.asarray(found.drop_null())
    if context.operation is Operation.DELETE:
        if not len(targets):
            return None
        return _Merged(base.filter(pa.array(~matched)), None, 0, int(matched.sum()), keys.slice(0, 0), matched)
    rows = np.flatnonzero(matched)
    wins = lies_on_top(base, rows, incoming, targets, context.merging)
    incoming, wins = filled_rows(base, rows, incoming, targets, wins, context.merging)
    lost = np.zeros(incoming.num_rows, dtype=bool)
    lost[targets[~wins]] = True
    existing = np.zeros(incoming.num_rows, dtype=bool)
    existing[targets] = True
    deleted = deleted_mask(incoming)
    superseded = np.zeros(base.num_rows, dtype=bool)
    superseded[rows[wins]] = True
    visible = ~lost & ~deleted
    if not superseded.any() and not visible.any():
        return None
    return _Merged(
        kept=base.filter(pa.array(~superseded)),
        written=incoming.filter(pa.array(visible)),
        updates=int((visible & existing).sum()),
        deletes=int((deleted & existing & ~lost).sum()),
        inserted=keys.filter(pa.array(visible & ~existing)),
        gone=superseded,
    )


def _output(context: WriteContext, task: FileGroupTask, merged: _Merged, name: str) -> pa.Table:
    pieces: list[pa.Table] = []
    if merged.kept is not None:
        count = merged.kept.num_rows
        names = repeated(name, count) if context.has_meta_fields else pa.nulls(count, pa.string())
        pieces.append(with_column(merged.kept, MetaField.FILE_NAME, names))
    if merged.written is not None and merged.written.num_rows:
        rows = stored_rows(context, task, merged.written, name, nulls=not context.has_meta_fields)
        constants = (MetaField.COMMIT_TIME, MetaField.PARTITION_PATH, MetaField.FILE_NAME) if context.has_meta_fields else ()
        pieces.append(encoded_as(rows, pieces[0].schema if pieces else with_dictionaries(rows.schema, constants)))
    return unified(pa.concat_tables(pieces))
