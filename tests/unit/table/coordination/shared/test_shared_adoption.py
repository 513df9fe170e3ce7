"""Tables that Apache Hudi made are adopted as they are, and go on from there."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from tests.unit.table.fixtures import names, unpacked

from tideline_locks import open_hudi_lock
from tideline_table.action import check_table, write_rows
from tideline_table.coordination.shared.adoption import missing_steps, vanished
from tideline_table.coordination.shared.metadata import advertised
from tideline_table.errors import UnsupportedTable
from tideline_table.hudi.formats import WRITTEN
from tideline_table.hudi.listing import ListedTimeline, list_timeline
from tideline_table.hudi.properties import read_properties
from tideline_table.hudi.write_stats import CommitMetadata, WriteStat
from tideline_table.log.sharing import HudiLockKind, Sharing
from tideline_table.metadata_table import listed_by_metadata
from tideline_table.table import Table, share_table
from tideline_table.writer import Operation

SHARING = Sharing(HudiLockKind.FILE_SYSTEM)
VERSION_6 = [name for name in names("tables") if "_v6_" in name and "empty" not in name]
NEWER = [name for name in names("tables") if "_v8_" in name or "_v9_" in name]


def rows_of(table: Table) -> pa.Table:
    return table.read().sort_by([("_hoodie_record_key", "ascending"), ("_hoodie_partition_path", "ascending")])


@pytest.mark.parametrize("name", [*VERSION_6, *NEWER])
def test_a_table_of_hudi_reads_alike_before_and_after_and_can_be_written(name: str, tmp_path: Path) -> None:
    base = str(unpacked("tables", name, tmp_path))
    hudi_written = Table.open(base)
    before = rows_of(hudi_written)
    shared = share_table(hudi_written, SHARING, open_hudi_lock)
    assert rows_of(shared).equals(before)
    state = shared.timeline.state
    listed = ListedTimeline.read(shared.storage, shared.timeline.format)
    assert missing_steps(listed, state) == []
    assert vanished(listed, state) == []
    assert {a.instant for a in hudi_written.state.actions.values()} < set(state.actions)
    again = Table.open(base, hudi_lock=open_hudi_lock)
    assert rows_of(again).equals(before)
    columns = [c for c in before.schema.names if not c.startswith("_hoodie")]
    done = write_rows(again, before.select(columns).slice(0, 1), Operation.UPSERT)
    assert done.rows_updated == 1
    after = rows_of(Table.open(base))
    assert after.num_rows == before.num_rows
    assert after.select(columns).equals(before.select(columns))
    assert done.instant in after.column("_hoodie_commit_time").to_pylist()


@pytest.mark.parametrize("name", NEWER)
def test_completion_times_of_hudi_stay_and_ours_are_later(name: str, tmp_path: Path) -> None:
    base = str(unpacked("tables", name, tmp_path))
    hudi_written = Table.open(base)
    ended = {a.instant: a.completion for a in hudi_written.state.actions.values() if a.completion}
    shared = share_table(hudi_written, SHARING, open_hudi_lock)
    known = shared.state.actions
    assert {at: known[at].completion for at in ended} == ended
    (added,) = set(known) - set(ended)
    assert known[added].completion > added > max(ended.values())
    assert Table.open(base).state.actions[added].completion == known[added].completion, "from the checkpoint"


@pytest.mark.parametrize("name", NEWER)
def test_the_metadata_table_of_newer_versions_is_kept(name: str, tmp_path: Path) -> None:
    """Its `files` and statistics, as far as Apache Hudi made them; the next write adds what it changed."""
    base = str(unpacked("tables", name, tmp_path))
    kept = {"tideline.shared.metadata": "column_stats,partition_stats"}
    before = advertised(read_properties(Table.open(base).storage))
    shared = share_table(Table.open(base, options=kept), SHARING, open_hudi_lock)
    rows = rows_of(shared).select([c for c in rows_of(shared).schema.names if not c.startswith("_hoodie")]).slice(0, 1)
    writer = Table.open(base, options=kept, hudi_lock=open_hudi_lock)
    done = write_rows(writer, rows, Operation.UPSERT)
    after = advertised(read_properties(shared.storage))
    assert after == [found for found in before if found in ("files", "column_stats", "partition_stats")]
    assert check_table(Table.open(base, options=kept)) == []
    listed = listed_by_metadata(shared.storage, shared.timeline.format, list_timeline(shared.storage, shared.timeline.format))
    assert (listed is not None) == bool(after)
    if listed is not None:
        assert {stat.path for stat in done.stats} <= {found.path for _, files in listed for found in files}


def test_a_commit_that_names_files_of_another_system_stops_the_writers(tmp_path: Path) -> None:
    base = str(unpacked("tables", VERSION_6[0], tmp_path))
    shared = share_table(Table.open(base), SHARING, open_hudi_lock)
    columns = [c for c in rows_of(shared).schema.names if not c.startswith("_hoodie")]
    rows = rows_of(shared).select(columns).slice(0, 1)
    at = str(int(shared.timeline.state.last_instant) + 1)
    stat = WriteStat("part-00000", "", f"part-00000.parquet_{at}_hudiext", "null", 1, 4)
    path = f".hoodie/{at}.commit"
    shared.storage.put(path, WRITTEN.commit_content(CommitMetadata("INSERT", (stat,))))
    with pytest.raises(UnsupportedTable, match=f"{path} names the data file part-00000"):
        write_rows(Table.open(base, hudi_lock=open_hudi_lock), rows, Operation.UPSERT)
    shared.storage.delete(path)
    assert write_rows(Table.open(base, hudi_lock=open_hudi_lock), rows, Operation.UPSERT).rows_updated == 1
