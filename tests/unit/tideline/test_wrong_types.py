"""Arguments of wrong types: every public function names the argument in a typed error, and nothing changes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from tests.unit.tideline.conftest import FIRST, SCHEMA, trips_of

import tideline
from tideline.errors import InvalidInput, SchemaMismatch, TidelineError

REQUIRED: dict[str, Any] = {
    "rows": trips_of(("z", "mon", 1.0, 1)),
    "keys": ["a"],
    "columns": {"fare": 1.0},
    "on": "id",
    "partitions": "mon",
    "instant": "20260101000000000",
    "query": "select 1",
    "buckets": [0],
    "lease_id": "x",
    "path": "trips",
    "name": "p",
    "schema": SCHEMA,
    "key": "id",
    "statement": "select 1",
}


def functions() -> Iterator[tuple[str, str]]:
    """Yield each public function, and each of its arguments that has a type."""
    for owner in (tideline, tideline.Table, tideline.Maintenance, tideline.Inspection, tideline.Query):
        for name, found in inspect.getmembers(owner, inspect.isfunction):
            if not name.startswith("_"):
                for argument, parameter in inspect.signature(found).parameters.items():
                    if argument != "self" and parameter.annotation != "object | None":
                        yield f"{owner.__name__.rpartition('.')[2]}.{name}", argument


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> tideline.Table:
    made = tideline.create(tmp_path_factory.mktemp("t") / "trips", schema=SCHEMA, key="id", partition="day", ordering="updated_at")
    made.upsert(trips_of(*FIRST))
    return made


@pytest.mark.parametrize(("function", "argument"), list(functions()))
def test_an_argument_of_another_type_is_refused_by_name(opened: tideline.Table, function: str, argument: str) -> None:
    owner, _, name = function.partition(".")
    owners = {
        "tideline": tideline,
        "Table": opened,
        "Maintenance": opened.maintenance,
        "Inspection": opened.inspect,
        "Query": opened.incremental(),
    }
    called: Callable[..., object] = getattr(owners[owner], name)
    parameters = inspect.signature(called).parameters.items()
    given = {n: REQUIRED[n] for n, p in parameters if p.default is p.empty or (n == "key" and name == "create")}
    with pytest.raises(TidelineError) as caught:
        called(**{**given, argument: object()})
    assert argument in caught.value.found
    assert "of type object" in caught.value.found
    assert caught.value.expected


@pytest.mark.parametrize(
    ("call", "found"),
    [
        (lambda table, _: table.lookup(1), "keys of type int"),
        (lambda table, _: table.delete(1), "argument 'keys' of type int"),
        (lambda table, _: table.delete(None), "keys of type NoneType"),
        (lambda table, _: table.delete_partitions(None), "argument 'partitions' of type NoneType"),
        (lambda table, _: table.inspect.sample("1"), "argument 'buckets' of type str"),
        (lambda table, _: table.inspect.sample([True]), "argument 'buckets' of type list"),
        (lambda table, _: table.read([1]), "argument 'columns' of type list"),
        (lambda table, _: table.maintenance.run_due(min_files="8"), "argument 'min_files' of type str"),
        (lambda table, _: table.upsert(trips_of(), options={1: "a"}), "argument 'options' of type dict"),
        (lambda _, path: tideline.create(path, schema=SCHEMA, key="id", ordering=5), "argument 'ordering' of type int"),
        (lambda _, path: tideline.create(path, schema=SCHEMA, key={"id": 1}), "argument 'key' of type dict"),
        (
            lambda _, path: tideline.create(path, schema=SCHEMA, key="id", index=tideline.BucketIndex(1.5)),
            "argument 'buckets' of type float",
        ),
        (lambda _, path: tideline.open(path, locks=b"x"), "argument 'locks' of type bytes"),
    ],
)
def test_wrong_types_that_ended_in_errors_of_python(
    opened: tideline.Table, tmp_path: Path, call: Callable[[tideline.Table, Path], object], found: str
) -> None:
    with pytest.raises(TidelineError) as caught:
        call(opened, tmp_path / "t")
    assert caught.value.found == found
    assert not (tmp_path / "t").exists()


def test_names_may_come_one_by_one(opened: tideline.Table) -> None:
    assert opened.read(name for name in ("id", "day")).column_names == ["id", "day"]
    assert opened.read(pa.array(["id"]).to_pylist()).column_names == ["id"]


def test_the_table_itself_reads_and_writes() -> None:
    """Services and administration are behind `maintenance`, looking behind `inspect`."""
    assert len([name for name in dir(tideline.Table) if not name.startswith("_")]) <= 21


@pytest.mark.parametrize(
    "where", [pc.field("nope") == 1, pc.field("id") == 1, pc.field("fare"), pc.field("fare") + 1, pc.scalar(1)]
)
def test_an_arrow_expression_that_fits_no_rows_is_refused(opened: tideline.Table, where: pc.Expression) -> None:
    reads: list[Callable[[], object]] = [
        lambda: opened.read(where=where),
        lambda: opened.scan(where=where).read_all(),
        lambda: opened.lookup(["a"], where=where),
        lambda: opened.incremental().read(where=where),
        lambda: opened.changes().read(where=where),
    ]
    for read in reads:
        with pytest.raises(InvalidInput, match="a condition on columns of the table"):
            read()


def test_keys_with_a_column_twice_are_refused(opened: tideline.Table) -> None:
    keys = pa.table([["a"], ["a"]], names=["id", "id"])
    calls: list[Callable[[pa.Table], object]] = [opened.lookup, opened.delete]
    for call in calls:
        with pytest.raises(SchemaMismatch, match="'id' more than once"):
            call(keys)


def test_a_table_with_locks_that_cannot_be_is_not_created(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="lock provider nonsense:"):
        tideline.create(tmp_path / "t", schema=SCHEMA, key="id", locks="nonsense://")
    assert not (tmp_path / "t").exists()
