"""Updates, deletions by a condition and merges: rows, refusals, and what happens beside other writers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import date, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from tests.unit.tideline.conftest import FIRST, SCHEMA, ids, sorted_rows, trips_of

import tideline
from tideline_table.action import WriteTransaction
from tideline_table.errors import InvalidPredicate

Write = Callable[[tideline.Table], object]


def fares(table: tideline.Table) -> dict[str, Any]:
    return {row["id"]: row["fare"] for row in sorted_rows(table.read())}


@contextmanager
def another_writer(monkeypatch: pytest.MonkeyPatch, path: str, write: Write) -> Iterator[None]:
    """Let another writer commit after a change has written its files, before it commits for the first time."""
    commit, done = WriteTransaction.commit, False

    def late(self: WriteTransaction, *arguments: Any, **named: Any) -> Any:
        nonlocal done
        if not done:
            done = True
            # Without reservations: with them, it waits half a minute for the writer that called it.
            write(tideline.open(path, options={"tideline.write.intent.wait": 0}))
        return commit(self, *arguments, **named)

    with monkeypatch.context() as patched:
        patched.setattr(WriteTransaction, "commit", late)
        yield
    assert done


def test_an_update_changes_the_rows_of_its_condition(table: tideline.Table) -> None:
    done = table.update({"fare": "fare * 2 + updated_at"}, "fare > 50")
    assert (done.rows_updated, done.rows_inserted, done.rows_deleted) == (2, 0, 0)
    assert fares(table) == {"a": 181.0, "b": 401.0, "c": None}


def test_values_of_an_update_are_computed_from_the_row_as_it_was(table: tideline.Table) -> None:
    table.update({"fare": "updated_at", "updated_at": "cast(fare as bigint)"}, "fare is not null")
    assert [(r["fare"], r["updated_at"]) for r in sorted_rows(table.read())] == [(1.0, 90), (1.0, 200), (None, 1)]


@pytest.mark.parametrize(
    ("value", "expected"), [(7, 7.0), (None, None), (pc.field("fare") + 1, 91.0), ("null", None), (pa.scalar(3), 3.0), ("'8'", 8.0)]
)
def test_values_are_objects_expressions_or_sql(table: tideline.Table, value: object, expected: float | None) -> None:
    table.update({"fare": value}, pc.field("id") == "a")
    assert fares(table) == {"a": expected, "b": 200.0, "c": None}


def test_conditions_that_only_duckdb_understands(table: tideline.Table) -> None:
    assert table.update({"fare": 0.0}, "upper(id) in ('A', 'C') and day = 'mon'").rows_updated == 1
    assert table.delete(where="fare % 7 = 4 or length(id) > 1").rows_deleted == 1
    assert fares(table) == {"a": 0.0, "c": None}


def test_without_a_condition_all_rows_are_updated(table: tideline.Table) -> None:
    assert table.update({"fare": 1.0}).rows_updated == 3
    assert set(fares(table).values()) == {1.0}


def test_a_deletion_by_condition_ignores_ordering_values(table: tideline.Table) -> None:
    table.upsert(trips_of(("a", "mon", 1.0, 900)))
    done = table.delete(where="day = 'mon'")
    assert (done.rows_deleted, done.rows_updated) == (2, 0)
    assert ids(table.read()) == ["c"]


def test_a_condition_that_no_row_meets_changes_nothing(table: tideline.Table) -> None:
    assert table.delete(where="fare > 1000").rows_deleted == 0
    assert table.update({"fare": 1.0}, "fare > 1000").rows_updated == 0
    assert fares(table) == {"a": 90.0, "b": 200.0, "c": None}


def test_an_update_of_the_partition_column_moves_rows(table: tideline.Table) -> None:
    assert table.update({"day": "'tue'"}, "id = 'a'").rows_updated == 1
    found = table.read(meta_fields=True).to_pylist()
    assert {(r["_hoodie_partition_path"], r["day"], r["id"]) for r in found} == {
        ("tue", "tue", "a"),
        ("mon", "mon", "b"),
        ("tue", "tue", "c"),
    }


def test_a_row_does_not_move_onto_another_row(table: tideline.Table) -> None:
    table.insert(trips_of(("a", "tue", 5.0, 1)))
    with pytest.raises(tideline.errors.InvalidInput, match="record key 'a' in partition 'tue' for more than one row"):
        table.update({"day": "'tue'"}, "day = 'mon'")
    assert len(table.read()) == 4


@pytest.mark.parametrize("index", ["GLOBAL_SIMPLE", "GLOBAL_BLOOM"])
@pytest.mark.parametrize("moves", ["true", "false"])
def test_with_a_global_index_rows_move_if_upserts_move_them(tmp_path: Path, index: str, moves: str) -> None:
    name = index.removeprefix("GLOBAL_").lower()
    options = {"hoodie.index.type": index, f"hoodie.{name}.index.update.partition.path": moves}
    made = tideline.create(tmp_path / "t", schema=SCHEMA, key="id", partition="day", options=options)
    made.upsert(trips_of(*FIRST))
    if moves == "true":
        made.update({"day": "'sun'"}, "id = 'a'")
        assert sorted(made.read(["day"], where="id = 'a'").to_pydict()["day"]) == ["sun"]
        return
    with pytest.raises(tideline.errors.InvalidInput, match="an update of the partition column"):
        made.update({"day": "'sun'"}, "id = 'a'")


@pytest.mark.parametrize("index", [tideline.BucketIndex(3), tideline.BloomIndex(), tideline.RecordIndex()])
@pytest.mark.parametrize("kind", ["cow", "mor"])
def test_changes_with_each_index_of_a_table(tmp_path: Path, index: Any, kind: str) -> None:
    made = tideline.create(tmp_path / "t", schema=SCHEMA, key="id", partition="day", ordering="updated_at", index=index, type=kind)
    made.upsert(trips_of(*((f"k{n}", "mon", float(n), 1) for n in range(20))))
    made.update({"fare": "-fare"}, "fare >= 10")
    made.delete(where="fare < -15")
    source = trips_of(("k1", "mon", 100.0, 2), ("k2", "mon", 0.0, 2), ("new", "mon", 1.0, 2))
    merged = made.merge(source, "id").when_matched_delete(condition="source.fare = 0").when_matched_update()
    merged.when_not_matched_insert().execute()
    expected = {f"k{n}": -float(n) if n >= 10 else float(n) for n in range(16) if n != 2} | {"k1": 100.0, "new": 1.0}
    assert fares(made) == expected


@pytest.mark.parametrize(
    ("assigned", "where", "found"),
    [
        ({"id": "'x'"}, None, "an update of column 'id', which the record key consists of"),
        ({"fee": "1"}, None, "column 'fee' is not in the table"),
        ({"updated_at": 0}, "id = 'a'", "a smaller value of the ordering column updated_at"),
        ({"fare": "done"}, None, "DuckDB refuses an expression"),
        ({"fare": "sum(fare)"}, None, "DuckDB refuses an expression"),
        ({"fare": "1; select 2"}, None, "value of column 'fare'"),
        ({"fare": "select 1"}, None, "value of column 'fare'"),
        ({"fare": date(2026, 1, 1)}, None, "for column 'fare'"),
        ({"fare": 1.0}, "fare ++", "condition 'fare ++' cannot be parsed"),
        ({}, None, "an update without columns"),
    ],
)
def test_an_update_is_refused_by_name(table: tideline.Table, assigned: dict[str, object], where: str | None, found: str) -> None:
    with pytest.raises(tideline.errors.InvalidInput) as caught:
        table.update(assigned, where)
    assert found in caught.value.found
    assert fares(table) == {"a": 90.0, "b": 200.0, "c": None}


def test_a_deletion_takes_keys_or_a_condition(table: tideline.Table) -> None:
    with pytest.raises(tideline.errors.InvalidInput, match="keys and a condition"):
        table.delete(["a"], where="fare > 1")
    with pytest.raises(tideline.errors.InvalidInput, match="keys of type NoneType"):
        table.delete()


# --- beside other writers ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("write", "expected"),
    [
        # a selected row changed, also so that it is selected no more
        (lambda t: t.upsert(trips_of(("a", "mon", 91.0, 2))), {"a": 182.0, "b": 400.0, "c": None}),
        (lambda t: t.upsert(trips_of(("a", "mon", 1.0, 2))), {"a": 1.0, "b": 400.0, "c": None}),
        (lambda t: t.delete([{"id": "a", "day": "mon"}]), {"b": 400.0, "c": None}),
        # a new row, or another row, is selected now
        (lambda t: t.upsert(trips_of(("z", "sun", 60.0, 2))), {"a": 180.0, "b": 400.0, "c": None, "z": 120.0}),
        (lambda t: t.upsert(trips_of(("c", "tue", 60.0, 2))), {"a": 180.0, "b": 400.0, "c": 120.0}),
        (lambda t: t.delete_partitions("mon"), {"c": None}),
    ],
)
def test_a_change_is_repeated_if_what_it_selects_changed(
    table: tideline.Table, monkeypatch: pytest.MonkeyPatch, write: Write, expected: dict[str, float | None]
) -> None:
    with another_writer(monkeypatch, table.path, write):
        done = table.update({"fare": "fare * 2"}, "fare > 50")
    assert done.attempts == 2
    assert fares(table) == expected


def test_a_change_ignores_rows_that_it_does_not_select(table: tideline.Table, monkeypatch: pytest.MonkeyPatch) -> None:
    with another_writer(monkeypatch, table.path, lambda t: t.upsert(trips_of(("z", "sun", 3.0, 2)))):
        done = table.update({"fare": "fare * 2"}, "fare > 50")
    assert done.attempts == 1
    assert fares(table) == {"a": 180.0, "b": 400.0, "c": None, "z": 3.0}


def test_a_merge_is_repeated_if_a_row_appears_that_matches(table: tideline.Table, monkeypatch: pytest.MonkeyPatch) -> None:
    source = trips_of(("z", "sun", 1.0, 5))
    merge = table.merge(source, "id").when_matched_update({"fare": "target.fare + source.fare"}).when_not_matched_insert()
    with another_writer(monkeypatch, table.path, lambda t: t.upsert(trips_of(("z", "sun", 3.0, 2)))):
        done = merge.execute()
    assert (done.attempts, done.rows_updated, done.rows_inserted) == (2, 1, 0)
    assert fares(table)["z"] == 4.0


def test_a_change_gives_up_after_its_retries(table: tideline.Table, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = another_writer(monkeypatch, table.path, lambda t: t.upsert(trips_of(("a", "mon", 91.0, 2))))
    with writer, pytest.raises(tideline.errors.Conflict, match="changed rows"):
        table.delete(where="fare > 50", options={"tideline.write.conflict.retries": 0})
    assert fares(table) == {"a": 91.0, "b": 200.0, "c": None}


# --- merges ------------------------------------------------------------------------------------------------------------------


def test_clauses_take_effect_in_order(table: tideline.Table) -> None:
    source = trips_of(
        ("a", "mon", -1.0, 2), ("b", "mon", 5.0, 2), ("c", "tue", 5.0, 2), ("d", "sun", 1.0, 2), ("e", "sun", None, 2)
    )
    done = (
        table.merge(source, ["id", "day"])
        .when_matched_delete(condition="source.fare < 0")
        .when_matched_update({"fare": "target.fare + source.fare"}, condition="target.fare is not null")
        .when_matched_update()
        .when_not_matched_insert({"id": "id", "day": "day", "fare": -1, "updated_at": 3}, condition="fare is null")
        .when_not_matched_insert()
        .execute()
    )
    assert (done.rows_updated, done.rows_deleted, done.rows_inserted) == (2, 1, 2)
    assert [tuple(r.values()) for r in sorted_rows(table.read())] == [
        ("b", "mon", 205.0, 1),
        ("c", "tue", 5.0, 2),
        ("d", "sun", 1.0, 2),
        ("e", "sun", -1.0, 3),
    ]


def test_a_merge_on_a_condition_over_other_columns(table: tideline.Table) -> None:
    source = pa.table({"trip": ["A", "c"], "extra": [1.0, 2.0]})
    merge = table.merge(source, "lower(source.trip) = target.id and target.fare is not null")
    assert merge.when_matched_update({"fare": "target.fare + extra"}).execute().rows_updated == 1
    assert fares(table) == {"a": 91.0, "b": 200.0, "c": None}


@pytest.mark.parametrize(
    ("merge", "found"),
    [
        (lambda t: t.merge(trips_of(FIRST[0], FIRST[0]), "id").when_matched_update(), "2 source rows for the target row"),
        (lambda t: t.merge(trips_of(FIRST[0]), "source.id = target.day").when_not_matched_insert(), "record key 'a'"),
        (lambda t: t.merge(trips_of(("z", "s", 1.0, 1), ("z", "s", 2.0, 1)), "id").when_not_matched_insert(), "record key 'z'"),
        (lambda t: t.merge(trips_of(FIRST[0]), "id").when_matched_update({"id": "'z'"}), "changes the record key (id)"),
        (lambda t: t.merge(trips_of(("a", "mon", 1.0, 0)), "id").when_matched_update(), "a smaller value of the ordering column"),
        (lambda t: t.merge(trips_of(FIRST[0]), "id").when_matched_update({"fee": 1}), "column 'fee' is not in the table"),
        (lambda t: t.merge(trips_of(FIRST[0]), ["id", "fee"]).when_matched_delete(), "a merge on column 'fee'"),
        (lambda t: t.merge(trips_of(FIRST[0]), []).when_matched_delete(), "a merge on no column"),
        (lambda t: t.merge(trips_of(FIRST[0]), "id"), "a merge without clauses"),
    ],
)
def test_a_merge_is_refused_by_name(table: tideline.Table, merge: Callable[[tideline.Table], tideline.Merge], found: str) -> None:
    with pytest.raises(tideline.errors.InvalidInput) as caught:
        merge(table).execute()
    assert found in caught.value.found
    assert fares(table) == {"a": 90.0, "b": 200.0, "c": None}


def test_several_source_rows_are_no_error_if_at_most_one_changes_the_row(table: tideline.Table) -> None:
    source = trips_of(("a", "mon", 1.0, 1), ("a", "mon", 2.0, 1))
    assert table.merge(source, "id").when_matched_update(condition="source.fare = 2").execute().rows_updated == 1
    assert fares(table)["a"] == 2.0


def test_partial_updates_do_not_hide_that_a_value_becomes_null(tmp_path: Path) -> None:
    """A table whose merge rule keeps stored values where a new row has nulls would ignore the update."""
    made = tideline.create(
        tmp_path / "t",
        schema=SCHEMA,
        key="id",
        ordering="updated_at",
    )
    properties = tmp_path / "t/.hoodie/hoodie.properties"
    text = properties.read_text()
    payload = "org.apache.hudi.common.model.OverwriteNonDefaultsWithLatestAvroPayload"
    lines = [
        line for line in text.splitlines() if not line.startswith(("hoodie.compaction.payload.class", "hoodie.table.checksum"))
    ]
    properties.write_text("\n".join([*lines, f"hoodie.compaction.payload.class={payload}"]) + "\n")
    made = tideline.open(tmp_path / "t")
    made.upsert(trips_of(*FIRST))
    made.update({"fare": 3.0}, "id = 'a'")
    with pytest.raises(tideline.errors.InvalidInput, match="leaves column 'fare' open"):
        made.update({"fare": None}, "id = 'a'")
    assert fares(made)["a"] == 3.0


@pytest.mark.parametrize(
    "statement",
    [
        "merge into trips t using (select id, fare * 2 as fare from trips) s on t.id = s.id when matched then update set *",
        "merge into trips t using (select 'b' as i) s on id = i when matched and (select sum(fare) from trips) > 250 then delete",
    ],
)
def test_a_merge_that_reads_its_own_table_is_repeated_if_the_table_changed(
    table: tideline.Table, monkeypatch: pytest.MonkeyPatch, statement: str
) -> None:
    with another_writer(monkeypatch, table.path, lambda beside: beside.upsert(trips_of(("a", "mon", 10.0, 9)))):
        done = tideline.sql(statement, {"trips": table})
    assert isinstance(done, tideline.Commit)
    assert done.attempts == 2
    assert fares(table) == ({"a": 20.0, "b": 400.0, "c": None} if "* 2" in statement else {"a": 10.0, "b": 200.0, "c": None})


def test_a_source_may_have_the_name_of_a_nested_column(tmp_path: Path) -> None:
    nested = pa.struct([("x", pa.int64())])
    schema = pa.schema([("id", pa.string()), ("n", pa.int64()), ("source", nested)])
    made = tideline.create(tmp_path / "t", schema=schema, key="id")
    made.upsert(pa.Table.from_pylist([{"id": "a", "n": 1, "source": {"x": 0}}], schema))
    rows = pa.table({"id": ["a"], "x": [9]})
    done = made.merge(rows, "target.id = source.id and source.x > 5").when_matched_update({"n": "source.x"}).execute()
    assert done.rows_updated == 1
    assert made.read(["n"]).to_pylist() == [{"n": 9}]


def test_an_insert_of_another_type_does_not_replace_the_row_that_has_its_key(tmp_path: Path) -> None:
    made = tideline.create(tmp_path / "t", schema=pa.schema([("k", pa.date32()), ("n", pa.int64())]), key="k")
    made.upsert(pa.table({"k": [date(2024, 1, 1)], "n": [1]}))
    noon = pa.table({"k": pa.array([datetime(2024, 1, 1, 12)], pa.timestamp("us")), "n": [2]})
    with pytest.raises(tideline.errors.InvalidInput, match="for more than one row"):
        made.merge(noon, "k").when_not_matched_insert().execute()
    assert made.read(["n"]).to_pylist() == [{"n": 1}]


NUMBERS = ("updated_at", "UPDATED_AT - 1", "updated_at and true", "not (day = 'mon' and updated_at)", "fare or day = 'mon'")


@pytest.mark.parametrize("empty", [False, True])
def test_a_number_is_no_condition(table: tideline.Table, *, empty: bool) -> None:
    """DuckDB takes each number but 0 for true: a forgotten comparison would have deleted every row, while a read refuses it."""
    source = trips_of(("a", "mon", 5.0, 2))
    if empty:
        table.delete(where="true")
    before = sorted_rows(table.read())
    for condition in NUMBERS:
        qualified = re.sub("day|fare|updated_at", r"target.\g<0>", condition, flags=re.IGNORECASE)
        on_pairs, of_clause = table.merge(source, qualified), table.merge(source, "target.id = source.id")
        writes: list[Callable[[], object]] = [
            partial(table.read, where=condition),
            partial(table.delete, where=condition),
            partial(table.update, {"fare": 1.0}, condition),
            partial(tideline.sql, f"delete from trips where {condition}", {"trips": table}),
            on_pairs.when_matched_delete().execute,
            of_clause.when_matched_delete(condition=qualified).execute,
            of_clause.when_matched_update(condition=qualified).execute,
            of_clause.when_not_matched_insert(condition=qualified.replace("target", "source")).execute,
        ]
        for write in writes:
            with pytest.raises(InvalidPredicate):
                write()
    assert sorted_rows(table.read()) == before


@pytest.mark.parametrize(
    "condition", ["null", "true", "1 = 1", "exists (select 1)", "(day like 'm%') is true", "not (fare is null)"]
)
def test_what_is_true_false_or_null_is_a_condition(table: tideline.Table, condition: str) -> None:
    selected = 0 if condition == "null" else 3 if condition in {"true", "1 = 1", "exists (select 1)"} else 2
    assert table.delete(where=condition).rows_deleted == selected


def test_values_of_an_update_are_checked_where_no_row_is_selected(table: tideline.Table) -> None:
    for text in ("no_such_column", "fare +", "max(fare) over ()"):
        with pytest.raises(InvalidPredicate):
            table.update({"fare": text}, "id = 'none'")
