"""Write a structured stream into a table exactly once: `df.writeStream.foreachBatch(sink(path, query_id="clicks")).start()`.

Each commit records the batch that it wrote, and the commit point checks the record. Spark replays a batch if the process died
between the commit and Spark's own checkpoint; such a batch is skipped. Of two drivers of one query, only one writes each batch.
"""

from __future__ import annotations

import tideline_spark.requirement  # noqa: F401 isort: skip - before PySpark

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pyspark.sql import DataFrame

from tideline_locks import open_hudi_lock
from tideline_locks.table_lock import attach_lock
from tideline_spark.collected import needs_driver, write_collected
from tideline_spark.write import OnReport, write_dataframe
from tideline_table.action import OnConflict, write_rows
from tideline_table.errors import CommitUnknown, CorruptMetadata, ProgressMoved, Recovery, TidelineError
from tideline_table.log import ProgressStep
from tideline_table.table import Table, check_stands
from tideline_table.writer import Operation

WriteBatch = Callable[[DataFrame, int], None]
_LOGGER = logging.getLogger(__name__)
_SPARK_QUERY = "sql.streaming.queryId"
"""Local property that holds Spark's id of the query, which is valid as long as the query's checkpoint."""


class StreamReplaced(TidelineError):
    """The incoming batch does not follow the last committed one.

    Either the checkpoint of the query was lost, changed or set back. Its batch numbers then stand for other rows than the committed
    ones, so neither writing nor skipping them would be right. Or the table was restored to a savepoint or created again. The rows
    of the batches in between would then be missing permanently.
    """

    recovery = Recovery.STOP


@dataclass(frozen=True, slots=True)
class BatchMark:
    """The last batch of a query that is in the table. `spark_query` is Spark's id of the query, empty if unknown."""

    batch_id: int
    spark_query: str

    def to_text(self) -> str:
        """Return the mark as JSON."""
        return json.dumps({"batch": self.batch_id, "query": self.spark_query}, separators=(",", ":"))

    @classmethod
    def from_text(cls, text: str) -> BatchMark:
        """Parse what `to_text` returned. Raises `CorruptMetadata`."""
        try:
            document = json.loads(text)
            return cls(int(document["batch"]), str(document["query"]))
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise CorruptMetadata(
                f"progress {text[:200]!r} of a streaming query ({error})", expected='{"batch": number, "query": id}'
            ) from None


def progress_key(query_id: str) -> str:
    """Return the key of the table's progress under which a query keeps its last batch."""
    return f"stream.{query_id}"


def is_written(held: BatchMark | None, coming: BatchMark, *, takes_over: bool) -> bool:
    """Return whether `coming` is already in the table; `held` is the last batch that is. Raises `StreamReplaced`.

    Spark begins a batch only after the one before is done, so it replays only the last batch and skips no number. With
    `takes_over`, a batch of another checkpoint, or one that follows missing batches, is accepted and written.
    """
    if held is not None and held.spark_query != coming.spark_query and held.spark_query and coming.spark_query:
        if takes_over:
            return False
        raise StreamReplaced(
            f"batch {coming.batch_id} of query {coming.spark_query}",
            expected=f"the checkpoint of query {held.spark_query}, which committed batch {held.batch_id} last",
            remedy="restore that checkpoint; or pass takes_over=True once if the new checkpoint begins where the old one ended; "
            "or use another query_id",
        )
    last = held.batch_id if held is not None else -1
    if coming.batch_id < last:
        raise StreamReplaced(
            f"batch {coming.batch_id}",
            expected=f"batch {last} or {last + 1}",
            remedy="the checkpoint was set back: restore the newer one, or use another query_id",
        )
    if coming.batch_id > last + 1 and not takes_over:
        back = f"set the checkpoint back to batch {last}" if last >= 0 else "begin with an empty checkpoint"
        raise StreamReplaced(
            f"batch {coming.batch_id}",
            expected=f"batch {last + 1}: the table lacks the batches in between, so it may have been restored or created again",
            remedy=f"{back}; or pass takes_over=True once if the rows in between are not needed or loaded from another source",
        )
    return coming.batch_id == last


