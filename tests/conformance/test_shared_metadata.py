"""Apache Hudi and Tideline keep the metadata table of one table in turn, and Apache Hudi compacts it in between.

After each step Apache Hudi reads equal rows with the metadata table and without it, also by conditions on columns for which it
leaves out files by their statistics; `files` lists what is on storage, and no statistics exclude values of a file.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from tests.conformance.both_in_turn import FAST, Turns, trips
from tests.conformance.matrix import Comparison, Kind
from tests.conformance.peers.apache_hudi import ApacheHudi, PeerFailed
from tests.conformance.test_both_in_turn import IMPATIENT, WHOLE, abandoned_write
from tests.conformance.test_data_skipping import SKIPPING, without
from tests.plans import schedule_clean, schedule_clustering
from tests.simulation.faults import SAMPLE_STEP
from tests.unit.table.hudi_metadata import dying

from tideline_locks import open_hudi_lock
from tideline_table.action import check_table, roll_back_dead, run_clean, run_clustering
from tideline_table.config import SHARED_METADATA
from tideline_table.coordination.shared import timeline as shared_timeline
from tideline_table.hudi.instant import State
from tideline_table.metadata_table import StoredMetadata
from tideline_table.metadata_table.finding import FindingKind
from tideline_table.reader.base_file import read_base_file
from tideline_table.table import Table
from tideline_table.writer import Operation

pytestmark = pytest.mark.timeout(900)

ONLY_FILES = {SHARED_METADATA.key: "files"}
KEPT = {SHARED_METADATA.key: "files,column_stats,bloom_filters"}
WITH_METADATA = {
    "hoodie.metadata.enable": "true",
    "hoodie.metadata.index.column.stats.enable": "true",
    "hoodie.metadata.index.bloom.filter.enable": "true",
}
OFTEN = {"hoodie.metadata.compact.max.delta.commits": "4"}
_TURN = itertools.count()
CLEANING = {"hoodie.clean.automatic": "true", "hoodie.clean.commits.retained": "1"}


@pytest.fixture(scope="module")
def first(apache_hudi: ApacheHudi, tmp_path_factory: pytest.TempPathFactory) -> Turns:
    """A copy-on-write table of Tideline, for which Apache Hudi's first write has made a metadata table: tests write its copies."""
    folder = tmp_path_factory.mktemp("first") / "table"
    made = Turns(apache_hudi, folder, Kind.COW, {**WITH_METADATA, **OFTEN}, own_options=KEPT, metadata=True)
    made.create_here()
    made.ours(trips(range(10), 1), Operation.BULK_INSERT)
    made.theirs(trips(range(5, 20), 2))
    agree(made, "the metadata table is made")
    return made


@pytest.fixture
def turns(first: Turns, workdir: Path) -> Turns:
    """A copy of `first`."""
    return first.copied(workdir / "table")


def agree(turns: Turns, what: str, partitions: str = "bloom_filters,column_stats,files") -> None:
    """Both read equal rows, Apache Hudi with the metadata table; `files` lists what is there, and filters hold the keys.

    Apache Hudi reads by listing folders, or by one of two conditions, in turn; with SAMPLE_STEP=1 each time all three.
    """
    table = Table.open(str(turns.path), options={SHARED_METADATA.key: partitions})
    assert turns.peer.properties(turns.path).get("hoodie.table.metadata.partitions") == partitions, what
    compare, ours = Comparison(), table.read()
    compare.rows(ours, turns.peer.read(turns.path, metadata=True), what)
    newest, dear = pc.max(ours.column("ts")).as_py(), pc.max(ours.column("price")).as_py()
    others: list[tuple[str | None, pa.Table]] = [
        (None, ours),
        (f"ts = {newest} and part = 'p1'", ours.filter((pc.field("ts") == newest) & (pc.field("part") == "p1"))),
        (f"price >= {dear} and ts > 0", ours.filter(pc.field("price") >= dear)),
    ]
    for where, matching in others if SAMPLE_STEP == 1 else [others[next(_TURN) % len(others)]]:
        found = turns.peer.read(turns.path, metadata=where is not None, where=where, options=SKIPPING if where else {})
        compare.rows(matching, found, f"{what}, {where or 'by listing folders'}")
    if "bloom_filters" in partitions:
        _filters_hold_the_keys(turns, table, what)
    assert check_table(table) == [], what


def _filters_hold_the_keys(turns: Turns, table: Table, what: str) -> None:
    held: dict[str, dict[str, list[str]]] = {}
    for file_slice in table.refresh().latest_slices():
        keys = read_base_file(table.storage, file_slice.path, ["_hoodie_record_key"]).column(0).to_pylist()
        held.setdefault(file_slice.group.partition_path, {})[file_slice.base_file] = keys
    for partition, files in held.items():
        asked = sorted({key for keys in files.values() for key in keys})
        found = turns.peer.bloom_filters(turns.path, partition, list(files), [*asked, "no key"])
        for name, keys in files.items():
            answers = dict(zip([*asked, "no key"], found[name], strict=True))
            assert [answers[key] for key in [*keys, "no key"]] == [True] * len(keys) + [False], f"{what}, {partition}/{name}"


