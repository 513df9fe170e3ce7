"""Columns in which a dictionary would need more bytes than the values are written plain; all others keep their dictionary."""

from __future__ import annotations

from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tideline_table.config import Options
from tideline_table.schema import META_FIELDS
from tideline_table.storage import MemoryStorage
from tideline_table.writer import base_file
from tideline_table.writer.base_file import dictionary_columns, write_base_file

ROWS = 40_000
CHANCE = np.random.default_rng(7)
UNIQUE = CHANCE.permutation(ROWS)
TWICE = CHANCE.permutation(np.repeat(np.arange(ROWS // 2), 2))
FIFTH = CHANCE.integers(0, ROWS // 5, ROWS)


def texts(numbers: np.ndarray) -> pa.Array:
    return pa.array([f"a text of some length with number {number}" for number in numbers])


@pytest.mark.parametrize(
    ("values", "keeps"),
    [
        pytest.param(pa.array(UNIQUE), False, id="unique numbers"),
        pytest.param(pa.array(np.sort(UNIQUE)), False, id="unique numbers in order"),
        pytest.param(pa.array([Decimal(int(n)) for n in UNIQUE], pa.decimal128(15, 2)), False, id="unique decimals"),
        pytest.param(pa.array(UNIQUE / 3), False, id="unique floats"),
        pytest.param(texts(UNIQUE), False, id="unique texts"),
        pytest.param(texts(TWICE), True, id="texts of which each is there twice"),
        pytest.param(pa.array(FIFTH), True, id="numbers of which each is there five times"),
        pytest.param(pa.array(np.sort(FIFTH)), True, id="the same in order"),
        pytest.param(pa.array(np.sort(TWICE)), True, id="neighbours that are equal"),
        pytest.param(pa.array(CHANCE.integers(0, 50, ROWS)), True, id="few numbers"),
        pytest.param(pa.nulls(ROWS, pa.int64()), True, id="nulls"),
        pytest.param(pa.array([None if n % 2 else int(n) for n in UNIQUE], pa.int64()), False, id="unique numbers and nulls"),
        pytest.param(texts(np.repeat([1], ROWS)).dictionary_encode(), True, id="a dictionary"),
        pytest.param(pa.array([[int(n)] for n in UNIQUE]), True, id="lists are not examined"),
        pytest.param(pa.array(UNIQUE % 2 == 0), True, id="neither are booleans"),
    ],
)
def test_a_dictionary_stays_where_it_saves_bytes(values: pa.Array, keeps: bool) -> None:
    assert dictionary_columns(pa.table({"column": values})) == (["column"] if keeps else [])


def test_few_rows_are_not_examined() -> None:
    assert dictionary_columns(pa.table({"column": UNIQUE[:5_000]})) == ["column"]


def test_the_file_is_smaller_and_has_the_same_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    columns = {name: pa.nulls(ROWS, pa.string()) for name in META_FIELDS}
    columns["_hoodie_record_key"] = pa.array([str(n) for n in UNIQUE])
    rows = pa.table({**columns, "unique": pa.array(UNIQUE), "text": texts(UNIQUE), "repeated": pa.array(FIFTH)})
    storage = MemoryStorage()
    chosen = write_base_file(storage, "chosen.parquet", rows, "{}", Options())
    file = pq.ParquetFile(pa.BufferReader(storage.read("chosen.parquet")))
    assert file.read().equals(rows)
    found = {name: file.metadata.row_group(0).column(at).has_dictionary_page for at, name in enumerate(rows.schema.names)}
    assert [found[name] for name in ("unique", "text", "repeated", "_hoodie_record_key")] == [False, False, True, False]
    monkeypatch.setattr(base_file, "dictionary_columns", lambda rows: rows.schema.names)
    assert chosen.size_bytes < write_base_file(storage, "always.parquet", rows, "{}", Options()).size_bytes
