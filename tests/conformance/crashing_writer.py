"""A writer that dies right before its commit point: python -m tests.conformance.crashing_writer BASE ROWS.parquet [PARTITIONS].

PARTITIONS of the metadata table are those that the writers of a shared table keep.

All its files are written, its heartbeat is left behind, and nobody tidies up: the process says its instant and ends
without unwinding.
"""

from __future__ import annotations

import os
import sys

import pyarrow.parquet as pq

from tideline_locks import open_hudi_lock
from tideline_table.action import write_rows
from tideline_table.action.write.transaction import WriteTransaction
from tideline_table.config import SHARED_METADATA
from tideline_table.table import Table
from tideline_table.writer import Operation

DIED = 86
HEARTBEAT: dict[str, object] = {"hoodie.client.heartbeat.interval_in_ms": 100, "hoodie.client.heartbeat.tolerable.misses": 1}


def _die(transaction: WriteTransaction, *_: object, **__: object) -> None:
    print(transaction.instant, flush=True)
    os._exit(DIED)


if __name__ == "__main__":
    base, source, *kept = sys.argv[1:]
    options = {**HEARTBEAT, **({SHARED_METADATA.key: kept[0]} if kept else {})}
    WriteTransaction.commit = _die  # type: ignore[assignment,method-assign]
    write_rows(Table.open(base, options=options, hudi_lock=open_hudi_lock), pq.ParquetFile(source).read(), Operation.UPSERT)
