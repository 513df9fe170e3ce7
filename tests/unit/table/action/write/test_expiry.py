"""Time to live of partitions: which are old, and writes to them beside their deletion."""

from __future__ import annotations

import pytest
from tests.unit.table.tables import contents, create, open_table, rows_of, write

from tideline_table.action import expire_partitions, expired_partitions, write_rows
from tideline_table.action.write import expiry
from tideline_table.clock import ManualClock
from tideline_table.config import PARTITION_TTL_DAYS, PARTITION_TTL_MOST, PARTITION_TTL_SELECTED
from tideline_table.errors import InvalidOption
from tideline_table.storage import MemoryStorage
from tideline_table.table import TableType
from tideline_table.writer import Operation

DAY_S = 86400.0
TTL = {PARTITION_TTL_DAYS.key: 10}


def table_of(kind=TableType.COW, **options):
    """Three partitions, written on days 0, 4 and 8."""
    clock = ManualClock()
    storage = MemoryStorage(clock=clock)
    create(storage, clock, type=kind)
    table = open_table(storage, clock, **options)
    for name in ("p", "q", "r"):
        write(table, [(f"{name}1", name, 1, "x")])
        clock.advance(4 * DAY_S)
    return table


def old(table, **more):
    options = table.options.merged({**TTL, **more})
    return list(expired_partitions(table.refresh(), options, table.clock.now(), table.zone))


def test_a_partition_is_old_by_its_last_write():
    table = table_of()
    assert old(table) == ["p"]
    table.clock.advance(4 * DAY_S)
    assert old(table) == ["p", "q"]
    assert old(table, **{PARTITION_TTL_MOST.key: 1}) == ["p"]
    assert old(table, **{PARTITION_TTL_SELECTED.key: "q, r"}) == ["q"]
    assert old(table, **{PARTITION_TTL_DAYS.key: -1}) == old(table, **{PARTITION_TTL_DAYS.key: 0}) == []
    write(table, [("p2", "p", 1, "x")])
    assert old(table) == ["q"]


@pytest.mark.parametrize("kind", [TableType.COW, TableType.MOR])
def test_an_update_keeps_a_partition_also_in_log_files(kind):
    table = table_of(kind)
    write_rows(table, rows_of([("p1", "p", 2, "y")]), Operation.UPSERT)
    assert old(table) == []


def test_old_partitions_are_deleted_in_one_commit():
    table = table_of()
    table.clock.advance(4 * DAY_S)
    done, deleted = expire_partitions(table, TTL)
    assert (list(deleted), done.attempts) == (["p", "q"], 1)
    assert {row[1] for row in contents(table)} == {"r"}
    before = table.refresh().sequence
    assert expire_partitions(table, TTL) == (None, {})
    assert table.refresh().sequence == before


def test_a_partition_that_is_written_after_the_deletion_has_begun_stays(monkeypatch):
    table = table_of()
    table.clock.advance(4 * DAY_S)
    found, asked = expired_partitions, []

    def written_meanwhile(state, options, now, zone):
        answer = found(state, options, now, zone)
        asked.append(list(answer))
        if len(asked) == 2:  # the second look is behind the begin of the commit
            write(open_table(table.storage, table.clock), [("p2", "p", 1, "x")])
        return answer

    monkeypatch.setattr(expiry, "expired_partitions", written_meanwhile)
    done, deleted = expire_partitions(table, TTL)
    assert asked == [["p", "q"], ["p", "q"], ["q"]]
    assert (list(deleted), done.attempts) == (["q"], 2)
    assert {row[0] for row in contents(table)} == {"p1", "p2", "r1"}


def test_nothing_is_deleted_if_all_that_was_old_is_written_meanwhile(monkeypatch):
    table = table_of()
    found, asked = expired_partitions, []

    def written_before(state, options, now, zone):
        answer = found(state, options, now, zone)
        if not asked:
            write(open_table(table.storage, table.clock), [("p2", "p", 1, "x")])
        asked.append(list(answer))
        return answer

    monkeypatch.setattr(expiry, "expired_partitions", written_before)
    assert expire_partitions(table, TTL) == (None, {})
    assert asked == [["p"], []]
    assert len(contents(table)) == 4
    assert not list(table.refresh().pending())


def test_other_strategies_are_refused():
    with pytest.raises(InvalidOption, match="KEEP_BY_TIME"):
        table_of(**{"hoodie.partition.ttl.management.strategy.type": "KEEP_BY_CREATION_TIME"})
