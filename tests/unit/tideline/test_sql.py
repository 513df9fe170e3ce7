"""SQL by DuckDB over scans of the engine: exact results, and only what a query needs is read."""

from __future__ import annotations

import decimal
import itertools
import pickle
import subprocess
import sys
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from tests.unit.table.fixtures import unpacked
from tests.unit.tideline.conftest import ids, trips_of

import tideline
from tideline.errors import InvalidInput, SchemaMismatch
from tideline_table.table.query import Snapshot

MOMENT = datetime(2026, 1, 1, 12, 30, 0, 123456, UTC)
TYPED = pa.schema(
    [
        pa.field("id", pa.int32(), nullable=False),
        ("b", pa.bool_()),
        ("i", pa.int64()),
        ("f", pa.float64()),
        ("g", pa.float32()),
        ("d", pa.decimal128(20, 3)),
        ("s", pa.string()),
        ("day", pa.date32()),
        ("z", pa.timestamp("us", "UTC")),
        ("local", pa.timestamp("us")),
        ("l", pa.list_(pa.field("array", pa.int32()))),
    ]
)


def typed_rows() -> pa.Table:
    nan = float("nan")
    columns = {
        "b": [True, False, None, True],
        "i": [None, -(2**62), 0, 2**62],
        "f": [nan, None, -1.5, 2.5, float("inf"), float("-inf"), -0.0],
        "g": [0.1, nan, None],
        "d": [decimal.Decimal("0.001"), None, decimal.Decimal("99999999999999999.999"), decimal.Decimal("-1.000")],
        "s": ["", "é", None, "x'y", "Z"],
        "day": [date(1969, 12, 31), None, date(2026, 1, 1)],
        "z": [MOMENT, None, MOMENT + timedelta(microseconds=1), datetime(1960, 1, 1, tzinfo=UTC)],
        "local": [MOMENT.replace(tzinfo=None), None],
        "l": [[1, None], None, []],
    }
    cycles = {name: itertools.cycle(values) for name, values in columns.items()}
    return pa.Table.from_pylist([{"id": at, **{name: next(c) for name, c in cycles.items()}} for at in range(60)], TYPED)


CONDITIONS = [
    "b", "not b", "b is null", "i > 0", "i <> 0", "not (i > 0)", "f > 1", "f >= 2.5", "f < 1", "f <> 2.5", "f = 'nan'", "f <> 'nan'",
    "f = 'inf'", "f = 0", "f in (2.5, 'nan')", "not (f < 1)", "f is null", "f between -2 and 3", "g > 0.05", "g = 0.1::float", "g <> 0.1::float",
    "d = 0.001", "d > 0.0005", "d < 99999999999999999.9985", "d in (0.001, -1)", "d is distinct from 0.001", "s = ''", "s > 'Z'", "s like 'x''%'",
    "s in ('é', 'Z')", "s not in ('é', 'Z')", "s is null or i is null", "day = date '1969-12-31'", "day < date '2000-01-01'",
    "z = timestamptz '2026-01-01 12:30:00.123456Z'", "z > timestamptz '2026-01-01 14:30:00.123456+02'", "z < timestamptz '1970-01-01'",
    "local = timestamp '2026-01-01 12:30:00.123456'", "l is null", "id % 7 = 3 and f > 1 or s = 'Z'", ("id in (select i // (2**62)::bigint "
                                                                                                      "from trips)"),
]  # fmt: skip


@pytest.fixture(scope="module", params=["cow", "mor"])
def typed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tideline.Table:
    """Rows of all types. Of the merge-on-read table a third lies in log files, above versions of other values."""
    rows = typed_rows()
    table = tideline.create(tmp_path_factory.mktemp("sql") / "trips", schema=rows.schema, key="id", type=request.param)
    old = rows.slice(0, 20).set_column(2, rows.schema.field("i"), pa.array(range(20), pa.int64()))
    table.bulk_insert(pa.concat_tables([old, rows.slice(20)]))
    table.upsert(rows.slice(0, 20))
    return table


