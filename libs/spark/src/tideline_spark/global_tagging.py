"""Tagging with keys that are unique in the table: rows are combined and looked up by their keys alone, whatever their partitions.

As `tideline_table.table.tagging` has it, in the JVM: where a key stands in other partitions, its row is deleted there and goes to its own, or goes
where the key is. Slices without log files are scanned by Spark; of the others workers tell the keys that they show.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import reduce

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as f
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import DataType, NumericType, StructField, StructType

from tideline_spark.arrow_rows import spread
from tideline_spark.layout import WriteLayout
from tideline_spark.tagging import KEY, KNOWN, LOCATED, OWN, PARTITION, POSITION, PURGES, TWICE, UNIT, Routing, scan_files
from tideline_table.errors import UnsupportedTable
from tideline_table.file_group.slice import FileGroupId, FileSlice
from tideline_table.merge import MergeMode
from tideline_table.reader.file_slice import read_slice
from tideline_table.schema import MetaField
from tideline_table.schema.fit import IS_DELETED
from tideline_table.table import Table
from tideline_table.table.query import Snapshot
from tideline_table.writer import Operation

_HELD = "_tideline_held"
_TARGET = "_tideline_target"
_TIME = "_tideline_time"


@dataclass(frozen=True, slots=True)
class GlobalTagging:
    """The look-up of one attempt, on the state that the table had."""

    table: Table
    layout: WriteLayout
    moves: bool
    combines: bool
    ordering: pa.DataType | None
    """Of the ordering column in the table, None where the later write wins."""

    @classmethod
    def of(cls, table: Table, layout: WriteLayout, *, moves: bool, combines: bool) -> GlobalTagging:
        """For `layout` of `table`."""
        definition = table.definition
        by_time = definition.merge_mode is MergeMode.EVENT_TIME
        ordering = table.schema.field(definition.ordering_field).type if by_time else None
        return cls(table, layout, moves, combines, ordering)

    def tagged(self, keyed: DataFrame, routing: Routing, bucket: Column) -> DataFrame:
        """`keyed` (with `PARTITION`, `KEY` and `POSITION`), each row once for every unit that it changes.

        Raises `UnsupportedTable` for an ordering column that Spark does not compare as the engine does.
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
        if self.ordering is None or routing.operation is Operation.DELETE or name not in keyed.columns:
            return f.lit(None).cast(wanted)
        kind = keyed.schema[name].dataType
        if kind != wanted and not (isinstance(kind, NumericType) and isinstance(wanted, NumericType)):
            raise UnsupportedTable(
                f"ordering column {name!r} of type {kind.simpleString()} for a global index",
                expected=f"type {wanted.simpleString()}, as the table has it",
                remedy="cast the column",
            )
        return f.col(f"`{name}`").cast(wanted)

    def _combined(self, keyed: DataFrame) -> DataFrame:
        """One row of each key where the write combines: the largest ordering value, the last of the source on ties. Otherwise `TWICE`."""
        if not self.combines:
            return keyed.withColumn(TWICE, f.count(f.lit(1)).over(Window.partitionBy(KEY)) > 1)
        newest_first = Window.partitionBy(KEY).orderBy(f.col(_TIME).desc_nulls_last(), f.col(POSITION).desc())
        return keyed.withColumn(TWICE, f.row_number().over(newest_first)).filter(f.col(TWICE) == 1).drop(TWICE)

    def _held(self, spark: SparkSession) -> DataFrame | None:
        """Key → where the table shows it; None for a table that shows nothing."""
        plain: dict[int | None, list[FileSlice]] = {}
        for file_slice in self.layout.looked_up:
            if not file_slice.log_files and file_slice.base_file:
                plain.setdefault(self.layout.filled_by.get(file_slice.group), []).append(file_slice)
        found = [self._scanned(spark, plain[b], b) for b in sorted(plain, key=lambda b: -1 if b is None else b)]
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

    def _scanned(self, spark: SparkSession, slices: list[FileSlice], bucket: int | None) -> DataFrame:
        ordering = self.table.definition.ordering_field
        fields = [StructField(name, from_arrow_type(pa.string())) for name in (MetaField.RECORD_KEY, MetaField.PARTITION_PATH)]
        if self.ordering is not None:
            fields.append(StructField(ordering, self._time_type))
        rows = scan_files(spark, self.table.storage.root, [s.path for s in slices], StructType(fields))
        unit = f.col("_metadata.file_name") if bucket is None else f.lit(str(bucket))
        time = f.col(f"`{ordering}`") if self.ordering is not None else f.lit(None).cast(self._time_type)
        names = {KEY: f.col(MetaField.RECORD_KEY), "partition": f.col(MetaField.PARTITION_PATH), "unit": unit, "time": time}
        return rows.select(*(column.alias(name) for name, column in names.items()))

    def _merged(self, spark: SparkSession, slices: tuple[FileSlice, ...]) -> DataFrame:
        tasks = spread(replace(self.table.snapshot(), slices=slices), spark.sparkContext.defaultParallelism)
        units = {s.group: self.layout.unit_of(s) for s in slices}
        ordering = self.table.definition.ordering_field if self.ordering is not None else ""
        schema = pa.schema(
            [(KEY, pa.string()), ("partition", pa.string()), ("unit", pa.string()), ("time", self.ordering or pa.int8())]
        )
        result = StructType([StructField(field.name, from_arrow_type(field.type)) for field in schema])
        return spark.range(0, len(tasks), 1, len(tasks)).mapInArrow(_reader(tasks, units, ordering, schema), result)

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
        if self.ordering is not None:
            moved = f.when(~beaten, moved).otherwise(f.slice(anew, 1, 0))
        if IS_DELETED not in keyed.columns:
            return moved
        return f.when(f.coalesce(f.col(IS_DELETED).cast("boolean"), f.lit(False)), stays).otherwise(moved)


def _reader(
    tasks: list[Snapshot], units: Mapping[FileGroupId, str], ordering: str, schema: pa.Schema
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def keys(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                for file_slice in tasks[number].slices:
                    snapshot = tasks[number]
                    columns = [MetaField.RECORD_KEY.value, *([ordering] if ordering else [])]
                    rows = read_slice(snapshot.storage, file_slice, snapshot.schema, snapshot.rule, columns)
                    fixed = (file_slice.group.partition_path, units[file_slice.group])
                    place = [pa.repeat(pa.scalar(text), rows.num_rows) for text in fixed]
                    time = rows.column(1) if ordering else pa.nulls(rows.num_rows, pa.int8())
                    yield from pa.table([rows.column(0), *place, time], names=schema.names).cast(schema).to_batches()

    return keys
