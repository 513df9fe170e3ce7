"""Arrow input: what other libraries hand over becomes what tables hold, without loss or not at all."""

from __future__ import annotations

import decimal
from datetime import UTC, date, datetime, time
from pathlib import Path
from types import SimpleNamespace

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from tests.unit.tideline.conftest import SCHEMA, ids, trips_of

import tideline
from tideline.errors import SchemaMismatch
from tideline.rows import keys_from

ROWS = trips_of(("d", "tue", 1.0, 1), ("e", "wed", None, 2))


class OnlyStream:
    """An object with the capsule and nothing else."""

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return ROWS.__arrow_c_stream__(requested_schema)


class OnlyArray:
    def __arrow_c_array__(self, requested_schema: object = None) -> object:
        return ROWS.to_batches()[0].__arrow_c_array__(requested_schema)


def indexed() -> pd.DataFrame:
    frame = ROWS.to_pandas()
    return frame.set_index(pd.Index([17, 4]))


@pytest.mark.parametrize(
    "rows",
    [
        ROWS,
        ROWS.to_batches()[0],
        OnlyStream(),
        OnlyArray(),
        ROWS.to_pandas(),
        indexed(),
        ROWS.to_pandas().set_index("id"),
        pl.from_arrow(ROWS),
        duckdb.sql("select 'd' id, 'tue' as day, 1::double fare, 1::bigint updated_at union all select 'e', 'wed', null, 2"),
    ],
    ids=["table", "batch", "stream", "array", "pandas", "pandas-index", "pandas-named-index", "polars", "duckdb"],
)
def test_rows_of_all_libraries(table: tideline.Table, rows: object) -> None:
    table.upsert(rows)
    assert table.lookup(["d", "e"]).sort_by("id").equals(ROWS)


def test_a_stream_is_read_once(table: tideline.Table) -> None:
    table.upsert(ROWS.to_reader())
    assert ids(table.read("id")) == ["a", "b", "c", "d", "e"]


@pytest.mark.parametrize("rows", [[{"id": "d"}], {"id": ["d"]}, SimpleNamespace(id="d"), None], ids=str)
def test_rows_without_the_capsule_are_rejected(table: tideline.Table, rows: object) -> None:
    with pytest.raises(SchemaMismatch, match="PyCapsule"):
        table.upsert(rows)


def test_mixed_columns_of_pandas_are_rejected(table: tideline.Table) -> None:
    with pytest.raises(SchemaMismatch, match="cannot convert"):
        table.upsert(pd.DataFrame({"id": ["d", 1], "day": ["tue", "tue"], "fare": [1.0, 2.0], "updated_at": [1, 1]}))


MOMENT = datetime(2026, 1, 1, 12, 30, 0, 123456, UTC)
ENCODINGS = [
    (pa.array(["x", None], pa.string_view()), pa.string()),
    (pa.array(["x", None], pa.large_string()), pa.string()),
    (pa.array([b"x", None], pa.binary_view()), pa.binary()),
    (pa.array([b"x", None], pa.large_binary()), pa.binary()),
    (pa.array(["x", None]).dictionary_encode(), pa.string()),
    (
        pa.DictionaryArray.from_arrays(pa.array([0, None], pa.uint32()), pa.array(["x"], pa.string_view())),
        pa.string(),
    ),
    (pa.array([["x"], None], pa.large_list(pa.string_view())), pa.list_(pa.field("array", pa.string()))),
    (pa.array([[1, 2], None], pa.list_(pa.int32(), 2)), pa.list_(pa.field("array", pa.int32()))),
    (pa.array([{"a": "x"}, None], pa.struct([("a", pa.large_string())])), pa.struct([("a", pa.string())])),
    (pa.array([MOMENT, None], pa.timestamp("ns", "Europe/Paris")), pa.timestamp("us", "UTC")),
    (pa.array([MOMENT.replace(tzinfo=None), None], pa.timestamp("ns")), pa.timestamp("us")),
    (pa.array([date(2026, 1, 1), None], pa.date64()), pa.date32()),
    (pa.array([time(1, 2, 3), None], pa.time32("s")), pa.time32("ms")),
    (pa.array([time(1, 2, 3, 4), None], pa.time64("ns")), pa.time64("us")),
    (pa.array([3, None], pa.uint8()), pa.int32()),
    (pa.array([2**32 - 1, None], pa.uint32()), pa.int64()),
    (pa.array([1.5, None], pa.float16()), pa.float32()),
    (pa.array([decimal.Decimal("1.5"), None], pa.decimal256(9, 2)), pa.decimal128(9, 2)),
    (pa.ExtensionArray.from_storage(pa.bool8(), pa.array([1, None], pa.int8())), pa.bool_()),
]