@pytest.mark.parametrize("condition", CONDITIONS)
def test_results_are_those_of_the_same_rows_in_memory(typed: tideline.Table, condition: str) -> None:
    trips = typed_rows()  # the name by which the query finds them
    query = f"select * from trips where {condition} order by id"
    with duckdb.connect() as memory:
        memory.execute("set TimeZone = 'UTC'")
        expected = memory.sql(query).to_arrow_table()
    found = typed.sql(query).to_arrow_table()
    assert found.schema == expected.schema
    assert str(found.to_pylist()) == str(expected.to_pylist())  # as text: NaN equals NaN
    assert trips.num_rows == 60


@pytest.mark.parametrize("condition", [c for c in CONDITIONS if c[0] in "fg"])
def test_where_selects_what_sql_selects(typed: tideline.Table, condition: str) -> None:
    ids = typed.sql(f"select id from trips where {condition} order by id").fetchall()
    text = condition.replace("::float", "")
    assert sorted(typed.read(["id"], text).column("id").to_pylist()) == [found for (found,) in ids]


def test_columns_that_differ_by_case_alone_are_refused(tmp_path: Path) -> None:
    """The query for "X" was answered with x."""
    rows = pa.table({"id": ["a"], "x": [1], "X": [2]})
    table = tideline.create(tmp_path / "t", schema=rows.schema, key="id")
    table.upsert(rows)
    with pytest.raises(SchemaMismatch, match="'x' and 'X', which SQL does not tell apart"):
        table.sql('select "X" from t')
    assert table.read(["X"], '"X" = 2').to_pylist() == [{"X": 2}]


class Reads:
    """What was asked of the engine's snapshots."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.scans: list[tuple[list[str] | None, str]] = []
        original = Snapshot.scan

        def scan(snapshot, columns=None, where=None, keys=None):
            self.scans.append((columns, str(where)))
            return original(snapshot, columns, where, keys)

        monkeypatch.setattr(Snapshot, "scan", scan)


def test_only_needed_columns_are_read_and_filters_arrive(table: tideline.Table, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Reads(monkeypatch)
    assert table.sql("select day, count(*) from trips where fare > 100 and day = 'mon' group by day").fetchall() == [("mon", 1)]
    ((columns, where),) = asked.scans
    assert set(columns) <= {"day", "fare"}
    assert 'day == "mon"' in where


def test_chunks_of_columns_that_a_query_does_not_name_are_not_read(tmp_path: Path) -> None:
    rows = pa.table({"id": [str(n) for n in range(50)], "v": list(range(50)), "wide": [f"{n}" * 1000 for n in range(50)]})
    table = tideline.create(tmp_path / "trips", schema=rows.schema, key="id")
    table.bulk_insert(rows)
    (file,) = (tmp_path / "trips").glob("*.parquet")
    footer = pq.ParquetFile(file)
    at = footer.schema_arrow.names.index("wide")
    chunk = footer.metadata.row_group(0).column(at)
    start = chunk.dictionary_page_offset or chunk.data_page_offset
    content = bytearray(file.read_bytes())
    content[start : start + chunk.total_compressed_size] = b"\xff" * chunk.total_compressed_size
    file.write_bytes(content)
    assert table.sql("select sum(v) from trips where id < '5'").fetchall() == [(sum(n for n in range(50) if str(n) < "5"),)]
    with pytest.raises(duckdb.Error, match=r"cannot be read"):
        table.sql("select wide from trips").fetchall()


def test_each_evaluation_reads_anew(table: tideline.Table) -> None:
    relation = table.sql("select id from trips where fare > 100 order by id")
    assert relation.fetchall() == [("b",)]
    tideline.open(table.path).upsert(trips_of(("d", "tue", 300.0, 1)))
    assert relation.fetchall() == [("b",), ("d",)]


def test_a_changed_type_is_named(tmp_path: Path) -> None:
    rows = pa.table({"id": ["a"], "v": pa.array([1], pa.int32())})
    table = tideline.create(tmp_path / "trips", schema=rows.schema, key="id", options={"tideline.write.schema.evolution": "evolve"})
    table.upsert(rows)
    relation = table.sql("select v from trips")
    table.upsert(pa.table({"id": ["b"], "v": pa.array([2**40], pa.int64())}))
    with pytest.raises(duckdb.Error, match="create the query again"):
        relation.fetchall()
    assert sorted(table.sql("select v from trips").fetchall()) == [(1,), (2**40,)]


def test_tables_are_joined_in_one_connection(table: tideline.Table, tmp_path: Path) -> None:
    days = tideline.create(tmp_path / "days of work", schema=pa.schema([("day", pa.string()), ("n", pa.int32())]), key="day")
    days.upsert(pa.table({"day": ["mon"], "n": pa.array([1], pa.int32())}))
    with duckdb.connect() as connection:
        days.sql('from "days of work"', connection=connection)
        joined = table.sql('select id, n from trips join "days of work" using (day) order by id', connection=connection)
        assert joined.fetchall() == [("a", 1), ("b", 1)]
    work, trips = days.dataset(), table.dataset()
    assert duckdb.sql("select count(*) from trips join work using (day)").fetchall() == [(2,)]
    assert isinstance(work, ds.Dataset)
    assert isinstance(trips, ds.Dataset)


def test_python_variables_are_not_taken_for_tables(table: tideline.Table) -> None:
    query = pa.table({"x": [1]})
    with pytest.raises(duckdb.CatalogException):
        table.sql("select * from query")
    assert query.num_rows == 1
    with pytest.raises(duckdb.Error):
        table.sql("selekt")


def test_the_dataset_is_one_for_arrow(table: tideline.Table) -> None:
    dataset = table.dataset()
    assert dataset.schema == table.schema
    assert ids(dataset.to_table(columns=["id"], filter=ds.field("fare") > 100)) == ["b"]
    assert dataset.count_rows() == 3
    assert dataset.head(2).num_rows == 2
    assert dataset.head(9).num_rows == 3
    assert dataset.take([2, 0]).num_rows == 2
    assert sum(batch.num_rows for batch in dataset.to_batches()) == 3
    assert repr(dataset)


@pytest.mark.parametrize(
    "call",
    [
        lambda d: d.get_fragments(),
        lambda d: d.filter(ds.field("fare") > 1),
        lambda d: d.join(d, "id"),
        lambda d: d.sort_by("id"),
        lambda d: d.replace_schema(d.schema),
        pickle.dumps,
    ],
)
def test_what_needs_fragments_raises(table: tideline.Table, call) -> None:
    with pytest.raises((NotImplementedError, TypeError)):
        call(table.dataset())


def test_nothing_of_arrows_dataset_is_left_that_would_crash(table: tideline.Table) -> None:
    """The base class has no dataset of Arrow below it: a method that reaches for one would end the process."""
    code = f"""
