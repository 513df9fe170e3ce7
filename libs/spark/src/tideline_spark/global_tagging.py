"""Tag rows whose keys are unique in the table: rows are combined and looked up by key alone, across all partitions.

This follows `tideline_table.action.write.tagging`, in the JVM. If another partition holds the key of a row, the row is deleted
there and written to its own partition, or written where the key is. Spark scans slices without log files; workers read others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as f
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import DataType, NumericType, StructField, StructType

from tideline_spark.arrow_rows import map_snapshots, spread
from tideline_spark.keys import source_column, source_type
from tideline_spark.layout import WriteLayout
from tideline_spark.tagging import (
    KEY,
    KNOWN,
    LOCATED,
    OWN,
    PARTITION,
    POSITION,
    PURGES,
    TWICE,
    UNIT,
    Routing,
    paths_by_unit,
    scan_files,
)
from tideline_table.errors import UnsupportedTable
from tideline_table.file_group import FileSlice
from tideline_table.merge import MergeMode, ordering_names
from tideline_table.reader import read_slice
from tideline_table.schema import IS_DELETED, MetaField, field_path, field_values, named_field, top_columns
from tideline_table.table import Snapshot, Table
from tideline_table.writer import Operation

_HELD = "_tideline_held"
_TARGET = "_tideline_target"
_TIME = "_tideline_time"


@dataclass(frozen=True, slots=True)
class GlobalTagging:
    """The key look-up of one attempt, on the table's state at that time."""

    table: Table
    layout: WriteLayout
    moves: bool
    combines: bool
    ordering: pa.DataType | None
    """Type of the ordering column in the table, None if there is none."""
    by_time: bool
    """Whether rows of the source compare with rows of the table by the ordering column."""

    @classmethod
    def of(cls, table: Table, layout: WriteLayout, *, moves: bool, combines: bool) -> GlobalTagging:
        """Return the look-up for `layout` of `table`."""
        definition = table.definition
        by_time = definition.merge_mode is MergeMode.EVENT_TIME
        if len(ordering_names(definition.ordering_field)) > 1:
            raise UnsupportedTable(
                f"table {definition.name!r} with the ordering columns {definition.ordering_field} and a global index",
                expected="one ordering column for writes on Spark",
                remedy="write it in process, or with an index that looks in the partition of each row only",
            )
        is_ordered = by_time or bool(field_path(table.schema, definition.merging.combining_field))
        ordering = named_field(table.schema, definition.ordering_field).type if is_ordered else None
        return cls(table, layout, moves, combines, ordering, by_time)

    def tagged(self, keyed: DataFrame, routing: Routing, bucket: Column) -> DataFrame:
        """Return `keyed` (with `PARTITION`, `KEY` and `POSITION`), each row once for every unit that it changes.

        Raises `UnsupportedTable` for an ordering column that Spark would compare differently from the engine.
        """
        keyed = keyed.withColumns({OWN: f.col(PARTITION), _TIME: self._time(keyed, routing)})
        if not self.layout.broadcasts_keys:
            keyed = keyed.repartition(self.layout.join_tasks, KEY)
        keyed = self._combined(keyed)
        held = self._held(keyed.sparkSession)
        keyed = keyed.join(held, [KEY], "left") if held is not None else keyed.withColumn(_HELD, f.lit(None).cast(self._held_type))
        known = f.col(_HELD).isNotNull()
        if routing.drops_known:
            keyed = keyed.filter(~known)
        if routing.refuses_known:
            keyed = keyed.withColumn(KNOWN, known)
        keyed = keyed.withColumn(_TARGET, f.explode(self._targets(keyed, routing)))
        unit = f.col(f"{_TARGET}.unit")
        placed = {PARTITION: f.col(f"{_TARGET}.partition"), LOCATED: unit.isNotNull(), PURGES: f.col(f"{_TARGET}.purges")}
        return keyed.withColumns({**placed, UNIT: f.coalesce(unit, bucket)}).drop(_HELD, _TARGET, _TIME, POSITION)

    @property
    def _time_type(self) -> DataType:
        return from_arrow_type(self.ordering if self.ordering is not None else pa.int8())

    @property
    def _held_type(self) -> str:
        return f"array<struct<partition:string,unit:string,time:{self._time_type.simpleString()}>>"

    def _time(self, keyed: DataFrame, routing: Routing) -> Column:
        name, wanted = self.table.definition.ordering_field, self._time_type
        kind = source_type(keyed.schema, name)
        if self.ordering is None or routing.operation is Operation.DELETE or kind is None:
            return f.lit(None).cast(wanted)
        if kind != wanted and not (isinstance(kind, NumericType) and isinstance(wanted, NumericType)):
            raise UnsupportedTable(
                f"ordering column {name!r} of type {kind.simpleString()} for a global index",
                expected=f"type {wanted.simpleString()}, as the table has it",
                remedy="cast the column",
            )
        return source_column(keyed.schema, name).cast(wanted)

    def _combined(self, keyed: DataFrame) -> DataFrame:
        """Keep one row per key if the write combines (largest ordering value, last in the source on ties), else add `TWICE`."""
        if not self.combines:
            return keyed.withColumn(TWICE, f.count(f.lit(1)).over(Window.partitionBy(KEY)) > 1)
        newest_first = Window.partitionBy(KEY).orderBy(f.col(_TIME).desc_nulls_last(), f.col(POSITION).desc())
        return keyed.withColumn(TWICE, f.row_number().over(newest_first)).filter(f.col(TWICE) == 1).drop(TWICE)

    def _held(self, spark: SparkSession) -> DataFrame | None:
        """Return, by key, the places where the table shows it; None if there are no slices to look up."""
        plain = [s for s in self.layout.looked_up if not s.log_files]
        found = [self._scanned(spark, paths, unit) for paths, unit in paths_by_unit(self.layout, plain)]
        merged = tuple(s for s in self.layout.looked_up if s.log_files)
        if merged:
            found.append(self._merged(spark, merged))
        if not found:
            return None
        places = reduce(DataFrame.unionAll, found)
        if not self.layout.broadcasts_keys:
            places = places.repartition(self.layout.join_tasks, KEY)
        by_key = places.groupBy(KEY).agg(f.collect_list(f.struct("partition", "unit", "time")).alias(_HELD))
        return f.broadcast(by_key) if self.layout.broadcasts_keys else by_key.hint("shuffle_hash")

    def _scanned(self, spark: SparkSession, paths: list[str], unit: Column) -> DataFrame:
        ordering = self.table.definition.ordering_field
        fields = [StructField(name, from_arrow_type(pa.string())) for name in (MetaField.RECORD_KEY, MetaField.PARTITION_PATH)]
        if self.by_time:
            fields.append(_column_with(ordering, self.table.schema.names, self._time_type))
        schema = StructType(fields)
        rows = scan_files(spark, self.table.storage.root, paths, schema)
        time = source_column(schema, ordering) if self.by_time else f.lit(None).cast(self._time_type)
        names = {KEY: f.col(MetaField.RECORD_KEY), "partition": f.col(MetaField.PARTITION_PATH), "unit": unit, "time": time}
        return rows.select(*(column.alias(name) for name, column in names.items()))

    def _merged(self, spark: SparkSession, slices: tuple[FileSlice, ...]) -> DataFrame:
        tasks = spread(replace(self.table.snapshot(), slices=slices), spark.sparkContext.defaultParallelism)
        units = {s.group: self.layout.unit_of(s) for s in slices}
        ordering = self.table.definition.ordering_field if self.by_time else ""
        schema = pa.schema(
            [(KEY, pa.string()), ("partition", pa.string()), ("unit", pa.string()), ("time", self.ordering or pa.int8())]
        )
        result = StructType([StructField(field.name, from_arrow_type(field.type)) for field in schema])
        columns = [MetaField.RECORD_KEY.value, *(top_columns(self.table.schema, [ordering]) if ordering else [])]

        def keys(part: Snapshot) -> Iterator[pa.RecordBatch]:
            for file_slice in part.slices:
                rows = read_slice(part.storage, file_slice, part.schema, part.rule, columns)
                place = [
                    pa.repeat(pa.scalar(text), rows.num_rows) for text in (file_slice.group.partition_path, units[file_slice.group])
                ]
                time = field_values(rows, ordering) if ordering else pa.nulls(rows.num_rows, schema.field("time").type)
                yield from pa.table([rows.column(0), *place, time], names=schema.names).cast(schema).to_batches()

        return map_snapshots(spark, tasks, keys, result)

    def _targets(self, keyed: DataFrame, routing: Routing) -> Column:
        own, time = f.col(OWN), f.col(_TIME)
        held = f.coalesce(f.col(_HELD), f.array().cast(self._held_type))

        def target(partition: Column, unit: Column, *, purges: bool) -> Column:
            return f.struct(partition.alias("partition"), unit.alias("unit"), f.lit(purges).alias("purges"))

        anew = f.array(target(own, f.lit(None).cast("string"), purges=False))
        here = f.filter(held, lambda place: place["partition"] == own)
        elsewhere = f.filter(held, lambda place: place["partition"] != own)

        def updates(places: Column) -> Column:
            return f.transform(places, lambda place: target(place["partition"], place["unit"], purges=False))

        stays = f.when(f.size(held) > 0, updates(held)).otherwise(anew)
        if not self.moves or routing.operation is Operation.DELETE:
            return stays
        beaten = f.exists(elsewhere, lambda place: place["time"].isNotNull() & (time.isNull() | (place["time"] > time)))
        arrives = f.when(f.size(here) > 0, updates(here)).otherwise(anew)
        leaves = f.transform(elsewhere, lambda place: target(place["partition"], place["unit"], purges=True))
        moved = f.concat(arrives, leaves)
        if self.by_time:
            moved = f.when(~beaten, moved).otherwise(f.slice(anew, 1, 0))
        return f.when(self._is_deletion(keyed), stays).otherwise(moved)

    def _is_deletion(self, keyed: DataFrame) -> Column:
        found, mark = f.lit(False), self.table.definition.merging.deletion
        if IS_DELETED in keyed.columns:
            found = f.coalesce(f.col(IS_DELETED).cast("boolean"), found)
        if mark is not None and mark.field in keyed.columns:
            value, marker = f.col(f"`{mark.field}`").cast("string"), mark.marker
            marked = f.lower(value) == marker.lower() if mark.any_case else value == marker
            found = found | f.coalesce(marked, f.lit(False))
        return found


def _column_with(name: str, columns: Sequence[str], kind: DataType) -> StructField:
    """Return the column called `name` of type `kind`, or the column of structs that hold only the field with that dotted path."""
    first, *inner = [name] if name in columns else name.split(".")
    for part in reversed(inner):
        kind = StructType([StructField(part, kind)])
    return StructField(first, kind)
