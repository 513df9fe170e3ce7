"""Runs in a writer's pod: writes each file of rows as one commit and prints one JSON object for each commit that was
acknowledged."""

import io
import json
import os
import sys
import time

import pyarrow.parquet as pq

from tideline_locks import attach_lock, open_hudi_lock
from tideline_table.action import write_rows
from tideline_table.errors import Recovery, TidelineError
from tideline_table.storage import open_storage
from tideline_table.table import Table
from tideline_table.writer import Operation

TROUBLE_TIMEOUT_S = 240.0
PAUSE_S = 2.0


def main() -> None:
    base_path, options, source, *files = sys.argv[1:]
    storage = open_storage(source)
    table = Table.open(base_path, options=json.loads(options), hudi_lock=open_hudi_lock)
    attach_lock(table, os.environ["TIDELINE_LOCKS"])
    for file in files:
        rows = pq.read_table(io.BytesIO(storage.read(file)))
        deadline_s, errors = time.monotonic() + TROUBLE_TIMEOUT_S, 0
        while True:
            try:
                # If an earlier attempt was committed after all, the same rows are written once more: the table stays the same.
                done = write_rows(table, rows, Operation.UPSERT)
                break
            except TidelineError as error:
                if error.recovery is Recovery.STOP or time.monotonic() > deadline_s:
                    raise
                errors += 1
                print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
                time.sleep(PAUSE_S)
        said = {"file": file, "instant": done.instant, "sequence": done.sequence, "attempts": done.attempts, "errors": errors}
        print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main()
