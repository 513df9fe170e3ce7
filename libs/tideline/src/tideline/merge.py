"""Merges of rows into a table by clauses, as SQL's MERGE INTO: one commit that updates, deletes and inserts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from tideline.expressions import DIALECT, NUMBER, ROWS, SOURCE_ROWS, Evaluator, fitted, numbered, parsed, quoted
from tideline.matching import Match, match_of
from tideline.opened import Opened, Options
from tideline.predicates import Assigned
from tideline.results import Commit
from tideline.row_changes import check_assigned, commit_change, value_of
from tideline.rows import column_list
from tideline_table import table as engine
from tideline_table.action import ChangeSource, RowChange
from tideline_table.checked import checked_methods
from tideline_table.errors import InvalidOption, InvalidRecord, SchemaMismatch
from tideline_table.log import ProgressStep

if TYPE_CHECKING:
    from sqlglot import exp

UPDATE, DELETE, INSERT = "update", "delete", "insert"


@dataclass(frozen=True)
class Clause:
    """A clause of a merge: what happens to the rows that no earlier clause took and for which `condition` is true."""

    kind: str
    condition: exp.Expr | None
    values: Mapping[str, object] | None
    """The values of columns; None: those of the source's columns of the same names."""


@checked_methods
class Merge:
    """A merge of source rows into a table, with SQL's semantics. Each method returns a merge with one more clause.

    Conditions and values are SQL texts over `target` and `source` (inserts: `source` only); values of other types are taken as they
    are. Of the clauses of a row, the first one whose condition is true takes effect. Without a mapping, an update or insert takes
    all columns that the source has.
    """

    def __init__(
        self,
        opened: Opened,
        rows: pa.Table | Callable[[], pa.Table],
        on: str | Iterable[str],
        clauses: tuple[Clause, ...] = (),
        evaluator: Evaluator | None = None,
        names: tuple[str, str] = ("target", "source"),
    ) -> None:
        self._opened = opened
        self._rows = rows
        self._on = on if isinstance(on, str) else column_list(on)
        self._clauses = clauses
        self._evaluator = evaluator or Evaluator()
        self._names = names

    def when_matched_update(self, columns: Assigned | None = None, *, condition: str | None = None) -> Merge:
        """Update a target row that a source row matches."""
        if columns is not None:
            check_assigned(self._opened.table, {**columns}, keys=False)
        return self._with(UPDATE, condition, columns)

    def when_matched_delete(self, *, condition: str | None = None) -> Merge:
        """Delete a target row that a source row matches."""
        return self._with(DELETE, condition, None)

    def when_not_matched_insert(self, columns: Assigned | None = None, *, condition: str | None = None) -> Merge:
        """Insert a source row that matches no target row; columns without a value are null."""
        if columns is not None:
            check_assigned(self._opened.table, {**columns}, keys=False)
        return self._with(INSERT, condition, columns)

    def execute(self, *, progress: ProgressStep | None = None, options: Options = None) -> Commit:
        """Make the change as one commit.

        If another writer changes, adds or removes a row that matches a source row before the commit, the merge is repeated on the
        new state. Raises `InvalidInput`, with nothing written, if several source rows would change one target row, and for what an
        upsert or `Table.update` refuses.
        """
        if not self._clauses:
            raise InvalidOption("a merge without clauses", expected="when_matched_… or when_not_matched_insert before execute")
        table = self._opened.table
        table.refresh()
        if not isinstance(self._rows, pa.Table):
            return commit_change(ChangeSource(table, self._change_of_itself, _any_row), progress, options)
        match = match_of(table, self._rows, self._on, self._evaluator, self._names)
        run = _Run(table, self._rows, match, self._clauses)
        return commit_change(ChangeSource(table, run.change, match.selects, match.where), progress, options)

    def _change_of_itself(self, snapshot: engine.Snapshot) -> RowChange:
        """Return what a merge that also reads other rows of the table makes of a snapshot: it depends on each change of it."""
        assert not isinstance(self._rows, pa.Table)
        table, rows = self._opened.table, self._rows()
        return _Run(table, rows, match_of(table, rows, self._on, self._evaluator, self._names), self._clauses).change(snapshot)

    def _with(self, kind: str, condition: str | None, values: Mapping[str, object] | None) -> Merge:
        found = None if condition is None else parsed(condition, "condition")
        clauses = (*self._clauses, Clause(kind, found, values))
        return Merge(self._opened, self._rows, self._on, clauses, self._evaluator, self._names)


