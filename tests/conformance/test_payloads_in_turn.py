"""Payload classes: Apache Hudi and Tideline do the same writes of the same table, each on what the other one wrote before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.conformance.both_in_turn import Turns
from tests.conformance.matrix import Cell, Direction, Kind, Matrix, Topic
from tests.conformance.peers.apache_hudi import ApacheHudi
from tests.plans import schedule_compaction
from tests.simulation.faults import SAMPLE_STEP

from tideline_table.action import run_compaction
from tideline_table.table import Table

pytestmark = pytest.mark.timeout(900)

MODELS = "org.apache.hudi.common.model."
POSTGRES = "debezium.PostgresDebeziumAvroPayload"
CHANGES = {"AWSDmsAvroPayload": ("Op", "U", "D", "ts"), POSTGRES: ("_change_operation_type", "u", "d", "_event_lsn")}
UNAVAILABLE = "__debezium_unavailable_value"
TYPES = [pa.string(), pa.int64(), pa.string(), pa.int32(), pa.struct([("x", pa.int32())]), pa.string(), pa.string(), pa.bool_()]
SUPPORTED = [
    (payload, kind)
    for payload in (
        "PartialUpdateAvroPayload",
        "OverwriteNonDefaultsWithLatestAvroPayload",
        "AWSDmsAvroPayload",
        "EventTimeAvroPayload",
        "OverwriteWithLatestAvroPayload",
        "DefaultHoodieRecordPayload",
    )
    for kind in Kind
]
NEWER = [(*one, 9) for one in SUPPORTED] if SAMPLE_STEP == 1 else []
Row = dict[str, Any]


def row(number: int, ts: int, **cells: Any) -> Row:
    """Cells depend on `ts` but for those given; `op` is U or D."""
    whole = {"a": f"a{ts}", "b": ts, "s": {"x": ts}, "op": "U", "part": f"p{number % 2}", "gone": False}
    return {"id": f"k{number:02}", "ts": ts} | whole | cells


WRITES = (
    [
        *(row(n, 5) for n in range(16)),
        # Several rows of one key, deletions among them.
        *(row(20, 6, b=None), row(20, 5, a=None), row(21, 5, a="x"), row(21, 5, a=None, s=None), row(22, 6, op="D"), row(22, 5)),
        *(row(23, 6, gone=True), row(24, 5, gone=True), row(24, 6), row(25, 5, op="D")),
    ],
    [
        *(row(0, 6, a=None, s=None), row(1, 4, a=None), row(2, 4, b=None, s=None), row(3, 5, a=None), row(4, 6, a=UNAVAILABLE)),
        *(row(5, 6, op="D"), row(6, 4, op="D"), row(7, 5, op="D"), row(8, 6, gone=True), row(9, 4, gone=True), row(20, 5, s=None)),
        *(row(10, 6, a=None), row(10, 7, b=None), row(26, 7, op="D"), row(27, 7, gone=True), row(28, 7, a=None)),
    ],
    [
        *(row(0, 7, b=None), row(1, 8, a=None), row(5, 9, a=None), row(8, 9, b=None), row(11, 7, gone=True), row(12, 7, op="D")),
        *(row(26, 8, s=None), row(28, 6, b=None), row(29, 5, a=None)),
    ],
    [
        *(row(0, 9, a=None), row(1, 7, op="D"), row(28, 8, s=None), row(29, 4, b=7), row(13, 9, op="D"), row(5, 10, b=None)),
        *(row(11, 6, a=None), row(40, 5), row(41, 5, op="D"), row(42, 5, a=None)),
    ],
)
"""The first and the third are Apache Hudi's, the others Tideline's; another table has all of them from Apache Hudi."""


def rows_for(payload: str, rows: list[Row]) -> pa.Table:
    field, update, deletion, ordering = CHANGES.get(payload, ("op", "U", "D", "ts"))
    changed = [r | {"op": {"U": update, "D": deletion}[r["op"]]} for r in rows]
    names = ["id", ordering, "a", "b", "s", field, "part", "_hoodie_is_deleted"]
    columns = ["id", "ts", "a", "b", "s", "op", "part", "gone"]
    return pa.table([pa.array([r[c] for r in changed], t) for c, t in zip(columns, TYPES, strict=True)], names)


def content(turns: Turns) -> list[str]:
    """Without what differs from write to write."""
    rows = Table.open(str(turns.path)).read()
    return sorted(str(r) for r in rows.select([n for n in rows.column_names if not n.startswith("_hoodie_")]).to_pylist())


def made_by_hudi(peer: ApacheHudi, folder: Path, kind: Kind, payload: str, version: int) -> Turns:
    ordering = CHANGES.get(payload, ("", "", "", "ts"))[3]
    options = {
        "hoodie.write.table.version": str(version),
        "hoodie.write.auto.upgrade": "false",
        "hoodie.datasource.write.payload.class": MODELS + payload,
        "hoodie.datasource.write.precombine.field": ordering,
        "hoodie.logfile.data.block.format": "avro",
    }
    return Turns(peer, folder, kind, options, version=version)


@pytest.mark.pairs
@pytest.mark.parametrize(("payload", "kind", "version"), [(*one, 6) for one in [*SUPPORTED, (POSTGRES, Kind.COW)]] + NEWER, ids=str)
def test_both_merge_alike(apache_hudi: ApacheHudi, matrix: Matrix, workdir: Path, payload: str, kind: Kind, version: int) -> None:
    alone = made_by_hudi(apache_hudi, workdir / "alone", kind, payload, version)
    alone.theirs(rows_for(payload, WRITES[0]))
    shared = alone.copied(workdir / "shared")
    shared.share()
    topics = [Topic.UPSERT, *([Topic.COMPACTION] if kind is Kind.MOR else [])]
    with matrix.cells(*(Cell(topic, kind, Direction.IN_TURN) for topic in topics), label=payload) as compare:
        for number, write in enumerate((shared.ours, shared.theirs, shared.ours), 1):
            rows = rows_for(payload, WRITES[number])
            alone.theirs(rows)
            write(rows)
            assert content(shared) == content(alone), number
        shared.agree(compare, "written in turn")
        if kind is Kind.MOR:
            assert schedule_compaction(shared.open(), {"hoodie.compact.inline.max.delta.commits": 1}) is not None
            assert run_compaction(shared.open()) is not None
            shared.agree(compare, "compacted")
            assert content(shared) == content(alone)
