"""PySpark's own `save` and `start` for the format `tideline`, on the driver.

Spark gives a data source in Python neither the save modes `ignore` and `errorifexists` nor the DataFrame, so that it could neither
create tables nor shuffle rows. The driver has both: it takes what the writer was given and runs `job.save`, or `job.stream_sink`
for streams. Other formats are untouched. A session without a JVM here writes through `data_source_write`.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql import DataFrameWriter, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from tideline_spark.job import SaveJob, SaveMode, save, stream_sink
from tideline_table.errors import InvalidOption

NAME = "tideline"
_MARK = "_tideline_format"


def install() -> None:
    """Let PySpark's writers write the format `tideline` by `tideline_spark.job`, in this process. Safe to repeat."""
    if not hasattr(DataFrameWriter.save, _MARK):
        DataFrameWriter.save = _saving(DataFrameWriter.save)  # type: ignore[method-assign]
        DataStreamWriter.start = _starting(DataStreamWriter.start)  # type: ignore[method-assign]


def _saving(original: Any) -> Any:
    @functools.wraps(original)
    def saved(
        self: DataFrameWriter,
        path: str | None = None,
        format: str | None = None,  # noqa: A002 - PySpark's signature
        mode: str | None = None,
        partitionBy: str | Sequence[str] | None = None,  # noqa: N803 - PySpark's signature
        **options: Any,
    ) -> None:
        self.mode(mode).options(**options)
        if partitionBy is not None:
            self.partitionBy(*([partitionBy] if isinstance(partitionBy, str) else partitionBy))
        if format is not None:
            self.format(format)
        writer = _jvm_writer(self)
        if writer is None or not _is_own(writer.source()):
            original(self, path)
            return
        writer.assertNotBucketed("save")
        writer.assertNotClustered("save")
        save(self._df, _job(self, writer, path))

    setattr(saved, _MARK, True)
    return saved


def _starting(original: Any) -> Any:
    @functools.wraps(original)
    def started(
        self: DataStreamWriter,
        path: str | None = None,
        format: str | None = None,  # noqa: A002 - PySpark's signature
        outputMode: str | None = None,  # noqa: N803 - PySpark's signature
        partitionBy: str | Sequence[str] | None = None,  # noqa: N803 - PySpark's signature
        queryName: str | None = None,  # noqa: N803 - PySpark's signature
        **options: Any,
    ) -> StreamingQuery:
        if format is not None:
            self.format(format)
        writer = _jvm_writer(self)
        if writer is None or not _is_own(_field(writer, "source").get(writer)):
            query: StreamingQuery = original(self, path, None, outputMode, partitionBy, queryName, **options)
            return query
        self.options(**options)
        if outputMode is not None:
            self.outputMode(outputMode)
        if queryName is not None:
            self.queryName(queryName)
        if partitionBy is not None:
            self.partitionBy(*([partitionBy] if isinstance(partitionBy, str) else partitionBy))
        mode = str(_field(writer, "outputMode").get(writer).toString())
        if mode != "Append":
            raise InvalidOption(f"output mode {mode}", expected="append", remedy="tideline_spark.sink takes others")
        if _field(writer, "clusteringColumns").get(writer).isDefined():
            raise InvalidOption("clusterBy of a stream", expected="partitionBy, or nothing: the table's definition decides")
        spark, columns = self._df.sparkSession, _field(writer, "partitioningColumns")
        given, partitions = _options(spark, _field(writer, "extraOptions").get(writer)), columns.get(writer)
        batches = stream_sink(self._df, {**given, "path": _path(given, path)}, _texts(partitions))
        self.foreachBatch(batches)
        try:
            # Spark refuses partitions of batches that a function takes.
            columns.set(writer, spark._jvm.scala.Option.apply(None))  # type: ignore[union-attr] # noqa: SLF001
            begun: StreamingQuery = original(self)
        finally:
            # The writer may begin another query, at another path.
            columns.set(writer, partitions)
            self.format(NAME)
        return begun

    setattr(started, _MARK, True)
    return started


def _is_own(source: object) -> bool:
    # Spark finds data sources without regard to case.
    return str(source).lower() == NAME


def _field(writer: Any, name: str) -> Any:
    """Return a field of the class of Spark's stream writer, which has no other access to what it was given."""
    found = writer.getClass().getDeclaredField(name)
    found.setAccessible(True)
    return found


def _path(given: Mapping[str, str], path: str | None) -> str:
    """Return the base path. Raises `InvalidOption`, as Spark does, for one by argument and another one by option."""
    named = given.get("path", "")
    if path and named and path != named:
        raise InvalidOption(f"the path {path!r} and the option path={named}", expected="one of them")
    return path or named


def _texts(columns: Any) -> tuple[str, ...]:
    """Return the texts of an optional sequence of Scala."""
    return tuple(str(columns.get().apply(at)) for at in range(columns.get().length())) if columns.isDefined() else ()


def _options(spark: SparkSession, found: Any) -> dict[str, str]:
    """Return options of Spark's writer as they were spelled."""
    converters = spark._jvm.scala.jdk.javaapi.CollectionConverters  # type: ignore[union-attr] # noqa: SLF001 - as above
    return {str(key): str(value) for key, value in dict(converters.asJava(found.originalMap())).items()}


def _jvm_writer(writer: DataFrameWriter | DataStreamWriter) -> Any:
    """Return Spark's writer in the JVM, None for a session without one."""
    return getattr(writer, "_jwrite", None)


def _job(writer: DataFrameWriter, inner: Any, path: str | None) -> SaveJob:
    given = _options(writer._df.sparkSession, inner.extraOptions())  # noqa: SLF001 - as PySpark's own `save`
    mode = SaveMode(str(inner.curmode().toString()).lower())
    return SaveJob.of(_path(given, path), mode, given, _texts(inner.partitioningColumns()))
