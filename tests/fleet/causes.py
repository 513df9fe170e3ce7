"""Causes of findings: each is made in a table of its own before the services start, and removed while they run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.fleet.tables import KINDS, Kind, create, opened
from tests.fleet.writer import Batch, rows_of
from tests.plans import schedule_compaction

from tideline_table.action import write_rows
from tideline_table.hudi import State
from tideline_table.table import Table
from tideline_table.writer import Operation

_BY_NAME = {kind.name: kind for kind in KINDS}
PROPERTIES = ".hoodie/hoodie.properties"
COMMITS = 4
DEAD_WRITER = """
import signal, sys
from tideline_table.action.write.transaction import WriteTransaction
from tideline_table.table import Table
table = Table.open(sys.argv[1], writer_id="a writer that dies")
transaction = WriteTransaction.begin(table.timeline, table.lock, "UPSERT")
print(transaction.instant, flush=True)
signal.pause()
"""


@dataclass
class Causes:
    """The special tables below `folder`, by the kind of finding that each of them has."""

    folder: Path
    awaited: Path
    """The folder of a pattern that matches no table until one is created there."""
    dead: str = ""
    """The instant of the write whose process was killed."""
    given_up: str = ""
    """The instant of a compaction that cannot be run."""
    moved: list[tuple[Path, Path]] = field(default_factory=list)
    """Files that are away, and their places."""

    @property
    def kinds(self) -> tuple[str, ...]:
        """The findings that are there once the services have run for a while."""
        return (*self._makers(), "no_table")

    def place(self, kind: str) -> str:
        """Return the base path, or the pattern, that the finding is about."""
        return str(self.awaited / "*") if kind == "no_table" else str(self.folder / kind)

    def make(self) -> None:
        for kind, maker in self._makers().items():
            maker(str(self.folder / kind))

    def remove(self) -> None:
        """Remove what the new policy does not remove."""
        for away, place in self.moved:
            os.replace(away, place)
        create(str(self.awaited / "created-later"), _BY_NAME["cow-flat"])

    def retry(self) -> None:
        """Let the launcher try again what it gave up, as the finding advises."""
        command = [sys.executable, "-m", "tideline_cli.main", "job", "retry", str(self.folder / "given_up"), self.given_up]
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)

    def problems(self) -> list[str]:
        """Return what is not as the removal of the causes should have left it."""
        dead = opened(str(self.folder / "dead_writer")).state.actions.get(self.dead)
        done = opened(str(self.folder / "given_up")).state.actions[self.given_up]
        found = (
            [f"the write {self.dead} of the dead writer is {dead.state}"]
            if dead is not None and dead.state is State.COMPLETED
            else []
        )
        return found + ([f"compaction {self.given_up} is {done.state}"] if done.state is not State.COMPLETED else [])

    def _makers(self) -> dict[str, Callable[[str], None]]:
        return {
            "backlog": lambda path: _table(path, "mor-flat"),
            "objective": lambda path: _table(path, "cow-flat"),
            "cannot_plan": lambda path: _table(path, "cow-flat"),
            "waiting_plan": self._waiting_plan,
            "dead_writer": self._dead_writer,
            "given_up": self._given_up,
            "cannot_open": self._cannot_open,
        }

    def _waiting_plan(self, path: str) -> None:
        planned = schedule_compaction(_table(path, "mor-flat"))
        assert isinstance(planned, str), planned

    def _dead_writer(self, path: str) -> None:
        _table(path, "cow-flat")
        process = subprocess.Popen([sys.executable, "-c", DEAD_WRITER, path], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        self.dead = process.stdout.readline().strip()
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        assert self.dead

    def _given_up(self, path: str) -> None:
        table = _table(path, "mor-flat")
        planned = schedule_compaction(table)
        assert isinstance(planned, str), planned
        self.given_up = planned
        (file_slice,) = [s for s in table.refresh().latest_slices() if s.log_files][:1]
        self._move_away(Path(path) / file_slice.paths[-1])

    def _cannot_open(self, path: str) -> None:
        _table(path, "cow-flat")
        self._move_away(Path(path) / PROPERTIES)
        (Path(path) / PROPERTIES).write_bytes(b"\xff\x00 not properties")

    def _move_away(self, place: Path) -> None:
        away = self.folder.parent / f"away-{len(self.moved)}"
        os.replace(place, away)
        self.moved.append((away, place))


def _table(path: str, kind: str) -> Table:
    """Return a table with some commits that upsert the same rows: small files or log files."""
    chosen: Kind = _BY_NAME[kind]
    create(path, chosen)
    options = {"hoodie.parquet.small.file.limit": 0, "hoodie.compact.inline.max.delta.commits": 2}
    table = opened(path, **options)
    for number in range(COMMITS):
        write_rows(table, rows_of(Batch(path, number, 0)), Operation.UPSERT, parallelism=1)
    return table
