"""`python -m tests.benchmarks.metadata_commits`: seconds of a commit with partitions of the metadata table, against one without.

Tables that differ in their partitions only get the same rows, one commit after the other, in turns. The table without a
metadata table looks no keys up; the one with a record index does, because inserts into it write each key once.
"""

from __future__ import annotations

import argparse
import re
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
from tests.benchmarks.clustering import markdown

from tideline_locks import open_hudi_lock
from tideline_table.action import create_metadata, write_rows
from tideline_table.clock import SystemClock
from tideline_table.config import SHARED_METADATA
from tideline_table.hudi.properties import METADATA_FOLDER, METADATA_PARTITIONS, change_properties, read_properties
from tideline_table.log.metadata import BLOOM_FILTERS, COLUMN_STATS, FILES, PARTITION_STATS, RECORD_INDEX
from tideline_table.log.sharing import HudiLockKind, Sharing
from tideline_table.table import Table, TableRequest, create_table, share_table
from tideline_table.writer import Operation

NONE = "none"
LAYOUTS = {
    NONE: (),
    FILES: (FILES,),
    COLUMN_STATS: (FILES, COLUMN_STATS),
    BLOOM_FILTERS: (FILES, BLOOM_FILTERS),
    RECORD_INDEX: (FILES, RECORD_INDEX),
    "all": (FILES, COLUMN_STATS, BLOOM_FILTERS, RECORD_INDEX),
}
PARTITIONS = 8


def rows(count: int, number: int, *, random_keys: bool = False) -> pa.Table:
    """Return the rows of commit `number`: new keys, in all partitions. Keys ascend, or are like random UUIDs."""
    ids = np.arange(number * count, (number + 1) * count)
    random = np.random.default_rng(number)
    keys = (
        [str(uuid.UUID(bytes=random.bytes(16), version=4)) for _ in range(count)]
        if random_keys
        else [f"key-{each:010d}" for each in ids.tolist()]
    )
    columns: dict[str, pa.Array] = {
        "id": pa.array(keys),
        "part": pa.array([f"p{each % PARTITIONS}" for each in ids.tolist()]),
        "ts": pa.array(np.full(count, number)),
        **{f"n{at}": pa.array(random.integers(0, 1_000_000, count)) for at in range(3)},
        **{f"d{at}": pa.array(random.random(count) * 1000) for at in range(2)},
        **{f"s{at}": pa.array([f"text {each % 997} {at}" for each in ids.tolist()]) for at in range(2)},
    }
    return pa.table(columns)


SHARED_LAYOUTS = {
    NONE: (),
    FILES: (FILES,),
    "default of Apache Hudi": (FILES, COLUMN_STATS, PARTITION_STATS),
    "and record_index": (FILES, COLUMN_STATS, PARTITION_STATS, RECORD_INDEX),
}
"""Of tables of version 9 that Apache Hudi's writers share."""


def opened(folder: Path, name: str, partitions: Sequence[str], version: int = 6) -> Table:
    """Create a table with these partitions."""
    path, options = str(folder / name.replace(" ", "-")), {"hoodie.parquet.small.file.limit": 0}
    create_table(path, TableRequest("t", rows(1, 0).schema, ("id",), ("part",), "ts", version=version), SystemClock())
    table = Table.open(path, options=options)
    if version > 6:
        write_rows(table, rows(PARTITIONS, 1_000_000), Operation.INSERT)  # the schema, from which statistics take their columns
    if partitions:
        create_metadata(table, [each for each in partitions if each != PARTITION_STATS])
    return table


def shared(folder: Path, name: str) -> Table:
    """Share a table of version 9 that keeps these partitions, as if a writer of Apache Hudi had made them."""
    partitions = SHARED_LAYOUTS[name]
    made = opened(folder, name, partitions, 9)
    storage = made.storage
    if PARTITION_STATS in partitions:
        # Tideline makes no such partition, it only keeps it: its first log file is the empty one of another.
        first = next(o.path for o in storage.list_folder(f"{METADATA_FOLDER}/{COLUMN_STATS}").objects if ".log." in o.path)
        named = first.replace(COLUMN_STATS, PARTITION_STATS).replace("col-stats", "partition-stats")
        storage.put(re.sub(r"-\d{4}-0_", "-0000-0_", named), storage.read(first))
        change_properties(storage, lambda held: {**held, METADATA_PARTITIONS: ",".join(sorted(partitions))})
    storage.delete_below(".hoodie/.tideline")
    options = {"hoodie.parquet.small.file.limit": 0, SHARED_METADATA.key: ",".join(partitions) or "off"}
    found = Table.open(made.base_path, options=options)
    return share_table(found, Sharing(HudiLockKind.FILE_SYSTEM, expire_min=5), open_hudi_lock)


def main() -> None:
    """Measure, and print a Markdown table."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.metadata_commits", description=__doc__)
    parser.add_argument("--commits", type=int, default=30)
    parser.add_argument("--rows", type=int, default=20_000, help="of each commit")
    parser.add_argument("--random", action="store_true", help="random keys, which lie in all blocks of the record index")
    parser.add_argument("--shared", action="store_true", help="tables of version 9 that Apache Hudi's writers share")
    parser.add_argument("--folder", default=None, help="where tables are written while it runs")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.folder, prefix="tideline-commits-") as folder:
        if given.shared:
            tables = {name: shared(Path(folder), name) for name in SHARED_LAYOUTS}
        else:
            tables = {name: opened(Path(folder), name, partitions) for name, partitions in LAYOUTS.items()}
        clock: dict[str, list[float]] = {name: [] for name in tables}
        processor: dict[str, list[float]] = {name: [] for name in tables}
        for number in range(given.commits):
            turn, names = number % len(tables), list(tables)
            source = rows(given.rows, number, random_keys=given.random)
            for name in names[turn:] + names[:turn]:
                begun, spent = time.perf_counter(), time.process_time()
                write_rows(tables[name], source, Operation.INSERT)
                clock[name].append(time.perf_counter() - begun)
                processor[name].append(time.process_time() - spent)
        for name, table in tables.items() if given.shared else ():
            kept = read_properties(table.storage).get(METADATA_PARTITIONS, "")
            assert kept == ",".join(sorted(SHARED_LAYOUTS[name])), f"{name}: {kept!r} is left"
    lines = []
    for name in tables:
        ratio = statistics.median(own / none for own, none in zip(clock[name], clock[NONE], strict=True))
        own, none = (statistics.median(processor[each]) for each in (name, NONE))
        lines.append([name, f"{statistics.median(clock[name]):.3f}", f"{ratio:.2f}", f"{own:.3f}", f"{own / none:.2f}"])
    titles = ["metadata table", "s, median", "ratio, median of turns", "processor s, median", "ratio"]
    sys.stdout.write(markdown(titles, lines) + "\n")


if __name__ == "__main__":
    main()
