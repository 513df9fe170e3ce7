"""A clustering group that several tasks share: what Apache Hudi and hudi-rs read of its files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from tests.conformance.matrix import Matrix, Topic
from tests.conformance.peers.apache_hudi import ApacheHudi
from tests.conformance.written_here import BASE, Readers, rows
from tests.plans import schedule_clustering
from tests.unit.table.range_worker import clustered_by_ranges

from tideline_table.action import run_clustering, write_rows
from tideline_table.table import Table, TableType, create_table
from tideline_table.writer import Operation

pytestmark = pytest.mark.timeout(600)

FILES = 3


@pytest.mark.parametrize("layout", ["linear", "hilbert"])
def test_a_split_group_of_slices_with_logs(apache_hudi: ApacheHudi, matrix: Matrix, tmp_path: Path, layout: str) -> None:
    base = tmp_path / "trips"
    create_table(str(base), replace(BASE, type=TableType.MOR, partition_fields=()))
    table = Table.open(str(base), options={"hoodie.parquet.small.file.limit": 0})
    readers = Readers(table, apache_hudi, matrix, f"split clustering group, {layout}")
    for part in range(4):
        write_rows(table, rows(range(part * 100, part * 100 + 100), 5), Operation.BULK_INSERT, parallelism=1)
    write_rows(table, rows(range(50, 150), 6), Operation.UPSERT)
    model = pa.concat_tables([rows(range(50), 5), rows(range(50, 150), 6), rows(range(150, 400), 5)])
    assert any(s.log_files for s in table.slices())
    with readers.step(Topic.CLUSTERING, "a group in several tasks") as step:
        target = sum(s.total_bytes for s in table.slices()) // FILES + 1
        options = {
            "hoodie.clustering.plan.strategy.sort.columns": "price,id",
            "hoodie.clustering.plan.strategy.target.file.max.bytes": target,
            "hoodie.layout.optimize.strategy": layout,
        }
        assert schedule_clustering(table, options) is not None
        done = run_clustering(table, run=clustered_by_ranges)
        assert done is not None
        assert len(done.stats) == len(table.slices()) == FILES
        step.agree(model)
    with readers.step(Topic.UPSERT, "an upsert of rows of all its files") as step:
        write_rows(table, rows(range(0, 400, 40), 7), Operation.UPSERT)
        newest = {f"k{number:04}" for number in range(0, 400, 40)}
        kept = model.filter(pa.array([key not in newest for key in model.column("id").to_pylist()]))
        step.agree(pa.concat_tables([kept, rows(range(0, 400, 40), 7)]))
