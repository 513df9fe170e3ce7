"""Tables created with a merge rule: Tideline and Apache Hudi, each with the same writes, end with the same rows.

Each reads the table of the other one, and Apache Hudi goes on with a copy of Tideline's.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest
from tests.conformance.both_in_turn import FAST, NAME, QUICK
from tests.conformance.matrix import Cell, Direction, Kind, Matrix, Topic
from tests.conformance.merge_writes import UNAVAILABLE, WRITES, Row
from tests.conformance.peers.apache_hudi import ApacheHudi
from tests.plans import schedule_compaction
from tests.simulation.faults import SAMPLE_STEP

import tideline
from tideline_table.action import run_compaction, write_rows
from tideline_table.hudi.merge_rules import MERGE_RULES
from tideline_table.table import Table
from tideline_table.writer import Operation

pytestmark = pytest.mark.timeout(900)
RULES = {rule.name: rule for rule in MERGE_RULES}
NOW = {"hoodie.compact.inline.max.delta.commits": 1}


@dataclass(frozen=True)
class Case:
    """A rule, the table that has it, and the columns in place of `ts` and `op`."""

    rule: str
    kind: Kind
    version: int = 9
    ordering: tuple[str, ...] = ("ts",)

    def __str__(self) -> str:
        return f"{self.rule}-{self.kind}-{self.version}" + ("-several" if len(self.ordering) > 1 else "")

    @property
    def options(self) -> dict[str, str]:
        """Those of a job that Apache Hudi runs."""
        return {
            "hoodie.table.name": NAME,
            "hoodie.datasource.write.table.type": self.kind.value,
            "hoodie.datasource.write.recordkey.field": "id",
            "hoodie.datasource.write.partitionpath.field": "part",
            **({"hoodie.datasource.write.precombine.field": ",".join(self.ordering)} if self.ordering else {}),
            "hoodie.datasource.write.payload.class": RULES[self.rule].payload_class,
            "hoodie.datasource.write.operation": "upsert",
            "hoodie.write.table.version": str(self.version),
            "hoodie.write.auto.upgrade": "false",
            "hoodie.logfile.data.block.format": "avro",
            "hoodie.parquet.small.file.limit": "0",
            "hoodie.clean.automatic": "false",
            "hoodie.compact.inline": "false",
            **QUICK,
        }

    def rows(self, written: list[Row]) -> pa.Table:
        """The rows of a write, with the columns that the rule knows."""
        deletion = RULES[self.rule].deletion
        field, mark = deletion or ("op", "D")
        found = []
        for row in written:
            order = row["ts"]
            by_name = {
                "ts": order,
                "_event_lsn": order,
                "_event_bin_file": f"f{order // 3:03}",
                "_event_pos": order % 3,
                "n": (order * 3 + int(row["id"][1:])) % 4,
            }
            cells = {
                "id": row["id"],
                **{name: by_name[name] for name in self.ordering},
                "a": row["a"],
                "b": row["b"],
                "s": row["s"],
            }
            found.append(
                {**cells, field: mark if row["op"] == "D" else "u", "part": row["part"], "_hoodie_is_deleted": row["gone"]}
            )
        types = {"b": pa.int32(), "s": pa.struct([("x", pa.int32())]), "_hoodie_is_deleted": pa.bool_()}
        texts = {"id", "a", field, "part", "_event_bin_file"}
        names = list(found[0])
        kinds = [types.get(name, pa.string() if name in texts else pa.int64()) for name in names]
        return pa.table([pa.array([r[n] for r in found], kind) for n, kind in zip(names, kinds, strict=True)], names)


DEBEZIUM = {"postgres_debezium": ("_event_lsn",), "mysql_debezium": ("_event_bin_file", "_event_pos")}
CASES = [
    *(Case(rule, kind, ordering=DEBEZIUM.get(rule, ("ts",))) for rule in RULES for kind in Kind),
    *(Case("event_time", kind, ordering=("ts", "n")) for kind in Kind),
    Case("commit_time", Kind.MOR, 6, ()),
    Case("partial_update", Kind.MOR, 6),
    Case("overwrite_non_defaults", Kind.COW, 6),
    Case("aws_dms", Kind.MOR, 6),
    Case("postgres_debezium", Kind.COW, 6, ("_event_lsn",)),
    Case("partial_update", Kind.COW, 8),
    Case("overwrite_non_defaults", Kind.MOR, 8),
    Case("aws_dms", Kind.COW, 8),
]
TELLING = (0, 3, 4, 7, 8, 11, 12, 15, 17, 20, 23)
"""Each rule once, on both types and all versions in turn; with SAMPLE_STEP=1 all cases."""


def content(rows: pa.Table) -> list[str]:
    return sorted(str(r) for r in rows.select([n for n in rows.column_names if not n.startswith("_hoodie_")]).to_pylist())


def by_write(rows: pa.Table, base: Path) -> dict[str, int]:
    """The write that each key belongs to, by number, as incremental queries see it."""
    instants = [a.instant for a in Table.open(str(base)).state.completed_writes()]
    return {row["id"]: instants.index(row["_hoodie_commit_time"]) for row in rows.select(["id", "_hoodie_commit_time"]).to_pylist()}


def write(base: Path, rows: pa.Table) -> None:
    options = {**FAST, "hoodie.logfile.data.block.format": "avro"}
    write_rows(Table.open(str(base), options=options), rows, Operation.UPSERT)


@pytest.mark.parametrize("case", CASES if SAMPLE_STEP == 1 else [CASES[at] for at in TELLING], ids=str)
def test_both_merge_by_the_rule(apache_hudi: ApacheHudi, matrix: Matrix, workdir: Path, case: Case) -> None:
    alone, here, handed = workdir / "alone", workdir / "here", workdir / "handed"
    writes = [case.rows(rows) for rows in WRITES]
    for rows in writes:
        apache_hudi.write(alone, rows, case.options)
    tideline.create(
        here,
        name=NAME,
        schema=writes[0].schema,
        key="id",
        partition="part",
        ordering=case.ordering,
        type="mor" if case.kind is Kind.MOR else "cow",
        merge=case.rule,
        table_version=case.version,
    )
    topics = [Topic.UPSERT, *([Topic.COMPACTION] if case.kind is Kind.MOR else [])]
    with matrix.cells(*(Cell(topic, case.kind, Direction.IN_TURN) for topic in topics), label=str(case)) as compare:
        for number, rows in enumerate(writes):
            if number == len(writes) - 1:
                shutil.copytree(here, handed, copy_function=shutil.copy2)
                # Without its log, the copy is a table that Apache Hudi alone writes.
                shutil.rmtree(handed / ".hoodie/.tideline")
            write(here, rows)
        ours, theirs = Table.open(str(here)).read(), apache_hudi.read(alone)
        assert content(ours) == content(theirs)
        assert by_write(ours, here) == by_write(theirs, alone)
        compare.rows(ours, apache_hudi.read(here), "written by Tideline")
        compare.rows(Table.open(str(alone)).read(), theirs, "written by Apache Hudi")
        apache_hudi.write(handed, writes[-1], case.options)
        assert content(Table.open(str(handed)).read()) == content(apache_hudi.read(handed)) == content(theirs)
        if case.kind is Kind.MOR:
            table = Table.open(str(here))
            assert schedule_compaction(table, NOW) is not None
            assert run_compaction(table) is not None
            compacted = Table.open(str(here)).read()
            assert content(compacted) == content(theirs)
            compare.rows(compacted, apache_hudi.read(here), "compacted")
    assert UNAVAILABLE in str(writes[1].to_pylist())
