"""Joins and aggregations of tables with a bucket index without a shuffle, and samples of whole buckets (RFC-29).

Rows with equal hash values are in equal buckets, so that each task joins, or groups, the rows of its own buckets;
docs/design/bucket-index.md. The physical plans have no Exchange. Spark 4.3 lets no data source in Python report its
partitioning, so these are functions.
"""

from __future__ import annotations

import tideline_spark.requirement  # noqa: F401 isort: skip - before PySpark

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession

from tideline_spark.arrow_rows import map_snapshots, spark_batches, spark_schema, spread_sizes
from tideline_spark.bucket_groups import Aggregate, BucketGroups
from tideline_spark.bucket_matches import BucketJoin, JoinKind, wider
from tideline_spark.bucket_rows import BucketRows
from tideline_spark.options import SPARK_BUCKET_MEMORY_BYTES
from tideline_spark.read import rows_of
from tideline_spark.session import use_this_python
from tideline_table.errors import InvalidOption, SchemaMismatch
from tideline_table.hudi import Point
from tideline_table.schema import without_meta_fields
from tideline_table.table import BucketTable, KeyCheck, Snapshot, Table, colocated_groups, colocated_join, slices_by_part

_SYNONYMS = {
    "outer": "full",
    "fullouter": "full",
    "leftouter": "left",
    "rightouter": "right",
    "leftsemi": "semi",
    "leftanti": "anti",
}
Unit = TypeVar("Unit")


@dataclass(frozen=True, slots=True)
class BucketScan:
    """One table of a query by buckets.

    `columns` names the columns of the result, or maps columns of the table to their names in the result (default: all but the
    meta fields). `where` selects rows of the table before they are joined or grouped: SQL text or an expression, as for
    `tideline.Table.scan`. `as_of` is an instant, a date or a time (inclusive), as for `tideline_spark.read.read`.
    """

    table: Table | str
    columns: Sequence[str] | Mapping[str, str] | None = None
    where: pc.Expression | str | None = field(default=None, compare=False)
    as_of: Point = ""


def bucket_join(
    spark: SparkSession,
    left: BucketScan | Table | str,
    right: BucketScan | Table | str,
    on: str | Sequence[str | tuple[str, str]],
    how: str = "inner",
) -> DataFrame:
    """Return the join of two tables with a bucket index without a shuffle: each task joins buckets of its own.

    `on` names columns of both tables, or pairs of a column of `left` and one of `right`; among them all hash fields of both, in
    the same order. The result has each of them once, under its name in `left` and in the wider of both types, then the columns
    of `left`, then those of `right`. `how` is `inner`, `left`, `right`, `full`, `semi` or `anti`, or a synonym of Spark. Null
    keys match nothing.

    A task holds the smaller side of a part in memory: the columns of the query of the buckets with one number modulo the
    greatest common divisor of both numbers of buckets, in all partitions. The files are fixed when this returns. Raises
    `InvalidOption` for join columns that do not cover the hash fields and for numbers of buckets without a common divisor,
    `SchemaMismatch` for columns that are missing, of different kinds, or twice in the result, `UnsupportedTable` for a table
    without a bucket index or with file groups that do not fit it. The query fails with `BucketTooLarge` beyond
    `tideline.spark.bucket.memory.bytes` (of the left table), and with `InvalidRecord` for keys whose buckets are uncertain.
    """
    use_this_python(spark)
    sides = (_Side.of(left), _Side.of(right))
    pairs = _pairs(on)
    kind = _kind(how)
    found = colocated_join(sides[0].bucketed(), sides[1].bucketed(), pairs)
    memory_bytes = sides[0].table.options[SPARK_BUCKET_MEMORY_BYTES]
    own = sides[0].rows(tuple(name for name, _ in pairs), found.left, memory_bytes)
    other = sides[1].rows(tuple(name for _, name in pairs), found.right, memory_bytes)
    if kind.is_filter:
        other = replace(other, columns={})
    keys = [pa.field(a, wider(sides[0].type_of(a), sides[1].type_of(b))) for a, b in pairs]
    schema = _distinct([*keys, *sides[0].fields(own), *sides[1].fields(other)])
    parts = [sides[at].parts(found.parts) for at in (0, 1)]
    work = list(zip(*parts, strict=True))
    return _run(spark, work, [_size(a) + _size(b) for a, b in work], BucketJoin(kind, own, other, schema), schema)


