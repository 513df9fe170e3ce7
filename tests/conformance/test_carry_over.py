"""Clusterings that carried writes over (docs/design/carry-over.md): what Apache Hudi and hudi-rs read, and how Apache Hudi
continues the table."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from tests.conformance.both_in_turn import QUICK
from tests.conformance.matrix import Matrix, Topic
from tests.conformance.peers.apache_hudi import ApacheHudi
from tests.conformance.peers.hudi_rs import read_hudi_rs
from tests.conformance.peers.rows import difference
from tests.conformance.stories.life import EVENT_TIME, KEYS
from tests.conformance.stories.story import COMMON
from tests.conformance.written_here import BASE, Readers, rows
from tests.plans import schedule_clustering

from tideline_table.action import (
    ClusteredGroup,
    ClusteringTask,
    check_table,
    cluster_here,
    create_metadata,
    run_clustering,
    write_rows,
)
from tideline_table.log.body import CARRIED_KEY
from tideline_table.table import Table, TableType, create_table
from tideline_table.writer import Operation

pytestmark = pytest.mark.timeout(600)

OPTIONS = {
    "hoodie.parquet.small.file.limit": 0,
    "hoodie.clustering.updates.strategy": "carry-over",
    "hoodie.clustering.plan.strategy.sort.columns": "quantity",
    "tideline.clustering.min.input.files": 1,
}
FULL_SCAN = {"hoodie.datasource.read.incr.fallback.fulltablescan.enable": "true"}
LAYOUTS = pytest.mark.parametrize(("ordering", "log_format"), [("ts", "avro"), ("", "parquet")], ids=["event-time", "commit-time"])


def clustered(base: Path, ordering: str, log_format: str, indexed: Sequence[str] = ()) -> tuple[Table, pa.Table]:
    """A table whose clustering carried three upserts and a deletion over, beside an insert into a file group of its own.

    Its rows.
    """
    create_table(str(base), replace(BASE, type=TableType.MOR, ordering_field=ordering))
    table = Table.open(str(base), options={**OPTIONS, "hoodie.logfile.data.block.format": log_format})
    write_rows(table, rows(range(6), 5), Operation.INSERT)
    if indexed:
        create_metadata(table, indexed)
    write_rows(table, rows(range(6, 12), 5), Operation.INSERT)
    write_rows(table, rows([0, 1], 6), Operation.UPSERT)
    assert schedule_clustering(table) is not None

    def run(tasks: Sequence[ClusteringTask]) -> list[ClusteredGroup]:
        made = cluster_here(tasks)
        writer = Table.open(str(base), options=table.options.given())
        write_rows(writer, rows([0, 2, 7], 9), Operation.UPSERT)
        write_rows(writer, rows([8], 0).select(["id", "part"]), Operation.DELETE)
        write_rows(writer, rows([2], 10), Operation.UPSERT)
        write_rows(writer, rows([3], 1), Operation.UPSERT)  # late
        write_rows(writer, rows([12], 5), Operation.INSERT)
        return made

    done = run_clustering(table, run=run)
    assert done is not None
    assert sum(stat.is_log for stat in done.stats) == 5
    parts = [rows([2], 10), rows([0, 7], 9), rows([1], 6), rows([3], 5 if ordering else 1), rows([4, 5, 6, 9, 10, 11, 12], 5)]
    return table, pa.concat_tables(parts)


@LAYOUTS
def test_they_read_what_was_carried_over(
    apache_hudi: ApacheHudi, matrix: Matrix, tmp_path: Path, ordering: str, log_format: str
) -> None:
    base = tmp_path / "trips"
    table, model = clustered(base, ordering, log_format)
    readers = Readers(table, apache_hudi, matrix, f"carry-over, {ordering or 'commit time'}, {log_format}")
    writes = [record.instant for record in table.refresh().completed_writes()]
    (clustering,) = (record.instant for record in table.state.completed_writes() if record.is_clustering)
    before = max(at for at in writes if at < clustering)
    with readers.step(Topic.CLUSTERING, "beside writers") as step:
        step.agree(model)
        step.compare.rows(table.read(read_optimized=True), apache_hudi.read(base, "read_optimized"), "read-optimized")
        for at in (clustering, next(at for at in writes if at > clustering)):
            step.compare.rows(table.read(as_of=at), apache_hudi.read(base, as_of=at), f"as of {at}")
        for begin in (before, clustering):
            # Ranges of Apache Hudi go by instants: behind the clustering, it reads the carried writes in the replaced file groups.
            theirs = apache_hudi.read(base, "incremental", begin=begin).drop_columns("_hoodie_file_name")
            if ordering:
                step.compare.excused(3)
                theirs = theirs.filter(pc.not_equal(theirs["id"], "k0003"))
            ours = table.incremental(before).read().drop_columns("_hoodie_file_name")
            step.compare.rows(ours, theirs, f"from {begin}")
    write_rows(table, rows([1, 2, 8], 20), Operation.UPSERT)
    with readers.step(Topic.CLUSTERING, "and a write behind it") as step:
        step.agree(pa.concat_tables([rows([1, 2, 8], 20), *(model.slice(at, 1) for at in (1, 2)), model.slice(4)]))


def test_a_metadata_table_lists_carried_files(apache_hudi: ApacheHudi, matrix: Matrix, tmp_path: Path) -> None:
    base = tmp_path / "trips"
    table, model = clustered(base, "ts", "avro", ["files", "column_stats", "record_index"])
    assert check_table(table) == []
    readers = Readers(table, apache_hudi, matrix, "carry-over, metadata table")
    skipping = {"hoodie.enable.data.skipping": "true", "hoodie.metadata.index.column.stats.enable": "true"}
    with readers.step(Topic.CLUSTERING, "listed") as step:
        ours = Table.open(str(base)).read()
        step.compare.rows(ours.select(model.column_names), model, "what was written", key=("id",))
        step.compare.rows(ours, apache_hudi.read(base, metadata=True), "by the metadata table")
        found = apache_hudi.read(base, metadata=True, where="ts > 8", options=skipping)
        step.compare.rows(ours.filter(pc.greater(ours["ts"], 8)), found, "by column statistics")


@LAYOUTS
def test_apache_hudi_continues_the_table(apache_hudi: ApacheHudi, tmp_path: Path, ordering: str, log_format: str) -> None:
    """Its upsert appends behind carried files, its compaction merges them, its cleaner deletes the replaced file groups.

    On a copy.
    """
    table, model = clustered(tmp_path / "ours", ordering, log_format)
    base = tmp_path / "theirs"
    shutil.copytree(tmp_path / "ours", base)  # keeps modification times, by which Apache Hudi places log files
    shutil.rmtree(base / ".hoodie" / ".tideline")
    assert any(CARRIED_KEY in path.read_text() for path in (base / ".hoodie").glob("*.replacecommit"))
    options = {**COMMON, **QUICK, **KEYS, "hoodie.table.name": "trips", "hoodie.datasource.write.operation": "upsert"}
    options |= EVENT_TIME if ordering else {}
    apache_hudi.write(base, rows([2, 6], 20), options)
    model = pa.concat_tables([rows([2, 6], 20), model.slice(1, 6), model.slice(8)])
    _holds(apache_hudi, base, model, "upsert")
    compacting = {"hoodie.compact.inline": "true", "hoodie.compact.inline.max.delta.commits": "1"}
    apache_hudi.write(base, rows([7], 21), {**options, **compacting})
    assert list((base / ".hoodie").glob("*.compaction.requested"))
    replaced = {path for name in table.state.replaced for path in base.rglob(f"*{name.file_id}*")}
    assert replaced
    cleaning = {"hoodie.clean.automatic": "true", "hoodie.cleaner.commits.retained": "1"}
    apache_hudi.write(base, rows([9], 22), {**options, **cleaning})
    assert list((base / ".hoodie").glob("*.clean"))
    assert not any(path.exists() for path in replaced)
    changed = model.filter(pc.invert(pc.is_in(model["id"], value_set=pa.array(["k0007", "k0009"]))))
    _holds(apache_hudi, base, pa.concat_tables([changed, rows([7], 21), rows([9], 22)]), "compaction and clean")
    (clustering,) = (record.instant for record in table.refresh().completed_writes() if record.is_clustering)
    # Of the replaced file groups, which such a range otherwise reads, the cleaner deleted the files.
    theirs = apache_hudi.read(base, "incremental", begin=clustering, options=FULL_SCAN)
    ours = Table.open(str(base)).read()
    same = difference(
        ours.filter(pc.greater(ours["_hoodie_commit_time"], clustering)), theirs, ("id",), names=("here", "Apache Hudi")
    )
    assert same is None, same


def _holds(peer: ApacheHudi, base: Path, model: pa.Table, what: str) -> None:
    wanted = model.sort_by("id").select(["id", "ts"])
    for name, found in (("Apache Hudi", peer.read(base)), ("here", Table.open(str(base)).read()), ("hudi-rs", read_hudi_rs(base))):
        assert found.select(["id", "ts"]).sort_by("id").cast(wanted.schema).equals(wanted), f"{what}: {name}"
