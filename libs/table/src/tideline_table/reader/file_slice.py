"""Reading one file slice: its base file with its log merged into it (format reference 10).

The log's keys are folded first and compared with the key column of the base file; then the base file streams past without the rows that
the log replaced, and the rows of the log that won follow. In memory are the key columns and the log, its rows only up to `HELD_BYTES`.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tideline_table.errors import UnsupportedTable
from tideline_table.file_group.slice import FileSlice
from tideline_table.keygen import KeyGenerator
from tideline_table.log_format import BlockType, LogBlock, read_deletes, read_rows, scan_log
from tideline_table.merge import EventKind, LogEvents, LogOutcome, MergeMode, comparable_ordering, deleted_mask, fold_events
from tideline_table.reader.base_file import BaseFileScan, referenced_columns, scan_slices
from tideline_table.reader.log_blocks import VisibleInstants, counting_blocks
from tideline_table.schema.evolution import conform
from tideline_table.schema.fit import IS_DELETED
from tideline_table.schema.meta_fields import MetaField
from tideline_table.storage import Storage

HELD_BYTES = 128 * 1024 * 1024
"""Decoded log rows of a slice that stay in memory; the rest is decoded a second time, block by block, when its rows are wanted."""


@dataclass(frozen=True, slots=True)
class LogRule:
    """How log files are merged into a base file: a plain value that ships to workers."""

    mode: MergeMode
    ordering_field: str = ""
    visible: VisibleInstants | None = None
    """Committed instants, None where the slice names committed log files only (tables that Tideline owns)."""
    as_of: str = ""
    keygen: KeyGenerator | None = None
    """Where keys come from in a table without meta fields."""

    def __post_init__(self) -> None:
        if self.mode is MergeMode.EVENT_TIME and "," in self.ordering_field:
            raise UnsupportedTable(
                f"several ordering fields ({self.ordering_field})", expected="one ordering field for merging log files"
            )


def scan_slice(
    storage: Storage,
    file_slice: FileSlice,
    schema: pa.Schema,
    rule: LogRule,
    columns: Sequence[str] | None = None,
    where: pc.Expression | None = None,
    keys: pa.Array | None = None,
) -> Iterator[pa.RecordBatch]:
    """Rows of a slice in `schema` (with meta fields; columns that older files lack are null), filtered by `where`, reduced to `columns`.

    `keys` reads the rows with these record keys only. Superseded rows of the base file are not emitted; rows of the log come last. Raises
    `CorruptMetadata` for a base file or block that cannot be read, `UnsupportedTable` for blocks that hold parts of records.
    """
    names = tuple(schema.names if columns is None else columns)
    if not file_slice.log_files:
        if file_slice.base_file:
            yield from scan_slices(storage, [file_slice], schema, names, _both(where, _key_filter(rule, keys)))
        return
    plan = _ReadPlan(schema, rule, names, where, keys)
    log = _read_log(storage, file_slice, plan)
    if log is None:
        base_only = FileSlice(
            file_slice.group, file_slice.base_instant, file_slice.base_file, file_slice.size_bytes, file_slice.rows
        )
        yield from scan_slice(storage, base_only, schema, rule, columns, where, keys)
        return
    lost = np.zeros(len(log.outcome.keys), dtype=bool)
    if file_slice.base_file:
        lost = yield from _surviving_base_rows(storage, file_slice, plan, log.outcome)
    yield from _winning_log_rows(storage, plan, log, lost)


def read_slice(
    storage: Storage,
    file_slice: FileSlice,
    schema: pa.Schema,
    rule: LogRule,
    columns: Sequence[str] | None = None,
    where: pc.Expression | None = None,
    keys: pa.Array | None = None,
) -> pa.Table:
    """`scan_slice`, whole in memory."""
    chosen = schema if columns is None else pa.schema([schema.field(name) for name in columns])
    return pa.Table.from_batches(scan_slice(storage, file_slice, schema, rule, columns, where, keys), schema=chosen)


def _both(one: pc.Expression | None, other: pc.Expression | None) -> pc.Expression | None:
    if one is None or other is None:
        return one if other is None else other
    return one & other


def _key_filter(rule: LogRule, keys: pa.Array | None) -> pc.Expression | None:
    # Without meta fields a key of several columns stands in none of them.
    if keys is None or rule.keygen is not None:
        return None
    return pc.field(MetaField.RECORD_KEY).isin(keys)


@dataclass(frozen=True)
class _ReadPlan:
    """What a read of merged slices needs of each file."""

    schema: pa.Schema
    rule: LogRule
    columns: tuple[str, ...]
    where: pc.Expression | None
    keys: pa.Array | None

    @functools.cached_property
    def key_columns(self) -> frozenset[str]:
        """Where record keys come from."""
        return frozenset(self.rule.keygen.key_fields) if self.rule.keygen is not None else frozenset([MetaField.RECORD_KEY.value])

    @functools.cached_property
    def ordering(self) -> frozenset[str]:
        """The ordering field where it decides."""
        return frozenset([self.rule.ordering_field]) if self.rule.mode is MergeMode.EVENT_TIME else frozenset()

    @functools.cached_property
    def emitted(self) -> frozenset[str]:
        """What the rows that win need: the columns asked for and those of the filter."""
        return frozenset(self.columns) | (referenced_columns(self.where, self.schema) if self.where is not None else frozenset())

    def part(self, names: frozenset[str]) -> pa.Schema:
        """These columns in the order of the schema."""
        return pa.schema([f for f in self.schema if f.name in names])

    def record_keys(self, rows: pa.Table) -> pa.ChunkedArray:
        """Record keys of rows that have `key_columns`."""
        return rows.column(MetaField.RECORD_KEY) if self.rule.keygen is None else self.rule.keygen.record_keys(rows)

    def output(self, rows: pa.Table) -> Iterator[pa.RecordBatch]:
        """Filtered, with the columns asked for."""
        kept = rows if self.where is None else rows.filter(self.where)
        yield from (batch for batch in kept.select(list(self.columns)).to_batches() if batch.num_rows)


@dataclass(frozen=True, slots=True)
class _Piece:
    """Rows of one data block; `rows` is None where they have to be decoded again."""

    block: LogBlock
    start: int
    rows: pa.Table | None


@dataclass(frozen=True, slots=True)
class _Log:
    outcome: LogOutcome
    pieces: tuple[_Piece, ...]


def _read_log(storage: Storage, file_slice: FileSlice, plan: _ReadPlan) -> _Log | None:
    """The folded log, None when none of its blocks says anything."""
    scanned = (scan_log(storage, path) for path in file_slice.log_paths)
    counting = counting_blocks(scanned, plan.rule.visible, plan.rule.as_of)
    reader = _LogReader(storage, plan)
    for block in counting.blocks:
        reader.add(block)
    return reader.folded()


class _LogReader:
    """Collects the events of one slice's blocks."""

    def __init__(self, storage: Storage, plan: _ReadPlan) -> None:
        self._storage = storage
        self._plan = plan
        self._keys: list[pa.Array] = []
        self._kinds: list[np.ndarray] = []
        self._ordering: list[pa.Array] = []
        self._pieces: list[_Piece] = []
        self._events = 0
        self._held_bytes = 0

    def add(self, block: LogBlock) -> None:
        """Read one block."""
        if block.type is BlockType.DELETE:
            self._add_deletes(block)
        else:
            self._add_rows(block)

    def folded(self) -> _Log | None:
        """What all of them say in the end."""
        if not self._events:
            return None
        ordering = pa.chunked_array(self._ordering) if self._plan.ordering else None
        events = LogEvents(pa.chunked_array(self._keys, pa.string()), np.concatenate(self._kinds), ordering)
        return _Log(fold_events(events, self._plan.rule.mode), tuple(self._pieces))

    def _add_rows(self, block: LogBlock) -> None:
        plan = self._plan
        rows = _block_rows(self._storage, block, plan, plan.key_columns | plan.ordering | plan.emitted | {IS_DELETED})
        keys = plan.record_keys(rows)
        if plan.keys is not None:
            wanted = pc.is_in(keys, value_set=plan.keys)
            rows, keys = rows.filter(wanted), keys.filter(wanted)
        kinds = np.full(rows.num_rows, EventKind.RECORD, dtype=np.int8)
        deleted = deleted_mask(rows)
        if deleted is not None:
            kinds[np.asarray(deleted)] = EventKind.DELETE
        ordering = rows.column(plan.rule.ordering_field) if plan.ordering else None
        fits = self._held_bytes + rows.nbytes <= HELD_BYTES
        if fits:
            self._held_bytes += rows.nbytes
        self._pieces.append(_Piece(block, self._events, rows if fits else None))
        self._add(keys, kinds, ordering)

    def _add_deletes(self, block: LogBlock) -> None:
        plan = self._plan
        rows = read_deletes(self._storage, block)
        if plan.keys is not None:
            rows = rows.filter(pc.is_in(rows.column(MetaField.RECORD_KEY), value_set=plan.keys))
        kinds = np.full(rows.num_rows, EventKind.PURGE, dtype=np.int8)
        ordering = None
        if plan.ordering:
            kind = plan.schema.field(plan.rule.ordering_field).type
            ordering = comparable_ordering(rows.column("ordering"), kind)
            if ordering is None:
                ordering = pa.chunked_array([pa.nulls(rows.num_rows, kind)])
            else:
                kinds[~np.asarray(rows.column("commit_time_delete"))] = EventKind.DELETE
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


