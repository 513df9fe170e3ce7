"""SQL statements on tables by path or name: sqlglot parses them, changes of rows are commits, queries run in DuckDB."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa

from tideline.expressions import DIALECT, TARGET, Evaluator, Selection, first_line, quoted, selection_of_parsed
from tideline.merge import Merge
from tideline.opened import Options
from tideline.opening import open as open_table
from tideline.results import Commit
from tideline.row_changes import delete_rows, update_rows
from tideline.table import Table
from tideline_table.action import delete_partitions
from tideline_table.checked import checked
from tideline_table.errors import InvalidOption, InvalidStatement, SchemaMismatch
from tideline_table.extras import extra
from tideline_table.hudi import Point
from tideline_table.table import Table as EngineTable

if TYPE_CHECKING:
    from sqlglot import exp

    from tideline.relation import TableDataset

Named: TypeAlias = Mapping[str, "str | Table | pa.Table"]
POSSIBLE = "SELECT, INSERT INTO, UPDATE, DELETE FROM or MERGE INTO"
_FILE = re.compile(r"\.(parquet|csv|tsv|json|jsonl|ndjson)(\.gz)?$", re.IGNORECASE)
"""Names of files that DuckDB reads by itself."""


@checked
def sql(
    statement: str, tables: Named | None = None, *, options: Options = None, locks: str | None = None
) -> Commit | pa.RecordBatchReader:
    """Run one SQL statement. A change is one commit; of a query, the rows are returned as a stream.

    A table is named by its path in double quotes, or by a key of `tables`, whose value is its path, the open table, or rows in
    memory (an Arrow table), which a statement reads. Raises `InvalidStatement` for what is no such statement, and the errors of the
    methods of `Table`.
    """
    found = parsed_statement(statement)
    return _Session(dict(tables or {}), options, locks).run(found)


def is_query(statement: str) -> bool:
    """Return whether a statement returns rows and changes nothing. Raises `InvalidStatement` if it is no statement."""
    from sqlglot import exp

    return isinstance(parsed_statement(statement), exp.Query)


def static_values(found: exp.Expr, table: EngineTable, *, overwrites: bool) -> dict[str, exp.Expr]:
    """Return the constants that the PARTITION clause of an INSERT into `found` gives, by partition column.

    Raises `InvalidStatement` for what is no partition column or no constant, and for an overwriting of some parts of a partition.
    """
    from sqlglot import exp

    clause, fields, given = found.args.get("partition"), table.definition.keygen.partition_fields, dict[str, exp.Expr | None]()
    for part in clause.expressions if clause is not None else ():
        column, value = (part.this, part.expression) if isinstance(part, exp.EQ) else (part, None)
        name = _column(column.name, table.schema)
        if name not in fields or name in given or (value is not None and value.find(exp.Column, exp.Query, exp.AggFunc)):
            raise InvalidStatement(
                f"PARTITION with {part.sql(DIALECT)[:80]}",
                expected=f"each of the partition columns ({', '.join(fields) or 'there are none'}) once, with a constant",
            )
        given[name] = value
    fixed = {name: value for name, value in given.items() if value is not None}
    if overwrites and len(fixed) < len(fields):
        raise InvalidStatement(
            f"INSERT OVERWRITE of partitions with {', '.join(fixed) or 'no value'}",
            expected=f"PARTITION with values of all partition columns: {', '.join(fields) or 'there are none'}",
        )
    return fixed


def emptied(table: EngineTable, values: pa.Table, options: Options) -> Commit | None:
    """Delete the rows of the partition with `values` (one row); None if the table has no such partition."""
    (path,) = table.definition.keygen.partition_paths(values).to_pylist()
    if not table.state.latest_slices(partitions=[path]):
        return None
    return Commit.of(delete_partitions(table, [path], options=options))


def parsed_statement(statement: str, dialect: str = DIALECT, possible: str = POSSIBLE) -> exp.Expr:
    """Return one statement. Raises `InvalidStatement`, which names what is `possible`."""
    with extra("sql"):
        import sqlglot
    try:
        parts = [part for part in sqlglot.parse(statement, dialect=dialect) if part is not None]
    except sqlglot.errors.SqlglotError as error:
        raise InvalidStatement(f"a statement that cannot be parsed ({first_line(error)})", expected=possible) from None
    except RecursionError:
        raise InvalidStatement("a statement that is nested too deeply", expected="fewer parentheses") from None
    if len(parts) != 1:
        raise InvalidStatement(f"{len(parts)} statements", expected="one statement")
    return parts[0]


@dataclass
class _Session:
    """The tables of one statement, each opened when it is met."""

    named: dict[str, str | Table | pa.Table]
    options: Options
    locks: str | None
    opened: dict[str, Table] = field(default_factory=dict)
    past: dict[str, TableDataset] = field(default_factory=dict)
    """Tables as of a point in time, by names that this statement alone has."""

    def run(self, statement: exp.Expr) -> Commit | pa.RecordBatchReader:
        from sqlglot import exp

        self._name_past(statement)
        if isinstance(statement, exp.Query):
            return self._query(statement)
        if isinstance(statement, exp.Delete):
            return self._delete(statement)
        if isinstance(statement, exp.Update):
            return self._update(statement)
        if isinstance(statement, exp.Insert):
            return self._insert(statement)
        if isinstance(statement, exp.Merge):
            return self._merge(statement)
        raise InvalidStatement(f"the statement {statement.sql(DIALECT)[:80]!r}", expected=POSSIBLE)

    def _query(self, statement: exp.Query) -> pa.RecordBatchReader:
        return self._evaluator(statement).reader(statement.sql(DIALECT))

    def _delete(self, statement: exp.Delete) -> Commit:
        _only(statement, "DELETE", {"this", "where"}, "a condition on the rows, or MERGE INTO")
        table, name = self._target(statement.this)
        return delete_rows(table._table, self._selection(statement, table, name), options=self.options)  # noqa: SLF001

    def _update(self, statement: exp.Update) -> Commit:
        _only(statement, "UPDATE", {"this", "expressions", "where"}, "values from the row itself, or MERGE INTO")
        table, name = self._target(statement.this)
        assigned = _assignments(statement.expressions, table.schema, name)
        return update_rows(table._table, assigned, self._selection(statement, table, name), options=self.options)  # noqa: SLF001

    def _insert(self, statement: exp.Insert) -> Commit:
        from sqlglot import exp

        expected = "INSERT INTO or OVERWRITE table [PARTITION (column = value)] [(columns)] with VALUES or a query"
        _only(statement, "INSERT", {"this", "expression", "by_name", "overwrite"}, expected)
        into, query = statement.this, statement.expression
        named = [part.name for part in into.expressions] if isinstance(into, exp.Schema) else []
        target, overwrites = into.this if isinstance(into, exp.Schema) else into, bool(statement.args.get("overwrite"))
        table, _ = self._target(target)
        fixed = static_values(target, table._table, overwrites=overwrites)  # noqa: SLF001
        if not isinstance(query, exp.Query | exp.Values):
            raise InvalidStatement("an INSERT without rows", expected="VALUES or a query")
        text = query.sql(DIALECT) if isinstance(query, exp.Query) else f"select * from ({query.sql(DIALECT)})"  # noqa: S608
        evaluator = self._evaluator(query)
        given = evaluator.query(f"select * from ({text}) limit 0", {})  # noqa: S608 - a parsed query
        if statement.args.get("by_name"):
            named = given.column_names
        columns = [_column(name, table.schema) for name in named] or [n for n in table.schema.names if n not in fixed]
        if len(columns) != given.num_columns or len({*columns, *fixed}) != len(columns) + len(fixed):
            raise SchemaMismatch(
                f"{given.num_columns} value(s) for the columns {', '.join(columns)}", expected="a value for each column"
            )
        kinds = evaluator.kinds(table.schema.empty_table())
        places = [f"c{n}" for n in range(len(columns))]
        casts = ", ".join(f"cast({place} as {kinds[c]}) as {quoted(c)}" for place, c in zip(places, columns, strict=True))
        rows = evaluator.query(f"select {casts} from ({text}) as given({', '.join(places)})", {})  # noqa: S608 - a parsed query
        constants = {name: f"cast({value.sql(DIALECT)} as {kinds[name]}) as {quoted(name)}" for name, value in fixed.items()}
        values = evaluator.query(f"select {', '.join(constants.values()) or 1}", {})
        for missing in (f for f in table.schema if f.name not in columns):
            value = values[missing.name].cast(missing.type)[0] if missing.name in fixed else pa.scalar(None, missing.type)
            rows = rows.append_column(missing, pa.repeat(value, rows.num_rows))
        if overwrites and not rows.num_rows:
            fields = pa.schema([table.schema.field(name) for name in values.column_names])
            if (done := emptied(table._table, values.cast(fields), self.options)) is not None:  # noqa: SLF001
                return done
        return (table.insert_overwrite if overwrites else table.insert)(rows, options=self.options)

    def _merge(self, statement: exp.Merge) -> Commit:
        from sqlglot import exp

        _only(statement, "MERGE", {"this", "using", "on", "whens"}, "MERGE INTO table USING rows ON condition WHEN …")
        table, name = self._target(statement.this)
        using, on = statement.args["using"], statement.args.get("on")
        if not isinstance(on, exp.Condition):
            raise InvalidStatement("a MERGE without ON", expected="ON with a condition over both tables")
        evaluator = self._evaluator(statement)
        other = using.alias_or_name

        def source() -> pa.Table:
            return evaluator.query(f"select * from {using.sql(DIALECT)}", {})  # noqa: S608 - a parsed table

        rows = source if self._reads(evaluator, table) else source()
        merge = Merge(table._opened, rows, on.sql(DIALECT), (), evaluator, (name, other or "source"))  # noqa: SLF001
        for when in statement.args["whens"].expressions:
            merge = _with_clause(merge, when, table.schema, name)
        return merge.execute(options=self.options)

    # --- tables --------------------------------------------------------------------------------------------------------------

    def _target(self, found: exp.Expr) -> tuple[Table, str]:
        """Return the table that a statement changes, and the name by which its columns may be qualified."""
        from sqlglot import exp

        is_named = isinstance(found, exp.Table) and isinstance(found.this, exp.Identifier) and not found.args.get("db")
        if not is_named or found.name in self.past:
            raise InvalidStatement(
                f"a change of {found.sql(DIALECT)!r}", expected="one table, by its path in double quotes or its name"
            )
        return self._table(found.name), found.alias_or_name

    def _table(self, name: str) -> Table:
        if name not in self.opened:
            given = self.named.get(self._key(name))
            if given is None and not ("/" in name or name.startswith(".") or ":" in name):
                known = ", ".join(sorted(self.named)) or "none is named"
                raise InvalidOption(
                    f"table {name!r}", expected=f'a named table ({known}), or a path in double quotes such as "./{name}"'
                )
            if isinstance(given, pa.Table):
                raise InvalidOption(f"{name!r}, rows in memory, as a table that is changed", expected="the path of a table")
            self.opened[name] = (
                given if isinstance(given, Table) else open_table(given or name, options=self.options, locks=self.locks)
            )
        return self.opened[name]

    def _name_past(self, statement: exp.Expr) -> None:
        """Replace each `table AT (VERSION => 7)` or `table VERSION AS OF 7` by a name of its own."""
        from sqlglot import exp

        for found in list(statement.find_all(exp.Table)):
            when = found.args.get("when") or found.args.get("version")
            if when is not None:
                name = f"tideline_past_{len(self.past)}"
                self.past[name] = self._table(found.name).dataset(as_of=_point(when))
                alias = exp.TableAlias(this=exp.to_identifier(found.alias_or_name, quoted=True))
                found.replace(exp.Table(this=exp.to_identifier(name), alias=alias))

    def _key(self, name: str) -> str:
        """Return the key of `named` that SQL means by a name, whatever its case; a name that is no key as it is."""
        return name if name in self.named else next((n for n in self.named if n.casefold() == name.casefold()), name)

    def _reads(self, evaluator: Evaluator, table: Table) -> bool:
        """Return whether a statement also reads the table that it changes."""
        now = (name for name, rows in evaluator.views.items() if name not in self.past and not isinstance(rows, pa.Table))
        return any(self._table(name).path == table.path for name in now)

    def _evaluator(self, statement: exp.Expr) -> Evaluator:
        """Return an evaluator that knows the tables that a statement reads."""
        known: dict[str, str] = {}
        for name in sorted(set(self._read(statement))):
            other = known.setdefault(name.casefold(), name)
            if self._key(other) != self._key(name):
                raise InvalidStatement(f"the tables {other!r} and {name!r}", expected="names that differ by more than case")
        rows = {name: self.named.get(self._key(name)) for name in known.values() if name not in self.past}
        present = {name: held if isinstance(held, pa.Table) else self._table(name).dataset() for name, held in rows.items()}
        return Evaluator({**present, **self.past})

    def _read(self, statement: exp.Expr) -> Iterator[str]:
        from sqlglot import exp

        within = {cte.alias.casefold() for cte in statement.find_all(exp.CTE)}
        changed = statement.this if isinstance(statement, exp.Delete | exp.Update | exp.Merge) else None
        for found in statement.find_all(exp.Table):
            is_name = isinstance(found.this, exp.Identifier) and not found.args.get("db")
            if found is changed or not is_name:
                continue
            # A name of a table may also be that of a common table expression: DuckDB knows where which of them is meant.
            if self._key(found.name) in self.named or not (found.name.casefold() in within or _FILE.search(found.name)):
                yield found.name

    def _selection(self, statement: exp.Delete | exp.Update, table: Table, name: str) -> Selection:
        where = statement.args.get("where")
        evaluator = self._evaluator(statement)
        table._table.refresh()  # noqa: SLF001
        found = selection_of_parsed(where.this if where is not None else None, table.schema, name or TARGET, evaluator)
        return replace(found, reads_table=self._reads(evaluator, table))


def _point(when: exp.Expr) -> Point:
    """Return the point in time that `AT (VERSION => ...)`, `AT (TIMESTAMP => ...)` or `VERSION AS OF ...` names."""
    from sqlglot import exp

    said = {str(when.args.get(part)).upper() for part in ("this", "kind")}
    if isinstance(when.expression, exp.Literal) and (said & {"VERSION", "TIMESTAMP"}) and (said & {"AT", "AS OF"}):
        return str(when.expression.this)
    if said == {"AT", "TIMESTAMP"}:
        text = f"select cast({when.expression.sql(DIALECT)} as timestamptz)"
        found: Point = Evaluator().query(text, {}).column(0)[0].as_py()
        if found is not None:
            return found
    expected = "AT (VERSION => 'instant' or the number of a commit), AT (TIMESTAMP => time)"
    raise InvalidStatement(f"{when.sql(DIALECT)[:80]!r}", expected=expected)


def _only(statement: exp.Expr, what: str, known: set[str], expected: str) -> None:
    """Raise `InvalidStatement` for a part of a statement that would be ignored."""
    others = [name for name, value in statement.args.items() if value and name not in known]
    if others:
        shown = others[0].strip("_").replace("_", " ").upper()
        raise InvalidStatement(f"{what} with {shown}", expected=expected)


def _assignments(parts: list[exp.Expr], schema: pa.Schema, table: str) -> dict[str, object]:
    from sqlglot import exp

    found: dict[str, object] = {}
    for part in parts:
        if not isinstance(part, exp.EQ) or not isinstance(part.this, exp.Column):
            raise InvalidStatement(f"SET {part.sql(DIALECT)[:80]}", expected="SET column = value")
        if part.this.args.get("db") or part.this.table.casefold() not in ("", table.casefold()):
            raise InvalidStatement(f"SET {part.this.sql(DIALECT)[:80]}", expected=f"a column of {table}, as a whole")
        name = _column(part.this.name, schema)
        if name in found:
            raise InvalidStatement(f"two values for column {name!r}", expected="one value for a column")
        found[name] = part.expression.sql(DIALECT)
    return found


def _column(name: str, schema: pa.Schema) -> str:
    """Return the column that SQL means by a name, whatever its case. Raises `SchemaMismatch` if there is none."""
    found = name if name in schema.names else next((n for n in schema.names if n.casefold() == name.casefold()), None)
    if found is None:
        raise SchemaMismatch(f"column {name!r} is not in the table", expected=f"one of {', '.join(schema.names)}")
    return found


def _with_clause(merge: Merge, when: exp.When, schema: pa.Schema, table: str) -> Merge:
    from sqlglot import exp

    then, by_source = when.args["then"], when.args.get("source")
    condition = when.args.get("condition")
    text = None if condition is None else condition.sql(DIALECT)
    if by_source:
        raise InvalidStatement("WHEN NOT MATCHED BY SOURCE", expected="WHEN MATCHED or WHEN NOT MATCHED")
    if isinstance(then, exp.Var) and then.name.upper() == "DELETE" and when.args["matched"]:
        return merge.when_matched_delete(condition=text)
    if isinstance(then, exp.Update) and when.args["matched"]:
        all_columns = not then.expressions or isinstance(then.expressions[0], exp.Star)
        return merge.when_matched_update(None if all_columns else _assignments(then.expressions, schema, table), condition=text)
    if isinstance(then, exp.Insert) and not when.args["matched"]:
        return merge.when_not_matched_insert(_inserted(then, schema), condition=text)
    raise InvalidStatement(when.sql(DIALECT)[:80], expected="WHEN MATCHED THEN UPDATE or DELETE, WHEN NOT MATCHED THEN INSERT")


def _inserted(then: exp.Insert, schema: pa.Schema) -> dict[str, object] | None:
    from sqlglot import exp

    if not then.this or isinstance(then.this, exp.Star):
        if then.args.get("expression"):
            names = list(schema.names)
        else:
            return None
    else:
        names = [_column(part.name, schema) for part in then.this.expressions]
    values = then.expression.expressions
    if len(values) != len(names) or len(set(names)) != len(names):
        raise InvalidStatement(f"{len(values)} value(s) for the columns {', '.join(names)}", expected="a value for each column")
    return {name: value.sql(DIALECT) for name, value in zip(names, values, strict=True)}
