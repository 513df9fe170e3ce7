"""The aggregation of one bucket, in a worker.

Partial results of portions, merged as they grow, in the types and by the rules of Spark.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from tideline_spark.bucket_rows import BucketRows
from tideline_table.errors import InvalidOption, InvalidRecord, SchemaMismatch
from tideline_table.table import Snapshot

_CALL = re.compile(r"\s*(\w+)\s*\(\s*(\*|`[^`]+`|\w+)\s*\)\s*")
_MERGED = {"count": "sum", "count_all": "sum", "sum": "sum", "min": "min", "max": "max", "any": "any"}
"""The function that merges partial results, by the function that makes them."""
_MOST_DIGITS = 38
_SUM_DIGITS = 10
"""Spark's type of a sum of decimals has so many more digits, so that 10^10 rows cannot exceed it."""
_MERGE_AT = 2
"""Partial results are merged when they are so many times as large as after the last merge."""


@dataclass(frozen=True, slots=True)
class Aggregate:
    """An aggregate of a column: `count(*)`, or `count`, `sum`, `min`, `max`, `avg` of a column, as in Spark."""

    name: str
    """Its name in the result."""
    function: str
    column: str
    """Empty for `count(*)`."""
    source: pa.DataType

    @classmethod
    def parse(cls, name: str, text: str, schema: pa.Schema) -> Aggregate:
        """Return the aggregate that a text such as `sum(fare)` names.

        Raises `InvalidOption` for another text, `SchemaMismatch` for a column that is not in the table or has a type without
        this aggregate.
        """
        call = _CALL.fullmatch(text)
        function = call[1].lower() if call else ""
        column = call[2].strip("`") if call else ""
        if function not in ("count", "sum", "min", "max", "avg") or (column == "*" and function != "count"):
            raise InvalidOption(
                f"the aggregate {text!r}",
                expected="count(*), or count, sum, min, max or avg of a column, such as sum(fare)",
                remedy="compute others with Spark from the rows of tideline_spark.read.read",
            )
        if column == "*":
            return cls(name, function, "", pa.null())
        if column not in schema.names:
            raise SchemaMismatch(f"column {column!r} is not in the table", expected=f"one of {', '.join(schema.names)}")
        found = cls(name, function, column, schema.field(column).type)
        if function != "count" and not found._can():
            raise SchemaMismatch(
                f"{text} of a column of type {found.source}",
                expected="sum of numbers (decimals of up to 28 digits), avg of whole and floating numbers; min and max of plain "
                "values",
                remedy="compute it with Spark from the rows of tideline_spark.read.read",
            )
        return found

    def _can(self) -> bool:
        kind = self.source
        is_number = bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))
        if self.function == "avg":
            return is_number
        if self.function == "sum":
            return is_number or bool(pa.types.is_decimal(kind) and kind.precision + _SUM_DIGITS <= _MOST_DIGITS)
        plain = (pa.types.is_string, pa.types.is_boolean, pa.types.is_date, pa.types.is_timestamp, pa.types.is_decimal)
        return is_number or any(test(kind) for test in plain)

    @property
    def type(self) -> pa.DataType:
        """The type of the result, as in Spark."""
        if self.function == "count":
            return pa.int64()
        if self.function == "avg":
            return pa.float64()
        if self.function == "sum" and pa.types.is_decimal(self.source):
            return pa.decimal128(self.source.precision + _SUM_DIGITS, self.source.scale)
        if self.function == "sum":
            return pa.int64() if pa.types.is_integer(self.source) else pa.float64()
        return self.source

    @property
    def functions(self) -> tuple[str, ...]:
        """Arrow's functions that make the partial results, in the order of `inputs`."""
        if self.function == "count":
            return ("count",) if self.column else ("count_all",)
        if self.function == "avg":
            return ("sum", "count")
        return (self.function, "any") if self._may_be_nan else (self.function,)

    @property
    def _may_be_nan(self) -> bool:
        return self.function in ("min", "max") and pa.types.is_floating(self.source)

    def inputs(self, rows: pa.Table) -> list[pa.ChunkedArray]:
        """Return the columns from which the partial results are made."""
        if not self.column:
            return [pa.chunked_array([pa.nulls(rows.num_rows, pa.bool_())])]
        column = rows.column(self.column)
        if self.function == "avg":
            # As in Spark, whole numbers beyond 2^53 are rounded.
            return [column.cast(pa.float64(), safe=False), column]
        if self.function == "sum" and pa.types.is_int64(self.source):
            # Arrow's sum of whole numbers wraps silently.
            return [column.cast(pa.decimal128(19, 0))]
        if self._may_be_nan:
            # To Spark, NaN is greater than all numbers; Arrow leaves it out.
            is_nan = pc.is_nan(column)
            return [pc.if_else(is_nan, pa.scalar(None, column.type), column), is_nan]
        return [column]

    def finish(self, partial: Sequence[pa.ChunkedArray]) -> pa.ChunkedArray:
        """Return the result of each group. Raises `InvalidRecord` for a sum that its type does not hold."""
        first = partial[0]
        if self.function == "avg":
            return pc.divide(first, pc.if_else(pc.equal(partial[1], 0), pa.scalar(None, pa.int64()), partial[1]).cast(pa.float64()))
        if self._may_be_nan:
            nan = pa.scalar(float("nan"), first.type)
            is_nan = pc.fill_null(partial[1], fill_value=False)
            if self.function == "min":
                is_nan = pc.and_(is_nan, pc.is_null(first))
            return pc.if_else(is_nan, nan, first)
        if self.function == "count":
            return pc.fill_null(first, 0)
        try:
            return first.cast(self.type)
        except pa.ArrowInvalid as error:
            raise InvalidRecord(
                f"sum({self.column}) of a group exceeds {self.type}: {str(error).splitlines()[0]}",
                expected=f"sums within {self.type}",
                remedy="let Spark sum a wider type of the column",
            ) from None


