"""Random statements on random rows give the rows that DuckDB has after the same statements, in tables of both types."""

from __future__ import annotations

import itertools
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import duckdb
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.property.profile import few

import tideline

SCHEMA = pa.schema([("id", pa.int32()), ("part", pa.string()), ("n", pa.int64()), ("x", pa.float64()), ("s", pa.string())])
ORDER = "order by id"

ids = st.integers(0, 11)
values = st.tuples(
    st.sampled_from(["p", "q"]),
    st.one_of(st.none(), st.integers(-3, 3)),
    st.one_of(st.none(), st.sampled_from([-1.5, 0.0, 2.25, 1e9, float("nan")])),
    st.one_of(st.none(), st.sampled_from(["", "a", "it's", "B"])),
)
several = st.dictionaries(ids, values, min_size=1, max_size=10)

simple = st.one_of(
    st.tuples(st.sampled_from(["n", "id"]), st.sampled_from(["=", "<>", "<", ">="]), st.integers(-2, 6).map(str)).map(" ".join),
    st.sampled_from(
        [
            "x > 0",
            "x is null",
            "part = 'p'",
            "s in ('a', 'it''s')",
            "s like '%t%'",
            "n between 0 and 2",
            # these are left to DuckDB
            "n % 2 = 0",
            "upper(s) = s",
            "coalesce(n, id) > x",
            "length(s) + n < 3",
            "case when part = 'q' then n > 0 else s is null end",
            "x + n is null",
        ]
    ),
)
conditions = st.recursive(
    simple,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from([" and ", " or "]), inner).map("".join).map("({})".format), inner.map("not ({})".format)
    ),
    max_leaves=4,
)
assignments = st.dictionaries(st.sampled_from(["part", "n", "x", "s"]), st.just(""), min_size=1, max_size=3).flatmap(
    lambda chosen: st.fixed_dictionaries(
        {
            name: st.sampled_from(
                {
                    "part": ["'p'", "'q'", "'r'"],
                    "n": ["n + 1", "-n", "null", "id * 2", "cast(length(s) as bigint)"],
                    "x": ["x * 2", "n", "null", "x + id / 4", "coalesce(x, 7)"],
                    "s": ["s || 'z'", "null", "part", "'it''s'", "upper(s)"],
                }[name]
            )
            for name in chosen
        }
    )
)


def set_of(assigned: dict[str, str]) -> str:
    return ", ".join(f"{name} = {value}" for name, value in assigned.items())


statements: st.SearchStrategy[Any] = st.one_of(
    st.tuples(st.just("delete"), conditions, st.just({}), st.just({})),
    st.tuples(st.just("update"), conditions, assignments, st.just({})),
    st.tuples(st.just("merge"), conditions, assignments, several),
)


def rows_of(made: dict[int, tuple[object, ...]]) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(SCHEMA.names, (key, *rest), strict=True)) for key, rest in made.items()], SCHEMA)


def statement_of(kind: str, condition: str, assigned: dict[str, str]) -> str:
    if kind == "delete":
        return f"delete from t where {condition}"
    if kind == "update":
        return f"update t set {set_of(assigned)} where {condition}"
    return (
        "merge into t using source as s on t.id = s.id when matched and s.n < 0 then delete "
        "when matched and s.x is not null then update set n = t.n + s.n, x = s.x, s = s.s "
        "when matched then update set s = t.s || s.part "
        "when not matched and s.s is not null then insert (id, part, n, x, s) values (s.id, s.part, s.n * 2, s.x, s.s)"
    )


@contextmanager
def tables(rows: pa.Table) -> Iterator[dict[str, tideline.Table]]:
    folder = tempfile.mkdtemp()
    try:
        made = {}
        for kind, version in itertools.product(["cow", "mor"], [6]):
            table = tideline.create(f"{folder}/{kind}{version}", schema=SCHEMA, key="id", partition="part", type=kind)
            table.upsert(rows)
            made[kind] = table
        yield made
    finally:
        shutil.rmtree(folder)


@settings(few, max_examples=max(10, few.max_examples // 4))
@given(several, st.lists(statements, min_size=1, max_size=3))
def test_statements_change_the_rows_that_duckdb_changes(
    rows: dict[int, tuple[object, ...]], chosen: list[tuple[str, str, dict[str, str], dict[int, tuple[object, ...]]]]
) -> None:
    first = rows_of(rows)
    expected = duckdb.connect()
    expected.register("first", first)
    expected.execute("create table t as select * from first")
    with tables(first) as made:
        for kind, condition, assigned, source in chosen:
            text = statement_of(kind, condition, assigned)
            given = rows_of(source)
            expected.register("source", given)
            count = expected.execute(text).fetchone()
            for table in made.values():
                evaluated = {"t": table}
                if kind == "merge":
                    done = merged(table, given)
                else:
                    done = tideline.sql(text, evaluated)
                assert isinstance(done, tideline.Commit)
                assert (done.rows_inserted + done.rows_updated + done.rows_deleted,) == count, text
        wanted = [repr(row) for row in expected.execute(f"select * from t {ORDER}").fetchall()]
        for kind, table in made.items():
            found = table.read(meta_fields=True).sort_by("id")
            assert [repr(tuple(row.values())) for row in found.select(SCHEMA.names).to_pylist()] == wanted, (kind, chosen)
            assert found["_hoodie_partition_path"].to_pylist() == found["part"].to_pylist(), kind


def merged(table: tideline.Table, source: pa.Table) -> tideline.Commit:
    """Make the merge of `statement_of` by methods."""
    return (
        table.merge(source, "id")
        .when_matched_delete(condition="source.n < 0")
        .when_matched_update({"n": "target.n + source.n", "x": "source.x", "s": "source.s"}, condition="source.x is not null")
        .when_matched_update({"s": "target.s || source.part"})
        .when_not_matched_insert(
            {"id": "source.id", "part": "source.part", "n": "source.n * 2", "x": "source.x", "s": "source.s"},
            condition="source.s is not null",
        )
        .execute()
    )
