"""SQL statements of Spark on tables by path or name: queries are Spark's, each change is one commit.

sqlglot parses a statement in Spark's dialect. Spark runs its queries; a change of rows by a condition runs in this process, as
`tideline.sql` runs it (docs/design/row-statements.md).
"""

from __future__ import annotations

import tideline_spark.requirement  # noqa: F401 isort: skip - before PySpark

import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

import tideline
from tideline.statements import emptied, parsed_statement, static_values
from tideline_catalogs import locate
from tideline_locks import attach_lock, open_hudi_lock
from tideline_spark.arrow_rows import spark_schema
from tideline_spark.read import read
from tideline_spark.store_assignment import stored
from tideline_spark.write import write_dataframe
from tideline_table.errors import InvalidOption, InvalidStatement, SchemaMismatch, TableExists
from tideline_table.table import Table
from tideline_table.writer import Operation

if TYPE_CHECKING:
    from sqlglot import exp

DIALECT, INNER = "spark", "duckdb"
POSSIBLE = "SELECT, INSERT, UPDATE, DELETE FROM, MERGE INTO, CREATE TABLE, SHOW PARTITIONS or CALL"
FUNCTIONS = {"tideline_changes": (1, 3), "tideline_history": (1, 1), "tideline_files": (1, 1), "tideline_partitions": (1, 1)}
"""The least and the largest number of arguments of each, the table included."""
PROCEDURES = {
    **dict.fromkeys(("compact", "log_compact", "cluster", "clean", "archive"), (1, 1)),
    "create_savepoint": (1, 2),
    "delete_savepoint": (2, 2),
    "restore": (2, 2),
}
_TEXTS, _NUMBERS = ("path", "partition", "instant"), ("size_bytes", "rows")
_FILES = pa.schema(
    [*((n, pa.string()) for n in _TEXTS), *((n, pa.int64()) for n in _NUMBERS), ("log_files", pa.list_(pa.string()))],
)
_CALL = re.compile(r"^\s*call\s+(.+?)\s*;?\s*\Z", re.IGNORECASE | re.DOTALL)
_SHOW = re.compile(r"^\s*show\s+partitions\s+(.+?)\s*;?\s*\Z", re.IGNORECASE | re.DOTALL)
_WRITE = "hoodie.datasource.write."
_OWN_NAMES = {
    "primarykey": _WRITE + "recordkey.field",
    "precombinefield": _WRITE + "precombine.field",
    "orderingfields": _WRITE + "precombine.field",
    "type": _WRITE + "table.type",
    "payloadclass": _WRITE + "payload.class",
    "recordmergemode": "hoodie.write.record.merge.mode",
}
"""Names of Apache Hudi's table properties in statements, and the options that they stand for."""
_TYPES = {"cow": "COPY_ON_WRITE", "mor": "MERGE_ON_READ"}
_views = itertools.count()


def sql(
    spark: SparkSession,
    statement: str,
    tables: Mapping[str, str] | None = None,
    *,
    catalog: str = "",
    options: Mapping[str, object] | None = None,
    locks: str | None = None,
) -> DataFrame | tideline.Commit | None:
    """Run one statement in Spark's dialect. Return the rows of a query, the commit of a change, nothing for `CREATE TABLE`.

    A table is named by its path in backticks, by a key of `tables`, whose value is its path, or, with the URL of a `catalog`, as
    `database.table`. All other names are tables and views of the session, which a statement reads. `options` and `locks` are
    those of `tideline.open`.

    Raises `InvalidStatement` for what is no such statement, and what `tideline.sql`, `read` and `write_dataframe` raise.
    """
    found = _Session(spark, {name.casefold(): path for name, path in (tables or {}).items()}, catalog, dict(options or {}), locks)
    if called := _CALL.match(statement):
        return found.call(called.group(1))
    shown = _SHOW.match(statement)
    return found.partitions(shown.group(1)) if shown else found.run(parsed_statement(statement, DIALECT, POSSIBLE))


