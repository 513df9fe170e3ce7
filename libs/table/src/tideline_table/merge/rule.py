"""The merge rule of a table as a value, and the merging of the rows of a write by it, with each other and with stored rows.

Writers that replace base files, writers that compare rows in other partitions, and Spark tasks merge so. Appends to log files leave
the merge to the reader, which follows the same rule.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tideline_table.errors import UnsupportedTable
from tideline_table.merge.fold import EventKind, LogEvents, LogOutcome, fold_events
from tideline_table.merge.mode import MergeMode
from tideline_table.merge.ordering import combine_input, deleted_mask, incoming_wins, ordering_names, ordering_values, purged_mask
from tideline_table.merge.parts import OpenCells, PartialUpdate, chosen_cells, fold_parts, from_newer
from tideline_table.schema.arrow import one_chunk, with_column
from tideline_table.schema.avro import parse_record
from tideline_table.schema.evolution import IS_DELETED
from tideline_table.schema.meta_fields import META_FIELDS

if TYPE_CHECKING:
    from tideline_table.merge.merger import NamedMerger  # few tables have one


@dataclass(frozen=True, slots=True)
class DeletionMark:
    """A value of one column that marks rows as deletions."""

    field: str
    marker: str
    any_case: bool = False
    """Ignore case, as payload classes do."""

    def mask(self, rows: pa.Table) -> np.ndarray:
        """Return True for each row that is marked."""
        if self.field not in rows.column_names:
            return np.zeros(rows.num_rows, dtype=bool)
        found, marker = rows.column(self.field).cast(pa.string()), self.marker
        if self.any_case:
            found, marker = pc.utf8_lower(found), marker.lower()
        return np.asarray(pc.fill_null(pc.equal(found, marker), fill_value=False))


@dataclass(frozen=True, slots=True)
class Merging:
    """Which version of a record lies on top, which of its cells are open, and which rows are deletions."""

    mode: MergeMode = MergeMode.COMMIT_TIME
    partial: PartialUpdate | None = None
    merger: NamedMerger | None = None
    """The code that makes one row of two; the later write lies on top."""
    deletion: DeletionMark | None = None
    deletions_always_win: bool = False
    """By event time, deletions win without comparing ordering values, as payload classes require."""
    forgets_deletions: bool = False
    """By event time, a deletion that won leaves nothing in a log: a later row of its key is a new one, whatever its ordering
    value. False: as Apache Hudi merges logs (docs/design/merge-on-read.md, late rows)."""
    ordering_field: str = ""
    """The ordering fields, separated by commas; the first field that differs decides."""
    combines_by_mode: bool = False
    """Rows of one input merge as rows of two writes do (version 9). Otherwise the larger ordering value lies on top, by commit
    time, too, and only `PartialUpdate.by_payload` fills cells."""

    @property
    def needs_older_rows(self) -> bool:
        """Whether a version does not replace the one below it as a whole."""
        return self.partial is not None or self.merger is not None

    @property
    def fills_late(self) -> bool:
        """Whether a whole row below another one fills cells of it, and leaves it the meta fields of its own write."""
        partial = self.partial
        return self.mode is MergeMode.EVENT_TIME and partial is not None and partial.fills_below and not partial.by_payload

    def check_defaults(self, schema_json: str, name: str) -> None:
        """Raise `UnsupportedTable` if non-null defaults leave cells open: Hudi compares them by identity, not by value."""
        if self.partial is None or self.partial.cells is not OpenCells.NULLS or not schema_json:
            return
        for field in parse_record(schema_json)["fields"]:
            if field.get("default") is not None:
                raise UnsupportedTable(
                    f"table {name!r} ignores default values when it merges records, and column {field.get('name')!r} has the "
                    f"default {field['default']!r}",
                    expected="columns without default, or with null",
                )

    @property
    def ordering_fields(self) -> tuple[str, ...]:
        """The ordering fields if they decide, else none."""
        if self.mode is not MergeMode.EVENT_TIME:
            return ()
        return ordering_names(self.ordering_field)

    @property
    def combining_field(self) -> str:
        """The ordering fields by which rows of one input compare, separated by commas; empty: the last row lies on top."""
        by_order = (self.combines_by_mode and self.mode is MergeMode.COMMIT_TIME) or self.merger is not None
        return "" if by_order else self.ordering_field

    def ordering_values(self, rows: pa.Table) -> pa.ChunkedArray:
        """Return the values by which rows compare; structs for several ordering fields."""
        return ordering_values(rows, self.ordering_field)

    @property
    def deletion_kind(self) -> EventKind:
        """The event kind of a deletion with an ordering value."""
        return EventKind.PURGE if self.deletions_always_win else EventKind.DELETE

    def fold(self, events: LogEvents) -> LogOutcome:
        """Return one event of a log for each key, by this rule; cells are not merged."""
        return fold_events(events, self.mode, forgets_deletions=self.forgets_deletions)


def with_deletion_marks(rows: pa.Table, merging: Merging) -> pa.Table:
    """Return `rows` of an input with those that the rule treats as deletions marked in `IS_DELETED`."""
    if merging.deletion is None or not (marked := merging.deletion.mask(rows)).any():
        return rows
    return with_column(rows, IS_DELETED, pa.array(marked | deleted_mask(rows)))


def combined_input(rows: pa.Table, keys: pa.ChunkedArray, merging: Merging) -> tuple[np.ndarray, pa.Table] | None:
    """Return the numbers of the rows on top and one row for each of `keys`; None if every key already occurs once.

    The largest ordering value lies on top, the last row on ties; see `Merging.combines_by_mode`.
    """
    winners = combine_input(rows, keys, merging.combining_field)
    if winners is None:
        return None
    if merging.merger is not None:
        return _merged_input(rows, keys, merging.merger)
    if merging.partial is None or not (merging.partial.by_payload or merging.combines_by_mode):
        return winners, rows.take(pa.array(winners))
    kinds = np.where(deleted_mask(rows), merging.deletion_kind, EventKind.RECORD).astype(np.int8)
    ordering = merging.ordering_values(rows) if merging.mode is MergeMode.EVENT_TIME else None
    filled = {name: found for name in rows.column_names if (found := merging.partial.is_filled(rows.column(name))) is not None}
    outcome = fold_parts(LogEvents(keys, kinds, ordering), merging.mode, filled)
    order = np.argsort(outcome.tops)
    tops = outcome.tops[order]
    cells = [rows.column(name).take(pa.array(outcome.cells[name][order] if name in filled else tops)) for name in rows.column_names]
    return tops, pa.Table.from_arrays(cells, schema=rows.schema)


def _merged_input(rows: pa.Table, keys: pa.ChunkedArray, merger: NamedMerger) -> tuple[np.ndarray, pa.Table]:
    codes = one_chunk(pc.dictionary_encode(keys))
    number = codes.indices.to_numpy(zero_copy_only=False)
    last, state = np.zeros(len(codes.dictionary), np.int64), np.full(len(codes.dictionary), -1)
    last[number] = np.arange(rows.num_rows)
    merged = merger.folded(number, ~deleted_mask(rows), np.arange(rows.num_rows), rows, state)
    order = np.argsort(last)
    return last[order], merged.take(pa.array(np.where(state < 0, last, state)[order]))


def lies_on_top(stored: pa.Table, rows: np.ndarray, incoming: pa.Table, targets: np.ndarray, merging: Merging) -> np.ndarray:
    """Return True where row `targets[i]` of `incoming` lies on top of row `rows[i]` of `stored`, which has the same key."""
    if merging.mode is not MergeMode.EVENT_TIME or not len(targets):
        return np.ones(len(targets), dtype=bool)
    mine = merging.ordering_values(incoming).take(pa.array(targets))
    wins = incoming_wins(merging.ordering_values(stored).take(pa.array(rows)).cast(mine.type), mine)
    always = deleted_mask(incoming) if merging.deletions_always_win else purged_mask(incoming)
    return np.asarray(wins | always[targets])


def filled_rows(
    stored: pa.Table, rows: np.ndarray, incoming: pa.Table, targets: np.ndarray, wins: np.ndarray, merging: Merging
) -> tuple[pa.Table, np.ndarray]:
    """Return the incoming rows merged into rows of `stored` (columns of the table), and which of them change the stored row.

    Row `rows[i]` meets row `targets[i]` of `incoming`, which lies on top where `wins[i]`.
    """
    partial, merger = merging.partial, merging.merger
    if (partial is None and merger is None) or not len(targets):
        return incoming, wins
    met = np.full(incoming.num_rows, -1, dtype=np.int64)
    # Of stored rows with the same key, the first one counts.
    met[targets[::-1]] = rows[::-1]
    if partial is None:
        assert merger is not None
        live = np.flatnonzero((met >= 0) & ~deleted_mask(incoming))
        merged = merger.merged(stored.take(pa.array(met[live])), incoming.take(pa.array(live)))
        chosen = np.arange(incoming.num_rows)
        chosen[live] = incoming.num_rows + np.arange(len(live))
        return pa.concat_tables([incoming, merged]).take(pa.array(chosen)), wins
    above = np.ones(incoming.num_rows, dtype=bool)
    above[targets[::-1]] = wins[::-1]
    alone = met < 0
    at = pa.array(met, mask=alone)
    changed = alone | above | partial.by_payload
    columns = []
    for name in incoming.column_names:
        new = incoming.column(name)
        if name in META_FIELDS or name not in stored.column_names:
            columns.append(new)
            continue
        old = stored.column(name).take(at)
        taken = alone | from_newer(partial, above, partial.is_filled(new), old)
        changed = changed | (taken & np.asarray(pc.is_valid(new)))
        columns.append(chosen_cells(new, old, taken))
    if partial.fills_below:
        # Since version 9, a row that fills no cell of the stored one leaves it as it is.
        wins = wins | (changed & ~deleted_mask(incoming))[targets]
    return pa.Table.from_arrays(columns, schema=incoming.schema), wins
