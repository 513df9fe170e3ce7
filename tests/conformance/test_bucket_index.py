"""Tables with Apache Hudi's bucket index are not shared, and no longer written once Hudi's writers begin to use it."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from tests.conformance.both_in_turn import Turns, trips
from tests.conformance.matrix import Kind
from tests.conformance.peers.apache_hudi import ApacheHudi, PeerFailed

from tideline_table.errors import UnsupportedTable
from tideline_table.table import Table

pytestmark = pytest.mark.timeout(900)

NEW_TABLE = {"hoodie.write.table.version": "6", "hoodie.write.auto.upgrade": "false"}
BUCKETS = {
    "hoodie.index.type": "BUCKET",
    "hoodie.bucket.index.num.buckets": "3",
    "hoodie.storage.layout.type": "BUCKET",
    "hoodie.storage.layout.partitioner.class": "org.apache.hudi.table.action.commit.SparkBucketIndexPartitioner",
}
BEATS: dict[str, object] = {"hoodie.client.heartbeat.interval_in_ms": 1000, "hoodie.client.heartbeat.tolerable.misses": 8}


@pytest.mark.parametrize(
    ("kind", "engine", "shown"), [(Kind.COW, "SIMPLE", "file id 0000000"), (Kind.MOR, "CONSISTENT_HASHING", "file id ")]
)
def test_a_table_with_the_bucket_index_is_not_shared(
    apache_hudi: ApacheHudi, workdir: Path, kind: Kind, engine: str, shown: str
) -> None:
    turns = Turns(apache_hudi, workdir / "table", kind, {**NEW_TABLE, **BUCKETS, "hoodie.index.bucket.engine": engine})
    turns.theirs(trips(range(8), 1))
    before = {path.relative_to(turns.path) for path in turns.path.rglob("*")}
    with pytest.raises(UnsupportedTable, match=rf"bucket index \({shown}"):
        turns.share()
    left = {path.relative_to(turns.path) for path in turns.path.rglob("*")} - before
    assert not [path for path in left if ".tideline" not in path.parts]
    table = Table.open(str(turns.path))
    assert (table.has_log, table.read().num_rows) == (False, 8)


def test_a_shared_table_that_gets_a_bucket_index_is_refused(apache_hudi: ApacheHudi, workdir: Path) -> None:
    turns = Turns(apache_hudi, workdir / "table", Kind.COW, {k: str(v) for k, v in BEATS.items()}, BEATS)
    turns.create_here()
    turns.ours(trips([1, 3], 1))
    # Hudi itself fails where file groups have no bucket number, and writes where there are none.
    with pytest.raises(PeerFailed, match="bucket|NumberFormat"):
        turns.theirs(trips([1, 5], 2), **BUCKETS)
    # Its request is left, without its inflight file: we wait until its heartbeat has run out.
    turns.ours(trips([5], 2))
    turns.theirs(trips(range(0, 12, 2), 3), **BUCKETS)
    with pytest.raises(UnsupportedTable, match=r"bucket index \(file id 0000000"):
        turns.ours(trips([7], 4))
    assert sorted(pa.compute.unique(Table.open(str(turns.path)).read().column("part")).to_pylist()) == ["p0", "p1"]
