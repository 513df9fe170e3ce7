"""Back-pressure of merge-on-read tables whose writers outrun compaction."""

from __future__ import annotations

import logging

import pytest
from tests.plans import schedule_compaction
from tests.unit.table.tables import QUIET, compact, contents, new_table, open_table, write

from tideline_table.action import delete_partitions
from tideline_table.action.write.attempt import Pressure, pressure_on
from tideline_table.clock import ManualClock
from tideline_table.config import Options
from tideline_table.errors import BacklogTooLarge, Recovery
from tideline_table.table import FindingKind, Table, TableType, findings_of, health_of
from tideline_table.writer import Operation

LIMIT = {"tideline.write.backlog.log.files": 3}
ROWS = [("a", "p", 1, "x")]


def with_logs(logs: int, **options: object) -> tuple[Table, ManualClock]:
    """A table with so many log files in partition p, and none in q."""
    table, storage, clock = new_table(type=TableType.MOR)
    write(table, [("a", "p", 0, "x"), ("b", "q", 0, "x")])
    for n in range(logs):
        write(table, [("a", "p", n + 1, "x")])
    return open_table(storage, clock, **LIMIT, **options), clock


def refusing(logs: int) -> tuple[Table, ManualClock]:
    return with_logs(logs, **{"tideline.write.backlog.response": "refuse"})


def test_the_pressure_grows_with_the_backlog():
    table, _ = with_logs(4)
    slow = Options({**QUIET, "tideline.write.backlog.response": "slow", "tideline.write.backlog.wait": 100})

    def pressure(limit: int, *partitions: str) -> Pressure:
        return pressure_on(table.state, slow.merged({"tideline.write.backlog.log.files": limit}), partitions or None)

    assert pressure(5) == Pressure(4)
    assert pressure(4) == Pressure(4, "slow", 10.0)
    assert pressure(3).wait_s == pytest.approx(100 / 3)
    assert pressure(2) == pressure(2, "p") == Pressure(4, "slow", 100.0)
    assert pressure(1).wait_s == 100.0, "never longer"
    assert pressure(2, "q") == Pressure(0), "another partition"


def test_a_write_is_refused_before_anything_is_written():
    table, _ = refusing(3)
    before = table.state.sequence
    with pytest.raises(
        BacklogTooLarge, match=r"a file slice with 3 log files; expected fewer than 3 .*tideline run compaction PATH"
    ) as error:
        write(table, ROWS)
    assert error.value.recovery is Recovery.RETRY
    assert table.refresh().sequence == before
    with pytest.raises(BacklogTooLarge):
        write(table, [("a", "p", 9, "")], Operation.DELETE)
    write(table, [("b", "q", 1, "y")])
    write(table, [("n", "p", 1, "y")], Operation.BULK_INSERT)
    assert compact(table) is not None
    write(table, [("a", "p", 9, "z")])
    assert ("a", "p", 9, "z") in contents(table)
    delete_partitions(table, ["p"])


def test_copy_on_write_tables_have_no_backlog():
    table, storage, clock = new_table()
    for n in range(5):
        write(table, [("a", "p", n, "x")])
    write(open_table(storage, clock, **LIMIT, **{"tideline.write.backlog.response": "refuse"}), ROWS)


def test_a_slowed_write_waits_until_compaction_has_caught_up(monkeypatch):
    table, clock = with_logs(6, **{"tideline.write.backlog.response": "slow", "tideline.write.backlog.wait": 60})
    started_s = clock.monotonic_s()
    write(table, ROWS)
    assert 60 <= clock.monotonic_s() - started_s < 65
    sleep, slept = clock.sleep, []

    def compacting(duration_s: float) -> None:
        slept.append(duration_s)
        sleep(duration_s)
        if len(slept) == 3:
            compact(open_table(table.storage, clock, "compactor"))

    monkeypatch.setattr(clock, "sleep", compacting)
    write(table, [("a", "p", 50, "z")])
    assert len(slept) == 3
    assert ("a", "p", 50, "z") in contents(table)


def test_by_default_a_write_warns(caplog):
    table, _ = with_logs(3)
    with caplog.at_level(logging.WARNING):
        write(table, ROWS)
    assert "writers outrun compaction: table 't1' has a file slice with 3 log files" in caplog.text
    caplog.clear()
    write(table, ROWS, **{"tideline.write.backlog.response": "none"})
    assert "outrun" not in caplog.text


def test_health_names_the_backlog_and_the_plan_that_waits():
    table, clock = with_logs(3)
    (found,) = findings_of(table)
    assert (found.kind, "no compaction is planned" in found.text) == (FindingKind.BACKLOG, True)
    assert found.age_s is not None
    assert found.age_s > 0
    assert not health_of(table).is_healthy
    instant = schedule_compaction(table, {"hoodie.compact.inline.max.delta.commits": 1})
    (found,) = findings_of(table)
    assert f"compaction {instant} has to run first" in found.text
    clock.advance(3601)
    assert {f.kind for f in findings_of(table)} == {FindingKind.BACKLOG, FindingKind.WAITING_PLAN}
    compact(table)
    assert findings_of(table) == ()