def _block_rows(storage: Storage, block: LogBlock, plan: _ReadPlan, names: frozenset[str]) -> pa.Table:
    """Rows of a data block in today's types; of `names` the columns of the table, and the mark of deletions where the block has it."""
    stored = _field_names(block.schema_json)
    rows = read_rows(storage, block, columns=sorted(names & stored))
    conformed = conform(rows.select([n for n in rows.column_names if n in plan.schema.names]), plan.part(names))
    if IS_DELETED in rows.column_names and IS_DELETED not in conformed.column_names:
        return conformed.append_column(IS_DELETED, rows.column(IS_DELETED))
    return conformed


def _surviving_base_rows(
    storage: Storage, file_slice: FileSlice, plan: _ReadPlan, outcome: LogOutcome
) -> Generator[pa.RecordBatch, None, np.ndarray]:
    """Base rows that no event replaces; returns which events lost."""
    base = BaseFileScan(storage, file_slice.path, plan.schema)
    wanted = _both(plan.where, _key_filter(plan.rule, plan.keys))
    # Where ordering values decide, a base row beats an event although the row itself may be filtered out: without it the event would
    # come to life. So only the rows that are emitted may be pruned by the filter, not those that are compared.
    compared = base.row_groups(_key_filter(plan.rule, plan.keys) if outcome.needs_ordering else wanted)
    stays, lost = _compare(base, compared, plan, outcome)
    emitted = [number for number in base.row_groups(wanted) if number in set(compared)]
    at = dict(zip(compared, np.cumsum([0, *(base.rows(n) for n in compared)])[:-1], strict=True))
    mask = np.concatenate([stays[at[n] : at[n] + base.rows(n)] for n in emitted]) if emitted else stays[:0]
    start = 0
    for batch in base.batches(emitted, plan.part(plan.emitted | (plan.key_columns if plan.keys is not None else frozenset()))):
        rows = pa.Table.from_batches([batch])
        keep = mask[start : start + batch.num_rows]
        start += batch.num_rows
        if not keep.all():
            rows = rows.filter(pa.array(keep))
        if plan.keys is not None:
            rows = rows.filter(pc.is_in(plan.record_keys(rows), value_set=plan.keys))
        yield from plan.output(rows)
    return lost


