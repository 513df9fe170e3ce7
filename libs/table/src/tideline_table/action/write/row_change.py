"""Changes of rows that a condition selects: what an update, a delete or a merge of rows means as one upsert.

A change reads the rows that it selects, and writes them with other values or removes their keys. Its commit is valid only if the
rows selected are the same at the commit (`SelectedRows`): so it is as if it had read and written in that moment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tideline_table.action.write.choices import WriteChoices
from tideline_table.action.write.row_source import WriteInput
from tideline_table.config import PARTIAL_UPDATES
from tideline_table.errors import (
    DuplicateKey,
    HistoryUnavailable,
    InstantNotFound,
    InvalidOption,
    InvalidRecord,
    SchemaMismatch,
    UnsupportedTable,
    WriteConflict,
)
from tideline_table.hudi.format import Feature
from tideline_table.index import KeyScope, moves_rows
from tideline_table.log.state import TableState
from tideline_table.merge import MergeMode, Merging, incoming_wins
from tideline_table.schema.meta_fields import MetaField
from tideline_table.table.facade import Table
from tideline_table.table.images import AFTER, BEFORE, Images
from tideline_table.table.query import Snapshot

Selects = Callable[[pa.Table], bool]
"""Return whether a change would read one of these rows, which have all columns of the table."""


@dataclass(frozen=True, slots=True)
class RowChange:
    """What a change makes of the rows of one state; all other parts than `deleted` have the columns of the table."""

    old: pa.Table
    """The rows that it updates, as they are."""
    new: pa.Table
    """The same rows in the same order, with their new values."""
    deleted: pa.Table
    """The rows that it deletes; the columns of their keys and partitions are enough."""
    inserted: pa.Table
    holds_no_key_of_inserted: bool = False
    """Whether it is known that the table holds no key of `inserted`."""
    assigned: frozenset[str] | None = None
    """The columns in which `new` may differ from `old`; None: any."""


@dataclass(slots=True)
class SelectedRows:
    """The rows that a change selected, as of entry `sequence` of the table log."""

    table: Table
    sequence: int
    selects: Selects
    where: pc.Expression | None = None
    """A condition that holds for all rows for which `selects` is true; None for none."""

    def check(self, state: TableState) -> None:
        """Raise `WriteConflict` if a write completed since then changed, added or removed a row that the change selects."""
        if state.sequence <= self.sequence:
            return
        conflict = f"another write changed rows that this change selects, after sequence {self.sequence} of the table log"
        try:
            writes = self.table.writes_after(self.sequence)
            undone = [gone for gone in state.rewritten if gone.sequence > self.sequence]
            if undone or (writes and self._meets(self.table.changes(str(self.sequence), str(self.table.state.sequence)))):
                raise WriteConflict(conflict, with_instant=writes[-1].instant if writes else "")
            if self.table.state.sequence < state.sequence:
                raise WriteConflict(conflict, with_instant="")
        except (HistoryUnavailable, InstantNotFound, UnsupportedTable) as error:
            raise WriteConflict(f"{conflict} ({error.found})", with_instant="") from error
        self.sequence = state.sequence

    def _meets(self, images: Images) -> bool:
        return any(self.selects(rows) for rows in _both_sides(images, self.where))


def _both_sides(images: Images, where: pc.Expression | None) -> Iterator[pa.Table]:
    for batch in images.scan(where=where):
        for side in (BEFORE, AFTER):
            found = batch.column(side)
            rows = pa.RecordBatch.from_struct_array(found.filter(found.is_valid()))
            if rows.num_rows:
                yield pa.Table.from_batches([rows])


@dataclass(slots=True)
class ChangeSource:
    """The rows of a change, computed again if another write changed what it selects. It is a `RowSource`."""

    table: Table
    compute: Callable[[Snapshot], RowChange]
    selects: Selects
    where: pc.Expression | None = None
    """As in `SelectedRows`."""
    change: RowChange | None = None
    """What was computed last."""
    _made: tuple[str, SelectedRows, WriteInput] | None = field(default=None, repr=False)

    def __call__(self, choices: WriteChoices) -> WriteInput:
        """Return the rows and removed keys for the state of the last refresh. Raises as `input_of` and `compute`."""
        state, schema = self.table.state, self.table.schema_json
        if self._made is not None and self._made[0] == schema:
            try:
                self._made[1].check(state)
            except WriteConflict:
                self._made = None
            else:
                return self._made[2]
        reads = SelectedRows(self.table, state.sequence, self.selects, self.where)
        self.change = self.compute(self.table.snapshot())
        made = input_of(self.table, choices, self.change, reads)
        self._made = (schema, reads, made)
        return made


def input_of(table: Table, choices: WriteChoices, change: RowChange, reads: SelectedRows) -> WriteInput:
    """Return the upsert that makes a change.

    Raises `SchemaMismatch` for a changed record key, `InvalidRecord` for a value that would lose to the stored one, `DuplicateKey`
    for a row that would get the key of another row, `InvalidOption` for rows that cannot move to their new partition.
    """
    definition = table.definition
    _check_keys(table, change)
    _check_ordering(definition.merging, change)
    _check_cells(definition.merging, change)
    moved = _moved(table, choices, change)
    _check_inserted(table, choices, change, moved)
    removed = pa.concat_tables([change.deleted, change.old.filter(pa.array(moved)).select(change.deleted.column_names)])
    rows = pa.concat_tables([change.new, change.inserted])
    return WriteInput(rows, removed if removed.num_rows else None, reads, _parts(table, choices, change, moved))


def _parts(table: Table, choices: WriteChoices, change: RowChange, moved: np.ndarray) -> tuple[frozenset[str], np.ndarray] | None:
    """Return `WriteInput.parts` of a change (docs/design/row-statements.md)."""
    definition, merging, assigned = table.definition, table.definition.merging, change.assigned
    if assigned is None or not choices.options[PARTIAL_UPDATES] or Feature.PARTIAL_RECORDS in definition.format.missing:
        return None
    whole = (
        not definition.writes_logs
        or assigned >= set(table.schema.names)
        # A late row behind a partial record would give the columns that the record lacks.
        or merging.mode is MergeMode.EVENT_TIME
        or merging.needs_older_rows
        or merging.deletion is not None
        or definition.changes
        or KeyScope.of(choices.options) is KeyScope.TABLE
        or table.log_rule().versions is not None
        # Writers of Apache Hudi may look for no conflicts, and delete a row below its partial record.
        or (definition.buckets is not None and table.capabilities.has_hudi_files)
    )
    return None if whole else (assigned, np.concatenate([~moved, np.zeros(change.inserted.num_rows, dtype=bool)]))


def _check_keys(table: Table, change: RowChange) -> None:
    keygen = table.definition.keygen
    if not change.old.num_rows or pc.all(pc.equal(keygen.written_keys(change.old), keygen.written_keys(change.new))).as_py():
        return
    raise SchemaMismatch(
        f"an update that changes the record key ({', '.join(keygen.key_fields)})",
        expected="updates of other columns",
        remedy="delete the rows and insert them with the new key",
    )


def _check_ordering(merging: Merging, change: RowChange) -> None:
    if not merging.ordering_fields or not change.old.num_rows:
        return
    wins = incoming_wins(merging.ordering_values(change.old), merging.ordering_values(change.new))
    if wins.all():
        return
    at = int(np.flatnonzero(~wins)[0])
    names = ", ".join(merging.ordering_fields)
    old, new = (merging.ordering_values(rows)[at].as_py() for rows in (change.old, change.new))
    raise InvalidRecord(
        f"{int((~wins).sum())} updated row(s) with a smaller value of the ordering column {names} than the stored row has "
        f"({new!r} for {old!r})",
        expected="an equal or a larger one: the table keeps the row with the larger value",
        remedy=f"leave {names} as it is, or exclude these rows by the condition",
    )


def _check_cells(merging: Merging, change: RowChange) -> None:
    if merging.merger is not None and not merging.merger.merged(change.old, change.new).equals(change.new):
        raise InvalidRecord(
            f"an update of rows that merger {merging.merger.name!r} would change once more",
            expected="values that it makes of the stored row and the new one",
            remedy="write the rows by upsert, or delete them and insert them anew, in two commits",
        )
    if merging.partial is None:
        return
    for name in change.new.column_names:
        new, old = change.new.column(name), change.old.column(name)
        filled = merging.partial.is_filled(new)
        if filled is None:
            continue
        kept = merging.partial.is_filled(old)
        if (~filled & (kept if kept is not None else True)).any():
            raise InvalidRecord(
                f"an update that leaves column {name!r} open, in a table that takes open cells from the stored row",
                expected="other values: the merge rule of the table would keep the stored ones",
                remedy="delete the rows and insert them anew, in two commits",
            )


def _moved(table: Table, choices: WriteChoices, change: RowChange) -> np.ndarray:
    """Return True for each updated row whose old place the same commit has to empty."""
    keygen, options = table.definition.keygen, choices.options
    if not keygen.partition_fields or not change.old.num_rows:
        return np.zeros(change.old.num_rows, dtype=bool)
    moved = np.asarray(pc.not_equal(keygen.partition_paths(change.old), keygen.partition_paths(change.new)))
    if not moved.any() or KeyScope.of(options) is KeyScope.PARTITION:
        return moved
    if not moves_rows(options):
        raise InvalidOption(
            f"an update of the partition column(s) {', '.join(keygen.partition_fields)}, with an index that keeps rows in place",
            expected="updates of other columns",
            remedy="set hoodie.simple.index.update.partition.path, or that of the index of the table, to true",
        )
    return np.zeros(change.old.num_rows, dtype=bool)  # the upsert empties the old place of each key


def _check_inserted(table: Table, choices: WriteChoices, change: RowChange, moved: np.ndarray) -> None:
    """Raise `DuplicateKey` if an inserted or moved row would get the key of another row."""
    keygen, scope = table.definition.keygen, KeyScope.of(choices.options)

    def identities(rows: pa.Table) -> list[str]:
        keys = keygen.written_keys(rows)
        found: list[str] = (
            keys if scope is KeyScope.TABLE else pc.binary_join_element_wise(keygen.partition_paths(rows), keys, "\x00")
        ).to_pylist()
        return found

    added = pa.concat_tables([change.new.filter(pa.array(moved)), change.inserted])
    if not added.num_rows:
        return
    wanted = identities(added)
    taken = set(identities(change.new.filter(pa.array(~moved)))) if change.inserted.num_rows else set()
    for identity in wanted:
        if identity in taken:
            raise _doubled(identity)
        taken.add(identity)
    if change.holds_no_key_of_inserted and not moved.any():
        return
    left = change.old.filter(pa.array(moved)).select(change.deleted.column_names)
    gone = set(identities(pa.concat_tables([change.deleted, left])))
    columns = [MetaField.PARTITION_PATH.value, MetaField.RECORD_KEY.value]
    held = table.look_up(keygen.written_keys(added).to_pylist(), columns)
    keys = held.column(columns[1])
    found = keys if scope is KeyScope.TABLE else pc.binary_join_element_wise(held.column(columns[0]), keys, "\x00")
    both = (set(found.to_pylist()) & set(wanted)) - gone
    if both:
        raise _doubled(min(both))


def _doubled(identity: str) -> DuplicateKey:
    partition, _, key = identity.rpartition("\x00")
    return DuplicateKey(
        f"record key {key!r}{f' in partition {partition!r}' if partition else ''} for more than one row",
        expected="a key that no other row has",
        remedy="match the rows by their key, so that they are updated",
    )
