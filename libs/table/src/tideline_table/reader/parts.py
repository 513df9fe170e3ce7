"""Reading of one file slice whose records are merged cell by cell: its log holds partial records, or records leave cells open.

Memory holds the log, with the position of the version that fills each open cell; the base file is streamed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tideline_table.errors import UnsupportedTable
from tideline_table.file_group.slice import FileSlice
from tideline_table.log_format import LogBlock
from tideline_table.merge import EventKind, LogOutcome, MergeMode, PartsOutcome, chosen_cells, first_matches, fold_parts, from_newer
from tideline_table.reader.log_events import LogContent, read_events, stored_columns
from tideline_table.reader.read_plan import ReadPlan
from tideline_table.schema.arrow import one_chunk
from tideline_table.schema.meta_fields import META_FIELDS
from tideline_table.storage import Storage

if TYPE_CHECKING:
    from tideline_table.merge.merger import NamedMerger  # few tables have one


def is_merged_by_cells(blocks: Sequence[LogBlock], plan: ReadPlan) -> bool:
    """Return whether `scan_parts` must merge these blocks.

    Raises `UnsupportedTable` for partial records combined with open cells.
    """
    partial = next((block for block in blocks if block.is_partial), None)
    merging = plan.rule.merging
    if partial is not None and merging.needs_older_rows:
        by = merging.partial.cells.value if merging.partial is not None else f"{merging.merger}"
        raise UnsupportedTable(
            f"log file {partial.path} has partial records (IS_PARTIAL), but the table merges cells by {by}",
            expected="only one of the two",
            remedy="compact the table with the Apache Hudi release that wrote it",
        )
    return bool(blocks) and (partial is not None or merging.needs_older_rows)


def scan_parts(storage: Storage, file_slice: FileSlice, blocks: Sequence[LogBlock], plan: ReadPlan) -> Iterator[pa.RecordBatch]:
    """Yield rows of a slice with these log blocks, filtered, with the requested columns."""
    if plan.rule.merging.merger is not None:
        yield from _scan_merged(storage, file_slice, blocks, plan, plan.rule.merging.merger)
        return
    content = read_events(storage, blocks, plan, held_bytes=None)
    log = _MergedLog.of(content, plan) if content is not None else None
    met = np.zeros(len(log.outcome.keys) if log else 0, dtype=bool)
    if file_slice.base_file:
        for rows in _base_rows(storage, file_slice, plan):
            yield from plan.output(log.merged(rows, met) if log else rows)
    if log is not None:
        yield from plan.output(log.as_rows(np.flatnonzero(~met & (log.outcome.kinds == EventKind.RECORD))))


def folded_log(content: LogContent, plan: ReadPlan) -> tuple[LogOutcome, list[pa.Table]]:
    """Return the folded log of a slice with partial records, and its records: a table for each set of columns that some have.

    Raises `UnsupportedTable` if records lack their ordering values.
    """
    log = _MergedLog.of(content, plan)
    found, tables = log.outcome, list[pa.Table]()
    if plan.ordering & found.filled.keys():
        raise UnsupportedTable(
            f"partial records without the ordering column(s) {', '.join(plan.rule.merging.ordering_fields)}",
            expected="records with them",
            remedy="compact the table: tideline run compaction PATH",
        )
    records = np.flatnonzero(found.kinds == EventKind.RECORD)
    names = [name for name in log.rows.column_names if name in found.filled]
    filled = np.array([found.filled[name][records] for name in names], dtype=bool).reshape(len(names), len(records)).T
    shapes, shape_of = np.unique(filled, axis=0, return_inverse=True)
    for number, shape in enumerate(shapes):
        left_open = {name for name, is_filled in zip(names, shape, strict=True) if not is_filled}
        rows = log.alone(records[shape_of.reshape(-1) == number])
        tables.append(rows.select([name for name in rows.column_names if name not in left_open]))
    none, purged = np.zeros(len(found.kinds), dtype=bool), found.kinds == EventKind.PURGE
    return LogOutcome(found.tops, found.keys, found.kinds, found.ordering, purged, none, found.mode), tables


def _scan_merged(
    storage: Storage, file_slice: FileSlice, blocks: Sequence[LogBlock], plan: ReadPlan, merger: NamedMerger
) -> Iterator[pa.RecordBatch]:
    """Yield rows of a slice whose versions a merger merges, beginning with the base file. It may ask any column."""
    wide = replace(plan, columns=tuple(plan.schema.names))
    content = read_events(storage, blocks, wide, held_bytes=None)
    keys = content.events.keys if content is not None else pa.chunked_array([], pa.string())
    codes = one_chunk(pc.dictionary_encode(keys))
    state = np.full(len(codes.dictionary), -1, dtype=np.int64)
    rows, row_of = _rows_of(content, wide.part(wide.emitted)) if content is not None else (wide.schema.empty_table(), state)
    for base in _base_rows(storage, file_slice, wide) if file_slice.base_file else ():
        found, targets = first_matches(wide.record_keys(base), codes.dictionary)
        unmet = state[targets] < 0
        found, targets = found[unmet], targets[unmet]
        state[targets] = np.arange(rows.num_rows, rows.num_rows + len(found))
        rows = pa.concat_tables([rows, base.take(pa.array(found))])
        stays = np.ones(base.num_rows, dtype=bool)
        stays[found] = False
        yield from plan.output(base.filter(pa.array(stays)))
    if content is not None:
        number = codes.indices.to_numpy(zero_copy_only=False)
        rows = merger.folded(number, content.events.kinds == EventKind.RECORD, row_of, rows, state)
        yield from plan.output(rows.take(pa.array(state[state >= 0])))


def _rows_of(content: LogContent, wanted: pa.Schema) -> tuple[pa.Table, np.ndarray]:
    """Return the rows of a log, and the row of each of its events, -1 for deletions."""
    tables = [piece.rows.select(wanted.names) for piece in content.pieces if piece.rows is not None]
    rows = pa.concat_tables(tables).combine_chunks() if tables else wanted.empty_table()
    row_of = np.full(len(content.events.kinds), -1, dtype=np.int64)
    at = 0
    for piece in content.pieces:
        assert piece.rows is not None
        row_of[piece.start : piece.start + piece.rows.num_rows] = np.arange(at, at + piece.rows.num_rows)
        at += piece.rows.num_rows
    return rows, row_of


def _base_rows(storage: Storage, file_slice: FileSlice, plan: ReadPlan) -> Iterator[pa.Table]:
    # A row that fails the filter may satisfy it once merged, so only keys narrow what is read.
    base = plan.rule.open_base(storage, file_slice, plan.schema)
    for batch in base.batches(base.row_groups(), plan.part(plan.emitted | plan.key_columns | plan.ordering)):
        yield plan.with_keys(pa.Table.from_batches([batch]))


@dataclass(frozen=True)
class _MergedLog:
    """The folded log of a slice with its rows; `row_of` maps positions of events to rows."""

    plan: ReadPlan
    outcome: PartsOutcome
    rows: pa.Table
    row_of: np.ndarray

    @classmethod
    def of(cls, content: LogContent, plan: ReadPlan) -> _MergedLog:
        """Fold the events of a log."""
        rows, row_of = _rows_of(content, plan.part(plan.emitted | plan.key_columns | plan.ordering))
        filled = _filled_by_value(rows, row_of, plan) if plan.rule.merging.partial is not None else _filled_by_schema(content, plan)
        outcome = fold_parts(content.events, plan.rule.merging.mode, filled, _latest(plan))
        if plan.rule.merging.mode is MergeMode.COMMIT_TIME:
            _check_parts_have_records(content, outcome.behind_deletions)
        return cls(plan, outcome, rows, row_of)

    def merged(self, base: pa.Table, met: np.ndarray) -> pa.Table:
        """Return base rows with the log applied. Marks in `met` the keys that were found; a key applies to its first row only."""
        rows, targets = first_matches(self.plan.record_keys(base), self.outcome.keys)
        unmet = ~met[targets]
        rows, targets = rows[unmet], targets[unmet]
        if not len(rows):
            return base
        met[targets] = True
        ordering = self.plan.ordering_values(base).take(pa.array(rows)) if self.plan.ordering else None
        wins = self.outcome.wins_over(targets, ordering)
        is_record = self.outcome.kinds[targets] == EventKind.RECORD
        stays = np.ones(base.num_rows, dtype=bool)
        stays[rows[wins | is_record]] = False
        touched = rows[is_record]
        patched = self._patched(base.take(pa.array(touched)), targets[is_record], wins[is_record])
        return pa.concat_tables([base.filter(pa.array(stays)), patched])

    def alone(self, numbers: np.ndarray) -> pa.Table:
        """Return the rows of these keys from the log alone."""
        columns = [self.rows.column(f.name).take(pa.array(self._sources(f.name, numbers))) for f in self.rows.schema]
        return pa.Table.from_arrays(columns, schema=self.rows.schema)

    def as_rows(self, numbers: np.ndarray) -> pa.Table:
        """Return the rows of these keys, which the base file does not hold.

        Raises `UnsupportedTable` if one has no value for a column that no row lacks.
        """
        for field in self.rows.schema:
            filled = self.outcome.filled.get(field.name)
            if not field.nullable and filled is not None and not filled[numbers].all():
                raise UnsupportedTable(
                    f"{int((~filled[numbers]).sum())} partial record(s) (IS_PARTIAL) without column {field.name!r}, of no row",
                    expected="partial records of existing records",
                    remedy="their other columns are lost: write these records again",
                )
        return self.alone(numbers)

    def _patched(self, base: pa.Table, targets: np.ndarray, wins: np.ndarray) -> pa.Table:
        columns = []
        for field in base.schema:
            old = base.column(field.name)
            new = self.rows.column(field.name).take(pa.array(self._sources(field.name, targets)))
            columns.append(chosen_cells(new, old, self._from_log(field.name, targets, wins, old)))
        return pa.Table.from_arrays(columns, schema=base.schema)

    def _from_log(self, name: str, targets: np.ndarray, wins: np.ndarray, old: pa.ChunkedArray) -> np.ndarray:
        """Return True where the log's value counts: on top it fills the cell, or below it the cell of the base row is open."""
        if name in _latest(self.plan):
            return np.ones(len(targets), dtype=bool)
        filled = self.outcome.filled.get(name)
        return from_newer(self.plan.rule.merging.partial, wins, None if filled is None else filled[targets], old)

    def _sources(self, name: str, numbers: np.ndarray) -> np.ndarray:
        found: np.ndarray = self.row_of[self.outcome.cells.get(name, self.outcome.tops)[numbers]]
        return found


