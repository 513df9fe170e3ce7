"""The process dies before, after or within each storage call of a first write into a hash ring, of a split, a merge, a
clustering, and of overwrites."""

from __future__ import annotations

import functools
from collections.abc import Callable

from tests.plans import schedule_clustering
from tests.simulation.crashes import Scenario, rows_survive
from tests.simulation.recovery import OPTIONS, check_sound, recover
from tests.simulation.starting_point import Prepared, Undisturbed, undisturbed
from tests.unit.table.index.test_bucket_index import SORTED
from tests.unit.table.index.test_hash_rings import LARGE, SMALL, check_rings
from tests.unit.table.tables import Row, cluster, contents, create, open_table, rows_of, write

from tideline_table.action import delete_partitions, resize_rings, write_rows
from tideline_table.clock import ManualClock
from tideline_table.storage import MemoryStorage
from tideline_table.table import BucketIndex, Table, TableType
from tideline_table.writer import Operation

ROWS = [(f"k{n}", "p", 1, "x") for n in range(12)] + [(f"k{n}", "q", 1, "x") for n in range(6)]


def first_write(table: Table) -> None:
    """Of a partition: its ring is made."""
    write(table, [(f"n{n}", "new", 1, "x") for n in range(6)] + [("k1", "p", 2, "new")])


def split(table: Table) -> None:
    table.clock.advance(1)  # type: ignore[attr-defined]
    assert resize_rings(table, options=SMALL).committed is not None


def merge(table: Table) -> None:
    table.clock.advance(1)  # type: ignore[attr-defined]
    assert resize_rings(table, options=LARGE).committed is not None


def cluster_nodes(table: Table) -> None:
    """Of two partitions, with their log files."""
    table.clock.advance(1)  # type: ignore[attr-defined]
    assert schedule_clustering(table, SORTED) is not None
    assert cluster(table) is not None


def overwrite(table: Table) -> None:
    """Of one partition, and of one that has no ring yet."""
    table.clock.advance(1)  # type: ignore[attr-defined]
    write_rows(table, rows_of([("k1", "p", 3, "new"), ("n1", "new", 3, "new")]), Operation.INSERT_OVERWRITE)


def overwrite_table(table: Table) -> None:
    """A partition that gets no rows gets another ring, too."""
    table.clock.advance(1)  # type: ignore[attr-defined]
    write_rows(table, rows_of([("k1", "p", 3, "new")]), Operation.INSERT_OVERWRITE_TABLE)


def delete(table: Table) -> None:
    table.clock.advance(1)  # type: ignore[attr-defined]
    delete_partitions(table, ["q"])


RESIZES = [first_write, split, merge]
OVERWRITES = [overwrite, overwrite_table, delete]


@functools.cache
def prepared() -> Prepared:
    clock = ManualClock()
    storage = MemoryStorage(clock=clock)
    create(storage, clock, type=TableType.MOR, index=BucketIndex(2, consistent=True))
    table = open_table(storage, clock, **OPTIONS)
    write(table, ROWS)
    write(table, [("k1", "p", 1, "y"), ("k2", "q", 1, "y")])
    return storage, clock.monotonic_s()


@functools.cache
def outcome(operation: Callable[[Table], None]) -> Undisturbed:
    return undisturbed(prepared(), operation)


def of_ring(operation: Callable[[Table], None]) -> Scenario:
    """What died is no obstacle to the next write and the next resize."""

    def behind(disk: MemoryStorage, clock: ManualClock, _: object) -> tuple[tuple[Row, ...], int]:
        recover(disk, clock)
        after = tuple(contents(open_table(disk, clock)))
        check_sound(disk, clock, outcome(operation).allowed)
        found = open_table(disk, clock, "next")
        check_rings(found)
        assert found.definition.buckets is not None
        nodes = len(found.rings().at("p").nodes)
        write(found, [(f"n{n}", partition, 4, "z") for n in range(6) for partition in ("new", "p", "q")])
        if operation not in OVERWRITES:
            clock.advance(1)
            resize_rings(found, options=SMALL)
            assert found.rings().at("p").instant in found.state.ring_resizes
        check_rings(found)
        return after, nodes

    def ended(seen: set[tuple[tuple[Row, ...], int]], when: str) -> None:
        done = outcome(operation)
        assert {rows for rows, _ in seen} == {done.before, done.after}, "crashes on both sides of the commit point"
        if when != "torn":
            assert {nodes for _, nodes in seen} == {split: {2, 4}, merge: {2, 1}}.get(operation, {2})

    return rows_survive(operation.__name__, operation, prepared, lambda: outcome(operation), behind=behind, ended=ended)


SCENARIOS = [of_ring(operation) for operation in [*RESIZES, cluster_nodes, *OVERWRITES]]
