"""Tables with `hoodie.table.cdc.enabled`: Apache Hudi's queries of changes read what Tideline wrote, and Tideline what Hudi wrote.

Each query of changes of Apache Hudi shows, write for write, what `Table.changes` shows.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from tests.conformance.both_in_turn import SHARING
from tests.conformance.matrix import Kind
from tests.conformance.peers.apache_hudi import ApacheHudi
from tests.conformance.peers.environment import prepare

import tideline
from tideline_locks import open_hudi_lock
from tideline_table.table import Table, share_table

pytestmark = pytest.mark.timeout(900)
W = "hoodie.datasource.write."
OPTIONS = {
    "hoodie.table.name": "trips",
    W + "recordkey.field": "id",
    W + "partitionpath.field": "part",
    W + "precombine.field": "ts",
    "hoodie.table.cdc.enabled": "true",
}
SCHEMA = pa.schema([("id", pa.string()), ("ts", pa.int64()), ("part", pa.string()), ("fare", pa.float64())])
Change = tuple[str, str, str, str]
"""The instant, the operation, and the row before and after as texts."""


def rows(numbers: Sequence[int], ts: int) -> pa.Table:
    return pa.Table.from_pylist([{"id": f"k{n}", "ts": ts, "part": f"p{n % 2}", "fare": n + ts / 4} for n in numbers], SCHEMA)


def shown_there(peer: ApacheHudi, base: Path) -> list[Change]:
    found = peer.read(base, "incremental", begin="000", options={"hoodie.datasource.query.incremental.format": "cdc"}).to_pylist()
    texts = [[json.dumps(json.loads(c[name]), sort_keys=True) if c[name] else "" for name in ("before", "after")] for c in found]
    return sorted((c["ts_ms"], c["op"], before, after) for c, (before, after) in zip(found, texts, strict=True))


def shown_here(table: tideline.Table) -> list[Change]:
    found: list[Change] = []
    since = ""
    for at in [a.instant for a in Table.open(table.path).state.completed_writes()]:
        for change in table.changes(since, at).read().to_pylist():
            texts = [json.dumps(change[name], sort_keys=True) if change[name] else "" for name in ("before", "after")]
            found.append((at, change["op"], texts[0], texts[1]))
        since = at
    return sorted(found)


@pytest.fixture(scope="module")
def older() -> Iterator[ApacheHudi]:
    with ApacheHudi(prepare("0.15.0")) as peer:
        yield peer


@pytest.mark.parametrize(
    ("kind", "mode"),
    [(Kind.COW, "data_before_after"), (Kind.MOR, "data_before_after"), (Kind.COW, "OP_KEY_ONLY"), (Kind.COW, "DATA_BEFORE")],
)
def test_written_here(kind: Kind, mode: str, apache_hudi: ApacheHudi, older: ApacheHudi, workdir: Path) -> None:
    base = workdir / "trips"
    more = {"hoodie.table.cdc.supplemental.logging.mode": mode, W + "table.type": kind.value}
    table = tideline.create(base, schema=SCHEMA, options={**OPTIONS, **more})
    table.upsert(rows(range(6), 1))
    table.upsert(rows([1, 2, 9], 2))
    table.delete(["k0"])
    table.insert(rows([10], 3))
    table.upsert(rows([4, 5], 4).append_column("_hoodie_is_deleted", pa.array([True, False])))
    if kind is Kind.MOR:
        table.maintenance.compact(options={"hoodie.compact.inline.max.delta.commits": 1})
        table.upsert(rows([2], 5))
    table.insert_overwrite(rows([3], 6))
    expected = shown_here(table)
    assert {change[1] for change in expected} == {"i", "u", "d"}
    assert shown_there(apache_hudi, base) == expected
    assert shown_there(older, base) == expected
    for peer in (apache_hudi, older):
        assert peer.read(base).num_rows == table.read().num_rows


@pytest.mark.parametrize("kind", list(Kind))
def test_written_there_then_in_turn(kind: Kind, apache_hudi: ApacheHudi, workdir: Path) -> None:
    base, job = workdir / "trips", {**OPTIONS, W + "table.type": kind.value, "hoodie.clean.automatic": "false"}
    for operation, numbers, ts in (("upsert", range(6), 1), ("upsert", [1, 2, 9], 2), ("delete", [0], 3)):
        apache_hudi.write(base, rows(numbers, ts), {**job, W + "operation": operation})
    expected = shown_there(apache_hudi, base)
    assert len(expected) == 10
    assert shown_here(tideline.open(base)) == expected
    share_table(Table.open(str(base)), SHARING, open_hudi_lock)
    table = tideline.open(base)
    table.upsert(rows([2, 11], 4))
    table.delete(["k9"])
    assert shown_there(apache_hudi, base)[: len(expected)] == expected
    assert [change[1] for change in shown_there(apache_hudi, base)[len(expected) :]] == ["i", "u", "d"]