def call(turns: Turns, procedure: str) -> None:
    turns.call(procedure, **turns.options)


def slices(turns: Turns) -> set[str]:
    """The base instants of the slices of `files` that are there."""
    return {path.name.rsplit("_", 1)[-1] for path in (turns.path / ".hoodie/metadata/files").glob("*.hfile")}


def test_both_write_in_turn(turns: Turns) -> None:
    for n in range(3):
        turns.ours(trips(range(n, 8 + n), 3 + 2 * n))
        agree(turns, f"our upsert {n}")
        turns.theirs(trips(range(4 + n, 22), 4 + 2 * n))
        agree(turns, f"their upsert {n}")
    assert len(slices(turns)) > 1, "Apache Hudi compacted the metadata table"
    turns.ours(trips([0, 6], 10), Operation.DELETE)
    agree(turns, "our delete")
    turns.ours(trips(range(0, 20, 2), 11), Operation.INSERT_OVERWRITE)
    agree(turns, "we overwrite a partition")
    turns.theirs(trips(range(24), 12))
    agree(turns, "they bring everything back")


def test_services_of_both(turns: Turns) -> None:
    turns.ours(trips(range(20, 24), 1), Operation.BULK_INSERT)
    assert schedule_clustering(turns.open(), WHOLE)
    assert run_clustering(turns.open())
    agree(turns, "we cluster")
    turns.theirs(trips(range(24, 28), 1), "bulk_insert")
    call(turns, f"run_clustering(path => '{turns.path}', op => 'schedule', order => 'price')")
    assert run_clustering(turns.open())
    agree(turns, "we run their clustering")
    turns.theirs(trips(range(20, 24), 6), **CLEANING)
    agree(turns, "they clean")
    for ts in (7, 8, 9):
        turns.ours(trips(range(20, 24), ts))
    assert schedule_clean(turns.open(), {"hoodie.cleaner.commits.retained": 1})
    assert run_clean(turns.open())
    agree(turns, "we clean")
    turns.theirs(trips(range(20, 24), 11))
    agree(turns, "they go on after our clean")


def test_writers_that_die(turns: Turns) -> None:
    spoiled = {"price": "if(id = 'k0029', cast(raise_error('spoiled') as double), price)"}
    with pytest.raises(PeerFailed):
        turns.theirs(trips(range(26, 30), 3), "bulk_insert", computed=spoiled)
    (dead,) = (a.instant for a in turns.open().state.pending() if a.is_by_hudi)
    impatient = Table.open(str(turns.path), options={**FAST, **IMPATIENT, **KEPT}, hudi_lock=open_hudi_lock)
    turns.wait_for_death(dead)
    assert roll_back_dead(impatient) == [dead]
    agree(turns, "we rolled theirs back")
    died = [abandoned_write(turns.open(), trips(range(18, 24), 4))]
    for at in (3, 4):
        with dying(at):
            turns.ours(trips(range(18, 24), 4))
        died += [a.instant for a in turns.open().state.pending()]
        agree(turns, f"our write died at file {at}")
        turns.theirs(trips(range(3, 6), 5 + at), **CLEANING)
        assert all(turns.open().state.actions[instant].state is State.ROLLED_BACK for instant in died)
        agree(turns, f"they rolled it back, at file {at}")
        turns.ours(trips(range(18, 21), 5 + at))
        agree(turns, f"both went on, at file {at}")


@pytest.mark.parametrize("is_ours_first", [True, False])
def test_a_hudi_writer_that_died_before_its_commit(turns: Turns, is_ours_first: bool) -> None:
    turns.theirs(trips(range(3, 25), 3))
    died = max(a.instant for a in turns.peer.timeline(turns.path))
    for path in (turns.path / ".hoodie").glob(f"*{died}.commit*"):
        if not path.name.endswith(".requested"):
            path.unlink()
    agree(turns, "its delta commit is there, its timeline file is not")
    if is_ours_first:
        impatient = Table.open(str(turns.path), options={**FAST, **IMPATIENT, **KEPT}, hudi_lock=open_hudi_lock)
        assert roll_back_dead(impatient) == [died]
        assert turns.peer.properties(turns.path)["hoodie.table.metadata.partitions"] == ""
        turns.ours(trips(range(3), 4))
    turns.theirs(trips(range(5, 9), 5), **CLEANING)
    assert died not in {a.instant for a in turns.peer.timeline(turns.path)}
    agree(turns, "they write")
    turns.ours(trips(range(3), 6))
    agree(turns, "we write")


