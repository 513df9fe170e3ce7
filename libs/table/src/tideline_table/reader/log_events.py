"""The events of a file slice's log: the entries of its blocks, with the rows behind them."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tideline_table.errors import MALFORMED
from tideline_table.log_format import BlockType, LogBlock, read_deletes, read_rows
from tideline_table.log_format.avro import row_schema
from tideline_table.log_format.block import damaged
from tideline_table.merge import EventKind, LogEvents, comparable_ordering
from tideline_table.reader.read_plan import ReadPlan
from tideline_table.schema.evolution import conform
from tideline_table.schema.meta_fields import MetaField
from tideline_table.storage import Storage

HELD_BYTES = 128 * 1024 * 1024
"""Decoded log rows of a slice that stay in memory, in bytes. Further blocks are decoded again, one by one, when rows are needed."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows of one data block. `start` is the position of its first event; `rows` is None if they must be decoded again."""

    block: LogBlock
    start: int
    rows: pa.Table | None


@dataclass(frozen=True, slots=True)
class LogContent:
    """The events of a log, in the order in which they apply, and the rows behind them."""

    events: LogEvents
    pieces: tuple[Piece, ...]


def read_events(
    storage: Storage, blocks: Iterable[LogBlock], plan: ReadPlan, held_bytes: int | None = HELD_BYTES
) -> LogContent | None:
    """Return the events of these blocks, None if there are none. At most `held_bytes` of their rows are kept (None: all)."""
    parts: list[LogEvents] = []
    pieces: list[Piece] = []
    count = held = 0
    for block in blocks:
        if block.type is BlockType.DELETE:
            with _decoding(block):
                parts.append(_with_all_keys(block, _deletions(storage, block, plan)))
        else:
            rows = block_rows(storage, block, plan, plan.key_columns | plan.ordering | plan.emitted | plan.marks)
            with _decoding(block):
                rows = plan.with_keys(rows)
                parts.append(_with_all_keys(block, _changes(rows, plan)))
            fits = held_bytes is None or held + rows.nbytes <= held_bytes
            held += rows.nbytes if fits else 0
            pieces.append(Piece(replace(block, content=None), count, rows if fits else None))
        count += len(parts[-1].kinds)
    if not count:
        return None
    keys = pa.chunked_array([chunk for part in parts for chunk in part.keys.chunks], pa.string())
    ordering = [chunk for part in parts if part.ordering is not None for chunk in part.ordering.chunks]
    events = LogEvents(
        keys,
        np.concatenate([part.kinds for part in parts]),
        pa.chunked_array(ordering, plan.ordering_type) if plan.ordering else None,
    )
    return LogContent(events, tuple(pieces))


@contextmanager
def _decoding(block: LogBlock) -> Iterator[None]:
    """The border where bytes of a block become rows.

    Turn errors of Python and Arrow into `CorruptMetadata` that names the block.
    """
    try:
        yield
    except (*MALFORMED, pa.ArrowException) as error:
        raise damaged(block, f"cannot be read ({type(error).__name__}: {error})") from None


def _with_all_keys(block: LogBlock, events: LogEvents) -> LogEvents:
    """Return the events of a block. Raises `CorruptMetadata` if one has no record key."""
    if events.keys.null_count:
        raise damaged(block, f"has {events.keys.null_count} of {len(events.keys)} entries without a record key")
    return events


def _changes(rows: pa.Table, plan: ReadPlan) -> LogEvents:
    kinds = np.where(plan.deletions(rows), plan.rule.merging.deletion_kind, EventKind.RECORD).astype(np.int8)
    return LogEvents(plan.record_keys(rows), kinds, plan.ordering_values(rows) if plan.ordering else None)