@dataclass(frozen=True, slots=True)
class BucketGroups:
    """An aggregation of a table, bucket by bucket. A plain value that is sent to workers and called there."""

    rows: BucketRows
    aggregates: tuple[Aggregate, ...]
    schema: pa.Schema
    """The result: the columns of the groups (`rows.keys`), then the aggregates."""

    def __call__(self, part: Snapshot) -> Iterator[pa.RecordBatch]:
        """Yield the groups of a bucket.

        Raises `BucketTooLarge` if they exceed the memory, `InvalidRecord` for a sum out of range, and what
        `BucketRows.portions` raises.
        """
        held: list[pa.Table] = []
        size_bytes = merged_bytes = 0
        for portion in self.rows.portions(part):
            held.append(self._partial(portion))
            size_bytes += held[-1].nbytes
            if size_bytes > _MERGE_AT * merged_bytes:
                held = [self._merged(held)]
                size_bytes = merged_bytes = held[0].nbytes
                self.rows.check_memory(size_bytes, part, "groups")
        if held:
            yield from self._finished(self._merged(held)).to_batches()

    @property
    def _keys(self) -> list[str]:
        return [f"k{at}" for at in range(len(self.rows.keys))]

    @property
    def _steps(self) -> list[tuple[str, str]]:
        """Names and functions of the partial results of all aggregates."""
        functions = [function for aggregate in self.aggregates for function in aggregate.functions]
        return [(f"s{at}", function) for at, function in enumerate(functions)]

    def _partial(self, rows: pa.Table) -> pa.Table:
        columns = dict(zip(self._keys, (rows.column(name) for name in self.rows.keys), strict=True))
        inputs = [column for aggregate in self.aggregates for column in aggregate.inputs(rows)]
        columns |= {name: column for (name, _), column in zip(self._steps, inputs, strict=True)}
        return self._grouped(pa.table(columns), lambda function: function)

    def _merged(self, partial: Sequence[pa.Table]) -> pa.Table:
        return partial[0] if len(partial) == 1 else self._grouped(pa.concat_tables(partial), _MERGED.__getitem__)

    def _grouped(self, rows: pa.Table, chosen: Callable[[str], str]) -> pa.Table:
        calls = [([], "count_all") if chosen(f) == "count_all" else (name, chosen(f)) for name, f in self._steps]
        made = rows.group_by(self._keys, use_threads=False).aggregate(calls)
        return made.rename_columns([*self._keys, *(name for name, _ in self._steps)])

    def _finished(self, merged: pa.Table) -> pa.Table:
        columns = [merged.column(name) for name in self._keys]
        steps = iter(merged.column(name) for name, _ in self._steps)
        for aggregate in self.aggregates:
            columns.append(aggregate.finish([next(steps) for _ in aggregate.functions]))
        return pa.Table.from_arrays(columns, schema=self.schema)
