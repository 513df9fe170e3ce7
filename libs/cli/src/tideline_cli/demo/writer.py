"""One writer process of the demo: `python -m tideline_cli.demo.writer NAME BASE_PATH`."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from contextlib import closing
from types import FrameType

from tideline_cli.demo.fleet import Batch, Writer, writer_named
from tideline_cli.demo.protocol import Progress, send
from tideline_locks.table_lock import BESIDE_TABLE, attach_lock
from tideline_spark.session import local_session, stop_session
from tideline_spark.write import write_dataframe
from tideline_table.errors import WriteConflict
from tideline_table.table import Table, write_rows
from tideline_table.transaction import Committed

_RETRIES = 40
Commit = Callable[[Table, Batch, Callable[[WriteConflict, int], None]], Committed]


class _Stopped(BaseException):
    """SIGTERM: end between or inside batches; the engine rolls the open one back."""


def _stop(_: int, __: FrameType | None) -> None:
    raise _Stopped


def main() -> None:
    """Write all batches, reporting each commit."""
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


class _Conflicts:
    """Counts the conflicts of one batch."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, _: WriteConflict, __: int) -> None:
        self.count += 1


def _write(writer: Writer, base_path: str, commit: Commit) -> None:
    options = {**dict(writer.options), "tideline.write.conflict.retries": _RETRIES}
    table = Table.open(base_path, options=options, writer_id=writer.name)
    attach_lock(table, BESIDE_TABLE)
    batches = list(writer.batches())
    for number, batch in enumerate(batches, 1):
        conflicts = _Conflicts()
        committed = commit(table, batch, conflicts)
        send(Progress(writer.name, writer.table, committed.instant, number, len(batches), batch.rows.num_rows, conflicts.count))


def _commit_rows(table: Table, batch: Batch, on_conflict: Callable[[WriteConflict, int], None]) -> Committed:
    return write_rows(table, batch.rows, batch.operation, on_conflict=on_conflict, parallelism=1)


class _SparkCommit:
    """Commits through PySpark DataFrames, one session for all batches."""

    def __init__(self, writer: Writer) -> None:
        self._spark = local_session(f"tideline-demo-{writer.name}", cores="1", short_lived=True)

    def __call__(self, table: Table, batch: Batch, on_conflict: Callable[[WriteConflict, int], None]) -> Committed:
        return write_dataframe(table, self._spark.createDataFrame(batch.rows), batch.operation, on_conflict=on_conflict)

    def close(self) -> None:
        """Stop Spark."""
        stop_session(self._spark)


if __name__ == "__main__":
    main()
