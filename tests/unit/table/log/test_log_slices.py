"""Log files in the fold of a table: slices, pending compactions, time travel (format reference 11)."""

import pytest
from tests.unit.table.tables import History, base_stat, instant, log_stat

from tideline_table.file_group.slice import FileGroupId, SliceVersion
from tideline_table.log.checkpoint import read_opening, write_checkpoint
from tideline_table.storage import MemoryStorage

G = FileGroupId("p", "g-0")


@pytest.fixture
def history():
    history = History()
    history.commit(instant(1), base_stat("g-0", instant(1)))
    history.commit(instant(2), log_stat("g-0", instant(1), 1))
    history.commit(instant(3), log_stat("g-0", instant(1), 2))
    return history


def logs(file_slice):
    return [log.instant for log in file_slice.log_files]


def test_log_files_belong_to_the_slice_they_are_named_after(history):
    (visible,) = history.state.latest_slices()
    assert (visible.base_instant, logs(visible)) == (instant(1), [instant(2), instant(3)])
    assert (visible.version, visible.next_log_version) == (SliceVersion(instant(1), 2), 3)
    assert visible.total_bytes == 120
    assert len(visible.paths) == 3


def test_time_travel_leaves_later_log_files_out(history):
    assert [logs(s) for s in history.state.latest_slices(instant(2))] == [[instant(2)]]
    assert [logs(s) for s in history.state.latest_slices(instant(1))] == [[]]
    assert history.state.latest_slices(instant(0)) == []


def test_a_planned_compaction_opens_a_slice(history):
    history.plan_compaction(instant(4), [G])
    (visible,) = history.state.latest_slices()
    assert visible.version == SliceVersion(instant(4), 2, awaits_base_file=True)
    assert (visible.earlier_logs, visible.next_log_version) == (2, 1)
    assert visible.base_file.endswith(f"{instant(1)}.parquet")
    history.commit(instant(5), log_stat("g-0", instant(4)))
    (visible,) = history.state.latest_slices()
    assert (visible.base_instant, logs(visible)) == (instant(4), [instant(2), instant(3), instant(5)])
    assert (visible.earlier_logs, visible.next_log_version) == (2, 2)
    assert history.state.latest_slice(G) == visible
    history.run_compaction(instant(4), base_stat("g-0", instant(4)))
    (visible,) = history.state.latest_slices()
    assert (visible.base_file.endswith(f"{instant(4)}.parquet"), logs(visible)) == (True, [instant(5)])
    assert visible.version == SliceVersion(instant(4), 1)
    assert [logs(s) for s in history.state.latest_slices(instant(3))] == [[instant(2), instant(3)]]
    assert [a.instant for a in history.state.completed_writes()] == [instant(n) for n in (1, 2, 3, 4, 5)]


def test_a_group_without_a_base_file():
    history = History()
    history.commit(instant(2), log_stat("g-0", instant(2)))
    (visible,) = history.state.latest_slices()
    assert (visible.base_file, visible.size_bytes, visible.version) == ("", 0, SliceVersion(instant(2), 1))


def test_checkpoints_keep_log_files(history):
    history.plan_compaction(instant(4), [G])
    history.commit(instant(5), log_stat("g-0", instant(4)))
    storage = MemoryStorage()
    write_checkpoint(storage, history.state)
    assert read_opening(storage).state.latest_slices() == history.state.latest_slices()


def test_a_clean_removes_log_only_slices_by_their_log_files():
    history = History()
    history.commit(instant(1), log_stat("g-0", instant(1)))
    history.commit(instant(2), base_stat("g-0", instant(2)))
    name = log_stat("g-0", instant(1)).path.rsplit("/", 1)[1]
    metadata = {"earliestCommitToRetain": instant(2), "partitionMetadata": {"p": {"successDeleteFiles": [name]}}}
    history.clean(instant(3), {}, metadata)
    assert list(history.state.slices[G]) == [instant(2)]
