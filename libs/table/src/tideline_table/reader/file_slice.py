"""Reading of one file slice: its base file merged with its log (format reference 10).

The events of the log are folded and compared with the key column of the base file. Then the base file is streamed without the rows
that the log replaced, and the winning log rows follow. Memory holds key columns, log events, and log rows up to `HELD_BYTES`.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tideline_table.errors import CorruptMetadata, UnsupportedTable
from tideline_table.file_group.slice import FileSlice
from tideline_table.log_format import LogBlock, ScannedLog, scan_log
from tideline_table.log_format.block import whole_block
from tideline_table.merge import EventKind, LogOutcome, MergeMode
from tideline_table.reader.base_file import BaseFileScan
from tideline_table.reader.log_blocks import counting_blocks, merged_instants
from tideline_table.reader.log_events import HELD_BYTES, Piece, block_rows, read_events
from tideline_table.reader.log_index import IndexMismatch, LogIndexes, WantedKeys
from tideline_table.reader.parts import folded_log, is_merged_by_cells, scan_parts
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
) -> Generator[pa.RecordBatch, None, bool]:
    """Yield rows of a slice in `schema` (with meta fields; columns that older files lack are null), filtered, with `columns`.

    With `keys`, only rows with these record keys are read; with `indexes` too, only log blocks that can hold one. Superseded rows
    of the base file are left out; log rows are last. Returns True if the rows are known to have exactly the record keys of the base
    file (see `SliceRows`). Raises `CorruptMetadata` for a base file or block that cannot be read.
    """
    plan = ReadPlan(schema, rule, tuple(schema.names if columns is None else columns), where, keys)
    if rule.path_columns is None:
        return (yield from _scan_files(storage, file_slice, plan, indexes))

    def scan(stored: pa.Schema, inner: Sequence[str], pushed: pc.Expression | None) -> Iterator[pa.RecordBatch]:
        return _scan_files(storage, file_slice, ReadPlan(stored, rule, tuple(inner), pushed, keys), indexes)

    yield from scan_with_path(rule.path_columns, file_slice.group.partition_path, schema, plan.columns, where, scan)
    return False


class SliceRows:
    """The batches of `scan_slice`, to be taken once.

    Afterwards `keeps_keys` says whether they are known to have exactly the record keys of the base file.
    """

    def __init__(self, scan: Generator[pa.RecordBatch, None, bool]) -> None:
        self._scan = scan
        self.keeps_keys = False

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        self.keeps_keys = yield from self._scan


def _scan_files(
    storage: Storage, file_slice: FileSlice, plan: ReadPlan, indexes: LogIndexes | None
) -> Generator[pa.RecordBatch, None, bool]:
    if not file_slice.log_files:
        if file_slice.base_file:
            yield from _base_rows(storage, file_slice, plan)
        return bool(file_slice.base_file) and plan.where is None and plan.keys is None
    blocks = _blocks(storage, file_slice, plan, indexes)
    if is_merged_by_cells(blocks, plan):
        yield from scan_parts(storage, file_slice, blocks, replace(plan, rule=replace(plan.rule, dictionaries=frozenset())))
        return False
    content = read_events(storage, blocks, plan, HELD_BYTES)
    if content is None:
        return (yield from _scan_files(storage, replace(file_slice, log_files=()), plan, None))
    outcome = plan.rule.merging.fold(content.events)
    is_record = outcome.kinds == EventKind.RECORD
    lost = np.zeros(len(outcome.keys), dtype=bool)
    keeps_keys = False
    if file_slice.base_file:
        found = yield from _surviving_base_rows(storage, file_slice, plan, outcome)
        lost = found.lost
        # Each event meets one row of its key at most, and then either replaces it or loses to it.
        met = int((~found.stays).sum() + lost.sum())
        keeps_keys = plan.where is None and plan.keys is None and bool(is_record.all()) and met == len(outcome.keys)
    yield from _winning_log_rows(storage, plan, content.pieces, outcome.positions[is_record & ~lost])
    return keeps_keys


def _base_rows(storage: Storage, file_slice: FileSlice, plan: ReadPlan) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a slice without log files."""
    base = plan.rule.open_base(storage, file_slice, plan.schema)
    if plan.keys is None or plan.rule.keygen is None:
        yield from base.filtered(plan.columns, _both(plan.where, _key_filter(plan.rule, plan.keys)))
        return
    # No column holds the record key: it is derived from the rows.
    for batch in base.filtered(plan.part(plan.emitted | plan.key_columns).names, plan.where):
        yield from plan.output(plan.with_keys(pa.Table.from_batches([batch])))