def bucket_aggregate(
    spark: SparkSession, table: BucketScan | Table | str, by: str | Sequence[str], aggregates: Mapping[str, str]
) -> DataFrame:
    """Return groups of a table with a bucket index without a shuffle: each task groups the rows of its own buckets.

    `by` names the columns of the groups, among them all hash fields. `aggregates` are texts by their names in the result:
    `count(*)`, or `count`, `sum`, `min`, `max` or `avg` of a column, with the types and the treatment of nulls and NaN of
    Spark. `columns` of a scan are not used.

    A task holds the groups of one bucket in memory, over all partitions. Raises `InvalidOption` if `by` leaves out a hash field
    or for another aggregate, `SchemaMismatch` for a column that is missing or of a type without it, `UnsupportedTable` as
    `bucket_join`. The query fails with `BucketTooLarge` and `InvalidRecord` as `bucket_join`, also with `InvalidRecord` for a
    sum that its type does not hold.
    """
    use_this_python(spark)
    side = _Side.of(table)
    names = (by,) if isinstance(by, str) else tuple(by)
    bucketed = side.bucketed()
    check = colocated_groups(bucketed, names)
    for name in names:
        if not _can_group(side.type_of(name)):
            raise SchemaMismatch(
                f"groups by column {name!r} of type {side.type_of(name)}",
                expected="text, a whole number, a boolean, a date, a timestamp or a decimal",
                remedy="let Spark group the rows of tideline_spark.read.read",
            )
    made = tuple(Aggregate.parse(name, text, side.found.schema) for name, text in aggregates.items())
    schema = _distinct([*(pa.field(n, side.type_of(n)) for n in names), *(pa.field(a.name, a.type) for a in made)])
    needed = {a.column: a.column for a in made if a.column}
    rows = BucketRows(bucketed.name, needed, names, check, side.table.options[SPARK_BUCKET_MEMORY_BYTES], side.where)
    parts = side.parts(bucketed.number)
    return _run(spark, parts, [_size(part) for part in parts], BucketGroups(rows, made, schema), schema)


def sample_buckets(
    spark: SparkSession,
    table: Table | str,
    buckets: int | Collection[int],
    out_of: int | None = None,
    *,
    as_of: Point = "",
    columns: Sequence[str] | None = None,
    where: Column | str | None = None,
) -> DataFrame:
    """Return a sample of a table with a bucket index: the rows whose bucket number modulo `out_of` is one of `buckets`.

    No other file is read.

    `out_of` divides the number of buckets and is that number by default. Rows with equal hash values are in a sample together
    or not at all, and samples of tables that `bucket_join` joins have the same keys for the same arguments. Other arguments and
    errors as `tideline_spark.read.read`; `InvalidOption` for other numbers, `UnsupportedTable` as `bucket_join`.
    """
    use_this_python(spark)
    opened = _opened(table)
    chosen = [buckets] if isinstance(buckets, int) else buckets
    return rows_of(spark, opened, opened.snapshot(as_of).sampled(chosen, out_of), columns, where)


