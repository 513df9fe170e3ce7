"""What the log of a file slice says: its blocks as events, folded to one for each key."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tideline_table.log_format import BlockType, LogBlock, read_deletes, read_rows
from tideline_table.merge import EventKind, LogEvents, comparable_ordering
from tideline_table.reader.read_plan import ReadPlan
from tideline_table.schema.evolution import conform
from tideline_table.schema.meta_fields import MetaField
from tideline_table.storage import Storage

HELD_BYTES = 128 * 1024 * 1024
"""Decoded log rows of a slice that stay in memory; the rest is decoded a second time, block by block, when its rows are wanted."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows of one data block; `start` is the position of its first event, `rows` is None where they have to be decoded again."""

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
    """What these blocks say, None for nothing; at most `held_bytes` of their rows are kept (None: all)."""
    reader = _LogReader(storage, plan, held_bytes)
    for block in blocks:
        reader.add(block)
    return reader.content()


class _LogReader:
    """Collects the events of one slice's blocks."""

    def __init__(self, storage: Storage, plan: ReadPlan, held_bytes: int | None) -> None:
        self._storage = storage
        self._plan = plan
        self._limit_bytes = held_bytes
        self._keys: list[pa.Array] = []
        self._kinds: list[np.ndarray] = []
        self._ordering: list[pa.Array] = []
        self._pieces: list[Piece] = []
        self._events = 0
        self._held_bytes = 0

    def add(self, block: LogBlock) -> None:
        """Read one block."""
        if block.type is BlockType.DELETE:
            self._add_deletes(block)
        else:
            self._add_rows(block)

    def content(self) -> LogContent | None:
        """All of them."""
        if not self._events:
            return None
        ordering = pa.chunked_array(self._ordering, self._plan.ordering_type) if self._plan.ordering else None
        events = LogEvents(pa.chunked_array(self._keys, pa.string()), np.concatenate(self._kinds), ordering)
        return LogContent(events, tuple(self._pieces))

    def _add_rows(self, block: LogBlock) -> None:
        plan = self._plan
        rows = block_rows(self._storage, block, plan, plan.key_columns | plan.ordering | plan.emitted | plan.marks)
        keys = plan.record_keys(rows)
        if plan.keys is not None:
            wanted = pc.is_in(keys, value_set=plan.keys)
            rows, keys = rows.filter(wanted), keys.filter(wanted)
        kinds = np.where(plan.deletions(rows), plan.deletion_kind, EventKind.RECORD).astype(np.int8)
        ordering = plan.ordering_values(rows) if plan.ordering else None
        fits = self._limit_bytes is None or self._held_bytes + rows.nbytes <= self._limit_bytes
        if fits:
            self._held_bytes += rows.nbytes
        self._pieces.append(Piece(replace(block, content=None), self._events, rows if fits else None))
        self._add(keys, kinds, ordering)

    def _add_deletes(self, block: LogBlock) -> None:
        plan = self._plan
        rows = read_deletes(self._storage, block)
        if plan.keys is not None:
            rows = rows.filter(pc.is_in(rows.column(MetaField.RECORD_KEY), value_set=plan.keys))
        kinds = np.full(rows.num_rows, EventKind.PURGE, dtype=np.int8)
        ordering = None
        if plan.ordering:
            ordering = comparable_ordering(rows.column("ordering"), plan.ordering_type)
            if ordering is None:
                ordering = pa.chunked_array([pa.nulls(rows.num_rows, plan.ordering_type)])
            else:
                kinds[~np.asarray(rows.column("commit_time_delete"))] = plan.deletion_kind
        self._add(rows.column(MetaField.RECORD_KEY), kinds, ordering)

    def _add(self, keys: pa.ChunkedArray, kinds: np.ndarray, ordering: pa.ChunkedArray | None) -> None:
        self._keys += keys.chunks
        self._kinds.append(kinds)
        if ordering is not None:
            self._ordering += ordering.chunks
        self._events += len(kinds)


@functools.lru_cache(maxsize=64)
def _field_names(schema_json: str) -> frozenset[str]:
    return frozenset(str(f["name"]) for f in json.loads(schema_json)["fields"])


def stored_columns(block: LogBlock, plan: ReadPlan) -> dict[str, str]:
    """The columns of the table that a data block has, and those marks of deletions that only the block has, with their names there."""
    stored = _field_names(block.schema_json)
    names = plan.rule.names_in(block.instant)
    wanted = (*plan.schema.names, *sorted(plan.marks - set(plan.schema.names)))
    sources = {name: name if names is None else names.source(name) for name in wanted}
    return {name: source for name, source in sources.items() if source is not None and source in stored}


def block_rows(storage: Storage, block: LogBlock, plan: ReadPlan, names: frozenset[str]) -> pa.Table:
    """Rows of a data block in today's types; of `names` the columns of the table, and those marks of deletions that only the block has."""
    sources = {name: source for name, source in stored_columns(block, plan).items() if name in names}
    rows = read_rows(storage, block, columns=sorted(set(sources.values())))
    renamed = plan.rule.names_in(block.instant)
    columns = {name: rows.column(source) for name, source in sources.items()}
    if renamed is not None:
        columns = {name: renamed.renamed(name, column) for name, column in columns.items()}
    found = pa.table(columns) if columns else rows.select([])
    conformed = conform(found.select([n for n in columns if n in plan.schema.names]), plan.part(names))
    for mark in sorted(plan.marks & columns.keys() - set(conformed.column_names)):
        conformed = conformed.append_column(mark, columns[mark])
    return conformed
