"""Apache Hudi and Tideline keep the record index of one table in turn: Apache Hudi's upserts find each key there, and store
none twice."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from tests.conformance.both_in_turn import SCHEMA, Turns, trips
from tests.conformance.matrix import Comparison, Kind
from tests.conformance.peers.apache_hudi import ApacheHudi
from tests.conformance.test_both_in_turn import WHOLE
from tests.conformance.test_shared_metadata import CLEANING, OFTEN
from tests.plans import schedule_clean, schedule_clustering
from tests.unit.table.hudi_metadata import dying

from tideline_table.action import check_table, run_clean, run_clustering
from tideline_table.config import RECORD_INDEX_UPDATE_PARTITION_PATH, SHARED_METADATA
from tideline_table.coordination.shared import timeline as shared_timeline
from tideline_table.metadata_table.finding import FindingKind
from tideline_table.table import Table
from tideline_table.writer import Operation

pytestmark = pytest.mark.timeout(900)

KEPT = {SHARED_METADATA.key: "files,record_index"}
BY_INDEX = {
    "hoodie.metadata.enable": "true",
    "hoodie.metadata.index.column.stats.enable": "false",
    "hoodie.metadata.record.index.enable": "true",
    "hoodie.index.type": "RECORD_INDEX",
    **OFTEN,
}
USED = {"hoodie.enable.data.skipping": "true", "hoodie.metadata.record.index.enable": "true"}


@pytest.fixture(scope="module")
def first(apache_hudi: ApacheHudi, tmp_path_factory: pytest.TempPathFactory) -> Turns:
    """A copy-on-write table of Tideline, for which Apache Hudi's first write has made a record index: tests write its copies."""
    folder = tmp_path_factory.mktemp("first") / "table"
    made = Turns(apache_hudi, folder, Kind.COW, BY_INDEX, own_options=KEPT, metadata=True)
    made.create_here()
    made.ours(trips(range(10), 1), Operation.BULK_INSERT)
    made.theirs(trips(range(5, 20), 2))
    agree(made, "the record index is made", 20)
    return made


@pytest.fixture
def turns(first: Turns, workdir: Path) -> Turns:
    """A copy of `first`."""
    return first.copied(workdir / "table")


def agree(turns: Turns, what: str, number: int) -> pa.Table:
    """Both read equal rows, as many as there are keys; the index says where each key is, and Apache Hudi finds rows by it."""
    table = Table.open(str(turns.path), options=KEPT)
    assert turns.peer.properties(turns.path).get("hoodie.table.metadata.partitions") == "files,record_index", what
    compare, ours = Comparison(), table.read()
    assert len(set(ours.column("id").to_pylist())) == ours.num_rows == number, what
    compare.rows(ours, turns.peer.read(turns.path, metadata=True), what)
    assert check_table(table) == [], what
    return ours


def rows_of_key(turns: Turns, key: str) -> list[tuple[str, int]]:
    """Partition path and `ts` of the rows that Apache Hudi finds for a key by the index."""
    found = turns.peer.read(turns.path, where=f"id = '{key}'", metadata=True, options=USED)
    return sorted(zip(found.column("_hoodie_partition_path").to_pylist(), found.column("ts").to_pylist(), strict=True))


def in_partition(rows: pa.Table, partition: str) -> pa.Table:
    return rows.set_column(SCHEMA.get_field_index("part"), "part", pa.array([partition] * rows.num_rows))


def test_apache_hudi_finds_the_keys_of_our_writes(turns: Turns) -> None:
    turns.ours(trips(range(18, 30), 3))
    turns.theirs(trips(range(16, 34), 4))
    agree(turns, "they upsert keys that we inserted", 34)
    assert rows_of_key(turns, "k0025") == [("p1", 4)]
    turns.ours(trips([0, 1, 20], 5), Operation.DELETE)
    agree(turns, "we delete", 31)
    assert rows_of_key(turns, "k0020") == []
    turns.theirs(trips([0, 20, 21], 6))
    agree(turns, "they insert deleted keys again", 33)
    assert rows_of_key(turns, "k0020") == [("p0", 6)]
    turns.ours(in_partition(trips([2, 3], 7), "p1"), **{RECORD_INDEX_UPDATE_PARTITION_PATH.key: True})
    assert rows_of_key(turns, "k0002") == [("p1", 7)]
    turns.theirs(pa.concat_tables([in_partition(trips([2], 8), "p1"), trips([4], 8)]))
    agree(turns, "they upsert a key that we moved: it stays there", 33)
    assert rows_of_key(turns, "k0002") == [("p1", 8)]
    turns.ours(trips(range(40, 44, 2), 9), Operation.INSERT_OVERWRITE)
    kept = agree(turns, "we overwrite a partition", 2 + 17).num_rows
    turns.theirs(trips([6, 40, 41], 10))
    agree(turns, "they bring keys of it back", kept + 2)


def test_services_and_deaths(turns: Turns) -> None:
    turns.ours(trips(range(20, 24), 3), Operation.BULK_INSERT)
    assert schedule_clustering(turns.open(), WHOLE)
    assert run_clustering(turns.open())
    agree(turns, "we cluster", 24)
    turns.theirs(trips(range(18, 26), 4))
    agree(turns, "they upsert keys that we moved into other file groups", 26)
    with dying(3):
        turns.ours(trips(range(24, 30), 5))
    turns.theirs(trips(range(26, 28), 6), **CLEANING)
    agree(turns, "they rolled our write back, and inserted its keys", 28)
    turns.ours(trips(range(24, 30), 7))
    for ts in (8, 9):
        turns.ours(trips(range(20, 24), ts))
    assert schedule_clean(turns.open(), {"hoodie.cleaner.commits.retained": 1})
    assert run_clean(turns.open())
    agree(turns, "we clean", 30)
    turns.theirs(trips(range(32), 10))
    agree(turns, "they upsert all keys", 32)


def test_apache_hudi_goes_by_it(turns: Turns, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without our records it stores a key twice, and the check says so before."""
    with monkeypatch.context() as patched:
        patched.setattr(shared_timeline, "follow_step", lambda *_: False)
        turns.ours(trips([30], 5))
    found = {finding.kind for finding in check_table(Table.open(str(turns.path), options=KEPT))}
    assert found == {FindingKind.NOT_LISTED}
    turns.theirs(trips([30], 6))
    assert turns.peer.read(turns.path, metadata=False, where="id = 'k0030'").num_rows == 2