@dataclass
class _Session:
    """The tables of one statement."""

    spark: SparkSession
    named: dict[str, str]
    catalog: str
    options: dict[str, object]
    locks: str | None
    views: list[str] = field(default_factory=list)

    def run(self, statement: exp.Expr) -> DataFrame | tideline.Commit | None:
        from sqlglot import exp  # noqa: PLC0415

        if isinstance(statement, exp.Query):
            return self.query(statement)
        if isinstance(statement, exp.Insert):
            return self.insert(statement)
        if isinstance(statement, exp.Update | exp.Delete | exp.Merge):
            return self.change(statement)
        if isinstance(statement, exp.Create) and statement.kind == "TABLE":
            self.create(statement)
            return None
        raise InvalidStatement(f"the statement {statement.sql(DIALECT)[:80]!r}", expected=POSSIBLE)

    # --- tables --------------------------------------------------------------------------------------------------------------

    def path(self, found: exp.Table) -> str:
        """Return the path of a table of Tideline, empty for any other table."""
        name, database = found.name, found.db
        if not database and name.casefold() in self.named:
            return self.named[name.casefold()]
        if "/" in name and database.casefold() in ("", "tideline"):
            return name
        if database and self.catalog and not self.spark.catalog.tableExists(f"{database}.{name}"):
            return locate(f"{database}.{name}", self.catalog)
        return ""

    def target(self, found: exp.Expr) -> str:
        """Return the path of the table that a statement changes."""
        from sqlglot import exp  # noqa: PLC0415

        path = self.path(found) if isinstance(found, exp.Table) else ""
        if not path:
            raise InvalidOption(
                f"table {found.sql(DIALECT)[:80]!r}",
                expected="a path in backticks, a name in `tables`, or database.table with a catalog",
            )
        return path

    def opened(self, path: str) -> Table:
        table = Table.open(path, options=self.options, hudi_lock=open_hudi_lock)
        attach_lock(table, self.locks)
        return table

    # --- statements ----------------------------------------------------------------------------------------------------------

    def query(self, statement: exp.Query) -> DataFrame:
        """Return the rows of a query, in which each table of Tideline is a temporary view of its present or past rows."""
        return self.spark.sql(self._with_views(statement).sql(DIALECT))

    def _with_views(self, statement: exp.Query) -> exp.Query:
        from sqlglot import exp  # noqa: PLC0415

        copied = statement.copy()
        within = {cte.alias.casefold() for cte in copied.find_all(exp.CTE)}
        for found in list(copied.find_all(exp.Table)):
            if isinstance(found.this, exp.Anonymous) and found.this.name.casefold() in FUNCTIONS:
                view = f"tideline_view_{next(_views)}"
                self.function(found.this).createOrReplaceTempView(view)
                found.replace(exp.alias_(exp.to_table(view), found.alias or found.this.name, table=True))
                continue
            if found.name.casefold() in within and not found.db:
                continue
            path = self.path(found)
            if not path:
                continue
            view = f"tideline_view_{next(_views)}"
            read(self.spark, self.opened(path), as_of=_point(found)).createOrReplaceTempView(view)
            alias = found.alias or ("" if "/" in found.name else found.name)
            found.replace(exp.alias_(exp.to_table(view), alias or view, table=True))
        return copied

    def _named(self, call: exp.Anonymous) -> tuple[tideline.Table, list[str]]:
        """Return the table that the first argument of a function or procedure names, and the other arguments."""
        from sqlglot import exp  # noqa: PLC0415

        plain = [part for part in call.expressions if isinstance(part, exp.Literal | exp.Column) and part.name]
        values = [".".join(p.name for p in part.parts) if isinstance(part, exp.Column) else part.name for part in plain]
        least, most = {**FUNCTIONS, **PROCEDURES}[call.name.casefold()]
        if len(values) < len(call.expressions) or not least <= len(values) <= most:
            expected = f"the path or name of a table, then texts or numbers, {least} to {most} arguments"
            raise InvalidStatement(call.sql(DIALECT)[:80], expected=expected)
        place = self.named.get(values[0].casefold(), values[0])
        is_path = "/" in place or not self.catalog
        return tideline.open(place, catalog="" if is_path else self.catalog, options=self.options, locks=self.locks), values[1:]

    def function(self, call: exp.Anonymous) -> DataFrame:
        """Return the rows of a table-valued function: changes (after a point, up to a point), history, files or partitions."""
        table, values = self._named(call)
        name = call.name.casefold()
        if name == "tideline_changes":
            from tideline_spark.data_source import TidelineDataSource  # noqa: PLC0415

            self.spark.dataSource.register(TidelineDataSource)
            points = dict(zip(("since", "until"), values, strict=False))
            return self.spark.read.format("tideline").options(**points, changes="true").load(table.path)
        found = getattr(table.inspect, name.removeprefix("tideline_"))()
        rows = found if isinstance(found, pa.Table) else pa.Table.from_pylist([asdict(file) for file in found], _FILES)
        return self.spark.createDataFrame(rows)

    def call(self, text: str) -> DataFrame:
        """Run a procedure, `name(table, …)`: a table service, with the options of the statement. Return its result by names."""
        from sqlglot import exp  # noqa: PLC0415

        parsed = parsed_statement(f"select {text}", DIALECT, POSSIBLE)
        called = parsed.selects[0] if isinstance(parsed, exp.Select) and parsed == exp.select(*parsed.selects[:1]) else None
        if not isinstance(called, exp.Anonymous) or called.name.casefold() not in PROCEDURES:
            raise InvalidStatement(f"CALL {text[:80]}", expected=f"one of {', '.join(PROCEDURES)}, such as CALL clean('path')")
        table, values = self._named(called)
        done = getattr(table.maintenance, called.name.casefold())(*values)
        told = [(key, str(value)) for key, value in asdict(done).items()] if done is not None else []
        return self.spark.createDataFrame(told, "name string, value string")

    def insert(self, statement: exp.Insert) -> tideline.Commit:
        """Write the rows of a query or of VALUES; columns without a value are null."""
        from sqlglot import exp  # noqa: PLC0415

        others = [name for name, value in statement.args.items() if value and name not in _INSERT_PARTS]
        if others:
            raise InvalidStatement(f"INSERT with {others[0].upper()}", expected="INSERT INTO or OVERWRITE table [PARTITION] query")
        into = statement.this
        named = into.this if isinstance(into, exp.Schema) else into
        table = self.opened(self.target(named))
        overwriting = self._overwriting() if statement.args.get("overwrite") else None
        is_static = overwriting is Operation.INSERT_OVERWRITE_TABLE and named.args.get("partition") is not None
        fixed = static_values(named, table, overwrites=is_static)
        rows = statement.expression
        query = rows if isinstance(rows, exp.Query) else exp.select("*").from_(rows.copy())
        df = self.query(query)
        by_name = bool(statement.args.get("by_name"))
        names = [part.name for part in into.expressions] if isinstance(into, exp.Schema) else []
        columns = df.columns if by_name else names or [name for name in table.schema.names if name not in fixed]
        if len(columns) != len(df.columns) or {name.casefold() for name in columns} & {name.casefold() for name in fixed}:
            raise SchemaMismatch(f"{len(df.columns)} value(s) for the columns {', '.join(columns)}", expected="a value for each")
        df = df.toDF(*columns)
        if fixed:
            values, casts = self._constants(fixed, table.schema)
            whole = overwriting is not None and len(fixed) == len(table.definition.keygen.partition_fields)
            if whole and df.isEmpty() and (done := emptied(table, values, self.options)) is not None:
                return done
            overwriting = Operation.INSERT_OVERWRITE if whole else overwriting
            df = df.select("*", *casts)
        return self._write(table, df, overwriting or Operation.INSERT)

    def _constants(self, fixed: Mapping[str, exp.Expr], schema: pa.Schema) -> tuple[pa.Table, list[Column]]:
        """Return the values of a PARTITION clause, and their columns. Raises `SchemaMismatch` for one that a column cannot have."""
        from sqlglot import exp  # noqa: PLC0415

        kinds = {part.name: part.dataType.simpleString() for part in spark_schema(schema).fields}
        texts = {name: f"try_cast({value.sql(DIALECT)} as {kinds[name]})" for name, value in fixed.items()}
        casts = [f.expr(text).alias(name) for name, text in texts.items()]
        found = self.spark.range(1).select(*casts).toArrow().cast(pa.schema([schema.field(name) for name in fixed]))
        for name, value in fixed.items():
            if found[name].null_count and not isinstance(value, exp.Null):
                raise SchemaMismatch(f"{value.sql(DIALECT)} in partition column {name!r}", expected=f"a {kinds[name]}")
        return found, casts

    def _overwriting(self) -> Operation:
        """Return what INSERT OVERWRITE replaces, as Spark's setting says: the table, or the partitions that the rows name."""
        mode = self.spark.conf.get("spark.sql.sources.partitionOverwriteMode") or "STATIC"
        return Operation.INSERT_OVERWRITE if mode.upper() == "DYNAMIC" else Operation.INSERT_OVERWRITE_TABLE

    def _write(self, table: Table, df: DataFrame, operation: Operation) -> tideline.Commit:
        """Write `df` with its columns in the types of the table, and null in those that it lacks.

        Raises `SchemaMismatch` for a column that the table lacks or of a type that Spark does not assign.
        """
        schema = table.schema
        known = {name.casefold(): name for name in df.columns}
        unknown = [name for name in df.columns if name.casefold() not in {field.name.casefold() for field in schema}]
        if unknown:
            raise SchemaMismatch(f"column {unknown[0]!r} is not in the table", expected=f"one of {', '.join(schema.names)}")
        columns = []
        for part in spark_schema(schema).fields:
            held = known.get(part.name.casefold())
            if held is None:
                columns.append(f.lit(None).cast(part.dataType).alias(part.name))
            else:
                values = stored(f.col(f"`{held}`"), df.schema[held].dataType, part.dataType, part.name)
                columns.append(values.alias(part.name))
        return tideline.Commit.of(write_dataframe(table, df.select(*columns), operation))

    def change(self, statement: exp.Update | exp.Delete | exp.Merge) -> tideline.Commit:
        """Run a change of rows in this process; what it reads of Spark is collected."""
        from sqlglot import ErrorLevel, exp  # noqa: PLC0415
        from sqlglot.errors import SqlglotError  # noqa: PLC0415

        copied = statement.copy()
        tables: dict[str, str | tideline.Table | pa.Table] = {}
        self.target(copied.this)
        if isinstance(copied, exp.Merge):
            self._collect_source(copied, tables)
        for found in self._outside(copied):
            path, name = self.path(found), f"tideline_table_{len(tables)}"
            if path and found.args.get("version") is not None:
                raise InvalidStatement(f"a change that reads {found.sql(DIALECT)!r}", expected="the newest rows of tables")
            if path:
                tables[name] = tideline.open(path, options=self.options, locks=self.locks)
            else:
                tables[name] = self._collected(exp.select("*").from_(found.copy()))
            alias = found.alias or ("target" if "/" in found.name else found.name)
            found.replace(exp.alias_(exp.to_table(name), alias, table=True))
        try:
            text = copied.sql(INNER, unsupported_level=ErrorLevel.RAISE)
        except SqlglotError as error:
            raise InvalidStatement(
                f"{str(error).splitlines()[0]} in a change of rows", expected="what DuckDB can evaluate"
            ) from None
        done = tideline.sql(text, tables, options=self.options, locks=self.locks)
        assert isinstance(done, tideline.Commit)
        return done

    def _collect_source(self, merge: exp.Merge, tables: dict[str, str | tideline.Table | pa.Table]) -> None:
        """Replace the source of a merge by its rows, unless it is a table of Tideline."""
        from sqlglot import exp  # noqa: PLC0415

        using = merge.args["using"]
        if isinstance(using, exp.Table) and self.path(using) and using.args.get("version") is None:
            return
        alias = using.alias_or_name
        tables["tideline_source"] = self._collected(exp.select("*").from_(using.copy()))
        using.replace(exp.alias_(exp.to_table("tideline_source"), alias or "source", table=True))

    def _outside(self, statement: exp.Expr) -> Iterator[exp.Table]:
        from sqlglot import exp  # noqa: PLC0415

        within = {cte.alias.casefold() for cte in statement.find_all(exp.CTE)}
        for found in list(statement.find_all(exp.Table)):
            if found.name != "tideline_source" and (found.db or found.name.casefold() not in within):
                yield found

    def _collected(self, query: exp.Query) -> pa.Table:
        return self.query(query).toArrow()

    def create(self, statement: exp.Create) -> None:
        """Create a table, with the rows of a query if there is one, as one commit."""
        from sqlglot import exp  # noqa: PLC0415

        asked = _Asked.of(statement)
        named = statement.this.this if isinstance(statement.this, exp.Schema) else statement.this
        path = asked.location or self.path(named)
        if not path:
            raise InvalidStatement(
                f"table {named.sql(DIALECT)!r} without a place", expected="LOCATION 'path', or a path in backticks"
            )
        df = self.query(statement.expression) if statement.expression is not None else None
        declared = [part.sql(DIALECT) for part in statement.this.expressions] if isinstance(statement.this, exp.Schema) else []
        if df is not None and declared:
            raise InvalidStatement("CREATE TABLE with columns and AS", expected="columns or a query")
        schema = df.schema if df is not None else _columns([*declared, *asked.typed_partitions])
        try:
            tideline.create(
                path,
                schema=to_arrow_schema(schema, timezone="UTC"),
                key=None,  # unless options name it
                partition=asked.partitions,
                name="" if "/" in named.name else named.name,
                hive_style="hoodie.datasource.write.hive_style_partitioning" not in asked.options,
                options={**self.options, **asked.options},
                locks=self.locks,
            )
        except TableExists:
            if not statement.args.get("exists"):
                raise
            return
        if df is not None:
            self._write(self.opened(path), df, Operation.BULK_INSERT)

    def partitions(self, text: str) -> DataFrame:
        """Return the partition paths of a table that have rows, in order."""
        from sqlglot import exp  # noqa: PLC0415

        found = parsed_statement(f"select * from {text}", DIALECT, POSSIBLE).find(exp.Table)  # noqa: S608 - only parsed
        table = self.opened(self.target(found)) if found is not None else None
        if table is None or found is None or found.args.get("version") is not None:
            raise InvalidStatement(f"SHOW PARTITIONS {text[:80]}", expected="one table")
        return self.spark.createDataFrame([(name,) for name in table.state.partition_paths()], "partition string")


