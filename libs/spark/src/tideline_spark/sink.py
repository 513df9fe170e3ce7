"""A structured stream into a table, exactly once: `df.writeStream.foreachBatch(sink(path, query_id="clicks")).start()`.

Which batch was written stands in the commit that wrote it and is checked at its commit point. So a batch that Spark replays, because the
process died between the commit and Spark's own checkpoint, is left out, and of two drivers that run one query at once only one writes it.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pyspark.sql import DataFrame

from tideline_locks import open_peer_lock
from tideline_locks.table_lock import attach_lock
from tideline_spark.write import OnReport, write_dataframe
from tideline_table.errors import CommitUnknown, CorruptMetadata, InvalidOption, ProgressMoved, Recovery, TidelineError
from tideline_table.table import Table
from tideline_table.table.identity import check_stands
from tideline_table.table.write import OnConflict, write_rows
from tideline_table.timeline.progress import ProgressStep
from tideline_table.writer import Operation

WriteBatch = Callable[[DataFrame, int], None]
_LOGGER = logging.getLogger(__name__)
_SPARK_QUERY = "sql.streaming.queryId"
"""Spark's name of the query, which lives as long as its checkpoint."""


class StreamReplaced(TidelineError):
    """The batches that come are not those that follow the last one committed.

    Either the checkpoint of the query was lost, changed or set back: the numbers mean other rows than the committed ones did, so neither
    writing nor leaving them out would be right. Or the table was restored to a savepoint or made anew: the rows of the batches in between
    would be missing for good.
    """

    recovery = Recovery.STOP


@dataclass(frozen=True, slots=True)
class BatchMark:
    """The last batch of a query that is in the table. `spark_query` is Spark's id of the query, empty where it was not known."""

    batch_id: int
    spark_query: str

    def to_text(self) -> str:
        """JSON."""
        return json.dumps({"batch": self.batch_id, "query": self.spark_query}, separators=(",", ":"))

    @classmethod
    def from_text(cls, text: str) -> BatchMark:
        """Raises `CorruptMetadata`."""
        try:
            document = json.loads(text)
            return cls(int(document["batch"]), str(document["query"]))
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptMetadata(
                f"progress {text[:200]!r} of a streaming query ({error})", expected='{"batch": number, "query": id}'
            ) from None


def progress_key(query_id: str) -> str:
    """Under which key of the table's progress a query keeps its last batch."""
    return f"stream.{query_id}"


def is_written(held: BatchMark | None, coming: BatchMark, *, takes_over: bool) -> bool:
    """Whether `coming` is in the table already, `held` being the last batch that is. Raises `StreamReplaced`.

    Spark begins a batch only when the one before is done, so it replays the last one and no other, and leaves no number out. With
    `takes_over` another checkpoint may follow, or batches may be missing: the first one that comes is written.
    """
    if held is not None and held.spark_query != coming.spark_query and held.spark_query and coming.spark_query:
        if takes_over:
            return False
        raise StreamReplaced(
            f"batch {coming.batch_id} of query {coming.spark_query}",
            expected=f"the checkpoint of query {held.spark_query}, whose last batch here is {held.batch_id}",
            remedy="bring its checkpoint back; or, if the new one begins where that ended, pass takes_over=True once; or take another query_id",
        )
    last = held.batch_id if held is not None else -1
    if coming.batch_id < last:
        raise StreamReplaced(
            f"batch {coming.batch_id}",
            expected=f"batch {last} again, or the one after it",
            remedy="the checkpoint was set back: bring the newer one back, or take another query_id",
        )
    if coming.batch_id > last + 1 and not takes_over:
        raise StreamReplaced(
            f"batch {coming.batch_id}",
            expected=f"batch {last + 1}: those in between are not in the table, which was perhaps restored or made anew",
            remedy="set the checkpoint back to the last batch that is; or, if the rows in between are loaded from elsewhere or not wanted, "
            "pass takes_over=True once",
        )
    return coming.batch_id == last