import pyarrow.dataset as ds, tideline
d = tideline.open({table.path!r}).dataset()
for name in dir(ds.Dataset):
    if name.startswith("__") and name not in ("__repr__", "__str__", "__eq__", "__hash__"):
        continue
    found = getattr(d, name)
    for given in ((), (d,), ("id",), (ds.field("fare") > 1,), ([0],), (d, "id"), (d, "id", "id", 1)):
        try:
            found(*given)
        except BaseException as error:
            pass
print("alive")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.returncode) == ("alive", 0), done.stderr


def test_a_query_that_stops_early_lets_the_process_end(tmp_path: Path) -> None:
    """Readers left before their end must have no threads that call into Python when it has ended."""
    rows = pa.table({"id": [str(n) for n in range(50_000)], "p": [str(n % 8) for n in range(50_000)], "v": list(range(50_000))})
    tideline.create(tmp_path / "trips", schema=rows.schema, key="id", partition="p").bulk_insert(rows)
    code = f"""
import tideline
table = tideline.open({str(tmp_path / "trips")!r})
print(len(table.sql("select v from trips limit 1").fetchall()), table.dataset().head(1).num_rows)
reader = table.scan()
reader.read_next_batch()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.returncode) == ("1 1", 0), done.stderr


def test_tables_that_apache_hudi_wrote_are_queried(tmp_path: Path) -> None:
    base = unpacked("tables", "quickstart_trips_table_mor_avro_v6_trips_8i1u", tmp_path)
    table = tideline.open(base)
    rows = table.read()
    assert rows.num_rows == 8
    assert table.sql(f"select count(*), max(fare) from {base.name}").fetchall() == [(8, max(rows["fare"].to_pylist()))]
    assert isinstance(table.changes().until, str)
    assert table.changes(since=table.changes().until).read().num_rows == 0
    with pytest.raises(InvalidInput, match="only Apache Hudi writes"):
        table.upsert(rows)