@dataclass(frozen=True, slots=True)
class _Side:
    """A table of a query, and its rows."""

    scan: BucketScan
    table: Table
    found: Snapshot
    where: pc.Expression | None = field(compare=False)

    @classmethod
    def of(cls, given: BucketScan | Table | str) -> _Side:
        scan = given if isinstance(given, BucketScan) else BucketScan(given)
        table = _opened(scan.table)
        found = table.snapshot(scan.as_of)
        found.known_buckets()
        return cls(scan, table, found, found.filtered(scan.where))

    def bucketed(self) -> BucketTable:
        partitions = frozenset(s.group.partition_path for s in self.found.slices)
        return BucketTable(self.table.definition.name, self.found.known_buckets(), self.found.schema, partitions)

    def type_of(self, name: str) -> pa.DataType:
        return self.found.schema.field(name).type

    def parts(self, number: int) -> list[Snapshot]:
        """Return the slices of each part that can hold rows of the query.

        Raises `UnsupportedTable` for file groups outside the index.
        """
        needed = set(self.found.only(self.where).slices)
        by_part = slices_by_part(self.found.known_buckets().index, self.found.slices, number)
        return [replace(self.found, slices=tuple(s for s in slices if s in needed)) for slices in by_part]

    def rows(self, keys: tuple[str, ...], check: KeyCheck, memory_bytes: int) -> BucketRows:
        return BucketRows(self.table.definition.name, self._columns(keys), keys, check, memory_bytes, self.where)

    def _columns(self, keys: tuple[str, ...]) -> dict[str, str]:
        """Return the columns of the result by their names in the table, without the keys."""
        given = self.scan.columns
        if isinstance(given, Mapping):
            renamed = [name for name in keys if given.get(name, name) != name]
            if renamed:
                raise InvalidOption(f"another name for join column {renamed[0]!r}", expected="columns that are not joined on")
        if isinstance(given, str):
            raise InvalidOption(f"columns={given!r}", expected=f"a list of names: [{given!r}]")
        chosen = without_meta_fields(self.found.schema).names if given is None else list(given)
        names = given if isinstance(given, Mapping) else {}
        dotted = [name for name in chosen if name not in self.found.schema.names]
        if dotted:
            raise SchemaMismatch(
                f"column {dotted[0]!r} is not in the table", expected=f"one of {', '.join(self.found.schema.names)}"
            )
        return {name: names.get(name, name) for name in chosen if name not in keys}

    def fields(self, rows: BucketRows) -> list[pa.Field]:
        return [pa.field(shown, self.type_of(name)) for name, shown in rows.columns.items()]


def _opened(table: Table | str) -> Table:
    if isinstance(table, str):
        return Table.open(table)
    table.refresh()
    return table


def _pairs(on: str | Sequence[str | tuple[str, str]]) -> list[tuple[str, str]]:
    if not on:
        raise InvalidOption("a join without join columns", expected="the hash fields of both tables")
    named = [(name, name) if isinstance(name, str) else tuple(name) for name in ([on] if isinstance(on, str) else on)]
    if wrong := [name for name in named if len(name) != 2]:
        raise InvalidOption(f"the join columns {wrong[0]!r}", expected="a name, or a pair of names: left, right")
    return [(name[0], name[1]) for name in named]


def _kind(how: str) -> JoinKind:
    name = how.lower().replace("_", "")
    name = _SYNONYMS.get(name, name)
    if name not in set(JoinKind):
        raise InvalidOption(f"a join of kind {how!r}", expected=f"one of {', '.join(JoinKind)}")
    return JoinKind(name)


def _distinct(fields: Sequence[pa.Field]) -> pa.Schema:
    """Return a schema of these fields. Raises `SchemaMismatch` for two names that Spark does not tell apart."""
    seen: set[str] = set()
    for found in fields:
        if found.name.lower() in seen:
            raise SchemaMismatch(
                f"two columns {found.name!r} in the result",
                expected="different names",
                remedy="choose columns, or rename one: BucketScan(path, columns={'ts': 'right_ts'})",
            )
        seen.add(found.name.lower())
    return pa.schema([f.with_nullable(nullable=True) for f in fields])


def _can_group(kind: pa.DataType) -> bool:
    tests = (
        pa.types.is_string,
        pa.types.is_integer,
        pa.types.is_boolean,
        pa.types.is_date,
        pa.types.is_timestamp,
        pa.types.is_decimal,
    )
    return any(test(kind) for test in tests)


def _size(part: Snapshot) -> int:
    return sum(s.total_bytes for s in part.slices)


def _run(
    spark: SparkSession,
    units: Sequence[Unit],
    sizes_bytes: Sequence[int],
    work: Callable[[Unit], Iterator[pa.RecordBatch]],
    schema: pa.Schema,
) -> DataFrame:
    """Return the rows that `work` yields for each unit, in tasks of about equal size that take their units one after the other."""
    target = spark_schema(schema)
    chosen = spread_sizes(sizes_bytes, 2 * spark.sparkContext.defaultParallelism)
    tasks = [[units[at] for at in numbers] for numbers in chosen]

    def rows(task: Sequence[Unit]) -> Iterator[pa.RecordBatch]:
        for unit in task:
            yield from spark_batches(work(unit), target)

    return map_snapshots(spark, tasks, rows, target)
