"""Where the stories of field notes happen."""

from __future__ import annotations

from tests.simulation.faults import FaultyStorage
from tests.unit.table.tables import create, open_table

from tideline_table.action import run_compaction
from tideline_table.action.compaction.plan import compact_slice
from tideline_table.clock import ManualClock
from tideline_table.storage import MemoryStorage
from tideline_table.table import TableType


class Place:
    """A table in memory; writers of it, and what happens while one of them is in the middle of a write."""

    def __init__(self, kind: TableType) -> None:
        self.clock = ManualClock()
        self.storage = MemoryStorage(clock=self.clock)
        create(self.storage, self.clock, type=kind)
        self.other = self.open("other")

    def open(self, name: str):
        return open_table(self.storage, self.clock, name)

    def interrupted(self, meanwhile):
        """A writer during whose first data file `meanwhile` happens."""
        slow = FaultyStorage(self.storage)

        def before(number, call, path):
            if call == "open_output" and not path.startswith(".hoodie"):
                slow.before = lambda number, call, path: None
                meanwhile()

        slow.before = before
        return open_table(slow, self.clock, "slow")

    def compact(self):
        return run_compaction(self.other, run=lambda tasks: [compact_slice(task, self.storage) for task in tasks])

    def data_files(self):
        found = (o.path for o in self.storage.list_objects(""))
        return {path for path in found if not path.startswith(".hoodie/") and ".hoodie_partition" not in path}