@pytest.mark.parametrize("at", [3, 4])
def test_a_clean_that_dies(turns: Turns, at: int) -> None:
    for ts in (4, 5, 6):
        turns.ours(trips(range(5, 9), ts))
    assert schedule_clean(turns.open(), {"hoodie.cleaner.commits.retained": 1})
    with dying(at):
        run_clean(turns.open())
    agree(turns, "our clean died")
    turns.theirs(trips(range(5, 9), 8), **CLEANING)
    agree(turns, "they ran it again")
    turns.ours(trips(range(5, 9), 9))
    agree(turns, "and we go on")


def test_apache_hudi_takes_the_files_from_it(turns: Turns, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(shared_timeline, "follow_step", lambda *_: False)
        turns.ours(trips(range(3), 5))
    table = Table.open(str(turns.path), options=KEPT)
    assert {found.kind for found in check_table(table)} == {FindingKind.NOT_LISTED}
    assert sum(turns.peer.read(turns.path, metadata=False).column("ts").to_pylist()) == sum(table.read().column("ts").to_pylist())
    assert sum(turns.peer.read(turns.path, metadata=True).column("ts").to_pylist()) < sum(table.read().column("ts").to_pylist())


def test_apache_hudi_leaves_out_files_by_our_statistics(turns: Turns) -> None:
    """Also by a column that no writer of Apache Hudi indexed when we wrote the file, and that one does later."""
    fewer = {**turns.options, "hoodie.metadata.index.column.stats.column.list": "ts"}
    replace(turns, options=fewer).theirs(trips([1, 3], 3))
    turns.ours(trips(range(0, 8, 2), 9))
    agree(turns, "we write while they index one column")

    def found(where: str) -> list[str]:
        rows = turns.peer.read(turns.path, metadata=True, where=where, options=SKIPPING)
        return sorted(rows.column("id").to_pylist())

    with without(turns.path, ["p1"]):
        assert found("ts = 9") == ["k0000", "k0002", "k0004", "k0006"]
    turns.theirs(trips([1, 3], 10))
    with without(turns.path, ["p0", "p1"]):
        assert found("price > 100") == []
    assert found("ts = 9 and price > 14") == ["k0004", "k0006"]
    assert found("ts = 9 and amount is null") == []


def test_a_table_of_apache_hudi_keeps_it_when_it_is_shared(turns: Turns) -> None:
    theirs: Mapping[str, str] = {"hoodie.metadata.enable": "true"}
    made = Turns(turns.peer, turns.path.with_name("theirs"), Kind.COW, theirs, own_options=ONLY_FILES, metadata=True)
    made.theirs(trips(range(10), 1), "bulk_insert")
    assert turns.peer.properties(made.path)["hoodie.table.metadata.partitions"] == "column_stats,files"
    made.share()
    agree(made, "shared", "files")
    assert turns.peer.properties(made.path)["hoodie.table.metadata.partitions"] == "files"
    made.ours(trips(range(5), 2))
    agree(made, "we write", "files")
    made.theirs(trips(range(3, 8), 3))
    agree(made, "a writer that makes column statistics again", "column_stats,files")
    made.ours(trips(range(5), 4))
    agree(made, "they are dropped again", "files")
    assert turns.peer.properties(made.path)["hoodie.table.metadata.partitions"] == "files"
    table = Table.open(str(made.path))
    assert StoredMetadata.read(table.storage, table.timeline.format).pending == []


def test_all_partitions_of_a_table_that_apache_hudi_made(apache_hudi: ApacheHudi, workdir: Path) -> None:
    names = "bloom_filters,column_stats,files,record_index"
    by_index = {"hoodie.metadata.record.index.enable": "true", "hoodie.index.type": "RECORD_INDEX"}
    kept = {SHARED_METADATA.key: names}
    made = Turns(apache_hudi, workdir / "all", Kind.COW, {**WITH_METADATA, **OFTEN, **by_index}, own_options=kept, metadata=True)
    made.theirs(trips(range(10), 1), "bulk_insert")
    made.share()
    made.ours(trips(range(8, 14), 2))
    agree(made, "shared, and we write", names)
    made.theirs(trips(range(9, 16), 3))
    agree(made, "they write", names)


def test_that_of_a_merge_on_read_table_is_turned_off(apache_hudi: ApacheHudi, workdir: Path) -> None:
    turns = Turns(apache_hudi, workdir / "logs", Kind.MOR, WITH_METADATA, own_options=KEPT, metadata=True)
    turns.create_here()
    turns.ours(trips(range(10), 1), Operation.BULK_INSERT)
    turns.theirs(trips(range(5, 20), 2))
    assert turns.peer.properties(turns.path)["hoodie.table.metadata.partitions"] == "bloom_filters,column_stats,files"
    turns.ours(trips(range(3), 3))
    assert turns.peer.properties(turns.path)["hoodie.table.metadata.partitions"] == ""
    turns.agree(Comparison(), "it is turned off", 20)
