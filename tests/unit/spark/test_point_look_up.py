"""What a worker reads for a look-up by record keys."""

from __future__ import annotations

import pyarrow as pa
from tests.unit.table.reader.test_log_index import appended, batch

from tideline_spark.arrow_rows import spark_schema, spread
from tideline_spark.read import part_rows
from tideline_table.table.query import sorted_keys


def test_workers_read_only_blocks_that_can_hold_the_keys() -> None:
    table, storage, _ = appended()
    keys = sorted_keys([batch(3)[7][0], batch(20)[1][0]])
    found = table.snapshot()
    schema = spark_schema(found.output(["id", "ts"]))

    def read(wanted: pa.Array | None) -> tuple[list[object], int]:
        storage.forget()
        (part,) = spread(found, 1)
        rows = pa.Table.from_batches(part_rows(part, schema, keys=wanted))
        return [r for r in rows.to_pylist() if r["id"] in keys.to_pylist()], storage.read_bytes

    expected, all_bytes = read(None)
    narrow, read_bytes = read(keys)
    assert narrow == expected
    assert len(narrow) == 2
    assert all_bytes / read_bytes > 4
    assert storage.requests["log"] == 2, "the two blocks that hold the keys"
