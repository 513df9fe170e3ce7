"""Rows that updates, deletions by a condition and merges changed: Apache Hudi and hudi-rs read what is read here."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from tests.conformance.matrix import Comparison
from tests.conformance.peers.apache_hudi import ApacheHudi
from tests.conformance.peers.hudi_rs import read_hudi_rs

import tideline

pytestmark = pytest.mark.timeout(900)

SCHEMA = pa.schema([("id", pa.string()), ("part", pa.string()), ("price", pa.float64()), ("ts", pa.int64())])


def rows(numbers: range, ts: int) -> pa.Table:
    return pa.Table.from_pylist([{"id": f"k{n:03}", "part": f"p{n % 3}", "price": n * 1.5, "ts": ts} for n in numbers], SCHEMA)


@pytest.mark.pairs
@pytest.mark.parametrize("index", [None, tideline.BucketIndex(2)], ids=["no index", "buckets"])
@pytest.mark.parametrize("kind", ["cow", "mor"])
@pytest.mark.parametrize("version", [6, 9])
def test_peers_read_changed_rows(
    apache_hudi: ApacheHudi, workdir: Path, kind: str, version: int, index: tideline.BucketIndex | None
) -> None:
    path = workdir / "trips"
    table = tideline.create(
        path, schema=SCHEMA, key="id", partition="part", ordering="ts", type=kind, index=index, table_version=version
    )
    table.upsert(rows(range(60), 50))
    compare = Comparison()

    def agree(what: str, expected: dict[str, tuple[str, float | None]]) -> None:
        found = table.read(meta_fields=True)
        assert {r["id"]: (r["part"], r["price"]) for r in found.to_pylist()} == expected, what
        compare.rows(found, apache_hudi.read(path), what)
        compare.rows(found, read_hudi_rs(path), what, "hudi-rs")

    expected: dict[str, tuple[str, float | None]] = {f"k{n:03}": (f"p{n % 3}", n * 1.5) for n in range(60)}
    # The ordering value stays: it is as large as that of the stored row, and the update wins.
    assert table.update({"price": "price + 1000"}, "price < 15 and part = 'p1'").rows_updated == 3
    expected |= {f"k{n:03}": ("p1", n * 1.5 + 1000) for n in (1, 4, 7)}
    agree("updated", expected)

    assert table.update({"part": "'p9'", "price": None}, "id in ('k002', 'k003')").rows_updated == 2
    expected |= dict.fromkeys(("k002", "k003"), ("p9", None))
    agree("moved", expected)

    assert table.delete(where="price % 6 = 0 and part <> 'p9'").rows_deleted == 14
    for n in range(60):
        if n % 4 == 0 and n != 4:
            del expected[f"k{n:03}"]
    agree("deleted", expected)

    source = pa.table({"id": ["k001", "k005", "k006", "n001"], "part": ["p1", "p2", "p0", "p1"], "price": [1.0, -1.0, 2.0, 3.0]})
    merge = table.merge(source, "id").when_matched_delete(condition="source.price < 0").when_matched_update()
    done = merge.when_not_matched_insert({"id": "id", "part": "part", "price": "price", "ts": 1}).execute()
    assert (done.rows_updated, done.rows_deleted, done.rows_inserted) == (2, 1, 1)
    del expected["k005"]
    expected |= {"k001": ("p1", 1.0), "k006": ("p0", 2.0), "n001": ("p1", 3.0)}
    agree("merged", expected)

    if kind == "mor":
        assert table.maintenance.compact(options={"hoodie.compact.inline.max.delta.commits": 1})
        agree("compacted", expected)
