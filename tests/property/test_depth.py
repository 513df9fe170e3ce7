"""Deeply nested input: each entrance for text reads it or refuses it by name, in bounded time, not by Python's recursion limit."""

from __future__ import annotations

import contextlib
import io
import itertools
import time
from collections.abc import Callable
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

import tideline
from tideline_cli.main import run
from tideline_ingest.decoding import AvroDecoder, JsonDecoder, SingleObjectDecoder
from tideline_ingest.named_types import whole_schema
from tideline_planner.settings import PlannerSettings
from tideline_runtime.policy import read_policies
from tideline_table.errors import TidelineError
from tideline_table.reader.predicate import parse_where
from tideline_table.schema import arrow_from_avro

SCHEMA = pa.schema([("id", pa.string()), ("n", pa.int64())])
CPU_S = 20.0
"""Processor time of one input: hundreds of times what a linear reader takes, and far less than a quadratic one."""


def record(inner: str) -> str:
    return f'{{"type":"record","name":"r","fields":[{{"name":"f","type":{inner}}}]}}'


def records(depth: int) -> str:
    names = itertools.count()
    begin = "".join(f'{{"type":"record","name":"r{next(names)}","fields":[{{"name":"f","type":' for _ in range(depth))
    return f'{begin}"long"{"}]}" * depth}'


AVRO: dict[str, Callable[[int], str]] = {
    "records": records,
    "arrays": lambda n: record('{"type":"array","items":' * n + '"long"' + "}" * n),
    "types": lambda n: record('{"type":' * n + '"long"' + "}" * n),
    "unions": lambda n: record("[" * n + '"long"' + "]" * n),
}
READERS: dict[str, Callable[[str], object]] = {
    "table schema": arrow_from_avro,
    "registry": lambda text: whole_schema(text, []),
    "schema file": AvroDecoder,
    "single objects": lambda text: SingleObjectDecoder([text]),
}
WHERE: dict[str, Callable[[int], str]] = {
    "parentheses": lambda n: "(" * n + "n = 1" + ")" * n,
    "not": lambda n: "not " * n + "n = 1",
    "or": lambda n: " or ".join(f"n = {value}" for value in range(n)),
    "fields": lambda n: "n" + ".f" * n + " = 1",
}
JSON: dict[str, Callable[[int], str]] = {
    "arrays": lambda n: '{"id": "a", "n": ' + "[" * n + "]" * n + "}",
    "objects": lambda n: '{"n":' * n + "1" + "}" * n,
}
YAML: dict[str, Callable[[int], str]] = {
    "lists": lambda n: "[" * n,
    "maps": lambda n: "{a: " * n,
    "blocks": lambda n: "\n".join(" " * level + "a:" for level in range(min(n, 2_000))),
}
SQL: dict[str, Callable[[int], str]] = {
    "parentheses": lambda n: "select " + "(" * n + "1" + ")" * n,
    "subqueries": lambda n: "select * from " + "(select * from " * n + "t" + ")" * n,
    "not": lambda n: "select * from t where " + "not " * n + "n = 1",
    "case": lambda n: "select " + "case when n = 1 then " * n + "1" + " end" * n + " from t",
}
DEPTHS = pytest.mark.parametrize("depth", [70, 900, 20_000])


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> tideline.Table:
    made = tideline.create(tmp_path_factory.mktemp("deep") / "t", schema=SCHEMA, key="id")
    made.upsert(pa.table({"id": ["a"], "n": [1]}))
    return made


def is_answered(read: Callable[[], object], *errors: type[Exception]) -> None:
    """Call `read`, which may raise a typed error or one of `errors`; all others fail the test."""
    began = time.process_time()
    with contextlib.suppress(TidelineError, *errors):
        read()
    assert time.process_time() - began < CPU_S


@DEPTHS
@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("shape", AVRO)
def test_avro_schemas(reader: str, shape: str, depth: int) -> None:
    is_answered(lambda: READERS[reader](AVRO[shape](depth)))


@DEPTHS
@pytest.mark.parametrize("shape", WHERE)
def test_filters(table: tideline.Table, shape: str, depth: int) -> None:
    text = WHERE[shape](depth)
    is_answered(lambda: parse_where(text, SCHEMA))
    is_answered(lambda: table.read(where=text))


@DEPTHS
@pytest.mark.parametrize("shape", SQL)
def test_queries(table: tideline.Table, shape: str, depth: int) -> None:
    """DuckDB has limits and errors of its own."""
    is_answered(lambda: table.sql(SQL[shape](depth)).fetchall(), duckdb.Error)


@DEPTHS
@pytest.mark.parametrize("shape", JSON)
def test_json_values(shape: str, depth: int) -> None:
    value = JSON[shape](depth).encode()
    for ignores in (True, False):
        is_answered(lambda ignores=ignores: JsonDecoder(SCHEMA, ignores_unknown=ignores).decode([value]))  # type: ignore[misc]


@DEPTHS
@pytest.mark.parametrize("shape", YAML)
def test_policies(tmp_path: Path, shape: str, depth: int) -> None:
    file = tmp_path / "policies.yaml"
    file.write_text(YAML[shape](depth))
    is_answered(lambda: read_policies(file))


@DEPTHS
@pytest.mark.parametrize("text", ["options = {0}{1}", "[planner.{2}]"], ids=["values", "tables"])
def test_settings(tmp_path: Path, text: str, depth: int) -> None:
    file = tmp_path / "settings.toml"
    file.write_text("[planner]\n" + text.format("[" * depth, "]" * depth, ".".join("a" * depth)) + "\n")
    is_answered(lambda: PlannerSettings.load(file=file))


@DEPTHS
@pytest.mark.parametrize("shape", JSON)
def test_rows_on_the_command_line(table: tideline.Table, tmp_path: Path, shape: str, depth: int) -> None:
    file, said = tmp_path / "rows.json", io.StringIO()
    file.write_text(JSON[shape](depth) + "\n")
    with contextlib.redirect_stderr(said):
        code = run(["write", table.path, "--from", str(file)])
    assert code != 0
    assert said.getvalue().startswith("tideline: error: ")
    assert "Traceback" not in said.getvalue()
    assert "RecursionError" not in said.getvalue()
