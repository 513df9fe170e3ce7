"""Each cleaning policy on one history: Apache Hudi, on a copy of the table, deletes the same files as Tideline."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.conformance.peers.apache_hudi import ApacheHudi
from tests.conformance.written_here import rows
from tests.plans import schedule_clean, schedule_clustering, schedule_compaction

from tideline_table.action import run_clean, run_clustering, run_compaction, write_rows
from tideline_table.table import Table, TableRequest, TableType, create_table
from tideline_table.writer import Operation

pytestmark = pytest.mark.timeout(900)

POLICIES = {
    "KEEP_LATEST_COMMITS": ({"hoodie.cleaner.commits.retained": 2}, "retain_commits => 2"),
    "KEEP_LATEST_FILE_VERSIONS": ({"hoodie.clean.fileversions.retained": 2}, "file_versions_retained => 2"),
    # All writes are of this hour: neither may delete anything.
    "KEEP_LATEST_BY_HOURS": ({"hoodie.clean.hours.retained": 1}, "hours_retained => 1"),
}


def data_files(path: Path) -> set[str]:
    found = (p.relative_to(path).as_posix() for p in path.rglob("*") if p.is_file())
    return {p for p in found if ".hoodie" not in p and ("parquet" in p or ".log." in p) and not p.endswith(".crc")}


@pytest.mark.pairs
@pytest.mark.parametrize("kind", list(TableType), ids=lambda kind: kind.value)
def test_both_delete_the_same_files(apache_hudi: ApacheHudi, workdir: Path, kind: TableType) -> None:
    ours = workdir / "ours"
    create_table(str(ours), TableRequest("cleaned", rows([], 0).schema, ("id",), ("part",), "ts", type=kind))
    table = Table.open(str(ours), options={"hoodie.parquet.small.file.limit": 0, "hoodie.compact.inline.max.delta.commits": 2})
    write_rows(table, rows(range(12), 5), Operation.BULK_INSERT)
    write_rows(table, rows(range(20, 24), 5), Operation.BULK_INSERT)
    assert schedule_clustering(table) is not None
    assert run_clustering(table) is not None
    for number in range(8):
        write_rows(table, rows(range(number, number + 2), 6 + number), Operation.UPSERT)
        if kind is TableType.MOR and schedule_compaction(table):
            run_compaction(table)
    before = data_files(ours)
    deleting = 0
    for policy, (options, argument) in POLICIES.items():
        theirs, mine = workdir / f"theirs_{policy.lower()}", workdir / f"mine_{policy.lower()}"
        shutil.copytree(ours, theirs)  # keeps modification times, by which Apache Hudi places log files
        shutil.copytree(ours, mine)
        copy = Table.open(str(mine), options={"hoodie.clean.policy": policy, **options})
        copy.adopt()
        if schedule_clean(copy):
            run_clean(copy)
        name = f"cleaned_{kind.name.lower()}_{policy.lower()}"
        apache_hudi.sql(f"create table if not exists {name} using hudi location '{theirs}'")
        apache_hudi.call(f"run_clean(table => '{name}', clean_policy => '{policy}', {argument})")
        assert before - data_files(mine) == before - data_files(theirs), policy
        deleting += bool(before - data_files(mine))
    assert deleting == 2, "by commits and by versions there is something to delete"
