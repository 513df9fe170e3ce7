"""SQL statements that change or query tables."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.unit.tideline.conftest import FIRST, SCHEMA, sorted_rows, trips_of

import tideline
from tideline_table.errors import InvalidStatement


def fares(table: tideline.Table) -> dict[str, float | None]:
    return {row["id"]: row["fare"] for row in sorted_rows(table.read())}


def changed(statement: str, table: tideline.Table, **others: tideline.Table) -> tuple[int, int, int]:
    done = tideline.sql(statement, {"trips": table, **others})
    assert isinstance(done, tideline.Commit)
    return done.rows_inserted, done.rows_updated, done.rows_deleted


@pytest.fixture
def other(tmp_path: Path) -> tideline.Table:
    made = tideline.create(tmp_path / "other", schema=SCHEMA, key="id", partition="day")
    made.upsert(trips_of(("a", "mon", 1.0, 7), ("z", "sun", 2.0, 7)))
    return made


def test_tables_are_named_by_path(table: tideline.Table) -> None:
    path = table.path.removeprefix("file://")
    done = tideline.sql(f"update \"{path}\" set FARE = fare + 1 where day = 'mon'")
    assert isinstance(done, tideline.Commit)
    assert fares(table) == {"a": 91.0, "b": 201.0, "c": None}
    found = tideline.sql(f'select count(*) as n from "{path}"')
    assert isinstance(found, pa.RecordBatchReader)
    assert found.read_all().to_pylist() == [{"n": 3}]


def test_a_statement_reads_rows_in_memory_and_does_not_change_them(table: tideline.Table) -> None:
    rows = pa.table({"id": ["a", "n"], "day": ["mon", "new"], "fare": [9.0, 8.0], "updated_at": [50, 50]})
    named = {"t": table, "New": rows}
    done = tideline.sql(
        "merge into t using new s on t.id = s.id when matched then update set fare = s.fare when not matched then insert *", named
    )
    assert (done.rows_updated, done.rows_inserted) == (1, 1)
    assert {row["id"]: row["fare"] for row in table.read().to_pylist()}["n"] == 8.0
    assert tideline.sql("select count(*) as n from new join t using (id)", named).read_all()["n"].to_pylist() == [2]
    with pytest.raises(tideline.errors.InvalidInput, match="rows in memory, as a table that is changed"):
        tideline.sql("delete from new", named)


def test_update_and_delete(table: tideline.Table, other: tideline.Table) -> None:
    assert changed("update trips as t set fare = t.fare * 2 where t.id in (select id from other)", table, other=other) == (0, 1, 0)
    assert changed("delete from trips where trips.fare >= 180 and length(trips.id) = 1 and id <> 'b'", table) == (0, 0, 1)
    assert fares(table) == {"b": 200.0, "c": None}
    assert changed("delete from trips", table) == (0, 0, 2)


def test_a_condition_may_compare_with_the_table_itself(table: tideline.Table) -> None:
    assert changed("delete from trips where fare = (select max(fare) from trips)", table) == (0, 0, 1)
    assert fares(table) == {"a": 90.0, "c": None}


@pytest.mark.parametrize(
    ("statement", "counts", "expected"),
    [
        ("delete from trips where fare = (select max(fare) from trips) and day = 'tue'", (0, 0, 0), [90.0, 200.0, None]),
        ("update trips set fare = (select max(fare) from trips) where id = 'a'", (0, 1, 0), [200.0, 200.0, None]),
        (
            "merge into trips using (select 'a' as i) on id = i when matched and 3 = (select count(*) from trips) then delete",
            (0, 0, 1),
            [200.0, None],
        ),
    ],
)
def test_a_subquery_reads_all_rows_of_the_table(
    table: tideline.Table, statement: str, counts: tuple[int, int, int], expected: list[float | None]
) -> None:
    assert changed(statement, table) == counts
    assert list(fares(table).values()) == expected


@pytest.mark.parametrize("condition", ["id like '_\\_%'", "id like '_\\_%' and fare > 0"])
def test_a_backslash_in_like_is_a_character(table: tideline.Table, condition: str) -> None:
    table.upsert(trips_of(("x_y", "mon", 1.0, 1), ("x\\yz", "mon", 2.0, 1)))
    assert changed(f"delete from trips where {condition}", table) == (0, 0, 1)
    assert sorted(fares(table)) == ["a", "b", "c", "x_y"]


def test_integers_that_no_double_holds_compare_with_doubles(table: tideline.Table) -> None:
    table.upsert(trips_of(("z", "mon", 5.0, 9007199254740993)))
    assert changed("delete from trips where updated_at > fare", table) == (0, 0, 1)
    assert sorted(fares(table)) == ["a", "b", "c"]


def test_an_alias_does_not_hide_a_table_of_the_same_name(table: tideline.Table, other: tideline.Table) -> None:
    assert changed("delete from trips other where id in (select id from other)", table, other=other) == (0, 0, 1)
    assert fares(table) == {"b": 200.0, "c": None}


def test_the_case_of_names_does_not_matter(table: tideline.Table, other: tideline.Table) -> None:
    assert changed("update TRIPS set fare = 5 where ID in (with Few as (select 'a' as id) select id from few)", table) == (0, 1, 0)
    shadowed = tideline.sql(
        "with trips as (select * from trips where day = 'mon') select count(*) as n from Trips", {"trips": table}
    )
    assert isinstance(shadowed, pa.RecordBatchReader)
    assert shadowed.read_all().to_pylist() == [{"n": 2}]
    merge = "merge into trips t using (select 'b' as Id, 7 as FARE, 'mon' as day) s on t.id = s.id when matched then update set *"
    assert changed(merge, table) == (0, 1, 0)
    assert fares(table) == {"a": 5.0, "b": 7.0, "c": None}
    with pytest.raises(InvalidStatement, match="names that differ by more than case"):
        tideline.sql("select * from trips join Trips o using (id)", {"trips": table, "Trips": other})


def test_the_columns_of_the_source_of_a_merge_may_be_named_by_its_alias(table: tideline.Table) -> None:
    assert changed("merge into trips t using (values ('a'), ('x')) s(k) on t.id = s.k when matched then delete", table) == (0, 0, 1)


def test_merge(table: tideline.Table, other: tideline.Table) -> None:
    statement = """merge into trips t using (select id, day, fare, updated_at from other) as s on t.id = s.id
        when matched and s.fare > 5 then delete
        when matched then update set fare = t.fare + s.fare
        when not matched then insert (id, day, fare, updated_at) values (s.id, s.day, s.fare * 10, 3)"""
    assert changed(statement, table, other=other) == (1, 1, 0)
    assert fares(table) == {"a": 91.0, "b": 200.0, "c": None, "z": 20.0}
    stars = "merge into trips using other on trips.id = other.id when matched then update set * when not matched then insert *"
    assert changed(stars, table, other=other) == (0, 2, 0)
    assert fares(table) == {"a": 1.0, "b": 200.0, "c": None, "z": 2.0}


def test_insert(table: tideline.Table, tmp_path: Path) -> None:
    assert changed("insert into trips values ('d', 'sun', 1, 2), ('e', 'sun', null, 3)", table) == (2, 0, 0)
    assert changed("insert into trips (updated_at, id, day) select 5, 'f', 'sun'", table) == (1, 0, 0)
    assert changed("insert into trips by name select 'g' as id, 'sun' as day", table) == (1, 0, 0)
    pq.write_table(trips_of(("h", "sun", 9.0, 1)), tmp_path / "rows.parquet")
    assert changed(f"insert into trips select * from '{tmp_path}/rows.parquet'", table) == (1, 0, 0)
    assert fares(table) == {"a": 90.0, "b": 200.0, "c": None, "d": 1.0, "e": None, "f": None, "g": None, "h": 9.0}


def test_an_insert_with_constants_of_the_partition(table: tideline.Table) -> None:
    assert changed("insert into trips partition (day = 'sun') values ('d', 1, 2)", table) == (1, 0, 0)
    assert changed("insert into trips partition (DAY = 'sun') (updated_at, id) select 3, 'e'", table) == (1, 0, 0)
    assert [(row["id"], row["day"]) for row in sorted_rows(table.read(where="day = 'sun'"))] == [("d", "sun"), ("e", "sun")]
    done = tideline.sql(
        "insert overwrite trips partition (day = 'sun') select id, 8, 9 from trips where id = 'e'", {"trips": table}
    )
    assert isinstance(done, tideline.Commit)
    assert fares(table) == {"a": 90.0, "b": 200.0, "c": None, "e": 8.0}
    commits = len(table.inspect.history())
    for _ in range(2):
        tideline.sql("insert overwrite trips partition (day = 'sun') select id, 8, 9 from trips where false", {"trips": table})
        assert fares(table) == {"a": 90.0, "b": 200.0, "c": None}
    assert len(table.inspect.history()) <= commits + 2


def test_queries_stream_rows_of_several_tables(table: tideline.Table, other: tideline.Table) -> None:
    query = "with both as (select t.fare + o.fare as total from trips t join o using (id)) select total from both"
    found = tideline.sql(query, {"trips": table.path, "o": other})
    assert isinstance(found, pa.RecordBatchReader)
    assert found.read_all().to_pylist() == [{"total": 91.0}]


@pytest.mark.parametrize(
    ("statement", "found"),
    [
        ("drop table trips", "the statement 'DROP TABLE trips'"),
        ("", "0 statements"),
        ("select 1; select 2", "2 statements"),
        ("delete from trips where fare > ", "a statement that cannot be parsed"),
        (f"delete from trips where {'(' * 300}true{')' * 300}", "a statement that is nested too deeply"),
        ("delete from trips using trips o where true", "DELETE with USING"),
        ("delete from trips where true returning *", "DELETE with RETURNING"),
        ("update trips set fare = 1 from trips o", "UPDATE with FROM"),
        ("update trips set fare = 1, Fare = 2", "two values for column 'fare'"),
        ("update trips set other.fare = 1", "SET other.fare"),
        ("insert overwrite trips select 1", "INSERT OVERWRITE of partitions with no value"),
        ("insert into trips partition (fare = 1) select 1", "PARTITION with fare"),
        ("insert into trips partition (day = id) select 1", "PARTITION with day"),
        ("insert into trips values (1) on conflict do nothing", "INSERT with CONFLICT"),
        ("merge into trips t using trips s using (id) when matched then delete", "MERGE with USING COND"),
        ("merge into trips t using trips s on t.id = s.id when not matched by source then delete", "WHEN NOT MATCHED BY SOURCE"),
        ("merge into trips t using trips s on t.id = s.id when matched then do nothing", "WHEN MATCHED THEN DO NOTHING"),
        ("delete from (select 1)", "a change of '(SELECT 1)'"),
    ],
)
def test_other_statements_are_refused_by_name(table: tideline.Table, statement: str, found: str) -> None:
    with pytest.raises(InvalidStatement) as caught:
        tideline.sql(statement, {"trips": table})
    assert caught.value.found.startswith(found)
    assert caught.value.expected
    assert len(table.read()) == 3


@pytest.mark.parametrize(
    ("statement", "found"),
    [
        ("delete from nope", "table 'nope'"),
        ("update trips set nope = 1", "column 'nope' is not in the table"),
        ("update trips set id = 'x'", "an update of column 'id'"),
        ("delete from trips where row_number() over (order by id) = 1 and day = 'tue'", "the window function"),
        ("update trips set fare = row_number() over (order by id)", "the window function"),
        ("insert into trips values (1)", "1 value(s) for the columns"),
        ("select nope from trips", "DuckDB refuses an expression"),
        ("select cast('x' as integer) from trips", "DuckDB refuses an expression"),
    ],
)
def test_statements_that_do_not_fit_the_table(table: tideline.Table, statement: str, found: str) -> None:
    with pytest.raises(tideline.errors.InvalidInput) as caught:
        tideline.sql(statement, {"trips": table}).read_all()  # type: ignore[union-attr]
    assert caught.value.found.startswith(found)


def test_a_statement_reads_the_past(table: tideline.Table) -> None:
    """By the number of a commit, its instant, a time; beside the present, in a change of rows, and never as what is changed."""
    path, first = table.path.removeprefix("file://"), table.upsert(trips_of(*FIRST))
    changed("update trips set fare = 7 where id = 'a'", table)
    before = f"AT (VERSION => {first.sequence})"

    def read(text: str) -> list[dict[str, object]]:
        found = tideline.sql(text, {"trips": table})
        assert isinstance(found, pa.RecordBatchReader)
        return found.read_all().to_pylist()

    for place in (before, f"at (version => '{first.instant}')", f"VERSION AS OF {first.sequence}"):
        assert read(f"select fare from trips {place} where trips.id = 'a'") == [{"fare": 90.0}]
    assert read(f"select fare from \"{path}\" at (timestamp => now() + interval 1 day) as t where t.id = 'a'") == [{"fare": 7.0}]
    both = f"select o.fare as old, n.fare as new from trips {before} as o join trips n using (id) where o.fare <> n.fare"
    assert read(both) == [{"old": 90.0, "new": 7.0}]
    merged = f"merge into trips using trips {before} as o on trips.id = o.id when matched then update set fare = o.fare"
    assert changed(merged, table) == (0, 3, 0)
    assert fares(table)["a"] == 90.0
    for refused, words in (
        (f"delete from trips {before}", "a change of"),
        ("select * from trips at (version => 1 + 1)", "AT "),
        ("select * from trips before (version => 1)", "BEFORE"),
    ):
        with pytest.raises(InvalidStatement, match=words):
            tideline.sql(refused, {"trips": table})