def read_slice(
    storage: Storage,
    file_slice: FileSlice,
    schema: pa.Schema,
    rule: LogRule,
    columns: Sequence[str] | None = None,
    where: pc.Expression | None = None,
    keys: pa.Array | None = None,
) -> pa.Table:
    """Return the rows of `scan_slice`, whole in memory."""
    chosen = schema if columns is None else pa.schema([schema.field(name) for name in columns])
    return pa.Table.from_batches(scan_slice(storage, file_slice, schema, rule, columns, where, keys), schema=chosen)


@dataclass(frozen=True, slots=True)
class MergedLog:
    """What the log files of a slice say together: deletions, and behind them one row for each key that is not deleted last."""

    rows: pa.Table
    """The newest version of each record that is not deleted last, with all columns."""
    deleted: pa.Table
    """The other keys, and those of rows behind a deletion that counts for base rows (`key`). Where the table orders by event time,
    also the ordering value of each deletion (`ordering`)."""
    purged: np.ndarray
    """True for each of `deleted` that wins over earlier records whatever their ordering values are."""
    instants: tuple[str, ...]
    """The writes that are merged, oldest first."""
    parts: tuple[pa.Table, ...] = ()
    """More such rows, of which the log has only these columns: one table for each set of columns."""

    @property
    def padded(self) -> pa.Table:
        """All rows, null in the columns that the log does not have."""
        return pa.concat_tables([self.rows, *self.parts], promote_options="default")


def merged_log(storage: Storage, file_slice: FileSlice, schema: pa.Schema, rule: LogRule) -> MergedLog:
    """Return the folded log of a slice, whole in memory, without a look at the base file. `schema` includes the meta fields.

    Raises `UnsupportedTable` where cells are merged, because they need the base row, and errors as `scan_slice`.
    """
    plan = ReadPlan(schema, rule, tuple(schema.names), None, None)
    blocks = _blocks(storage, file_slice, plan, None)
    has_parts = is_merged_by_cells(blocks, plan)
    if has_parts and rule.merging.needs_older_rows:
        raise UnsupportedTable(
            f"log files of file group {file_slice.group.file_id} whose records are merged cell by cell",
            expected="records that replace each other as a whole",
            remedy="compact the table: tideline run compaction PATH",
        )
    content = read_events(storage, blocks, plan, held_bytes=None)
    if content is None:
        raise CorruptMetadata(f"log files of file group {file_slice.group.file_id} without an entry", expected="rows or deletions")
    parts: list[pa.Table] = []
    if has_parts:
        outcome, tables = folded_log(content, plan)
        rows = pa.concat_tables([schema.empty_table(), *(rows for rows in tables if rows.num_columns == len(schema))])
        parts = [rows for rows in tables if rows.num_columns < len(schema)]
    else:
        outcome = rule.merging.fold(content.events)
        winners = outcome.positions[outcome.kinds == EventKind.RECORD]
        rows = pa.Table.from_batches(_winning_log_rows(storage, plan, content.pieces, winners), schema=schema)
    gone = (outcome.kinds != EventKind.RECORD) | outcome.behind
    columns = {"key": outcome.keys.filter(pa.array(gone))}
    if outcome.ordering is not None:
        columns["ordering"] = outcome.ordering.filter(pa.array(gone))
    by_commit_time = rule.merging.mode is MergeMode.COMMIT_TIME
    purged = outcome.purged[gone] | by_commit_time
    return MergedLog(rows, pa.table(columns), purged, merged_instants(blocks), tuple(parts))


@dataclass(frozen=True, slots=True)
class Superseded:
    """Rows that a slice does not have although a file of it holds them."""

    base: np.ndarray
    """Ascending positions of rows in the base file."""
    log: np.ndarray
    """Ascending positions among the rows of `scan_log_part`: a base row has a larger ordering value."""


