"""Apache Hudi with its Bloom indexes and Tideline upsert one table in turn: each finds keys by the footers that the other one
left."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from tests.conformance.both_in_turn import Turns, steps_of, trips
from tests.conformance.matrix import Comparison, Kind
from tests.conformance.peers.apache_hudi import ApacheHudi, PeerFailed
from tests.conformance.peers.hudi_rs import read_hudi_rs
from tests.plans import schedule_compaction

from tideline_table.action import run_compaction
from tideline_table.bloom import KeyBytes
from tideline_table.reader import read_footer
from tideline_table.reader.key_footer import BLOOM_FILTER
from tideline_table.table import BloomIndex, Table
from tideline_table.writer import Operation, base_file

pytestmark = pytest.mark.timeout(1500)

STEPS = 20
USUAL = {"hoodie.index.bloom.num_entries": "60000"}
"""Filters of Apache Hudi have the size that they have by default."""


@dataclass
class Expected:
    """The rows that a table has after each step: by key (with its partition, unless keys are unique in the table) the newest
    `ts`."""

    turns: Turns
    is_global: bool
    live: dict[tuple[str, str], tuple[str, int]]

    def write(self, rows: pa.Table, operation: str, *, here: bool) -> None:
        if here:
            self.turns.ours(rows, Operation(operation))
        else:
            self.turns.theirs(rows, operation)
        for row in rows.to_pylist():
            key = (row["id"], "" if self.is_global else row["part"])
            if operation == "delete":
                self.live.pop(key, None)
            elif key not in self.live or row["ts"] >= self.live[key][1]:
                self.live[key] = (row["part"], row["ts"])

    def check(self, what: str) -> None:
        """Both sides read these rows, each key once and in its partition."""
        found = self.turns.agree(Comparison(), what)
        shown = zip(*(found[name].to_pylist() for name in ("id", "_hoodie_partition_path", "ts")), strict=True)
        assert sorted(shown) == sorted((key, part, ts) for (key, _), (part, ts) in self.live.items()), what


def placed(numbers: range, ts: int, *, shift: int = 0) -> pa.Table:
    """As `trips`, in partitions that `shift` changes."""
    rows = trips(numbers, ts)
    return rows.set_column(rows.column_names.index("part"), "part", pa.array([f"p{(n + shift) % 2}" for n in numbers]))


def step_of(expected: Expected, step: int, *, here: bool) -> None:
    """One upsert of new, recent and old keys, or a delete. With a global index, some keys change their partition."""
    ts, shift = step + 1, step // 4 if expected.is_global else 0
    if step in (8, 13):
        expected.write(placed(range(step, step + 6), ts, shift=shift), "delete", here=here)
    else:
        numbers = sorted({*range(step * 5, step * 5 + 12), *range(step % 7)})
        expected.write(pa.concat_tables([placed(range(n, n + 1), ts, shift=shift) for n in numbers]), "upsert", here=here)


def filters_of(path: Path) -> dict[str, bool]:
    """Base files by name, with whether Hudi's key of a filter is in the footer and the filter holds all keys of the file."""
    table, found = Table.open(str(path)), {}
    for file_slice in table.slices():
        footer = read_footer(table.storage, file_slice.path, with_bloom=True)
        pairs = pq.read_metadata(path / file_slice.path).metadata
        found[file_slice.base_file] = BLOOM_FILTER in pairs and footer.bloom is not None
    return found


@pytest.mark.parametrize(("kind", "index"), [(Kind.COW, "bloom"), (Kind.MOR, "global_bloom")])
def test_both_upsert_one_table_in_turn(apache_hudi: ApacheHudi, workdir: Path, kind: Kind, index: str) -> None:
    """Hudi's writers are not told of the index: they take it from `hoodie.properties`."""
    asked = BloomIndex(across_partitions=index == "global_bloom")
    turns = Turns(apache_hudi, workdir / "table", kind, USUAL, request={"index": asked})
    turns.create_here()
    expected = Expected(turns, index == "global_bloom", {})
    steps = steps_of(STEPS)
    for step in steps:
        here = step % 2 == 0
        step_of(expected, step, here=here)
        if step in (1, 8, 14, steps[-1]):
            expected.check(f"{kind} {index}, step {step}")
        if kind is Kind.MOR and step == 10:
            table = turns.open()
            schedule_compaction(table, {"hoodie.compact.inline.max.delta.commits": 1})
            assert run_compaction(table) is not None
            expected.check("our compaction")
    found = filters_of(turns.path)
    assert found
    assert all(found.values()), found
    if kind is Kind.COW:
        Comparison().rows(Table.open(str(turns.path)).read(), read_hudi_rs(turns.path), f"{kind} {index}", "hudi-rs")


def _only_the_ends(keys: pa.ChunkedArray) -> KeyBytes:
    return KeyBytes(pa.array(sorted(pc.min_max(keys).as_py().values())))


@pytest.mark.parametrize("form", ["SIMPLE", "DYNAMIC_V0"])
def test_hudi_looks_keys_up_in_our_filters(apache_hudi: ApacheHudi, workdir: Path, form: str) -> None:
    """And in nothing else: it inserts again the keys that a filter lacks, and only these."""
    own = {"hoodie.bloom.index.filter.type": form}
    turns = Turns(apache_hudi, workdir / "table", Kind.COW, own_options=own, request={"index": BloomIndex()})
    turns.create_here()
    turns.ours(trips(range(0, 40, 2), 1))
    turns.theirs(trips(range(10, 50, 2), 2))
    assert turns.agree(Comparison(), f"filters {form}", 25)["ts"].to_pylist().count(2) == 20
    with patch.object(base_file, "KeyBytes", _only_the_ends):
        turns.ours(trips(range(1, 40, 2), 3))
    turns.theirs(trips(range(11, 21, 2), 4))
    assert turns.agree(Comparison(), f"filters {form} that lack keys", 25 + 20 + 5)["ts"].to_pylist().count(4) == 5


def test_a_hudi_writer_with_another_index_is_refused(apache_hudi: ApacheHudi, workdir: Path) -> None:
    """By Apache Hudi itself, which compares its options with `hoodie.properties`."""
    turns = Turns(apache_hudi, workdir / "table", Kind.COW, request={"index": BloomIndex(across_partitions=True)})
    turns.create_here()
    turns.ours(trips(range(40), 1))
    with pytest.raises(PeerFailed, match=r"Config conflict[^$]*hoodie.index.type"):
        turns.theirs(trips(range(40, 80), 2), **{"hoodie.index.type": "SIMPLE"})
