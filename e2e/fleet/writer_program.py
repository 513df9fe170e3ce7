"""Runs in a writer's pod: writes each file of rows as one commit and prints one JSON object for each commit that was acknowledged."""

import io
import json
import os
import sys

import pyarrow.parquet as pq

from tideline_locks import attach_lock, open_peer_lock
from tideline_table.action import write_rows
from tideline_table.storage import open_storage
from tideline_table.table import Table
from tideline_table.writer import Operation


def main() -> None:
    base_path, options, source, *files = sys.argv[1:]
    storage = open_storage(source)
    table = Table.open(base_path, options=json.loads(options), peer_lock=open_peer_lock)
    attach_lock(table, os.environ["TIDELINE_LOCKS"])
    for file in files:
        rows = pq.read_table(io.BytesIO(storage.read(file)))
        done = write_rows(table, rows, Operation.UPSERT)
        print(json.dumps({"file": file, "instant": done.instant, "sequence": done.sequence, "attempts": done.attempts}), flush=True)


if __name__ == "__main__":
    main()
