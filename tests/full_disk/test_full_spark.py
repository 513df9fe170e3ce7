"""A DataFrame that workers of Spark write to a full disk."""

import os

import pytest
from tests.spark.conftest import spark  # noqa: F401 - a fixture
from tests.unit.table.tables import contents, new_table

from tideline_spark.write import write_dataframe
from tideline_table.clock import SystemClock
from tideline_table.errors import StorageFull
from tideline_table.storage import LocalStorage
from tideline_table.writer import Operation

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("collected_bytes", [0, 1 << 24])
def test_a_dataframe(disk, spark, collected_bytes):  # noqa: F811 - the fixture
    table, _, _ = new_table(SystemClock(), LocalStorage(disk.folder / "t"))
    frame = spark.createDataFrame(
        [(f"k{n}", "p", 0, os.urandom(100_000).hex()) for n in range(10)], "id string, part string, ts long, v string"
    )
    disk.fill(64 * 4096)
    with pytest.raises(StorageFull, match="No space left on device"):
        write_dataframe(table, frame, Operation.UPSERT, options={"tideline.spark.collect.bytes": collected_bytes})
    disk.free()
    assert contents(table) == []
    write_dataframe(table, frame, Operation.UPSERT)
    assert len(contents(table)) == 10
    assert list(table.state.pending()) == []
