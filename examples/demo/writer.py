"""One writer process of the demo: `python -m examples.demo.writer NAME BASE_PATH`."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from contextlib import closing
from types import FrameType

from examples.demo.fleet import Batch, Writer, writer_named
from examples.demo.protocol import Progress, send

from tideline_locks.table_lock import attach_lock
from tideline_spark.session import local_session, stop_session
from tideline_spark.write import write_dataframe
from tideline_table.action import write_rows
from tideline_table.coordination import Committed
from tideline_table.table import Table

_RETRIES = 40
Commit = Callable[[Table, Batch], Committed]


class _Stopped(BaseException):
    """SIGTERM arrived. Raised between or inside batches; the engine rolls back an open batch."""


def _stop(_: int, __: FrameType | None) -> None:
    raise _Stopped


def main() -> None:
    """Write all batches and report each commit."""
    writer, base_path = writer_named(sys.argv[1]), sys.argv[2]
    signal.signal(signal.SIGTERM, _stop)
    try:
        if writer.uses_spark:
            with closing(_SparkCommit(writer)) as commit:
                _write(writer, base_path, commit)
        else:
            _write(writer, base_path, _commit_rows)
    except (_Stopped, KeyboardInterrupt):
        sys.exit(0)


def _write(writer: Writer, base_path: str, commit: Commit) -> None:
    options = {**dict(writer.options), "tideline.write.conflict.retries": _RETRIES}
    table = Table.open(base_path, options=options, writer_id=writer.name)
    attach_lock(table)
    batches = list(writer.batches())
    for number, batch in enumerate(batches, 1):
        committed = commit(table, batch)
        conflicts = committed.attempts - 1
        send(Progress(writer.name, writer.table, committed.instant, number, len(batches), batch.rows.num_rows, conflicts))


def _commit_rows(table: Table, batch: Batch) -> Committed:
    return write_rows(table, batch.rows, batch.operation, parallelism=1)


class _SparkCommit:
    """Commits through PySpark DataFrames, with one session for all batches."""

    def __init__(self, writer: Writer) -> None:
        self._spark = local_session(f"tideline-demo-{writer.name}", cores="1", short_lived=True)

    def __call__(self, table: Table, batch: Batch) -> Committed:
        return write_dataframe(table, self._spark.createDataFrame(batch.rows), batch.operation)

    def close(self) -> None:
        """Stop Spark."""
        stop_session(self._spark)


if __name__ == "__main__":
    main()
