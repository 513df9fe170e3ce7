"""What a look-up of one key costs in a process that has the table open: one file group and few requests, however many groups
there are."""

from __future__ import annotations

import pytest
from tests.unit.table.counting import NotingStorage
from tests.unit.table.tables import create, open_table, write

from tideline_table.action import create_metadata
from tideline_table.clock import ManualClock
from tideline_table.log.metadata import RECORD_INDEX
from tideline_table.table import BucketIndex
from tideline_table.writer import Operation

MOST_REQUESTS = 7


def bucketed(groups: int) -> NotingStorage:
    """Return the storage of a table with that many buckets, nearly all with rows."""
    storage = NotingStorage()
    create(storage, ManualClock(), partitions=(), index=BucketIndex(groups))
    rows = [(f"k{n}", "p", 1, "x") for n in range(3 * groups)]
    write(open_table(storage, ManualClock()), rows, Operation.BULK_INSERT)
    return storage


def indexed(groups: int) -> NotingStorage:
    """Return the storage of a table with a record index and a file group in each of that many partitions."""
    storage = NotingStorage()
    create(storage, ManualClock())
    table = open_table(storage, ManualClock())
    create_metadata(table, (RECORD_INDEX,))
    write(table, [(f"k{n}", f"p{n % groups}", 1, "x") for n in range(3 * groups)], Operation.BULK_INSERT)
    return storage


def looked_up(storage: NotingStorage) -> tuple[int, list[tuple[str, str, int]]]:
    """Return the number of file groups, and the requests of a look-up in a process that has looked another key up before."""
    table = open_table(storage, ManualClock())
    assert table.look_up(["k8"]).num_rows == 1
    storage.requests.clear()
    assert table.look_up(["k7"]).column("id").to_pylist() == ["k7"]
    return len(table.slices()), list(storage.requests)


@pytest.mark.parametrize("made", [bucketed, indexed])
def test_a_look_up_reads_one_file_group_with_few_requests(made):
    costs = []
    for groups in (20, 400):
        found, requests = looked_up(made(groups))
        assert found > 0.9 * groups
        files = {path for _, path, _ in requests if not path.startswith(".hoodie")}
        assert len(files) == 1, files
        assert len(requests) <= MOST_REQUESTS, requests
        costs.append([(kind, path.startswith(".hoodie")) for kind, path, _ in requests])
    assert costs[0] == costs[1]
