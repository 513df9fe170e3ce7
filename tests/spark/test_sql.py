"""Statements of Spark on tables by path and by name: each change is one commit, and ends as Spark itself computes it."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

import tideline
from tideline_spark.data_source import TidelineDataSource
from tideline_spark.read import read
from tideline_spark.sql import sql
from tideline_spark.write import write_dataframe
from tideline_table.errors import InvalidOption, InvalidStatement, SchemaMismatch, TableExists, TidelineError, UnsupportedTable
from tideline_table.log_format import scan_log
from tideline_table.table import Table
from tideline_table.writer import Operation

COLUMNS = "id string, day string, fare double, place struct<x:int,y:string>, at timestamp"


@pytest.fixture
def base(spark: SparkSession, tmp_path: Path) -> str:
    path = str(tmp_path / "trips")
    assert (
        sql(
            spark,
            f"create table `{path}` ({COLUMNS}) using hudi partitioned by (day) tblproperties (primaryKey = 'id', type = 'mor')",
        )
        is None
    )
    done = sql(
        spark,
        f"insert into `{path}` values ('a', 'mon', 1.0, named_struct('x', 1, 'y', 'q'), timestamp '2024-01-01 00:00:00'), "
        "('b', 'tue', 2.0, null, null), ('c', 'tue', 3.0, null, null)",
    )
    assert isinstance(done, tideline.Commit)
    return path


def rows(found: object) -> list[tuple[object, ...]]:
    assert isinstance(found, DataFrame)
    return sorted(tuple(row) for row in found.collect())


def commits(path: str) -> int:
    return len(tideline.open(path).inspect.history())


def test_a_table_is_created_as_the_statement_says(spark: SparkSession, tmp_path: Path, base: str) -> None:
    table = tideline.open(base)
    assert (table.name, table.inspect.key, table.inspect.partition, table.inspect.type) == ("trips", ("id",), ("day",), "mor")
    assert [p["partition"] for p in table.inspect.partitions().to_pylist()] == ["day=mon", "day=tue"]
    assert str(table.schema.field("place").type) == "struct<x: int32, y: string>"
    with pytest.raises(TableExists):
        sql(spark, f"create table `{base}` (id string) tblproperties (primaryKey = 'id')")
    assert sql(spark, f"create table if not exists `{base}` (id string) tblproperties (primaryKey = 'id')") is None
    place = tmp_path / "copy"
    options = "options (primaryKey = 'id', preCombineField = 'fare', 'hoodie.datasource.write.hive_style_partitioning' = 'false')"
    query = f"select id, day, fare from `{base}`"
    sql(spark, f"create table copied using tideline {options} partitioned by (day) location '{place}' as {query}")
    copied = tideline.open(place)
    assert (copied.name, copied.inspect.ordering, copied.read().num_rows) == ("copied", "fare", 3)
    assert {p["partition"] for p in copied.inspect.partitions().to_pylist()} == {"mon", "tue"}


def test_queries_name_tables_by_path_and_name(spark: SparkSession, base: str) -> None:
    before = tideline.open(base).inspect.history()["instant"][0].as_py()
    done = sql(spark, f"insert into `{base}` (id, day) values ('d', 'wed')")
    assert isinstance(done, tideline.Commit)
    for sequence, count in ((done.sequence, 4), (done.sequence - 1, 3)):
        assert rows(sql(spark, f"select count(*) from `{base}` version as of {sequence}")) == [(count,)]
    spark.createDataFrame([("mon", 1), ("tue", 2)], "day string, n int").createOrReplaceTempView("days")
    query = "with t as (select * from trips) select t.id, place.x, n from t join days on t.day = days.day where n < 3"
    assert rows(sql(spark, query, {"Trips": base})) == [("a", 1, 1), ("b", None, 2), ("c", None, 2)]
    assert rows(sql(spark, f"select count(*) from `{base}` timestamp as of '{before}'")) == [(3,)]
    assert rows(
        sql(spark, f"select count(*) from tideline.`{base}` version as of '{before}' v join `{base}` w on v.id = w.id")
    ) == [(3,)]
    assert rows(sql(spark, "SHOW PARTITIONS trips", {"trips": base})) == [("day=mon",), ("day=tue",), ("day=wed",)]


def test_each_change_is_one_commit(spark: SparkSession, base: str) -> None:
    before = commits(base)
    done = sql(spark, f"update `{base}` set fare = fare * 2, place = named_struct('x', 5, 'y', day) where day = 'tue' and id > 'b'")
    assert isinstance(done, tideline.Commit)
    assert done.rows_updated == 1
    spark.createDataFrame([("b",), ("z",)], "id string").createOrReplaceTempView("gone")
    assert sql(spark, f"delete from `{base}` where id in (select id from gone)").rows_deleted == 1
    spark.createDataFrame(
        [("a", 10.0, "mon"), ("n", 20.0, "new"), ("c", None, "tue")], "id string, fare double, day string"
    ).createOrReplaceTempView("s")
    done = sql(
        spark,
        "merge into trips t using (select *, upper(id) as big from s) s on t.id = s.id and t.day = s.day "
        "when matched and s.fare is null then delete when matched then update set fare = t.fare + s.fare "
        "when not matched then insert (id, day, fare) values (s.big, s.day, s.fare)",
        {"trips": base},
    )
    assert (done.rows_updated, done.rows_deleted, done.rows_inserted) == (1, 1, 1)
    assert commits(base) == before + 3
    assert rows(sql(spark, f"select id, fare from `{base}`")) == [("N", 20.0), ("a", 11.0)]
    spark.conf.set("spark.sql.sources.partitionOverwriteMode", "DYNAMIC")
    try:
        sql(spark, f"insert overwrite `{base}` select 'x', 'mon', 1, null, null")
    finally:
        spark.conf.unset("spark.sql.sources.partitionOverwriteMode")
    assert rows(sql(spark, f"select id, fare from `{base}`")) == [("N", 20.0), ("x", 1.0)]
    sql(spark, f"insert overwrite `{base}` select 'y', 'tue', 2, null, null")
    assert rows(sql(spark, f"select id, fare from `{base}`")) == [("y", 2.0)]


def test_constants_of_a_partition(spark: SparkSession, base: str) -> None:
    found = f"select id, fare, day from `{base}` where day in ('mon', 'new')"
    sql(spark, f"insert into `{base}` partition (day = 'new') (id, fare) select id, fare + 1 from `{base}` where id = 'a'")
    assert rows(sql(spark, found)) == [("a", 1.0, "mon"), ("a", 2.0, "new")]
    sql(spark, f"insert overwrite table `{base}` partition (day = 'new') select 'z', 7, null, null")
    assert rows(sql(spark, found)) == [("a", 1.0, "mon"), ("z", 7.0, "new")]
    done = sql(spark, f"insert overwrite `{base}` partition (day = 'new') select id, fare, at, place from `{base}` where id = 'no'")
    assert isinstance(done, tideline.Commit)
    assert done.rows_deleted == 1
    assert rows(sql(spark, found)) == [("a", 1.0, "mon")]


def test_a_table_without_a_primary_key_takes_rows_and_no_change(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    sql(spark, f"create table `{path}` (id string, n int)")
    for _ in range(2):
        sql(spark, f"insert into `{path}` values ('a', 1)")
    found = sql(spark, f"select * from `{path}`")
    assert found is not None
    assert [(row.id, row.n) for row in found.collect()] == [("a", 1)] * 2
    with pytest.raises(UnsupportedTable, match="no record key columns"):
        sql(spark, f"delete from `{path}` where n = 1")


@pytest.mark.parametrize(
    ("statement", "error", "words"),
    [
        ("drop table `{base}`", InvalidStatement, "expected SELECT, INSERT"),
        ("select 1; select 2", InvalidStatement, "2 statements"),
        ("update trips set fare = 1", InvalidOption, "a path in backticks"),
        ("insert into `{base}` select 1, 2", SchemaMismatch, "2 value"),
        (
            "insert into `{base}` (id, day, fare) values ('d', 'mon', 'x')",
            SchemaMismatch,
            "string for column 'fare' of type double",
        ),
        ("insert into `{base}` (id, day, at) values ('d', 'mon', 5)", SchemaMismatch, "int for column 'at' of type timestamp"),
        (
            "insert into `{base}` (id, day, place) values ('d', 'mon', named_struct('x', 'one', 'y', 'q'))",
            SchemaMismatch,
            "'place'",
        ),
        ("insert into `{base}` partition (day = 'x') select 1", SchemaMismatch, "1 value"),
        ("insert into `{base}` partition (fare = 1) select 1", InvalidStatement, "PARTITION with fare"),
        ("insert overwrite `{base}` partition (day) select 'd', 'mon', 1, null, null", InvalidStatement, "values of all"),
        ("create table trips (id string) tblproperties (primaryKey = 'id')", InvalidStatement, "without a place"),
        ("create table `{base}2` (id string) using delta tblproperties (primaryKey = 'id')", InvalidStatement, "USING delta"),
        ("create table `{base}2` (id string) tblproperties (primaryKey = 'nothing')", SchemaMismatch, "'nothing'"),
        ("select * from `{base}` timestamp as of current_timestamp()", InvalidStatement, "TIMESTAMP AS OF"),
    ],
)
def test_what_is_not_done_is_refused_by_name(
    spark: SparkSession, base: str, statement: str, error: type[Exception], words: str
) -> None:
    before = commits(base)
    with pytest.raises(error, match=words):
        sql(spark, statement.format(base=base))
    assert commits(base) == before
    assert not Path(base + "2").exists()


def test_numbers_that_a_column_cannot_hold_fail_the_statement(spark: SparkSession, tmp_path: Path) -> None:
    """Without ANSI mode, a cast wraps whole numbers, and makes null of a decimal and infinity of a double."""
    path = str(tmp_path / "numbers")
    columns = "id string, n int, m decimal(4,2), f float"
    sql(spark, f"create table `{path}` ({columns}) tblproperties (primaryKey = 'id')")
    spark.conf.set("spark.sql.ansi.enabled", "false")
    try:
        for column, value in (("n", "3000000000"), ("n", "3e9D"), ("n", "double('NaN')"), ("m", "123.45"), ("f", "1e300D")):
            with pytest.raises(TidelineError, match=f"column '{column}' of type .* cannot hold"):
                sql(spark, f"insert into `{path}` (id, {column}) values ('a', {value})")
    finally:
        spark.conf.unset("spark.sql.ansi.enabled")
    assert commits(path) == 0
    sql(spark, f"insert into `{path}` values ('a', 7L, 1.5, double('Infinity')), ('b', null, 2, 2.5)")
    assert rows(sql(spark, f"select id, n, cast(m as string), f from `{path}`")) == [
        ("a", 7, "1.50", float("inf")),
        ("b", None, "2.00", 2.5),
    ]


def test_functions_show_changes_history_files_and_partitions(spark: SparkSession, base: str) -> None:
    first = tideline.open(base).inspect.history().to_pylist()[0]["sequence"]
    sql(spark, f"delete from `{base}` where id = 'a'")
    changed = sql(spark, f"select op, before.id from tideline_changes('{base}', {first}) where op = 'd'")
    assert rows(changed) == [("d", "a")]
    named = {"trips": base}
    assert rows(sql(spark, "select count(*) from tideline_history('trips') h where h.action = 'deltacommit'", named)) == [(2,)]
    assert rows(sql(spark, "select partition, rows from tideline_partitions('trips')", named))[1] == ("day=tue", 2)
    files = sql(spark, f"select partition, size(log_files) from tideline_files('{base}')")
    assert {row[0] for row in rows(files)} == {"day=mon", "day=tue"}
    with pytest.raises(InvalidStatement, match="path or name of a table"):
        sql(spark, "select * from tideline_history()")


def test_procedures_run_table_services(spark: SparkSession, base: str) -> None:
    sql(spark, f"update `{base}` set fare = 9 where id = 'b'")
    done = sql(spark, f"call compact('{base}')", options={"hoodie.compact.inline.max.delta.commits": 1})
    assert ("log_files_merged", "1") in rows(done)
    saved = dict(rows(sql(spark, "CALL create_savepoint('trips');", {"trips": base})))
    sql(spark, f"delete from `{base}`")
    sql(spark, f"call restore('{base}', '{saved['instant']}')")
    assert rows(sql(spark, f"select id, fare from `{base}`")) == [("a", 1.0), ("b", 9.0), ("c", 3.0)]
    for text in ("vacuum('x')", f"clean('{base}'), clean('{base}')", f"clean('{base}') from x"):
        with pytest.raises(InvalidStatement, match="one of compact, log_compact"):
            sql(spark, f"call {text}")
    for text in (f"restore('{base}')", f"clean('{base}', 'x')", f"restore('{base}', instant => '1')", "clean(other.trips, null)"):
        with pytest.raises(InvalidStatement, match="the path or name of a table"):
            sql(spark, f"call {text}")
    with pytest.raises(TidelineError, match=r"other\.trips"):  # not the `trips` of another database
        sql(spark, "call clean(other.trips)", {"trips": base})


def test_a_table_without_rows_has_no_files(spark: SparkSession, tmp_path: Path) -> None:
    sql(spark, f"create table `{tmp_path / 'new'}` ({COLUMNS}) tblproperties (primaryKey = 'id')")
    assert rows(sql(spark, f"select path, log_files from tideline_files('{tmp_path / 'new'}')")) == []


PARTIAL = "hoodie.spark.sql.merge.into.partial.updates"
DUE = {"hoodie.compact.inline.max.delta.commits": 1, "hoodie.log.compaction.blocks.threshold": 2}
MERGE = (
    "merge into `{base}` t using incoming s on t.id = s.id and t.day = s.day when matched and s.fare is null then delete "
    "when matched and t.id = 'b' then update set at = timestamp '2024-02-02 00:00:00' "
    "when matched then update set place = named_struct('x', 9, 'y', s.id) "
    "when not matched then insert (id, day, fare) values (s.id, s.day, 8.5)"
)
CHANGES = {
    "update `{base}` set fare = fare + 0.5 where id < 'c'": True,
    MERGE: True,
    "update `{base}` set day = 'wed', fare = 4 where id = 'b'": True,
    "call log_compact('{base}')": True,
    "update `{base}` set place = null where fare > 2": True,
    "call compact('{base}')": False,
    "update `{base}` set fare = 7 where place is null": True,
}
"""Statements, and whether log files of the newest slices have partial records behind each."""


def partial_blocks(table: Table) -> int:
    slices = table.refresh().latest_slices()
    return sum(block.is_partial for found in slices for path in found.log_paths for block in scan_log(table.storage, path).blocks)


@pytest.mark.parametrize("place", [{}, {"tideline.spark.scan.base.bytes": 0}], ids=["by the engine", "divided"])
def test_statements_append_partial_records(spark: SparkSession, tmp_path: Path, place: dict[str, object]) -> None:
    """The option of a statement is that of `tideline.open`. Spark reads the same rows as from a table without partial records."""
    incoming = [("a", 10.0, "mon"), ("b", 1.0, "tue"), ("c", None, "tue"), ("n", 2.0, "mon")]
    spark.createDataFrame(incoming, "id string, fare double, day string").createOrReplaceTempView("incoming")
    paths = {on: str(tmp_path / on) for on in ("true", "false")}
    for path in paths.values():
        defined = "primaryKey = 'id', type = 'mor', recordMergeMode = 'COMMIT_TIME_ORDERING', 'hoodie.write.table.version' = '9'"
        sql(spark, f"create table `{path}` ({COLUMNS}) using hudi partitioned by (day) tblproperties ({defined})")
        first = (
            "('a', 'mon', 1.0, named_struct('x', 1, 'y', 'q'), null), ('b', 'tue', 2.0, null, null), ('d', 'tue', 3.0, null, null)"
        )
        sql(spark, f"insert into `{path}` values {first}, ('c', 'tue', 3.5, null, timestamp '2024-01-01 00:00:00')")
    for change, has_parts in CHANGES.items():
        read_by_spark = []
        for on, path in paths.items():
            sql(spark, change.format(base=path), options={PARTIAL: on, **DUE})
            table = Table.open(path, options=place)
            assert bool(partial_blocks(table)) == (has_parts and on == "true"), change
            found = read(spark, table)
            read_by_spark.append(rows(found.select("id", "day", "fare", "place", "at")))
            keyed = ["id", "day", "fare", "place", "at"]
            assert (
                found.select(keyed).toArrow().sort_by("id").to_pylist() == tideline.open(path).read(keyed).sort_by("id").to_pylist()
            )
        assert read_by_spark[0] == read_by_spark[1], change
    assert [row[:3] for row in read_by_spark[0]] == [("a", "mon", 1.5), ("b", "wed", 7.0), ("d", "tue", 7.0), ("n", "mon", 7.0)]


def test_writes_of_dataframes_have_whole_rows(spark: SparkSession, tmp_path: Path) -> None:
    """They bring all columns; the option changes nothing."""
    path = str(tmp_path / "t")
    tideline.create(
        path, schema="id VARCHAR, fare DOUBLE, note VARCHAR", key="id", merge="commit_time", type="mor", table_version=9
    )
    df = spark.createDataFrame([("a", 1.0, "x"), ("b", 2.0, "y")], "id string, fare double, note string")
    write_dataframe(path, df, Operation.UPSERT)
    change = df.where("id = 'a'").selectExpr("id", "fare + 1 as fare", "note")
    spark.dataSource.register(TidelineDataSource)
    change.write.format("tideline").option("hoodie.datasource.write.operation", "upsert").option(PARTIAL, "true").mode(
        "append"
    ).save(path)
    assert partial_blocks(Table.open(path)) == 0
    assert rows(sql(spark, f"select id, fare, note from `{path}`")) == [("a", 2.0, "x"), ("b", 2.0, "y")]
