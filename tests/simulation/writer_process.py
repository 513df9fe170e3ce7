"""One writer in a process of its own: python -m tests.simulation.writer_process BASE NAME COUNT; a line per acknowledged write."""

from __future__ import annotations

import random
import sys

from tests.simulation.history import Acknowledged
from tests.unit.table.tables import Row, open_table, rows_of

from tideline_table.action import write_rows
from tideline_table.clock import SystemClock
from tideline_table.storage import open_storage
from tideline_table.table import Table
from tideline_table.writer import Operation

OPTIONS = {
    "tideline.write.conflict.retries": 200,
    "tideline.log.checkpoint.interval": 7,
    "hoodie.parquet.small.file.limit": 10**8,
    "tideline.write.priority.wait": 60,
}


def one_write(table: Table, name: str, number: int, choose: random.Random) -> Acknowledged:
    """A row of one's own, and often one that everybody writes."""
    value = f"{name}-{number}"
    rows: list[Row] = [(value, choose.choice("pq"), number, value)]
    if choose.random() < 0.6:
        rows.append((f"shared{choose.randint(0, 2)}", "p", number, value))
    committed = write_rows(table, rows_of(rows), Operation.UPSERT, parallelism=1)
    return Acknowledged(committed.instant, committed.sequence, tuple(rows))


if __name__ == "__main__":
    base, name, count = sys.argv[1:]
    table = open_table(open_storage(base), SystemClock(), name, **OPTIONS)
    choose = random.Random(name)
    for number in range(int(count)):
        print(one_write(table, name, number, choose).to_json(), flush=True)
