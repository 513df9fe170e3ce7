"""Conditions and values written as SQL text: sqlglot parses them, DuckDB or Arrow evaluates them on rows in memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from tideline_table.errors import InvalidPredicate, SchemaMismatch
from tideline_table.extras import extra
from tideline_table.reader import parse_where
from tideline_table.schema import with_meta_fields

if TYPE_CHECKING:
    import duckdb
    from sqlglot import exp

DIALECT = "duckdb"
NUMBER = "_tideline_row"
"""The column that numbers rows that go through DuckDB."""
TARGET = "target"
ROWS, SOURCE_ROWS = "_tideline_rows", "_tideline_source"
"""Rows in memory are registered by these names and get their own as an alias, so that subqueries still find the tables."""


def parsed(text: str, what: str) -> exp.Condition:
    """Return one SQL expression. Raises `InvalidPredicate`, which names `what` it is, for anything else."""
    with extra("sql"):
        import sqlglot
        from sqlglot import exp
    try:
        found = sqlglot.parse(text, dialect=DIALECT)
    except sqlglot.errors.SqlglotError as error:
        raise InvalidPredicate(
            f"{what} {text[:80]!r} cannot be parsed ({first_line(error)})", expected="an SQL expression"
        ) from None
    except RecursionError:
        raise InvalidPredicate(f"{what} {text[:80]!r}, which is nested too deeply", expected="fewer parentheses") from None
    one = found[0] if len(found) == 1 else None
    if isinstance(one, exp.Subquery):
        one = exp.Paren(this=one)
    if not isinstance(one, exp.Condition) or isinstance(one, exp.Query):
        raise InvalidPredicate(f"{what} {text[:80]!r}", expected="one SQL expression over the columns of the table")
    refuse_windows(one)
    return one


def refuse_windows(expression: exp.Expr) -> None:
    """Raise `InvalidPredicate` for a window function outside of subqueries: it would see only the rows that were read."""
    from sqlglot import exp

    for found in expression.find_all(exp.Window):
        if found.find_ancestor(exp.Query) is None:
            raise InvalidPredicate(
                f"the window function {found.sql(DIALECT)[:80]!r}",
                expected="an expression over one row",
                remedy="compute it in a subquery, or in the source of a merge",
            )


def conjuncts(condition: exp.Expr) -> Iterable[exp.Expr]:
    """Return the parts of a condition that are joined by AND."""
    from sqlglot import exp

    unnested = condition.unnest()
    return tuple(unnested.flatten()) if isinstance(unnested, exp.And) else (unnested,)


def _operands(condition: exp.Expr) -> Iterator[exp.Expr]:
    """Yield the parts of a condition that AND, OR and NOT join."""
    from sqlglot import exp

    unnested = condition.unnest()
    if isinstance(unnested, exp.And | exp.Or | exp.Xor | exp.Not):
        for part in (unnested.args.get("this"), unnested.args.get("expression")):
            if part is not None:
                yield from _operands(part)
    else:
        yield condition


def without_table(expression: exp.Expr, names: Sequence[str]) -> exp.Expr:
    """Return a copy whose columns are not qualified by a table named in `names`."""
    from sqlglot import exp

    known = {name.casefold() for name in names}

    def plain(node: exp.Expr) -> exp.Expr:
        if isinstance(node, exp.Column) and node.table.casefold() in known and not node.args.get("db"):
            return exp.column(node.this.copy())
        return node

    return expression.transform(plain)


@dataclass
class Evaluator:
    """Evaluates SQL on rows in memory. `views`: other tables that subqueries may name, as Arrow datasets or tables."""

    views: Mapping[str, object] = field(default_factory=dict)
    _connection: duckdb.DuckDBPyConnection | None = field(default=None, repr=False)
    _checked: set[tuple[str, str, pa.Schema]] = field(default_factory=set, repr=False)
    """Conditions of which `mask` knows that they are conditions, with the table's name and the schema of its rows."""

    def query(self, text: str, tables: Mapping[str, pa.Table]) -> pa.Table:
        """Return the rows of a query over `tables` and `views`. Raises `InvalidPredicate` with what DuckDB says."""
        return self.reader(text, tables).read_all()

    def reader(self, text: str, tables: Mapping[str, pa.Table] | None = None) -> pa.RecordBatchReader:
        """Return the rows of a query as a stream; errors as `query`, when it is made and while it is read."""
        with extra("sql"):
            import duckdb
        if self._connection is None:
            self._connection = duckdb.connect()
            self._connection.execute("set python_enable_replacements = false; set TimeZone = 'UTC'")
            for name, rows in self.views.items():
                self._connection.register(name, rows)
        for name, rows in (tables or {}).items():
            self._connection.register(name, rows)
        try:
            found = self._connection.sql(text).to_arrow_reader()
        except duckdb.Error as error:
            raise _refused(error) from None
        return pa.RecordBatchReader.from_batches(found.schema, _batches(found))

    def kinds(self, rows: pa.Table) -> dict[str, str]:
        """Return the names of DuckDB's types of all columns."""
        described = self.query(
            "select column_name, column_type from (describe _tideline_kinds)", {"_tideline_kinds": rows.slice(0, 0)}
        )
        return dict(zip(described.column(0).to_pylist(), described.column(1).to_pylist(), strict=True))

    def mask(self, rows: pa.Table, condition: exp.Expr, name: str = TARGET) -> pa.Array:
        """Return for each row whether `condition` is true. The rows are the table `name`."""
        text = condition.sql(DIALECT)
        if (asked := (text, name, rows.schema)) not in self._checked:  # once, not for each file
            self.check_conditions([condition], {name: (ROWS, numbered(rows.slice(0, 0)))})
            self._checked.add(asked)
        found = self.values(rows, {"met": f"({text}) is true"}, name)
        return found.column("met").combine_chunks().cast(pa.bool_())

    def check_conditions(self, conditions: Iterable[exp.Expr], tables: Mapping[str, tuple[str, pa.Table]]) -> None:
        """Raise `InvalidPredicate` for a number or text that stands where a condition belongs: DuckDB takes 5 for true.

        `tables`: what the conditions may name, each as the name by which its rows are registered and its rows (none are needed).
        """
        parts = [part.sql(DIALECT) for condition in conditions for part in _operands(condition)]
        if not parts:
            return
        chosen = ", ".join(f"({part}) as c{number}" for number, part in enumerate(parts))
        places = ", ".join(f"{place} as {quoted(name)}" for name, (place, _) in tables.items())
        text = f"select column_type from (describe (select {chosen} from {places}))"  # noqa: S608 - parsed, quoted names
        kinds = self.query(text, dict(tables.values())).column(0).to_pylist()
        for part, kind in zip(parts, kinds, strict=True):
            if kind not in {"BOOLEAN", '"NULL"'}:
                raise InvalidPredicate(f"{part[:80]!r} as a condition", expected=f"a comparison: the expression is of type {kind}")

    def values(self, rows: pa.Table, expressions: Mapping[str, str], name: str = TARGET) -> pa.Table:
        """Return the values of expressions for each row, in order. The rows are the table `name`."""
        parts = ", ".join(f"({text}) as {quoted(column)}" for column, text in expressions.items())
        text = f"select {NUMBER}, {parts} from {ROWS} as {quoted(name)} order by {NUMBER}"  # noqa: S608 - parsed, quoted names
        found = self.query(text, {ROWS: numbered(rows)})
        if found.num_rows != rows.num_rows:
            raise InvalidPredicate("an expression that is not one value for each row", expected="a value for each row")
        return found.drop_columns([NUMBER])


