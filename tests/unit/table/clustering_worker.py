"""Cluster a table in this process and print, as JSON, how much memory it took: `python clustering_worker.py PATH LIMIT_BYTES`.

A process of its own, because the peak of a process never falls.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset  # With pandas, which it imports, 40 MB. The engine imports it when it reads a file.

from tideline_table.action import run_clustering
from tideline_table.table import Table


def peak_bytes() -> int:
    """Return the largest resident size of this process so far. `getrusage` would count the process that started this one, too."""
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM:"))


def main(path: str, limit: str) -> None:
    """Run the pending clustering."""
    table = Table.open(path, options={"tideline.clustering.memory.limit": limit, "tideline.parquet.row.group.rows": 10_000})
    before = peak_bytes()
    done = run_clustering(table)
    assert done is not None
    rows = sum(stat.num_writes for stat in done.stats)
    arrow = pa.default_memory_pool().max_memory()
    print(json.dumps({"before": before, "peak": peak_bytes(), "arrow": arrow, "rows": rows, "files": len(done.stats)}))


if __name__ == "__main__":
    main(*sys.argv[1:])
