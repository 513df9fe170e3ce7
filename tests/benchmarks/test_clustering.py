"""What a query has to scan, by the footers of files."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from tests.benchmarks.clustering import Range, scanned


def test_only_row_groups_that_can_hold_a_row_of_the_query_count(tmp_path: Path) -> None:
    paths = [str(tmp_path / name) for name in ("one", "two", "nulls")]
    for path, values in zip(paths, ([*range(10)], [*range(8, 18)], [None] * 10), strict=True):
        pq.write_table(pa.table({"v": pa.array(values, pa.int64())}), path, row_group_size=5)
    found = scanned(paths, Range("v", 8, 9))
    assert (found.files, found.rows) == (2, 10)
    groups = [pq.read_metadata(paths[0]).row_group(1), pq.read_metadata(paths[1]).row_group(0)]
    assert found.size_bytes == sum(group.column(0).total_compressed_size for group in groups)
    assert scanned(paths, Range("v", 20, 30)).files == 0