def superseded_rows(storage: Storage, file_slice: FileSlice, schema: pa.Schema, rule: LogRule) -> Superseded:
    """Return which rows of the base file and of `scan_log_part` are not rows of the slice; all others are.

    Reads record keys and ordering values only. Where cells of base rows are merged with the log, all base rows count as superseded,
    because `scan_log_part` has the whole slice. Columns from the path of the slice must not replace stored ones.
    """
    plan = ReadPlan(schema, rule, (), None, None)
    base = rule.open_base(storage, file_slice, schema)
    blocks = _blocks(storage, file_slice, plan, None)
    groups = base.row_groups()
    if is_merged_by_cells(blocks, plan):
        return Superseded(np.arange(sum(base.rows(number) for number in groups)), np.arange(0))
    content = read_events(storage, blocks, plan, 0)
    if content is None:
        return Superseded(np.arange(0), np.arange(0))
    outcome = rule.merging.fold(content.events)
    compared = _compare(base, groups, plan, outcome)
    return Superseded(np.flatnonzero(~compared.stays), np.flatnonzero(compared.lost[outcome.kinds == EventKind.RECORD]))


def scan_log_part(
    storage: Storage, file_slice: FileSlice, schema: pa.Schema, rule: LogRule, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Yield the newest row of each key in the log, in the same order at each call, without a look at the base file.

    Where cells of base rows are merged with the log, these are all rows of the slice. Errors as `scan_slice`.
    """
    plan = ReadPlan(schema, rule, tuple(columns), None, None)
    alone = file_slice if is_merged_by_cells(_blocks(storage, file_slice, plan, None), plan) else replace(file_slice, base_file="")
    yield from scan_slice(storage, alone, schema, rule, columns)


def _both(one: pc.Expression | None, other: pc.Expression | None) -> pc.Expression | None:
    if one is None or other is None:
        return one if other is None else other
    return one & other


def _key_filter(rule: LogRule, keys: pa.Array | None) -> pc.Expression | None:
    # Without meta fields, no column holds the record key as such.
    if keys is None or rule.keygen is not None:
        return None
    return pc.field(MetaField.RECORD_KEY).isin(keys)


def _blocks(storage: Storage, file_slice: FileSlice, plan: ReadPlan, indexes: LogIndexes | None) -> Sequence[LogBlock]:
    """Return the blocks that apply, without those that by their indexes cannot hold a wanted key."""
    rule = plan.rule
    file_slice = _applied(file_slice, rule)
    if indexes is not None and plan.keys is not None:
        narrowed = indexes.scan(file_slice, WantedKeys(plan.keys))
        try:
            found = [narrowed.fetched(b) for b in _counting(storage, narrowed.scanned(), rule)]
            return [block for block in found if block is not None]
        except IndexMismatch as error:
            _LOGGER.warning("the key index of log file %s does not match its blocks; the file is scanned instead", error)
    return _counting(storage, [scan_log(storage, path) for path in file_slice.log_paths], rule)


def _counting(storage: Storage, scanned: Sequence[ScannedLog], rule: LogRule) -> list[LogBlock]:
    """Return the blocks that apply.

    What a damaged header says is no reason to leave a block out, so those left out are compared with their record.
    """
    found = counting_blocks(scanned, rule.visible, rule.as_of)
    applied = {id(block) for block in found}
    for log in scanned:
        for block in log.blocks:
            if block.written is not None and id(block) not in applied:
                whole_block(storage, block, block.written)
    return found


def _applied(file_slice: FileSlice, rule: LogRule) -> FileSlice:
    """Return the slice without log files that a log compaction merged, if the query sees that log compaction."""

    def is_seen(instant: str) -> bool:
        return (rule.visible is None or instant in rule.visible) and (not rule.as_of or instant <= rule.as_of)

    return file_slice.applied if all(is_seen(log.instant) for log in file_slice.log_files if log.merges_earlier) else file_slice


def _surviving_base_rows(
    storage: Storage, file_slice: FileSlice, plan: ReadPlan, outcome: LogOutcome
) -> Generator[pa.RecordBatch, None, _Compared]:
    """Yield base rows that no event replaces; return what became of the compared rows and of the events."""
    base = plan.rule.open_base(storage, file_slice, plan.schema)
    wanted = _both(plan.where, _key_filter(plan.rule, plan.keys))
    # If ordering values decide, a base row can beat an event although the filter drops that row. So the filter prunes only emitted
    # rows, not compared rows: without the comparison, the event would be emitted.
    compared = base.row_groups(_key_filter(plan.rule, plan.keys) if outcome.needs_ordering else wanted)
    found = _compare(base, compared, plan, outcome)
    if more := _may_hold_first_rows(base, compared, plan, found):
        compared = sorted({*compared, *more})
        found = _compare(base, compared, plan, outcome)
    emitted = [number for number in base.row_groups(wanted) if number in set(compared)]
    at = dict(zip(compared, np.cumsum([0, *(base.rows(n) for n in compared)])[:-1], strict=True))
    mask = np.concatenate([found.stays[at[n] : at[n] + base.rows(n)] for n in emitted]) if emitted else found.stays[:0]
    start = 0
    part = plan.part(plan.emitted | (plan.key_columns if plan.keys is not None else frozenset()))
    for rows in _decoded(base, emitted, part, found.rows if emitted == compared else None):
        keep = mask[start : start + rows.num_rows]
        start += rows.num_rows
        yield from plan.output(plan.with_keys(rows if keep.all() else rows.filter(pa.array(keep))))
    return found


def _decoded(base: BaseFileScan, groups: Sequence[int], wanted: pa.Schema, held: pa.Table | None) -> Iterator[pa.Table]:
    """Yield all rows of these row groups with the columns of `wanted`.

    Those that `held` has of the same rows are not decoded again.
    """
    known = [] if held is None else [name for name in wanted.names if name in held.column_names]
    if held is not None and len(known) == len(wanted):
        # A table without columns would not show its number of rows.
        yield held.select(known or held.column_names[:1])
        return
    start = 0
    for batch in base.batches(groups, pa.schema([field for field in wanted if field.name not in known])):
        rows = pa.Table.from_batches([batch])
        if held is not None and known:
            beside = held.slice(start, batch.num_rows)
            start += batch.num_rows
            sources = [beside if name in known else rows for name in wanted.names]
            columns = [source.column(name) for source, name in zip(sources, wanted.names, strict=True)]
            fields = [source.schema.field(name) for source, name in zip(sources, wanted.names, strict=True)]
            rows = pa.Table.from_arrays(columns, schema=pa.schema(fields))
        yield rows


@dataclass(frozen=True, slots=True)
class _Compared:
    """Rows of the base file that were compared with the events of the log."""

    rows: pa.Table
    """The columns of the record keys, and those of the ordering values if these decide."""
    keys: pa.ChunkedArray
    stays: np.ndarray
    """Which of the rows no event replaces."""
    lost: np.ndarray
    """Which events lost to a row."""


def _compare(base: BaseFileScan, groups: Sequence[int], plan: ReadPlan, outcome: LogOutcome) -> _Compared:
    """Compare the rows of these row groups with the events."""
    needed = plan.part(plan.key_columns | (plan.ordering if outcome.needs_ordering else frozenset()))
    rows = pa.Table.from_batches(base.batches(groups, needed), schema=needed)
    keys = plan.record_keys(rows)
    return _Compared(rows, keys, *outcome.against_base(keys, plan.ordering_values(rows) if outcome.needs_ordering else None))


def _may_hold_first_rows(base: BaseFileScan, compared: Sequence[int], plan: ReadPlan, found: _Compared) -> list[int]:
    """Return skipped row groups that may hold an earlier row of a matched key: an event applies to the first row of its key."""
    if found.stays.all() or len(compared) == compared[-1] + 1:
        return []
    met = found.keys.filter(pa.array(~found.stays))
    may_hold = base.row_groups(None if plan.rule.keygen is not None else _key_filter(plan.rule, met.unique()))
    return [number for number in may_hold if number < compared[-1] and number not in compared]


def _winning_log_rows(storage: Storage, plan: ReadPlan, pieces: Sequence[Piece], winners: np.ndarray) -> Iterator[pa.RecordBatch]:
    bounds = np.searchsorted(winners, [*(piece.start for piece in pieces), np.iinfo(np.int64).max])
    for piece, (first, last) in zip(pieces, itertools.pairwise(bounds), strict=True):
        if first == last:
            continue
        rows = piece.rows
        if rows is None:
            rows = plan.with_keys(block_rows(storage, piece.block, plan, plan.emitted | plan.key_columns))
        local = winners[first:last] - piece.start
        yield from plan.output(rows if len(local) == rows.num_rows else rows.take(pa.array(local)))
