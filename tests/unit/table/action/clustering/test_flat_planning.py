"""What planning costs does not depend on the size of a table that is open; what opening it and a query cost is bounded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from tests.plans import schedule_clustering, schedule_compaction
from tests.simulation.faults import SAMPLE_STEP
from tests.unit.table.counting import NotingStorage, publish
from tests.unit.table.tables import QUIET, base_stat, log_stat

from tideline_table.action import write_rows
from tideline_table.clock import ManualClock
from tideline_table.hudi.write_stats import WriteStat
from tideline_table.log.packed import Part
from tideline_table.statistics import ColumnStatistics, FileStatistics
from tideline_table.table import Table, TableRequest, TableType, create_table
from tideline_table.writer import Operation

SCHEMA = pa.schema([("id", pa.string()), ("part", pa.string()), ("n", pa.int64())])
LARGE = 2 * 1024**3
"""The size of a base file that clustering leaves as it is."""
MOST_GROUPS = 20_000
MOST = MOST_GROUPS // min(SAMPLE_STEP, 4)
"""Groups of the large table."""
WRITES = 25
"""As many for tables of all sizes: the last of their entries comes with a checkpoint."""


def opened(storage: NotingStorage) -> Table:
    return Table.open(storage.root, options=QUIET, clock=ManualClock(), storage=storage)


def group_of(number: int) -> tuple[str, str]:
    """Return file id and partition path: each group is in a partition of its own."""
    return f"{number:08x}-aaaa-bbbb-cccc-dddddddddddd-0", f"day={number:06d}"


def base_file(number: int, at: str, *, with_statistics: bool) -> WriteStat:
    stat = base_stat(group_of(number)[0], at, group_of(number)[1], size=LARGE)
    held = FileStatistics(10, {"n": ColumnStatistics("int64", number, number, 0)})
    return replace(stat, statistics=held) if with_statistics else stat


def made(groups: int, *, with_statistics: bool = False) -> tuple[Table, NotingStorage]:
    """Return a table with so many file groups that its log names, without their files."""
    storage = NotingStorage()
    create_table(storage.root, TableRequest("t", SCHEMA, ("id",), ("part",), "", TableType.MOR), ManualClock(), storage)
    table = opened(storage)
    for first in range(0, groups, groups // WRITES):
        numbers = range(first, first + groups // WRITES)
        publish(table, lambda at, numbers=numbers: [base_file(n, at, with_statistics=with_statistics) for n in numbers])
    return table, storage


def cost_of(storage: NotingStorage, act: Callable[[], object]) -> tuple[int, int]:
    """Return requests and bytes of `act`, which has to plan or find something, but for the parts of checkpoints.

    With many file groups, opening leaves their slices there: the first step reads those that it needs, in few requests.
    """
    storage.requests.clear()
    assert act()
    parts = [size for _, path, size in storage.requests if path.endswith(".parts")]
    assert len(parts) <= 20
    assert sum(parts) < 10 * MOST_GROUPS
    requests, size = storage.cost
    return requests - len(parts), size - sum(parts)


def planning(groups: int) -> list[tuple[int, int]]:
    """Return what a planner that has the table open pays, after writes that changed one group each, for each service."""
    writer, storage = made(groups)
    planner = opened(storage)
    costs = []

    def refreshed(schedule: Callable[..., str | None], **options: object) -> object:
        planner.refresh()
        return schedule(planner, options)

    changed = writer.state.latest_slices()[groups // 2]
    publish(writer, lambda _: [log_stat(changed.group.file_id, changed.base_instant, 1, changed.group.partition_path)])
    costs.append(cost_of(storage, lambda: refreshed(schedule_compaction, **{"hoodie.compact.inline.max.delta.commits": 1})))
    small = [base_stat(f"{number:08x}-eeee-bbbb-cccc-dddddddddddd-0", "{}", "small", size=1000) for number in range(2)]
    publish(writer, lambda at: [replace(stat, path=stat.path.format(at)) for stat in small])
    costs.append(cost_of(storage, lambda: refreshed(schedule_clustering)))
    return costs


def test_planning_for_one_changed_group_costs_the_same_with_few_and_many_groups() -> None:
    small, large = planning(1000), planning(MOST)
    for (requests, size), (more_requests, more_size) in zip(small, large, strict=True):
        assert more_requests == requests
        assert abs(more_size - size) <= size / 10
        assert requests <= 20


def test_a_commit_decodes_as_many_parts_with_few_and_many_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[Part] = []
    rows, wanted = Part.rows, pa.Table.from_pylist([{"id": "a", "part": "mine", "n": 1}], SCHEMA)

    def counted(part: Part) -> object:
        decoded.append(part)
        return rows(part)

    monkeypatch.setattr(Part, "rows", counted)
    costs = []
    for groups in (10_000, MOST_GROUPS):
        _, storage = made(groups, with_statistics=True)
        table = opened(storage)
        write_rows(table, wanted, Operation.UPSERT)
        decoded.clear()
        for _ in range(60):  # with a checkpoint
            write_rows(table, wanted, Operation.UPSERT)
        costs.append(len(decoded))
    assert costs[1] <= costs[0] + 2
    assert costs[1] < 20


def test_opening_costs_the_same_requests_and_bytes_for_each_group() -> None:
    costs = {}
    for groups in (1000, 4000):
        _, storage = made(groups)
        costs[groups] = cost_of(storage, lambda storage=storage: opened(storage))
    assert costs[1000][0] == costs[4000][0] <= 5
    each = (costs[4000][1] - costs[1000][1]) / 3000
    assert each < 200


def test_a_selective_query_over_many_partitions_reads_two_objects_and_no_file_that_it_leaves_out() -> None:
    costs = {}
    for partitions in (1000, MOST_GROUPS):
        _, storage = made(partitions, with_statistics=True)
        reader = opened(storage)
        costs[partitions] = cost_of(storage, lambda reader=reader: len(reader.snapshot().only(pc.field("n") == 777).slices) == 1)
        read = {path for kind, path, _ in storage.requests if kind == "read" and not path.endswith(".parts")}
        assert {path.rpartition(".")[2] for path in read} == {"statistics", "partitions"}
        assert len(read) == 2
    assert costs[MOST_GROUPS][0] == costs[1000][0] <= 10
    each = (costs[MOST_GROUPS][1] - costs[1000][1]) / 19_000
    assert each < 18, "what was written since the base lies beside it: an eighth at most"
