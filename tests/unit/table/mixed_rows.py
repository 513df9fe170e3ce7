"""Rows of many types with nulls, NaN and a frequent value, and what tests of clusterings ask of the files that hold them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tideline_table.hudi.write_stats import WriteStat
from tideline_table.schema.meta_fields import with_meta_fields
from tideline_table.table import Table

SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        ("ts", pa.int64()),
        ("score", pa.float64()),
        ("city", pa.string()),
        ("price", pa.decimal128(12, 2)),
        ("at", pa.timestamp("us", "UTC")),
        ("day", pa.date32()),
        ("tags", pa.list_(pa.string())),
    ]
)


def some_rows(seed: int, start: int, count: int, ts: int) -> pa.Table:
    """Rows with nulls, NaN, and one city in half of all rows."""
    random = np.random.default_rng(seed)
    score = random.normal(size=count)
    score[random.random(count) < 0.1] = np.nan
    absent = pa.array(random.random(count) < 0.1)
    cities = np.where(random.random(count) < 0.5, "Oslo", np.char.add("c", random.integers(0, 50, count).astype(str))).tolist()
    return pa.table(
        {
            "id": [f"k{n:06d}" for n in range(start, start + count)],
            "ts": pa.array([ts] * count, pa.int64()),
            "score": pc.if_else(absent, pa.scalar(None, pa.float64()), pa.array(score)),
            "city": pa.array([None if n % 20 == 0 else city for n, city in enumerate(cities)], pa.string()),
            "price": pa.array(random.integers(0, 10_000, count).astype(np.int32)).cast(pa.decimal128(12, 2)),
            "at": pa.array(random.integers(0, 10**15, count)).cast(pa.timestamp("us", "UTC")),
            "day": pa.array(random.integers(0, 1000, count).astype(np.int32)).cast(pa.date32()),
            "tags": [["a", "b"][: n % 3] for n in range(count)],
        },
        schema=SCHEMA,
    )


def rows_of(table: Table) -> list[str]:
    """All rows with the meta fields that a clustering keeps; texts, because NaN is not equal to itself."""
    read = table.read([n for n in with_meta_fields(table.schema).names if n != "_hoodie_file_name"])
    return [str(row) for row in read.sort_by("_hoodie_record_key").to_pylist()]


def in_order(table: Table, stats: Sequence[WriteStat], columns: Sequence[str]) -> pa.Table:
    """The rows of the files in the order of the files."""
    schema = with_meta_fields(table.schema)
    by_id = {s.group.file_id: s for s in table.slices()}
    found = [
        batch
        for stat in stats
        for batch in table.log_rule().open_base(table.storage, by_id[stat.file_id], schema).filtered(list(columns), None)
    ]
    return pa.Table.from_batches(found)


def base_files(table: Table) -> set[str]:
    return {f.path for f in table.storage.list_objects("") if f.path.endswith(".parquet")}


def is_sorted(rows: pa.Table, columns: Sequence[str]) -> bool:
    """Whether rows are in the order of Arrow: ascending, nulls last. A stable sort leaves them where they are."""
    places = pc.sort_indices(rows, [(name, "ascending") for name in columns])
    return bool(places.to_pylist() == list(range(rows.num_rows)))
