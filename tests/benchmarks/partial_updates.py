"""What an update of one column of a wide table writes and costs, as whole rows and as partial records.

`python -m tests.benchmarks.partial_updates [--rows 20000] [--columns 100]` makes a merge-on-read table of version 9, updates one
column of every row in both ways, one after the other in one process, and prints the bytes of the log files and the seconds of
processor of the update, of a read behind it and of a compaction.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa

import tideline
from tideline_table.table import Table

AT_ONCE = {"hoodie.compact.inline.max.delta.commits": 1}


def measured(folder: Path, rows: pa.Table, form: str, *, partial: bool) -> list[str]:
    """Update one column of a new table of `rows`, and return what the table of results says of it."""
    options = {"hoodie.spark.sql.merge.into.partial.updates": partial, "hoodie.logfile.data.block.format": form}
    path = folder / f"{form}-{partial}"
    table = tideline.create(path, schema=rows.schema, key="id", merge="commit_time", type="mor", table_version=9, options=options)
    table.bulk_insert(rows)
    update = _seconds(lambda: table.update({"c0": "c0 + 1"}))
    logs = sum((path / log).stat().st_size for found in Table.open(str(path)).slices() for log in found.log_paths)
    read = _seconds(lambda: tideline.open(path).read())
    compaction = _seconds(lambda: table.maintenance.compact(options=AT_ONCE))
    way = "partial records" if partial else "whole rows"
    return [way, form, f"{logs:,}", f"{update:.2f}", f"{read:.2f}", f"{compaction:.2f}"]


def _seconds(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def main() -> None:
    """Print one row for each way and form of log blocks."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--columns", type=int, default=100)
    given = parser.parse_args()
    chance = np.random.default_rng(1)
    columns = {f"c{n}": chance.integers(0, 10**6, given.rows) if n % 2 else chance.random(given.rows) for n in range(given.columns)}
    rows = pa.table({"id": pa.array(range(given.rows)).cast(pa.string()), "ts": pa.array([1] * given.rows), **columns})
    print("| written | blocks | bytes of log files | update, s | read, s | compaction, s |\n|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        measured(Path(folder) / "warm", rows.slice(0, 100), "parquet", partial=True)
        for form in ("parquet", "avro"):
            for partial in (False, True):
                print(f"| {' | '.join(measured(Path(folder), rows, form, partial=partial))} |")


if __name__ == "__main__":
    main()
