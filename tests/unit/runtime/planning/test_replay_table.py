"""File groups of a replay: what its plans find in them."""

from tests.unit.table.tables import new_table

from tideline_runtime.planning.replay_table import SimulatedTable
from tideline_table.action import Due, plan_log_compaction
from tideline_table.config import Options
from tideline_table.file_group import FileGroupId, FileSlice, LogFile
from tideline_table.hudi.formats import WRITTEN

OPTIONS = Options({"hoodie.log.compaction.blocks.threshold": 3})
OLDER, NEWER = "20260101000000000", "20260101000001000"


def test_log_files_of_before_a_compaction_that_is_not_replayed_can_be_merged():
    """Such a slice has log files that are named after the slice before: a log compaction of a real table waits for the
    compaction."""
    group = FileGroupId("p", "f1-0")
    logs = [
        LogFile(WRITTEN.log_file_name("f1-0", base, base, n, "0-1-0"), 7, f"2026010100000200{n}", n)
        for n, base in enumerate((OLDER, OLDER, NEWER))
    ]
    table = SimulatedTable(new_table()[0], OPTIONS)
    table.begin_with([FileSlice(group, NEWER, "f1-0_0-0-0_x.parquet", 100, -1, tuple(logs), earlier_logs=2)])
    (held,) = table.state.latest_slices()
    assert [(log.size_bytes, log.instant) for log in held.log_files] == [(log.size_bytes, log.instant) for log in logs]
    found = plan_log_compaction(table.state, OPTIONS)
    assert isinstance(found, Due)
    assert found.body.groups == (group,)
