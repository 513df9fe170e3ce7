"""Which rows of a table the rows of a merge match, and which part of the table has to be read to find them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from tideline.expressions import DIALECT, NUMBER, ROWS, SOURCE_ROWS, Evaluator, arrow_part, conjuncts, numbered, parsed, quoted
from tideline_table import table as engine
from tideline_table.errors import InvalidOption
from tideline_table.schema import META_FIELDS, with_meta_fields

if TYPE_CHECKING:
    from sqlglot import exp

_MOST_VALUES = 1_000
"""With more values of a column than this, files are left out by the smallest and the largest one."""


@dataclass(frozen=True)
class Match:
    """The condition of a merge on pairs of a target row and a source row."""

    table: engine.Table
    source: pa.Table
    on: str
    evaluator: Evaluator
    names: tuple[str, str]
    where: pc.Expression | None
    """A condition that holds for each target row that any source row matches."""
    keys: pa.Array | None
    """The record keys that such rows have, if the condition says so."""
    only_names: tuple[str, ...] | None
    """The columns whose equality is the whole condition; None for another condition."""

    def read(self, snapshot: engine.Snapshot) -> pa.Table:
        """Return target rows, with meta fields, among which are all that source rows match."""
        if self.keys is None:
            return snapshot.read(None, self.where)
        return self.table.narrowed(snapshot, self.keys).read(None, self.where, self.keys)

    def pairs(self, target: pa.Table) -> pa.Table:
        """Return the positions of matching rows: `t` in `target`, `s` in the source."""
        own, other = map(quoted, self.names)
        query = (
            f"select {own}.{NUMBER} as t, {other}.{NUMBER} as s "  # noqa: S608
            f"from {SOURCE_ROWS} as {other} join {ROWS} as {own} on ({self.on}) order by {other}.{NUMBER}, {own}.{NUMBER}"
        )
        return self.evaluator.query(query, {ROWS: numbered(target), SOURCE_ROWS: numbered(self.source)})

    def selects(self, rows: pa.Table) -> bool:
        """Return whether a source row matches one of `rows`."""
        return bool(self.pairs(rows).num_rows)


def match_of(table: engine.Table, source: pa.Table, on: str | Sequence[str], evaluator: Evaluator, names: tuple[str, str]) -> Match:
    """Return the condition `on`: a column, several columns, or SQL. Raises `InvalidInput` for anything else."""
    from sqlglot import exp

    known = table.schema.names
    columns = (on,) if isinstance(on, str) and on in known else () if isinstance(on, str) else tuple(on)
    if not isinstance(on, str) or columns:
        _check_columns(columns, known, source)
        pairs = [(name, name) for name in columns]
        parts: list[exp.Expr] = [
            exp.EQ(this=exp.column(n, names[0], quoted=True), expression=exp.column(n, names[1], quoted=True)) for n in columns
        ]
    else:
        parts = list(conjuncts(parsed(on, "condition")))
        pairs = [pair for part in parts if (pair := _equality(part, names, known, source.column_names)) is not None]
        own_rows, others = numbered(with_meta_fields(table.schema).empty_table()), numbered(source.slice(0, 0))
        evaluator.check_conditions(parts, {names[0]: (ROWS, own_rows), names[1]: (SOURCE_ROWS, others)})
    # A column of the source may have the name of a nested column of the target.
    arrow, _ = arrow_part([part for part in parts if not _names(part, names[1])], table.schema, names[0])
    for own, other in pairs:
        found = _bounded(table.schema.field(own), source.column(other))
        if found is not None:
            arrow = found if arrow is None else arrow & found
    whole = columns or (tuple(own for own, _ in pairs) if len(pairs) == len(parts) and all(a == b for a, b in pairs) else None)
    text = " and ".join(f"({part.sql(DIALECT)})" for part in parts)
    return Match(table, source, text, evaluator, names, arrow, _record_keys(table, source, dict(pairs)), whole)


def _check_columns(columns: Sequence[str], known: Sequence[str], source: pa.Table) -> None:
    if not columns:
        raise InvalidOption("a merge on no column", expected="columns, or an SQL condition over target and source")
    for name in columns:
        for where, names in (("table", known), ("source", source.column_names)):
            if name not in names:
                raise InvalidOption(
                    f"a merge on column {name!r}, which is not in the {where}", expected=f"one of {', '.join(names)}"
                )


def _names(part: exp.Expr, name: str) -> bool:
    from sqlglot import exp

    return any(found.parts[0].name.casefold() == name.casefold() for found in part.find_all(exp.Column) if len(found.parts) > 1)


def _equality(part: object, names: tuple[str, str], known: Sequence[str], given: Sequence[str]) -> tuple[str, str] | None:
    """Return the target column and the source column whose equality `part` is, None for another condition."""
    from sqlglot import exp

    if not isinstance(part, exp.EQ):
        part = part.unnest() if isinstance(part, exp.Paren) else part
    if not isinstance(part, exp.EQ) or not isinstance(part.left, exp.Column) or not isinstance(part.right, exp.Column):
        return None
    if part.left.args.get("db") or part.right.args.get("db"):
        return None
    sides: dict[str, str] = {side.table.casefold(): side.name for side in (part.left, part.right)}
    own, other = sides.get(names[0].casefold(), ""), sides.get(names[1].casefold(), "")
    # Columns that are written in another case are left to DuckDB.
    return (own, other) if own in known and other in given else None


def _bounded(wanted: pa.Field, values: pa.ChunkedArray) -> pc.Expression | None:
    """Return what holds for a column that equals one of `values`; None if their types may compare in another way than by value."""
    kind = wanted.type
    if not _same_kind(kind, values.type) or wanted.name in META_FIELDS:
        return None
    found = pc.unique(values).drop_null()
    column = pc.field(wanted.name)
    if found.type != kind:
        try:
            found = found.cast(kind)
        except pa.ArrowInvalid:
            return None
    if len(found) <= _MOST_VALUES:
        return column.isin(found)
    ends = pc.min_max(found)
    return (column >= ends["min"]) & (column <= ends["max"])


def _same_kind(one: pa.DataType, other: pa.DataType) -> bool:
    types = pa.types
    if types.is_integer(one):
        return bool(types.is_integer(other))
    if types.is_string(one):
        return bool(types.is_string(other) or types.is_large_string(other))
    return bool(one == other and (types.is_date(one) or types.is_timestamp(one) or types.is_boolean(one) or types.is_decimal(one)))


def _record_keys(table: engine.Table, source: pa.Table, pairs: dict[str, str]) -> pa.Array | None:
    """Return the record keys that matching rows have, if the condition compares all columns of the key with source columns."""
    keygen = table.definition.keygen
    columns = []
    for name in keygen.key_fields:
        if name not in pairs or not _same_kind(table.schema.field(name).type, source.schema.field(pairs[name]).type):
            return None
        columns.append(source.column(pairs[name]))
    rows = pa.table(columns, list(keygen.key_fields))
    try:
        rows = rows.cast(pa.schema([table.schema.field(name).with_nullable(nullable=True) for name in keygen.key_fields]))
    except pa.ArrowInvalid:
        return None
    return engine.sorted_keys(keygen.written_keys(rows.drop_null()).to_pylist())