def _any_row(rows: pa.Table) -> bool:
    return bool(rows.num_rows)


@dataclass(frozen=True)
class _Run:
    """A merge into one state after the other, until one commits."""

    table: engine.Table
    source: pa.Table
    match: Match
    clauses: tuple[Clause, ...]

    def change(self, snapshot: engine.Snapshot) -> RowChange:
        """Return what the merge makes of the rows of a snapshot."""
        stored = self.match.read(snapshot)
        schema = self.table.schema
        target = stored.select(schema.names)
        pairs = self.match.pairs(stored)
        matched = [c for c in self.clauses if c.kind != INSERT]
        taken = pairs.append_column("clause", self._chosen(matched, stored.take(pairs["t"]), self.source.take(pairs["s"])))
        taken = taken.filter(pc.is_valid(taken["clause"]))
        self._refuse_several(target, taken)
        none = target.slice(0, 0)
        old, new, deleted = [none], [none], [none]
        for number, clause in enumerate(matched):
            part = taken.filter(pc.equal(taken["clause"], number))
            rows = target.take(part["t"])
            if clause.kind == DELETE:
                deleted.append(rows)
            elif rows.num_rows:
                old.append(rows)
                new.append(self._values(clause, rows, stored.take(part["t"]), self.source.take(part["s"])))
        inserted = [none, *self._inserted(pairs, schema)]
        before, after, gone, added = (pa.concat_tables(part) for part in (old, new, deleted, inserted))
        return RowChange(before, after, gone, added, self._misses_keys(), self._assigned())

    def _chosen(self, clauses: list[Clause], target: pa.Table | None, source: pa.Table) -> pa.ChunkedArray:
        """Return for each pair (or source row) the number of the first clause whose condition is true, null for none."""
        none = pa.chunked_array([pa.nulls(source.num_rows, pa.int32())])
        if not clauses:
            return none
        tables = {self.match.names[1]: (SOURCE_ROWS, numbered(source.slice(0, 0)))}
        if target is not None:
            tables[self.match.names[0]] = (ROWS, numbered(target.slice(0, 0)))
        self.match.evaluator.check_conditions([c.condition for c in clauses if c.condition is not None], tables)
        if not source.num_rows:
            return none
        cases = [f"when {c.condition.sql(DIALECT) if c.condition is not None else 'true'} then {n}" for n, c in enumerate(clauses)]
        found = self._evaluated({"clause": f"case {' '.join(cases)} end"}, target, source)
        return found.column("clause").cast(pa.int32())

    def _evaluated(self, expressions: Mapping[str, str], target: pa.Table | None, source: pa.Table) -> pa.Table:
        own, other = self.match.names
        tables = {SOURCE_ROWS: numbered(source)} | ({} if target is None else {ROWS: numbered(target)})
        parts = ", ".join(f"({text}) as {quoted(column)}" for column, text in expressions.items())
        joined = f"{SOURCE_ROWS} as {quoted(other)}"
        if target is not None:
            joined += f" join {ROWS} as {quoted(own)} on {quoted(own)}.{NUMBER} = {quoted(other)}.{NUMBER}"
        number = f"{quoted(other)}.{NUMBER}"
        query = f"select {number} as {NUMBER}, {parts} from {joined} order by {number}"  # noqa: S608 - as in `Evaluator.values`
        return self.match.evaluator.query(query, tables)

    def _values(self, clause: Clause, rows: pa.Table, target: pa.Table | None, source: pa.Table) -> pa.Table:
        """Return `rows` with the values of a clause."""
        values = clause.values
        found: dict[str, pa.ChunkedArray] = {}
        if values is None:
            given = {name.casefold(): name for name in source.column_names}
            found = {n: source.column(given[n.casefold()]) for n in rows.column_names if n.casefold() in given}
        else:
            texts = {name: parsed(value, f"value of column {name!r}") for name, value in values.items() if isinstance(value, str)}
            if texts:
                kinds = self.match.evaluator.kinds(rows)
                sql = {name: f"cast(({text.sql(DIALECT)}) as {kinds[name]})" for name, text in texts.items()}
                made = self._evaluated(sql, target, source)
                found = {name: made.column(name) for name in texts}
            found |= {n: value_of(rows, v, rows.schema.field(n)) for n, v in values.items() if not isinstance(v, str)}
        for name, column in found.items():
            wanted = rows.schema.field(name)
            rows = rows.set_column(rows.schema.get_field_index(name), wanted, fitted(column, wanted))
        return rows

    def _inserted(self, pairs: pa.Table, schema: pa.Schema) -> list[pa.Table]:
        clauses = [c for c in self.clauses if c.kind == INSERT]
        alone = self.source.filter(pc.invert(pc.is_in(pa.array(range(self.source.num_rows), pa.int64()), value_set=pairs["s"])))
        chosen = self._chosen(clauses, None, alone)
        found = []
        for number, clause in enumerate(clauses):
            rows = alone.filter(pc.fill_null(pc.equal(chosen, number), fill_value=False))
            if rows.num_rows:
                empty = pa.Table.from_arrays([pa.nulls(rows.num_rows, f.type) for f in schema], names=schema.names)
                made = self._values(clause, empty, None, rows)
                _refuse_nulls(made, schema)
                found.append(pa.Table.from_arrays(made.columns, schema=schema))
        return found

    def _assigned(self) -> frozenset[str]:
        """Return the columns that some update assigns. A row of a clause that assigns fewer keeps its values in the others."""
        given = {name.casefold() for name in self.source.column_names}
        copied = {name for name in self.table.schema.names if name.casefold() in given}
        return frozenset(n for c in self.clauses if c.kind == UPDATE for n in (copied if c.values is None else set(c.values)))

    def _misses_keys(self) -> bool:
        """Whether a source row without a match has a key that the table does not hold."""
        keygen = self.table.definition.keygen
        # Values of another type may get the key of a row that they do not equal: a time that of a date.
        plain = self.match.keys is not None and all(c.values is None for c in self.clauses if c.kind == INSERT)
        return plain and self.match.only_names is not None and set(self.match.only_names) == set(keygen.key_fields)

    def _refuse_several(self, target: pa.Table, taken: pa.Table) -> None:
        counts = taken.group_by("t").aggregate([("s", "count")])
        twice = counts.filter(pc.greater(counts["s_count"], 1))
        if not twice.num_rows:
            return
        keygen = self.table.definition.keygen
        key = keygen.written_keys(target.take(twice["t"].slice(0, 1)))[0].as_py()
        raise InvalidRecord(
            f"{twice['s_count'][0].as_py()} source rows for the target row with record key {key!r}; {twice.num_rows} such row(s)",
            expected="at most one source row for a target row",
            remedy="keep one row of each key in the source, or add conditions that exclude the others",
        )


def _refuse_nulls(rows: pa.Table, schema: pa.Schema) -> None:
    for wanted in schema:
        if not wanted.nullable and rows.column(wanted.name).null_count:
            raise SchemaMismatch(
                f"an insert without a value for column {wanted.name!r}", expected="a value: the column is not nullable"
            )