@dataclass(frozen=True)
class Selection:
    """A condition on the rows of a table: `arrow` selects rows where they are read, `rest` decides among these."""

    arrow: pc.Expression | None
    rest: exp.Expr | None = None
    evaluator: Evaluator = field(default_factory=Evaluator)
    name: str = TARGET
    reads_table: bool = False
    """Whether the condition also reads other rows of the table: then it depends on each change of it."""

    def of(self, rows: pa.Table) -> pa.Table:
        """Return those of `rows`, which `arrow` selected, for which the condition is true."""
        return rows if self.rest is None else rows.filter(self.evaluator.mask(rows, self.rest, self.name))

    def selects(self, rows: pa.Table) -> bool:
        """Return whether the condition is true for one of `rows`."""
        if self.reads_table:
            return bool(rows.num_rows)
        found = rows if self.arrow is None else rows.filter(self.arrow)
        return bool(found.num_rows and self.of(found).num_rows)


def _batches(reader: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
    try:
        yield from reader
    except (pa.ArrowException, OSError) as error:
        raise _refused(error) from None


def _refused(error: Exception) -> InvalidPredicate:
    return InvalidPredicate(
        f"DuckDB refuses an expression ({first_line(error)})",
        expected="SQL that DuckDB can evaluate on the rows of the table",
        remedy="text values are in single quotes: \"'done'\", columns are not",
    )


def selection_of(where: str | pc.Expression | None, schema: pa.Schema) -> Selection:
    """Return a condition as it is written by users. What `parse_where` does not understand is left to DuckDB.

    Raises `InvalidPredicate`.
    """
    if where is None or isinstance(where, pc.Expression):
        return Selection(where)
    try:
        return Selection(parse_where(where, with_meta_fields(schema)))
    except InvalidPredicate:
        return selection_of_parsed(parsed(where, "condition"), schema)


def selection_of_parsed(
    condition: exp.Expr | None, schema: pa.Schema, name: str = TARGET, evaluator: Evaluator | None = None
) -> Selection:
    """Return a parsed condition, whose columns may be qualified by `name`. Parts that `parse_where` understands prune files."""
    given = evaluator or Evaluator()
    if condition is None:
        return Selection(None, None, given, name)
    refuse_windows(condition)
    arrow, rest = arrow_part(conjuncts(condition), schema, name)
    return Selection(arrow, condition if rest else None, given, name)


def arrow_part(parts: Iterable[exp.Expr], schema: pa.Schema, name: str) -> tuple[pc.Expression | None, bool]:
    """Return those of `parts`, joined by AND, that Arrow can evaluate, and whether there are others."""
    from sqlglot import exp

    found, rest = [], False
    for part in parts:
        # A backslash is a character of its own in DuckDB's LIKE, and an escape in `parse_where`.
        if any("\\" in like.expression.sql(DIALECT) for like in part.find_all(exp.Like)):
            rest = True
            continue
        try:
            found.append(parse_where(without_table(part, [name]).sql(DIALECT), with_meta_fields(schema)))
        except InvalidPredicate:
            rest = True
    return (reduce(and_, found) if found else None), rest


def numbered(rows: pa.Table) -> pa.Table:
    """Return rows with the column `NUMBER`. Raises `SchemaMismatch` for columns that SQL does not tell apart."""
    from tideline.relation import refuse_twins

    refuse_twins(rows.schema.names)
    return rows.append_column(NUMBER, pa.array(range(rows.num_rows), pa.int64()))


def quoted(name: str) -> str:
    """Return a name as SQL writes it."""
    return '"' + name.replace('"', '""') + '"'


def fitted(column: pa.ChunkedArray, wanted: pa.Field) -> pa.ChunkedArray:
    """Return values in the type of a column. Raises `SchemaMismatch` for values that it cannot hold."""
    try:
        return column if column.type == wanted.type else column.cast(wanted.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise SchemaMismatch(
            f"values for column {wanted.name!r} that do not fit ({first_line(error)})", expected=f"values of type {wanted.type}"
        ) from None


def first_line(error: Exception) -> str:
    """Return the first line of the message of an error of a library."""
    return str(error).strip().split("\n", 1)[0]
