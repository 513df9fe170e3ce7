"""Flipped bits in data files and table logs that Tideline wrote: a read gives the right rows or a typed error, never other rows.

`python -m tests.fuzz.flips --runs 10000 --seed 1` is the long run (`make flips`); `test_flips.py` tries some of them.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from tests.unit.table.tables import new_table, open_table, rows_of

from tideline_table.action import create_metadata, write_rows
from tideline_table.clock import ManualClock
from tideline_table.errors import TidelineError
from tideline_table.hudi.properties import PROPERTIES_PATH
from tideline_table.log.checkpoint import CHECKPOINT_FOLDER, POINTER
from tideline_table.log.entry import LOG_FOLDER, TIDELINE_FOLDER
from tideline_table.storage import MemoryStorage
from tideline_table.table import IDENTITY_PATH, Table, TableType
from tideline_table.writer import Operation

ROWS = 300


@dataclass(frozen=True)
class Kind:
    """A kind of table: its options, and whether it has a metadata table.

    With a `folder`, the bits of all files there are flipped, with a `file` those of that one. Without `has_log`, Tideline's own
    folder is gone before: the table is read as one of Apache Hudi.
    """

    name: str
    block: str = "avro"
    indexed: bool = False
    merges: bool = True
    folder: str = ""
    file: str = ""
    has_checkpoint: bool = True
    version: int = 6
    has_log: bool = True


KINDS = (
    Kind("base files", merges=False),
    Kind("avro logs"),
    Kind("parquet logs", "parquet"),
    Kind("avro logs beside a metadata table", indexed=True),
    Kind("parquet logs beside a metadata table", "parquet", indexed=True),
    Kind("checkpoint", merges=False, folder=CHECKPOINT_FOLDER),
    Kind("table log", folder=LOG_FOLDER, has_checkpoint=False),
    Kind("properties of copy-on-write", merges=False, file=PROPERTIES_PATH),
    Kind("properties of merge-on-read", file=PROPERTIES_PATH),
    Kind("identity", file=IDENTITY_PATH),
    *(
        Kind(f"{name} of version {version} whose table log is gone", merges=merges, version=version, has_log=False)
        for version in (6, 8, 9)
        for name, merges in (("base files", False), ("avro logs", True))
    ),
)
Answers = tuple[pa.Table, ...]


class Damaged:
    """A table of one kind, of which one bit of one file at a time is flipped."""

    def __init__(self, kind: Kind) -> None:
        self.clock = ManualClock()
        table, storage, _ = new_table(self.clock, type=TableType.MOR if kind.merges else TableType.COW, version=kind.version)
        assert isinstance(storage, MemoryStorage)
        self.storage = storage
        self._options = {"hoodie.logfile.data.block.format": kind.block}
        self._write(table, range(ROWS), 1, Operation.UPSERT)
        if kind.indexed:
            create_metadata(table, ("files", "column_stats", "record_index"), ())
        self._write(table, range(0, ROWS, 3), 2, Operation.UPSERT)
        self._write(table, range(0, ROWS, 7), 3, Operation.DELETE)
        self.paths = sorted(path for found in table.refresh().latest_slices() for path in map(str, found.paths))
        if not kind.has_checkpoint:
            storage.delete(POINTER)
        if not kind.has_log:
            for found in storage.list_objects(TIDELINE_FOLDER):
                storage.delete(found.path)
        if kind.folder:
            self.paths = [found.path for found in storage.list_objects(kind.folder)]
        if kind.file:
            self.paths = [kind.file]
        self.sound = self.answers()

    def _write(self, table: Table, numbers: range, ts: int, operation: Operation) -> None:
        rows = rows_of([(f"k{n:05}", f"p{n % 2}", ts, f"value {n * 7919 % 1000} of {ts}") for n in numbers])
        self.clock.advance(1)
        write_rows(table, rows, operation, options=self._options, parallelism=1)

    def answers(self) -> Answers:
        """Return the rows of several queries, in order."""
        snapshot = open_table(self.storage, self.clock).snapshot()
        wanted = pa.array([f"k{n:05}" for n in range(40)])
        queries: tuple[Callable[[], pa.Table], ...] = (
            snapshot.read,
            lambda: snapshot.read(["v"]),
            lambda: snapshot.read(["id", "ts"], pc.field("v") > "value 5"),
            lambda: snapshot.read(["id", "v"], keys=wanted),
        )
        return tuple(_ordered(query()) for query in queries)

    def outcome(self, path: str, bit: int) -> str:
        """Flip a bit, read, and return `same`, the name of a typed error, or what was wrong."""
        sound = self.storage.read(path)
        content = bytearray(sound)
        content[bit // 8] ^= 1 << bit % 8
        self.storage.put(path, bytes(content))
        try:
            found = self.answers()
        except TidelineError as error:
            return type(error).__name__
        except Exception as error:  # noqa: BLE001 - it is the finding
            return f"untyped {type(error).__name__}"
        finally:
            self.storage.put(path, sound)
        return "same" if found == self.sound else "WRONG ROWS"


def _ordered(table: pa.Table) -> pa.Table:
    return table.sort_by([(name, "ascending") for name in table.column_names]).combine_chunks()


def flipped(kind: Kind, runs: int, seed: int) -> Counter[str]:
    """Return the outcomes of `runs` flips in the files of a table; a wrong one names its place, too."""
    damaged, chosen = Damaged(kind), random.Random(f"{seed}/{kind.name}")
    outcomes: Counter[str] = Counter()
    for _ in range(runs):
        path = chosen.choice(damaged.paths)
        bit = chosen.randrange(8 * len(damaged.storage.read(path)))
        outcome = damaged.outcome(path, bit)
        is_right = not outcome.startswith(("untyped", "WRONG"))
        outcomes[outcome if is_right else f"{outcome}: bit {bit} of {path.rpartition('/')[2]}"] += 1
    return outcomes


def main() -> int:
    """Run from the command line; the exit code is 1 if a flip gave wrong rows or an untyped error."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    is_wrong = False
    for kind in KINDS:
        outcomes = flipped(kind, given.runs // len(KINDS), given.seed)
        is_wrong |= any(name.startswith(("untyped", "WRONG")) for name in outcomes)
        sys.stdout.write(f"{kind.name}: {dict(outcomes)}\n")
        sys.stdout.flush()
    return int(is_wrong)


if __name__ == "__main__":
    sys.exit(main())