_INSERT_PARTS = frozenset({"this", "expression", "by_name", "overwrite"})


def _columns(declared: list[str]) -> StructType:
    found = StructType.fromDDL(", ".join(declared))
    assert isinstance(found, StructType)
    return found


def _point(found: exp.Table) -> str:
    """Return the point in time that `TIMESTAMP AS OF` or `VERSION AS OF` names, empty for the present."""
    version = found.args.get("version")
    if version is None:
        return ""
    from sqlglot import exp  # noqa: PLC0415

    if str(version.args.get("kind")).upper() != "AS OF" or not isinstance(version.expression, exp.Literal):
        raise InvalidStatement(f"{version.sql(DIALECT)!r}", expected="TIMESTAMP AS OF 'time or instant', VERSION AS OF 'instant'")
    return str(version.expression.this)


@dataclass
class _Asked:
    """The clauses of a CREATE TABLE."""

    options: dict[str, str] = field(default_factory=dict)
    partitions: list[str] = field(default_factory=list)
    typed_partitions: list[str] = field(default_factory=list)
    """Definitions of partition columns that the list of columns lacks."""
    location: str = ""

    @classmethod
    def of(cls, statement: exp.Create) -> _Asked:
        from sqlglot import exp  # noqa: PLC0415

        asked = cls()
        held = statement.args.get("properties")
        for part in held.expressions if held is not None else []:
            if isinstance(part, exp.FileFormatProperty):
                if part.name.casefold() not in ("tideline", "hudi"):
                    raise InvalidStatement(f"USING {part.name}", expected="USING tideline, or none")
            elif isinstance(part, exp.PartitionedByProperty):
                for column in part.this.expressions:
                    asked.partitions.append(column.name)
                    if isinstance(column, exp.ColumnDef):
                        asked.typed_partitions.append(column.sql(DIALECT))
            elif isinstance(part, exp.LocationProperty):
                asked.location = part.this.name
            elif isinstance(part, exp.Property) and type(part) is exp.Property:
                asked._add(part)
            elif isinstance(part, exp.OptionsProperty):
                for each in part.expressions:
                    asked._add(each)
            else:
                raise InvalidStatement(
                    f"CREATE TABLE with {part.sql(DIALECT)[:60]!r}",
                    expected="USING, PARTITIONED BY, LOCATION, TBLPROPERTIES, OPTIONS",
                )
        return asked

    def _add(self, part: exp.Property) -> None:
        key, value = part.name, part.args["value"].name
        known = _OWN_NAMES.get(key.casefold(), key)
        self.options[known] = _TYPES.get(value.casefold(), value) if known.endswith("table.type") else value
