"""Cluster a table by ranges in this process and print, as JSON, how much memory it took: `python range_worker.py PATH LIMIT_BYTES`.

The exchange is a file for each range, as Spark's is on the disks of executors, so that the memory is that of the tasks. They
run one after the other, and a process of its own runs them, because the peak of a process never falls.
"""

from __future__ import annotations

import json
import pickle
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
from tests.unit.table.clustering_worker import peak_bytes

from tideline_table.action import run_clustering
from tideline_table.action.clustering.ranges import ranged_rows, sample_slice, split_ranges, whole_group, write_range
from tideline_table.action.clustering.received_rows import Sent
from tideline_table.action.clustering.task import ClusteredGroup, ClusteringTask
from tideline_table.table import Table


def clustered_by_ranges(
    tasks: Sequence[ClusteringTask], received: Callable[[int, list[Sent]], list[Sent]] | None = None
) -> list[ClusteredGroup]:
    """Run each group by ranges. `received`, if given, changes what the range with this number receives."""
    with tempfile.TemporaryDirectory() as folder:
        return [_clustered(task, Path(folder), received) for task in tasks]


def _clustered(task: ClusteringTask, folder: Path, received: Callable[[int, list[Sent]], list[Sent]] | None) -> ClusteredGroup:
    slices = [replace(task, inputs=(file_slice,)) for file_slice in task.inputs]
    samples = [sample_slice(one, number, len(slices)) for number, one in enumerate(slices)]
    split = pickle.loads(pickle.dumps(split_ranges(task, samples)))
    paths = [folder / f"{task.number}-{number}" for number in range(task.output_files)]
    # The last slice first: the order of arrival must not matter.
    for number, one in reversed(list(enumerate(slices))):
        for at, sent in ranged_rows(split, one, number):
            with paths[at].open("ab") as file:
                pickle.dump(sent, file)
    found = []
    for number, path in enumerate(paths):
        arrived = _stored(path)
        found.append(write_range(split, number, arrived if received is None else iter(received(number, list(arrived)))))
    return whole_group(task, split, found)


def _stored(path: Path) -> Iterator[Sent]:
    with path.open("rb") as file:
        while file.peek(1):
            yield pickle.load(file)


def main(path: str, limit: str) -> None:
    """Run the pending clustering."""
    table = Table.open(path, options={"tideline.clustering.memory.limit": limit, "tideline.parquet.row.group.rows": 10_000})
    before = peak_bytes()
    done = run_clustering(table, run=clustered_by_ranges)
    assert done is not None
    rows = sum(stat.num_writes for stat in done.stats)
    arrow = pa.default_memory_pool().max_memory()
    print(json.dumps({"before": before, "peak": peak_bytes(), "arrow": arrow, "rows": rows, "files": len(done.stats)}))


if __name__ == "__main__":
    main(*sys.argv[1:])