def sink(
    path: str,
    *,
    query_id: str,
    operation: Operation | str = Operation.UPSERT,
    options: Mapping[str, object] | None = None,
    locks: str = "",
    takes_over: bool = False,
    on_conflict: OnConflict | None = None,
    on_report: OnReport | None = None,
) -> WriteBatch:
    """What `foreachBatch` calls with each micro-batch: writes it as one commit of `operation`, once.

    `query_id` names the query for good; queries with names of their own can write one table at once (conflicts are tried again as by
    `write_dataframe`). A batch without rows makes a commit without rows, so that a missing batch shows. The batch must have the same rows when
    Spark replays it, as it has from sources such as files and Kafka. It is evaluated to see whether there is a row, then once per attempt:
    hand on a cached one where that is expensive.

    `takes_over` accepts, for the first batch that comes, another checkpoint or missing batches: for once, not for good.

    `locks` is a lock URL as of `tideline write --locks`: commits queue there, intents are posted beside it. A table that Apache Hudi's writers
    share is written under the lock that they take, with the intents of our writers there.

    The function raises what `write_dataframe` raises, `StreamReplaced`, and `TableFrozen` when the table was made anew meanwhile; Spark then
    ends the query, which may be started again.
    """
    try:
        chosen = Operation(operation)
    except ValueError:
        raise InvalidOption(f"operation {str(operation)!r}", expected=" or ".join(Operation)) from None
    ProgressStep(progress_key(query_id), None, "")  # a name that cannot be kept is told before any batch
    return _Sink(path, query_id, chosen, dict(options or {}), locks, takes_over, on_conflict, on_report)


class _Sink:
    def __init__(
        self,
        path: str,
        query_id: str,
        operation: Operation,
        options: Mapping[str, object],
        locks: str,
        takes_over: bool,  # noqa: FBT001 - made by `sink` only
        on_conflict: OnConflict | None,
        on_report: OnReport | None,
    ) -> None:
        self._path = path
        self._key = progress_key(query_id)
        self._operation = operation
        self._options = options
        self._locks = locks
        self._takes_over = takes_over
        self._on_conflict = on_conflict
        self._on_report = on_report
        self._table: Table | None = None

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """Write `batch` unless it is in the table."""
        coming = BatchMark(batch_id, batch.sparkSession.sparkContext.getLocalProperty(_SPARK_QUERY) or "")
        if self._table is None:
            table = Table.open(self._path, options=self._options, peer_lock=open_peer_lock)
            attach_lock(table, self._locks)
            self._table = table
        check_stands(self._table.storage, self._table.identity)
        held = self._held()
        if is_written(BatchMark.from_text(held) if held else None, coming, takes_over=self._takes_over):
            _LOGGER.info("batch %d of %s is in the table already", batch_id, self._key)
            self._takes_over = False
            return
        try:
            self._write(batch, ProgressStep(self._key, held, coming.to_text()))
        except (ProgressMoved, CommitUnknown):
            # Another driver wrote it meanwhile, or the commit went through although its answer got lost.
            now = self._held()
            if now is None or BatchMark.from_text(now) != coming:
                raise
        # From here on each batch follows the one before.
        self._takes_over = False

    def _held(self) -> str | None:
        assert self._table is not None
        found = self._table.refresh().progress.get(self._key)
        return found.value if found else None

    def _write(self, batch: DataFrame, step: ProgressStep) -> None:
        assert self._table is not None
        if batch.isEmpty():
            # Whatever the operation: an overwrite by nothing would empty the table.
            write_rows(
                self._table, self._table.schema.empty_table(), Operation.INSERT, progress=step, on_conflict=self._on_conflict
            )
            return
        write_dataframe(
            self._table,
            batch,
            self._operation,
            progress=step,
            on_conflict=self._on_conflict,
            on_report=self._on_report,
        )
