"""Physical bounds: the least that a write has to do, by raw pyarrow in two processes.

`python bounds.py WORK BASE CHANGES FOLDER NUMBER` is one of the two processes; it says the seconds and the processor seconds of
its work.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

PROCESSES = 2
KEY = ("l_orderkey", "l_linenumber")
BOUNDS = {
    "encode": "decode + encode everything, two processes",
    "match": "decode + match 10 % + encode, two processes",
    "sort": "decode + sort + encode, two processes",
}


def bound(work: str, base: Path, changes: Path, folder: Path) -> tuple[float, float]:
    """Seconds of the slower one of two processes that share the base files, and the processor seconds of both; imports left out."""
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, __file__, work, str(base), str(changes), str(folder)]
    running = [subprocess.Popen([*command, str(n)], stdout=subprocess.PIPE, text=True) for n in range(PROCESSES)]
    told = [process.communicate()[0] for process in running]
    if any(process.returncode for process in running):
        raise subprocess.CalledProcessError(1, command)
    seconds, cpu_s = zip(*(map(float, text.split()) for text in told), strict=True)
    return max(seconds), sum(cpu_s)


def _run(work: str, base: Path, changes: Path, folder: Path, number: int) -> tuple[float, float]:
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)
    _warm_up(folder / f"{work}-warm-up-{number}.parquet")
    began, began_cpu = time.perf_counter(), time.process_time()
    newer = pq.read_table(changes, use_threads=False) if work == "match" else None
    for part in sorted(base.glob("*.parquet"))[number::PROCESSES]:
        rows = pq.read_table(part, use_threads=False)
        if newer is not None:
            stays = pc.invert(pc.is_in(_keys(rows), value_set=_keys(newer)))
            here = pc.is_in(_keys(newer), value_set=_keys(rows))
            rows = pa.concat_tables([rows.filter(stays), newer.filter(here)])
        if work == "sort":
            rows = rows.take(pc.sort_indices(rows, sort_keys=[("l_shipdate", "ascending")]))
        pq.write_table(rows, folder / f"{work}-{part.name}", compression="snappy")
    return time.perf_counter() - began, time.process_time() - began_cpu


def _warm_up(path: Path) -> None:
    """Reading and writing import and start more on their first call than they take here."""
    rows = pa.table({"l_shipdate": [2, 1], "text": ["a", "b"]} | {name: [1, 2] for name in KEY})
    pq.write_table(rows, path, compression="snappy")
    found = pq.read_table(path, use_threads=False)
    found.filter(pc.invert(pc.is_in(_keys(found), value_set=_keys(rows.slice(0, 1))))).sort_by("l_shipdate")


def _keys(rows: pa.Table) -> pa.Array:
    """One number per row; line numbers are below 8."""
    order, line = (np.asarray(rows.column(name)).astype(np.int64) for name in KEY)
    return pa.array(order * 8 + line)


if __name__ == "__main__":
    print(*_run(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), Path(sys.argv[4]), int(sys.argv[5])))
