"""PySpark's own `save` and `start` for the format `tideline`, on the driver.

Spark gives a data source in Python neither the save modes `ignore` and `errorifexists` nor the DataFrame, so that it could neither
create tables nor shuffle rows. The driver has both: it takes what the writer was given and runs `job.save`, or `job.stream_sink`
for streams. Other formats are untouched. A session without a JVM here writes through `data_source_write`.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
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
        if writer is None or str(writer.source()) != NAME:
            original(self, path)
            return
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
        if writer is None or str(_field(writer, "source")) != NAME:
            query: StreamingQuery = original(self, path, None, outputMode, partitionBy, queryName, **options)
            return query
        self.options(**options)
        if outputMode is not None:
            self.outputMode(outputMode)
        if queryName is not None:
            self.queryName(queryName)
        if str(_field(writer, "outputMode").toString()) != "Append":
            raise InvalidOption(
                f"output mode {_field(writer, 'outputMode').toString()}",
                expected="append",
                remedy="tideline_spark.sink takes others",
            )
        given = _options(self._df.sparkSession, _field(writer, "extraOptions"))
        self.foreachBatch(stream_sink(self._df, {**given, "path": path or given.get("path", "")}))
        begun: StreamingQuery = original(self)
        return begun

    setattr(started, _MARK, True)
    return started


def _field(writer: Any, name: str) -> Any:
    """Return a field of Spark's stream writer, which has no other access to what it was given."""
    found = writer.getClass().getDeclaredField(name)
    found.setAccessible(True)
    return found.get(writer)


def _options(spark: SparkSession, found: Any) -> dict[str, str]:
    """Return options of Spark's writer as they were spelled."""
    converters = spark._jvm.scala.jdk.javaapi.CollectionConverters  # type: ignore[union-attr] # noqa: SLF001 - as above
    return {str(key): str(value) for key, value in dict(converters.asJava(found.originalMap())).items()}


def _jvm_writer(writer: DataFrameWriter | DataStreamWriter) -> Any:
    """Return Spark's writer in the JVM, None for a session without one."""
    return getattr(writer, "_jwrite", None)


def _job(writer: DataFrameWriter, inner: Any, path: str | None) -> SaveJob:
    given = _options(writer._df.sparkSession, inner.extraOptions())  # noqa: SLF001 - as PySpark's own `save`
    columns = inner.partitioningColumns()
    partition_by = tuple(str(columns.get().apply(at)) for at in range(columns.get().length())) if columns.isDefined() else ()
    mode = SaveMode(str(inner.curmode().toString()).lower())
    return SaveJob.of(path or given.get("path", ""), mode, given, partition_by)
