"""What `tideline.insert.to.log` costs and saves, end to end: `python -m tests.benchmarks.log_inserts --folder F [--rows 500000]`.

A merge-on-read table gets ten upserts, half updates and half inserts of one per cent of its rows, with the option on and off, by a
look-up of keys and by buckets. Then 1,000 keys are looked up, all rows are read, the table is compacted and read again. Printed are
seconds of processor time, and the bytes that the upserts wrote and that the table holds.
"""

from __future__ import annotations

import argparse
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
from tests.benchmarks.merges import sales

import tideline

UPSERTS, SHARE = 10, 0.01
DUE = {"hoodie.compact.inline.max.delta.commits": 1}


def keyed(numbers: np.ndarray, chance: np.random.Generator) -> pa.Table:
    """Rows of the other benchmark with one key column."""
    return sales(numbers, chance).append_column("id", pa.array(np.char.mod("%09d", numbers)))


def used(do: Callable[[], object]) -> float:
    """Seconds of processor time of this process."""
    before = time.process_time()
    do()
    return time.process_time() - before


def stored_bytes(folder: Path) -> int:
    """The size of all data files."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and ".hoodie" not in path.parts)


def measured(folder: Path, rows: int, index: tideline.BucketIndex | None, *, to_log: bool) -> dict[str, float]:
    """Seconds and bytes of one table."""
    chance = np.random.default_rng(11)
    base = keyed(np.arange(rows), chance)
    options = {"tideline.insert.to.log": to_log}
    table = tideline.create(folder, schema=base.schema, key="id", type="mor", index=index, options=options)
    table.bulk_insert(base)
    before, count, known = stored_bytes(folder), int(rows * SHARE / 2), rows
    found = {"upserts s": 0.0}
    for _ in range(UPSERTS):
        numbers = np.concatenate([chance.choice(known, count, replace=False), np.arange(known, known + count)])
        known += count
        source = keyed(numbers, chance)
        found["upserts s"] += used(lambda source=source: table.upsert(source))  # type: ignore[misc]
    found["upserts MB"] = (stored_bytes(folder) - before) / 1e6
    keys = [f"{number:09}" for number in chance.choice(known, 1000, replace=False)]
    found["look-up s"] = used(lambda: table.lookup(keys))
    found["read s"] = used(table.read)
    found["compaction s"] = used(lambda: table.maintenance.compact(options=DUE))
    found["read again s"] = used(table.read)
    found["in all s"] = sum(value for name, value in found.items() if name.endswith(" s"))
    found["table MB"] = stored_bytes(folder) / 1e6
    assert table.read(["id"]).num_rows == known
    return found


def main() -> None:
    """Print a line for each index and setting."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--folder", type=Path, required=True, help="a folder that is made anew")
    asked = parser.parse_args()
    shutil.rmtree(asked.folder, ignore_errors=True)
    asked.folder.mkdir(parents=True)
    print(f"{asked.rows} rows, load {os.getloadavg()[0]:.0f}")
    for name, index in (("look-up", None), ("buckets", tideline.BucketIndex(4))):
        for to_log in (False, True):
            found = measured(asked.folder / f"{name}-{to_log}", asked.rows, index, to_log=to_log)
            print(
                name, "log" if to_log else "base", ", ".join(f"{title} {value:.2f}" for title, value in found.items()), flush=True
            )


if __name__ == "__main__":
    main()
