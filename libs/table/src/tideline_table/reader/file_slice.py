"""Reading one file slice: its base file with its log merged into it (format reference 10).

The log's keys are folded first and compared with the key column of the base file; then the base file streams past without the rows that
the log replaced, and the rows of the log that won follow. In memory are the key columns and the log, its rows only up to `HELD_BYTES`.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tideline_table.file_group.slice import FileSlice
from tideline_table.log_format import LogBlock, scan_log
from tideline_table.merge import EventKind, LogOutcome, fold_events
from tideline_table.reader.base_file import BaseFileScan
from tideline_table.reader.log_blocks import counting_blocks
from tideline_table.reader.log_events import HELD_BYTES, Piece, block_rows, read_events
from tideline_table.reader.log_index import IndexMismatch, LogIndexes, WantedKeys
from tideline_table.reader.parts import is_merged_by_cells, scan_parts
from tideline_table.reader.path_columns import scan_with_path
from tideline_table.reader.read_plan import LogRule, ReadPlan
from tideline_table.schema.meta_fields import MetaField
from tideline_table.storage import Storage

_LOGGER = logging.getLogger(__name__)


def scan_slice(
    storage: Storage,
    file_slice: FileSlice,
    schema: pa.Schema,
    rule: LogRule,
    columns: Sequence[str] | None = None,
    where: pc.Expression | None = None,
    keys: pa.Array | None = None,
    indexes: LogIndexes | None = None,
) -> Iterator[pa.RecordBatch]:
    """Rows of a slice in `schema` (with meta fields; columns that older files lack are null), filtered by `where`, reduced to `columns`.

    `keys` reads the rows with these record keys only; with `indexes`, of the log only the blocks that can hold one. Superseded rows of the
    base file are not emitted; rows of the log come last. Raises `CorruptMetadata` for a base file or block that cannot be read.
    """
    names = tuple(schema.names if columns is None else columns)
    if rule.path_columns is None:
        yield from _scan_files(storage, file_slice, schema, rule, names, where, keys, indexes)
        return

    def scan(stored: pa.Schema, inner: Sequence[str], pushed: pc.Expression | None) -> Iterator[pa.RecordBatch]:
        return _scan_files(storage, file_slice, stored, rule, inner, pushed, keys, indexes)

    yield from scan_with_path(rule.path_columns, file_slice.group.partition_path, schema, names, where, scan)


def _scan_files(
    storage: Storage,
    file_slice: FileSlice,
    schema: pa.Schema,
    rule: LogRule,
    names: Sequence[str],
    where: pc.Expression | None,
    keys: pa.Array | None,
    indexes: LogIndexes | None = None,
) -> Iterator[pa.RecordBatch]:
    if not file_slice.log_files:
        if file_slice.base_file:
            yield from rule.open_base(storage, file_slice, schema).filtered(names, _both(where, _key_filter(rule, keys)))
        return
    plan = ReadPlan(schema, rule, tuple(names), where, keys)
    blocks = _blocks(storage, file_slice, plan, indexes)
    if is_merged_by_cells(blocks, plan):
        yield from scan_parts(storage, file_slice, blocks, plan)
        return
    log = _folded(storage, blocks, plan)
    if log is None:
        base_only = FileSlice(
            file_slice.group, file_slice.base_instant, file_slice.base_file, file_slice.size_bytes, file_slice.rows
        )
        yield from _scan_files(storage, base_only, schema, rule, names, where, keys)
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


@dataclass(frozen=True, slots=True)
class _Log:
    outcome: LogOutcome
    pieces: tuple[Piece, ...]


def _blocks(storage: Storage, file_slice: FileSlice, plan: ReadPlan, indexes: LogIndexes | None) -> Sequence[LogBlock]:
    """The blocks that count, without those that by their indexes cannot hold a key asked for."""
    rule = plan.rule
    if indexes is not None and plan.keys is not None:
        narrowed = indexes.scan(file_slice, WantedKeys(plan.keys))
        try:
            found = [narrowed.fetched(b) for b in counting_blocks(narrowed.scanned(), rule.visible, rule.as_of).blocks]
            return [block for block in found if block is not None]
        except IndexMismatch as error:
            _LOGGER.warning("log file %s has other blocks than its key index tells of: it is scanned", error)
    scanned = (scan_log(storage, path) for path in file_slice.log_paths)
    return counting_blocks(scanned, rule.visible, rule.as_of).blocks


def _folded(storage: Storage, blocks: Sequence[LogBlock], plan: ReadPlan) -> _Log | None:
    """The folded log, None when none of its blocks says anything."""
    content = read_events(storage, blocks, plan, HELD_BYTES)
    return _Log(fold_events(content.events, plan.rule.mode), content.pieces) if content is not None else None


def _surviving_base_rows(
    storage: Storage, file_slice: FileSlice, plan: ReadPlan, outcome: LogOutcome
) -> Generator[pa.RecordBatch, None, np.ndarray]:
    """Base rows that no event replaces; returns which events lost."""
    base = plan.rule.open_base(storage, file_slice, plan.schema)
    wanted = _both(plan.where, _key_filter(plan.rule, plan.keys))
    # Where ordering values decide, a base row beats an event although the row itself may be filtered out: without it the event would
    # come to life. So only the rows that are emitted may be pruned by the filter, not those that are compared.
    compared = base.row_groups(_key_filter(plan.rule, plan.keys) if outcome.needs_ordering else wanted)
    rows, stays, lost = _compare(base, compared, plan, outcome)
    if more := _may_hold_first_rows(base, compared, plan, rows.filter(pa.array(~stays))):
        compared = sorted({*compared, *more})
        _, stays, lost = _compare(base, compared, plan, outcome)
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


def _compare(
    base: BaseFileScan, groups: Sequence[int], plan: ReadPlan, outcome: LogOutcome
) -> tuple[pa.ChunkedArray, np.ndarray, np.ndarray]:
    """The record keys of these row groups, which of the rows stay, and which events lost."""
    needed = plan.key_columns | (plan.ordering if outcome.needs_ordering else frozenset())
    rows = pa.Table.from_batches(base.batches(groups, plan.part(needed)), schema=plan.part(needed))
    keys = plan.record_keys(rows)
    return keys, *outcome.against_base(keys, plan.ordering_values(rows) if outcome.needs_ordering else None)


def _may_hold_first_rows(base: BaseFileScan, compared: Sequence[int], plan: ReadPlan, met: pa.ChunkedArray) -> list[int]:
    """Row groups left out of the comparison that may hold an earlier row of a key that met its event: that row meets it then."""
    if not len(met):
        return []
    may_hold = base.row_groups(None if plan.rule.keygen is not None else _key_filter(plan.rule, met.unique()))
    return [number for number in may_hold if number < compared[-1] and number not in compared]


def _winning_log_rows(storage: Storage, plan: ReadPlan, log: _Log, lost: np.ndarray) -> Iterator[pa.RecordBatch]:
    winners = log.outcome.positions[(log.outcome.kinds == EventKind.RECORD) & ~lost]
    for at, piece in enumerate(log.pieces):
        end = log.pieces[at + 1].start if at + 1 < len(log.pieces) else None
        first, last = np.searchsorted(winners, [piece.start, end if end is not None else np.iinfo(np.int64).max])
        if first == last:
            continue
        rows = piece.rows
        if rows is None:
            rows = block_rows(storage, piece.block, plan, plan.emitted | plan.key_columns)
            if plan.keys is not None:
                rows = rows.filter(pc.is_in(plan.record_keys(rows), value_set=plan.keys))
        local = winners[first:last] - piece.start
        yield from plan.output(rows if len(local) == rows.num_rows else rows.take(pa.array(local)))