@pytest.mark.parametrize(("values", "kind"), ENCODINGS, ids=lambda found: str(getattr(found, "type", "")))
def test_encodings_keep_their_values(tmp_path: Path, values: pa.Array, kind: pa.DataType) -> None:
    rows = pa.table({"id": ["a", "b"], "v": values})
    table = tideline.create(tmp_path / "t", schema=rows.schema, key="id")
    table.insert(rows)
    found = table.read().sort_by("id").column("v")
    assert found.type == kind
    assert found.to_pylist() == [v.astimezone(UTC) if isinstance(v, datetime) and v.tzinfo else v for v in values.to_pylist()]


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (pa.array([1_000_000_001], pa.timestamp("ns")), pa.timestamp("us")),
        (pa.array([1_001], pa.time64("ns")), pa.time64("us")),
        (pa.array([2**64 - 1], pa.uint64()), pa.int64()),
        (pa.array([86_400_001], pa.date64()), pa.date32()),
        (pa.array([["x"], None], pa.list_view(pa.string())), pa.list_(pa.string())),
        (pa.array([1.5]), pa.int32()),
        (pa.array([2**53 + 1]), pa.float64()),
        (pa.array([MOMENT], pa.timestamp("us", "UTC")), pa.date32()),
    ],
    ids=str,
)
def test_values_that_would_change_are_rejected_before_anything_is_written(
    tmp_path: Path, values: pa.Array, kind: pa.DataType
) -> None:
    table = tideline.create(tmp_path / "t", schema=pa.schema([("id", pa.string()), ("v", kind)]), key="id")
    with pytest.raises(SchemaMismatch, match="'v'"):
        table.upsert(pa.table({"id": ["a", "b"][: len(values)], "v": values}))
    assert table.changes().until == 0


@pytest.mark.parametrize(
    "schema", [SCHEMA, ROWS, OnlyStream(), indexed(), pl.from_arrow(ROWS)], ids=["schema", "table", "stream", "pandas", "polars"]
)
def test_schemas_of_all_libraries(tmp_path: Path, schema: object) -> None:
    table = tideline.create(tmp_path / "t", schema=schema, key="id")
    assert table.schema == SCHEMA


def test_schemas_that_tables_cannot_hold_are_rejected(tmp_path: Path) -> None:
    for schema in ({"id": "string"}, pa.schema([("id", pa.string()), ("v", pa.duration("s"))]), pa.schema([("id", pa.null())])):
        with pytest.raises(SchemaMismatch):
            tideline.create(tmp_path / "t", schema=schema, key="id")
    assert not (tmp_path / "t/.hoodie").exists()


@pytest.mark.parametrize(
    ("kind", "key", "wrong"),
    [
        (pa.int64(), 1, [1.5, decimal.Decimal("1.5"), "1", True]),
        (pa.int32(), 1, [1.000001]),
        (pa.date32(), date(2026, 1, 1), [datetime(2026, 1, 1, 5), 20454.5]),
        (pa.timestamp("ms"), datetime(2026, 1, 1), [datetime(2026, 1, 1, 0, 0, 0, 999)]),
        (pa.timestamp("us"), datetime(1970, 1, 1, 0, 0, 0, 1), [1.5]),
    ],
    ids=str,
)
def test_a_key_that_no_row_can_have_is_refused_and_deletes_no_other(
    kind: pa.DataType, key: object, wrong: list[object], tmp_path: Path
) -> None:
    """Arrow cuts it to another key, whose row was deleted."""
    table = tideline.create(tmp_path / "t", schema=pa.schema([("id", kind), ("v", pa.string())]), key="id")
    table.upsert(pa.table({"id": pa.array([key], kind), "v": ["x"]}))
    for value in wrong:
        for act in (table.delete, table.lookup):
            with pytest.raises(SchemaMismatch, match="keys that Arrow cannot convert"):
                act([value])
        with pytest.raises(SchemaMismatch, match="keys that Arrow cannot convert"):
            table.upsert(pa.table({"id": pa.array([], kind), "v": pa.array([], pa.string())}), delete=[{"id": value}])
    assert table.lookup([key]).num_rows == table.read().num_rows == 1
    assert table.delete([key]).rows_deleted == 1


def test_whole_numbers_and_midnights_are_keys() -> None:
    schema = pa.schema([("n", pa.int64()), ("d", pa.date32())])
    found = keys_from([{"n": 1.0, "d": datetime(2026, 1, 1)}, {"n": None, "d": None}], schema, ("n", "d"))
    assert found.to_pylist() == [{"n": 1, "d": date(2026, 1, 1)}, {"n": None, "d": None}]