def _deletions(storage: Storage, block: LogBlock, plan: ReadPlan) -> LogEvents:
    rows = read_deletes(storage, block)
    if plan.keys is not None:
        rows = rows.filter(pc.is_in(rows.column(MetaField.RECORD_KEY), value_set=plan.keys))
    kinds = np.full(rows.num_rows, EventKind.PURGE, dtype=np.int8)
    ordering = None
    if plan.ordering:
        ordering = comparable_ordering(rows.column("ordering"), written := _ordering_label(block, plan))
        if ordering is not None and written != plan.ordering_type:
            ordering = conform(pa.table({"": ordering}), pa.schema([("", plan.ordering_type)])).column(0)
        if ordering is None:
            ordering = pa.chunked_array([pa.nulls(rows.num_rows, plan.ordering_type)])
        else:
            kinds[~np.asarray(rows.column("commit_time_delete"))] = plan.rule.merging.deletion_kind
    return LogEvents(rows.column(MetaField.RECORD_KEY), kinds, ordering)


def _ordering_label(block: LogBlock, plan: ReadPlan) -> pa.DataType:
    """Return the type of the ordering values of a delete block.

    The table's, but with the units of timestamps in the block's schema.

    Rows of that schema keep their numbers under the units of the table, or are converted, and so do deletions.
    """
    kind = plan.ordering_type
    if not block.schema_json:
        return kind
    written = _timestamps(block.schema_json)
    names = plan.rule.merging.ordering_fields
    if not pa.types.is_struct(kind):
        return written.get(names[0], kind) if pa.types.is_timestamp(kind) else kind
    return pa.struct([
        f.with_type(written.get(name, f.type)) if pa.types.is_timestamp(f.type) else f for name, f in zip(names, kind, strict=True)
    ])  # fmt: skip


@functools.lru_cache(maxsize=64)
def _timestamps(schema_json: str) -> dict[str, pa.DataType]:
    return {field.name: field.type for field in row_schema(schema_json) if pa.types.is_timestamp(field.type)}


@functools.lru_cache(maxsize=64)
def _field_names(schema_json: str) -> frozenset[str]:
    return frozenset(str(f["name"]) for f in json.loads(schema_json)["fields"])


def stored_columns(block: LogBlock, plan: ReadPlan) -> dict[str, str]:
    """Return the table columns and deletion marks that a data block has, with their names there; marks may be in the block only."""
    stored = _field_names(block.schema_json)
    names = plan.rule.names_in(block.instant)
    wanted = (*plan.schema.names, *sorted(plan.marks - set(plan.schema.names)))
    return {name: source for name in wanted if (source := names.source(name)) is not None and source in stored}


def block_rows(storage: Storage, block: LogBlock, plan: ReadPlan, names: frozenset[str]) -> pa.Table:
    """Return rows of a data block in current types, with the columns and deletion marks of `stored_columns` that are in `names`.

    Raises `CorruptMetadata`, which names the block, for content that is no such rows.
    """
    with _decoding(block):
        return _block_rows(storage, block, plan, names)


def _block_rows(storage: Storage, block: LogBlock, plan: ReadPlan, names: frozenset[str]) -> pa.Table:
    sources = {name: source for name, source in stored_columns(block, plan).items() if name in names}
    rows = read_rows(storage, block, columns=sorted(set(sources.values())))
    renamed = plan.rule.names_in(block.instant).renamed
    columns = {name: renamed(name, rows.column(source)) for name, source in sources.items()}
    found = pa.table(columns) if columns else rows.select([])
    wanted = plan.part(names)
    # A partial record may lack a column that no row lacks.
    own = pa.schema([field.with_nullable(nullable=True) for field in wanted]) if block.is_partial else wanted
    conformed = conform(found.select([n for n in columns if n in plan.schema.names]), own)
    conformed = pa.Table.from_arrays(conformed.columns, schema=wanted) if wanted.names else conformed
    for mark in sorted(plan.marks & columns.keys() - set(conformed.column_names)):
        conformed = conformed.append_column(mark, columns[mark])
    return conformed
