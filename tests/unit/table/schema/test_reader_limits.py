"""Types that other readers cannot read are reported when a table is created."""

from __future__ import annotations

import logging

import pyarrow as pa
import pytest

from tideline_table.clock import ManualClock
from tideline_table.storage import MemoryStorage
from tideline_table.table import TableRequest, create_table

LOCAL = pa.timestamp("us")


@pytest.mark.parametrize(
    ("kind", "reported"),
    [
        (LOCAL, "timestamp[us]"),
        (pa.timestamp("ms"), "timestamp[ms]"),
        (pa.struct([("n", pa.int64()), ("at", LOCAL)]), "timestamp[us]"),
        (pa.list_(LOCAL), "timestamp[us]"),
        (pa.map_(pa.string(), pa.list_(LOCAL)), "timestamp[us]"),
        (pa.timestamp("us", "UTC"), ""),
        (pa.time64("us"), "time64[us]"),
        (pa.list_(pa.time32("ms")), "time32[ms]"),
        (pa.map_(pa.string(), pa.struct([("d", pa.decimal128(38, 0))])), ""),
    ],
)
def test_a_type_that_a_reader_cannot_read_is_reported(caplog: pytest.LogCaptureFixture, kind: pa.DataType, reported: str) -> None:
    schema = pa.schema([pa.field("id", pa.string(), nullable=False), ("c", kind)])
    clock = ManualClock()
    with caplog.at_level(logging.WARNING):
        create_table("memory:/t", TableRequest("t", schema, ("id",)), clock, MemoryStorage(clock=clock))
    reader = "Apache Hudi 1.2.0 on Spark 3.5 fails on any query that reads it"
    if reported.startswith("timestamp"):
        reader = "hudi-rs 0.5.0 panics on any query of the table"
    expected = f"column 'c' has the type {reported}: {reader}"
    assert [record.getMessage().partition(";")[0] for record in caplog.records] == ([expected] if reported else [])