def write_once(
    table: Table, key: str, coming: BatchMark, write: Callable[[ProgressStep], None], *, takes_over: bool = False
) -> None:
    """Call `write` with the step of progress that its commit moves, unless the batch `coming` of query `key` is in the table.

    Raises `StreamReplaced` and what `write` raises, unless another driver wrote the batch or the commit took effect all the same.
    """

    def held() -> str | None:
        found = table.refresh().progress.get(key)
        return found.value if found else None

    before = held()
    if is_written(BatchMark.from_text(before) if before else None, coming, takes_over=takes_over):
        _LOGGER.info("batch %d of %s is already in the table", coming.batch_id, key)
        return
    try:
        write(ProgressStep(key, before, coming.to_text()))
    except (ProgressMoved, CommitUnknown):
        now = held()
        if now is None or BatchMark.from_text(now) != coming:
            raise


def sink(
    path: str,
    *,
    query_id: str,
    operation: Operation | str = Operation.UPSERT,
    options: Mapping[str, object] | None = None,
    locks: str | None = None,
    takes_over: bool = False,
    on_conflict: OnConflict | None = None,
    on_report: OnReport | None = None,
) -> WriteBatch:
    """Return the function for `foreachBatch`. It writes each micro-batch as one commit of `operation`, once.

    `query_id` names the query permanently. Queries with different names can write one table at the same time; conflicts are retried
    as by `write_dataframe`. A batch without rows makes a commit without rows, so that a missing batch is detected. A replayed batch
    must have the same rows, as it has with sources such as files and Kafka. Each batch is evaluated to test whether it has rows,
    then once per attempt: cache it if that is expensive.

    `takes_over` accepts another checkpoint or missing batches, for the first batch only.

    `locks` is a lock URL as of `tideline write --locks`, for commit locks and file-group reservations. A table shared with Apache
    Hudi's writers is written under their lock; only the reservations of Tideline's writers are at `locks`.

    The function raises what `write_dataframe` raises, `StreamReplaced`, and `TableFrozen` if the table was created again meanwhile.
    Spark then ends the query, which may be restarted.
    """
    chosen = Operation(operation)
    key = progress_key(query_id)
    ProgressStep(key, None, "")  # raise for an invalid name before the first batch
    return _Sink(path, key, chosen, dict(options or {}), locks, takes_over, on_conflict, on_report)


@dataclass(slots=True, eq=False)
class _Sink:
    path: str
    key: str
    operation: Operation
    options: Mapping[str, object]
    locks: str | None
    takes_over: bool
    on_conflict: OnConflict | None
    on_report: OnReport | None
    table: Table | None = None

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """Write `batch` unless it is in the table."""
        coming = BatchMark(batch_id, batch.sparkSession.sparkContext.getLocalProperty(_SPARK_QUERY) or "")
        if self.table is None:
            table = Table.open(self.path, options=self.options, hudi_lock=open_hudi_lock)
            attach_lock(table, self.locks)
            self.table = table
        check_stands(self.table.storage, self.table.identity)
        write_once(self.table, self.key, coming, lambda step: self._write(batch, step), takes_over=self.takes_over)
        # `takes_over` applies to the first batch only.
        self.takes_over = False

    def _write(self, batch: DataFrame, step: ProgressStep) -> None:
        assert self.table is not None
        if batch.isEmpty():
            # Always an insert: an overwrite without rows would empty the table.
            write_rows(self.table, self.table.schema.empty_table(), Operation.INSERT, progress=step, on_conflict=self.on_conflict)
            return
        if needs_driver(self.table, self.operation):
            write_collected(self.table, batch, self.operation, step, self.on_conflict)
            return
        write_dataframe(
            self.table,
            batch,
            self.operation,
            progress=step,
            on_conflict=self.on_conflict,
            on_report=self.on_report,
        )