def _compare(base: BaseFileScan, groups: Sequence[int], plan: _ReadPlan, outcome: LogOutcome) -> tuple[np.ndarray, np.ndarray]:
    needed = plan.key_columns | (plan.ordering if outcome.needs_ordering else frozenset())
    rows = pa.Table.from_batches(base.batches(groups, plan.part(needed)), schema=plan.part(needed))
    return outcome.against_base(plan.record_keys(rows), rows.column(plan.rule.ordering_field) if outcome.needs_ordering else None)


def _winning_log_rows(storage: Storage, plan: _ReadPlan, log: _Log, lost: np.ndarray) -> Iterator[pa.RecordBatch]:
    winners = log.outcome.positions[(log.outcome.kinds == EventKind.RECORD) & ~lost]
    for at, piece in enumerate(log.pieces):
        end = log.pieces[at + 1].start if at + 1 < len(log.pieces) else None
        first, last = np.searchsorted(winners, [piece.start, end if end is not None else np.iinfo(np.int64).max])
        if first == last:
            continue
        rows = piece.rows
        if rows is None:
            rows = _block_rows(storage, piece.block, plan, plan.emitted | plan.key_columns)
            if plan.keys is not None:
                rows = rows.filter(pc.is_in(plan.record_keys(rows), value_set=plan.keys))
        local = winners[first:last] - piece.start
        yield from plan.output(rows if len(local) == rows.num_rows else rows.take(pa.array(local)))
