"""Tables that Apache Hudi 1.2.0 writes are listed by its metadata table, and keys looked up by its record index: the same rows.

With writes that died, commits that were undone, cleans, a pending compaction, and a metadata table behind the timeline.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.conformance.matrix import Comparison, Kind
from tests.conformance.peers.apache_hudi import ApacheHudi
from tests.conformance.stories.life import COMPACTION, EVENT_TIME, KEYS, MISHAPS
from tests.conformance.stories.rows import trips
from tests.conformance.stories.story import Maker, Story
from tests.simulation.faults import SAMPLE_STEP

from tideline_table.hudi.formats import format_of
from tideline_table.hudi.listing import list_timeline
from tideline_table.hudi.properties import read_properties
from tideline_table.hudi_written import hudi_written_state
from tideline_table.metadata_table import listed_by_metadata
from tideline_table.reader.where import parse_where
from tideline_table.storage import open_storage
from tideline_table.table import Table
from tideline_table.table.query import sorted_keys

pytestmark = pytest.mark.timeout(900)

GLOBAL: dict[str, object] = {"hoodie.index.type": "RECORD_INDEX"}
BY_KEY = {
    "hoodie.index.type": "RECORD_INDEX",
    "hoodie.metadata.record.index.enable": "true",
    "hoodie.metadata.record.index.min.filegroup.count": "2",
    "hoodie.metadata.record.index.max.filegroup.count": "2",
    "hoodie.parquet.small.file.limit": "0",
}
_BY_NAME = {step.name: step for step in (*MISHAPS, *COMPACTION)}
FIRST = ["first rows", "second rows", "crashed write", "crashed write rolled back", "commit undone", "upsert after undoing"]
PENDING = ["compaction scheduled", "upsert beside compaction", "delete beside compaction", "compacted", "upsert after compaction"]
TELLING = ["crashed write", "commit undone", "delete beside compaction", "delete after savepoint"]
"""After these, Hudi's rows are compared; files and keys after each."""
LAST = ["cleaned", "upsert after savepoint", "delete after savepoint"]
TABLES = [(Kind.MOR, 6), *([(Kind.COW, 6), (Kind.MOR, 9), (Kind.COW, 8)] if SAMPLE_STEP == 1 else [])]


def is_listed(base: Path) -> bool:
    """Whether the metadata table lists the table; if it does, as folders do, but for log files that no reader needs."""
    storage = open_storage(str(base))
    properties = read_properties(storage)
    form = format_of(properties)
    if listed_by_metadata(storage, form, list_timeline(storage, form)) is None:
        return False
    ours, by_folders = hudi_written_state(storage, properties, listed_by_metadata), hudi_written_state(storage, properties)
    assert {(s.group, s.base_file) for s in ours.latest_slices()} == {(s.group, s.base_file) for s in by_folders.latest_slices()}
    known = {path for s in by_folders.every_slice() for path in s.paths}
    assert {path for s in ours.every_slice() for path in s.paths} <= known
    return True


def left_out(base: Path, keys: list[str]) -> int:
    """How many slices a look-up leaves out by the record index, after a comparison with a filter on all rows."""
    table = Table.open(str(base), options=GLOBAL)
    found = table.snapshot()
    named = ", ".join(f"'{key}'" for key in keys)
    rows = found.read(["id", "ts"], parse_where(f"_hoodie_record_key in ({named})", found.schema)).to_pylist()
    assert sorted(table.look_up(keys, ["id", "ts"]).to_pylist(), key=str) == sorted(rows, key=str)
    return len(found.slices) - len(table.timeline.holding(sorted_keys(keys), found.slices))


@pytest.mark.parametrize(("kind", "version"), TABLES, ids=str)
def test_the_same_rows_by_the_metadata_table(
    tmp_path: Path, apache_hudi: ApacheHudi, caplog: pytest.LogCaptureFixture, kind: Kind, version: int
) -> None:
    names = [*FIRST, *(PENDING if kind is Kind.MOR else []), *LAST]
    steps = tuple(_BY_NAME[name] for name in names)
    skipped = 0
    for step in steps:
        # Apache Hudi does not roll back what its metadata table has compacted.
        often = {"hoodie.metadata.compact.max.delta.commits": "30" if step.name in FIRST else "3"}
        story = Story("by-metadata", kind, steps, {**KEYS, **EVENT_TIME, **BY_KEY, **often}, metadata=True, version=version)
        maker = Maker(apache_hudi, tmp_path / "table", story)
        if step is steps[0]:
            maker.write(trips(range(12), 5), "upsert")  # a bulk insert looks no keys up
        else:
            step.do(maker)
        assert is_listed(maker.base), step.name
        if SAMPLE_STEP == 1 or step.name in TELLING:
            by_folders = apache_hudi.read(maker.base, metadata=False)
            Comparison().rows(Table.open(str(maker.base)).read(), by_folders, step.name)
        for keys in (["k0003"], ["k0001", "k0008"], ["k0015", "nobody"]):
            skipped += left_out(maker.base, keys)
    assert "without the record index" not in caplog.text
    # By event time, the index of a merge-on-read table may lack a key that the table has.
    assert (skipped > len(steps)) is (kind is Kind.COW)
    compacted = list((maker.base / ".hoodie/metadata/record_index").glob("*.hfile"))
    assert len(compacted) > 2, "the metadata table was not compacted"
    # A writer that neither keeps the metadata table nor removes it.
    behind = {
        "hoodie.metadata.enable": "false",
        "hoodie.metadata.auto.delete.partitions": "false",
        "hoodie.index.type": "GLOBAL_SIMPLE",
    }
    apache_hudi.write(maker.base, trips([1, 90], 99), {**maker.options, **behind}, metadata=False)
    assert not is_listed(maker.base)
    assert left_out(maker.base, ["k0001", "k0090"]) == 0
    Comparison().rows(Table.open(str(maker.base)).read(), apache_hudi.read(maker.base, metadata=False), "behind")


def test_a_key_that_a_bulk_insert_repeats_is_found_twice(tmp_path: Path, apache_hudi: ApacheHudi) -> None:
    """Apache Hudi 1.2.0 takes it into a table with a record index, in which a key has one place."""
    story = Story("twice", Kind.COW, (), {**KEYS, **EVENT_TIME, **BY_KEY}, metadata=True)
    maker = Maker(apache_hudi, tmp_path / "table", story)
    maker.write(trips([*range(8), 3], 5, lambda n: "p0"), "bulk_insert", hoodie_bulkinsert_sort_mode="NONE")
    assert left_out(maker.base, ["k0003"]) == 0
    assert Table.open(str(maker.base), options=GLOBAL).look_up(["k0003"], ["id"]).num_rows == 2
