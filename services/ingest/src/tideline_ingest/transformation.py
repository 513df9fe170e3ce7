"""An SQL SELECT that makes the rows of a table from records, each record alone."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tideline_ingest.batch import Received
from tideline_ingest.changes import ChangeDecoder, Changes, Identity
from tideline_ingest.errors import Undecodable
from tideline_table.errors import InvalidOption, InvalidPredicate
from tideline_table.extras import extra

if TYPE_CHECKING:
    from sqlglot import exp

_RECORDS = "records"
_NUMBER, _POSITION = "_tideline_row", "_tideline_position"
_EXPECTED = "SELECT … FROM records [WHERE …]: expressions over the fields of one record"
_PARTS = {"expressions", "from_", "from", "where"}


def source_schema(table: pa.Schema, fields: Mapping[str, str]) -> pa.Schema:
    """Return the columns that records have: those of the table, and `fields` by name with types of DuckDB, all nullable.

    Raises `InvalidOption` for a type that DuckDB does not know.
    """
    from tideline.expressions import Evaluator, quoted  # noqa: PLC0415 - needs the extra `sql`

    found = {field.name: field.with_nullable(nullable=True) for field in table}
    for name, kind in fields.items():
        try:
            found[name] = Evaluator().query(f"select cast(null as {kind}) as {quoted(name)} limit 0", {}).schema.field(0)
        except InvalidPredicate as error:
            raise InvalidOption(f"type {kind!r} of field {name!r} ({error.found})", expected="a type of DuckDB") from None
    return pa.schema(list(found.values()))


class Transformation:
    """Computes rows from records. Raises `InvalidOption` for a statement that goes by several records, or names a column twice.

    A result over several records would depend on where a batch happens to end.
    """

    def __init__(self, text: str) -> None:
        from tideline.expressions import DIALECT, Evaluator  # noqa: PLC0415 - needs the extra `sql`

        self._select = _parsed(text, DIALECT)
        self._dialect = DIALECT
        self._evaluator = Evaluator()
        self._whole = self._numbered(self._select)

    def changed(self, columns: Collection[str]) -> str | None:
        """Return the first of `columns` that rows do not have as the record has it; None if they have all."""
        from sqlglot import exp  # noqa: PLC0415 - as above

        kept: set[str] = set()
        for part in self._select.expressions:
            if isinstance(part, exp.Star):
                kept |= set(columns) - {found.name for found in part.find_all(exp.Identifier)}
            elif isinstance(part.unalias(), exp.Column) and part.unalias().name == part.alias_or_name:
                kept.add(part.alias_or_name)
        return next((name for name in columns if name not in kept), None)

    def rows(self, records: pa.Table) -> tuple[pa.Table, np.ndarray]:
        """Return the rows and the positions of their records. Raises `Undecodable` for a value that cannot be computed."""
        numbered = records.append_column(_NUMBER, pa.array(np.arange(records.num_rows)))
        try:
            found = self._evaluator.query(self._whole, {_RECORDS: numbered})
        except InvalidPredicate as error:
            # The screening asks for the reason with a record alone.
            field = self._failing(numbered) if records.num_rows == 1 else ""
            raise Undecodable(f"{field}a record that cannot be transformed ({error.found})", expected="values that fit") from None
        twice = next((name for name in found.column_names if found.column_names.count(name) > 1), None)
        if twice is not None:
            raise InvalidOption(
                f"a transformation that gives column {twice!r} twice", expected="* replace (… as …), or one of them"
            )
        at = np.asarray(found.column(_POSITION).combine_chunks(), np.int64)
        order = np.argsort(at, kind="stable")
        named = [name for name in found.column_names if name not in (_NUMBER, _POSITION)]
        return found.select(named).take(pa.array(order)), at[order]

    def check(self, schema: pa.Schema) -> None:
        """Raise `InvalidOption` for a statement that records of `schema` cannot answer."""
        try:
            self.rows(schema.empty_table())
        except Undecodable as error:
            raise InvalidOption(error.found, expected=f"{_EXPECTED}; fields: {', '.join(schema.names)}") from None

    def _failing(self, numbered: pa.Table) -> str:
        for part in self._select.expressions:
            alone = self._select.copy()
            alone.set("expressions", [part.copy()])
            try:
                self._evaluator.query(self._numbered(alone), {_RECORDS: numbered})
            except InvalidPredicate:
                return f"field {part.alias_or_name!r}: "
        return ""

    def _numbered(self, select: exp.Select) -> str:
        return select.select(f"{_RECORDS}.{_NUMBER} as {_POSITION}", dialect=self._dialect).sql(self._dialect)


class TransformedChanges:
    """The changes of `changes`, whose rows go through a transformation.

    With `identity` (changes of another table), a row that its condition leaves out is deleted: it may have met it before.
    """

    def __init__(self, changes: ChangeDecoder, transformation: Transformation, identity: Identity | None) -> None:
        self._changes = changes
        self._transformation = transformation
        self._identity = identity

    def changes(self, records: Sequence[Received]) -> Changes:
        """See `ChangeDecoder.changes`."""
        given = self._changes.changes(records)
        rows, kept = self._transformation.rows(given.rows)
        rows_at = [given.rows_at[at] for at in kept]
        left = np.setdiff1d(np.arange(given.rows.num_rows), kept)
        if self._identity is None or not len(left):
            return Changes(rows, rows_at, given.removed, given.removed_at)
        parts = [self._identity.of(given.rows.take(pa.array(left))), *([] if given.removed is None else [given.removed])]
        removed_at = np.array([*(given.rows_at[at] for at in left), *given.removed_at], np.int64)
        order = np.argsort(removed_at, kind="stable")
        removed = pa.concat_tables(parts, promote_options="permissive").take(pa.array(order))
        return Changes(rows, rows_at, removed, removed_at[order].tolist())


def _parsed(text: str, dialect: str) -> exp.Select:
    with extra("sql"):
        import sqlglot  # noqa: PLC0415 - only transformations need it
        from sqlglot import exp  # noqa: PLC0415
    try:
        found = sqlglot.parse_one(text, dialect=dialect)
    except (sqlglot.errors.SqlglotError, RecursionError) as error:
        first = str(error).split("\n", 1)[0]
        raise InvalidOption(f"a transformation that cannot be parsed ({first})", expected=_EXPECTED) from None
    others = [name for name, value in found.args.items() if value and name not in _PARTS]
    tables = [table.sql(dialect) for table in found.find_all(exp.Table)]
    if not isinstance(found, exp.Select) or others or tables != [_RECORDS]:
        shown = others[0].strip("_") if isinstance(found, exp.Select) and others else found.sql(dialect)[:80]
        raise InvalidOption(f"a transformation with {shown!r}", expected=_EXPECTED)
    several = next(found.find_all(exp.Window, exp.AggFunc, exp.Unnest, exp.Explode), None)
    if several is not None:
        raise InvalidOption(f"a transformation with {several.sql(dialect)[:80]!r}", expected=_EXPECTED)
    return found
