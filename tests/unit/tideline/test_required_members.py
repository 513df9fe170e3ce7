"""Structs that are null in a row and have required members: Arrow makes nulls in these, and refuses to write and to cast them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tideline

PLACE = pa.struct([pa.field("path", pa.string(), nullable=False), ("at", pa.int64())])
DOC = pa.struct([pa.field("kind", pa.string(), nullable=False), ("place", PLACE), ("places", pa.list_(PLACE))])
FORMATS = {"PARQUET": None, "ORC": {"hoodie.table.base.file.format": "ORC"}}
BARE = pa.schema([("id", pa.int64()), ("part", pa.string()), ("x", pa.int64())])
SCHEMA = BARE.append(pa.field("doc", DOC))
WHOLE = {"kind": "b", "place": {"path": "p", "at": 1}, "places": [{"path": "q", "at": None}, None]}


def given(*rows: tuple[int, int, dict[str, Any] | None]) -> pa.Table:
    return pa.Table.from_pylist([{"id": key, "part": "a", "x": x, "doc": doc} for key, x, doc in rows], SCHEMA)


@pytest.mark.parametrize("base_format", FORMATS)
@pytest.mark.parametrize(("kind", "version"), [("cow", 6), ("mor", 6), ("mor", 9)])
def test_every_write_and_service_keeps_them(tmp_path: Path, kind: str, version: int, base_format: str) -> None:
    options = FORMATS[base_format]
    table = tideline.create(
        tmp_path / "t", schema=BARE, key="id", partition="part", type=kind, table_version=version, options=options
    )
    table.insert(pa.table({"id": [1, 2], "part": ["a", "a"], "x": [1, 2]}))
    docs: dict[int, dict[str, Any] | None] = {1: None, 2: WHOLE, 3: None, 4: {"kind": "a", "place": None, "places": None}}
    added = given((2, 5, docs[2]), (3, 6, docs[3]), (4, 7, docs[4]))
    table.upsert(added, options={"tideline.write.schema.evolution": "evolve"})

    def same() -> None:
        for opened in (table, tideline.open(tmp_path / "t")):
            rows = opened.read(["id", "doc"])
            assert {row["id"]: row["doc"] for row in rows.to_pylist()} == docs
            pq.write_table(rows.cast(rows.schema), pa.BufferOutputStream())

    same()
    table.update({"x": "x + 1"}, where="id <> 2")
    same()
    docs |= {5: None, 4: None}
    table.upsert(given((5, 1, None), (4, 8, None)).set_column(3, SCHEMA.field("doc"), pa.nulls(2, DOC)))
    same()
    if kind == "mor":
        assert table.maintenance.compact(options={"hoodie.compact.inline.max.delta.commits": 1}).files_written
        same()
    table.bulk_insert(given((6, 1, WHOLE), (7, 1, None)))
    docs |= {6: WHOLE, 7: None}
    assert table.maintenance.cluster(options={"hoodie.clustering.plan.strategy.small.file.limit": 1 << 30}).files_written
    same()
    changes = table.changes().read().to_pylist()
    assert {row["after"]["id"]: row["after"]["doc"] for row in changes} == docs
    gone = table.changes(since=table.delete([2, 5]).sequence - 1).read()
    assert {row["before"]["id"]: row["after"] for row in gone.to_pylist()} == {2: None, 5: None}
    pq.write_table(gone.cast(gone.schema), pa.BufferOutputStream())