def _latest(plan: ReadPlan) -> frozenset[str]:
    """Return the columns in which the later write decides, whichever lies on top."""
    by_payload = plan.rule.merging.partial is not None and plan.rule.merging.partial.by_payload
    return frozenset(META_FIELDS) & plan.emitted if by_payload else frozenset()


def _check_parts_have_records(content: LogContent, behind_deletions: np.ndarray) -> None:
    """Raise `UnsupportedTable` for parts of deleted records: Hudi defines their other cells by event time only (the base row's)."""
    for piece in content.pieces:
        assert piece.rows is not None
        first, last = np.searchsorted(behind_deletions, [piece.start, piece.start + piece.rows.num_rows])
        if piece.block.is_partial and first < last:
            raise UnsupportedTable(
                f"log file {piece.block.path} has partial records (IS_PARTIAL) for {last - first} deleted record(s)",
                expected="partial records of existing records",
                remedy="their other columns are lost: write these records again",
            )


def _filled_by_schema(content: LogContent, plan: ReadPlan) -> Mapping[str, np.ndarray]:
    """Return which events fill a column: partial records fill the columns of their block, whole records fill all."""
    found: dict[str, np.ndarray] = {}
    for piece in content.pieces:
        assert piece.rows is not None
        if not piece.block.is_partial:
            continue
        for name in set(plan.schema.names) & set(piece.rows.column_names) - stored_columns(piece.block, plan).keys():
            filled = found.setdefault(name, np.ones(len(content.events.kinds), dtype=bool))
            filled[piece.start : piece.start + piece.rows.num_rows] = False
    return found


def _filled_by_value(rows: pa.Table, row_of: np.ndarray, plan: ReadPlan) -> Mapping[str, np.ndarray]:
    assert plan.rule.merging.partial is not None
    found: dict[str, np.ndarray] = {}
    for name in rows.column_names:
        filled = plan.rule.merging.partial.is_filled(rows.column(name))
        if filled is not None:
            found[name] = np.where(row_of >= 0, filled[row_of], True)
    return found
