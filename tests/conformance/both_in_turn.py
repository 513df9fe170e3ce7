"""One table that Apache Hudi and Tideline write in turn, and what each reads of it after each step."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.conformance.matrix import Comparison, Kind
from tests.conformance.peers.apache_hudi import ApacheHudi, PeerFailed
from tests.simulation.faults import SAMPLE_STEP

from tideline_locks import open_hudi_lock
from tideline_table.action import adopt, write_rows
from tideline_table.action.write.transaction import WriteTransaction
from tideline_table.coordination.committed import Committed
from tideline_table.hudi.formats import format_to_create
from tideline_table.log.sharing import HudiLockKind, Sharing
from tideline_table.table import Table, TableRequest, TableType, create_table, share_table
from tideline_table.writer import Operation

SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        ("ts", pa.int64()),
        ("price", pa.float64()),
        ("amount", pa.decimal128(10, 2)),
        ("tags", pa.list_(pa.string())),
        ("part", pa.string()),
    ]
)
NAME = "turns"
SHARING = Sharing(HudiLockKind.FILE_SYSTEM, expire_min=5)
FAST = {"hoodie.parquet.small.file.limit": 0}
QUICK = {
    "hoodie.embed.timeline.server": "false",
    "hoodie.write.markers.type": "DIRECT",
    "hoodie.index.bloom.num_entries": "1000",  # the default costs a tenth of all processor time
}
"""Makes small writes of Apache Hudi cheaper. Stories, jobs and the tests of the peers themselves have the defaults."""
TELLING = (0, 1, 4, 5, 6, 8, 10, 13, 15)
"""Of the steps of a long story, those of both sides in which something happens for the first time: inserts, updates of keys of the
other side, our clustering (6), a deletion of each (8, 13), a compaction of each (10, 15), keys of long ago."""


def steps_of(number: int) -> list[int]:
    """The steps of a story of `number` steps: all of a short one or with SAMPLE_STEP=1, otherwise the telling ones."""
    return [step for step in range(number) if SAMPLE_STEP == 1 or number < len(TELLING) or step in TELLING]


def trips(numbers: Iterable[int], ts: int, price: Callable[[int], float] = lambda n: n * 1.5) -> pa.Table:
    """Rows `k0000`… of two partitions, all told apart by `ts`."""
    chosen = list(numbers)
    return pa.table(
        {
            "id": [f"k{n:04}" for n in chosen],
            "ts": [ts] * len(chosen),
            "price": [price(n) + ts for n in chosen],
            "amount": pa.array([Decimal(n * ts).scaleb(-2) for n in chosen], pa.decimal128(10, 2)),
            "tags": [[f"t{n}", str(ts)] if n % 2 else None for n in chosen],
            "part": [f"p{n % 2}" for n in chosen],
        },
        schema=SCHEMA,
    )


def meet_rules(peer: ApacheHudi, folder: Path, rules: str, number: int) -> None:
    """Let Apache Hudi keep partition rules of buckets in memory: two tasks that meet new ones at once may fail
    (docs/peer-differences.md, 29)."""
    options = {
        "hoodie.write.table.version": "6",
        "hoodie.write.auto.upgrade": "false",
        "hoodie.index.type": "BUCKET",
        "hoodie.bucket.index.num.buckets": str(number),
        "hoodie.bucket.index.partition.expressions": rules,
    }
    with contextlib.suppress(PeerFailed):  # then one of the tasks has kept them
        Turns(peer, folder, Kind.COW, options).theirs(trips([0], 0))


def abandoned_write(table: Table, rows: pa.Table) -> str:
    """A write whose process died before it committed: files and markers are there, and no heartbeat."""

    def dies(self: WriteTransaction, *_: object, **__: object) -> None:
        self.abandon()
        raise KeyboardInterrupt(self.instant)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(WriteTransaction, "commit", dies)
        patched.setattr(WriteTransaction, "roll_back", lambda _: None)
        with pytest.raises(KeyboardInterrupt) as died:
            write_rows(table, rows, Operation.UPSERT)
    return str(died.value)


@dataclass
class Turns:
    """The table at `path`. Each step of either side is followed by `agree`."""

    peer: ApacheHudi
    path: Path
    kind: Kind
    options: Mapping[str, str] = field(default_factory=dict)
    own_options: Mapping[str, object] = field(default_factory=dict)
    metadata: bool = False
    version: int = 6
    request: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of the `TableRequest` of `create_here`, in place of those of every test."""

    @property
    def hudi_options(self) -> dict[str, str]:
        """What `tideline share` tells Hudi's writers, and what keeps a test's steps apart."""
        return {
            "hoodie.table.name": NAME,
            "hoodie.datasource.write.table.type": self.kind.value,
            "hoodie.datasource.write.recordkey.field": "id",
            "hoodie.datasource.write.partitionpath.field": "part",
            "hoodie.datasource.write.precombine.field": "ts",
            "hoodie.parquet.small.file.limit": "0",
            "hoodie.clean.automatic": "false",
            "hoodie.compact.inline": "false",
            **SHARING.hudi_options(format_to_create(self.version)),
            "hoodie.metadata.enable": str(self.metadata).lower(),
            **QUICK,
            **self.options,
        }

    def create_exclusive(self) -> Table:
        """A new table of Tideline that is not shared yet."""
        usual: dict[str, Any] = {"key_fields": ("id",), "partition_fields": ("part",), "ordering_field": "ts"}
        create_table(
            str(self.path),
            TableRequest(
                name=NAME, schema=SCHEMA, type=TableType(self.kind.value), version=self.version, **{**usual, **self.request}
            ),
        )
        return Table.open(str(self.path), options={**FAST, **self.own_options})

    def create_here(self) -> Table:
        """A new table of Tideline, shared."""
        self.create_exclusive()
        return self.share()

    def share(self) -> Table:
        """Share what is there."""
        return share_table(Table.open(str(self.path), options={**FAST, **self.own_options}), SHARING, open_hudi_lock)

    def copied(self, path: Path) -> Turns:
        """A copy of the table at `path`, with an identity of its own."""
        shutil.copytree(self.path, path, copy_function=shutil.copy2)
        copied = replace(self, path=path)
        if (path / ".hoodie/.tideline").exists():
            adopt(copied.open())
        return copied

    def open(self) -> Table:
        """The table as a writer of Tideline that has just started sees it."""
        return Table.open(str(self.path), options={**FAST, **self.own_options}, hudi_lock=open_hudi_lock)

    def theirs(self, rows: pa.Table, operation: str = "upsert", *, computed: Mapping[str, str] | None = None, **more: str) -> None:
        """Apache Hudi writes."""
        options = {**self.hudi_options, "hoodie.datasource.write.operation": operation, **more}
        self.peer.write(self.path, rows, options, metadata=self.metadata, computed=computed)

    def ours(self, rows: pa.Table, operation: Operation = Operation.UPSERT, **options: object) -> Committed:
        """We write."""
        return self.write(self.open(), rows, operation, **options)

    @staticmethod
    def write(table: Table, rows: pa.Table, operation: Operation = Operation.UPSERT, **options: object) -> Committed:
        """We write through an open table."""
        return write_rows(table, rows, operation, options=options)

    def call(self, procedure: str, **more: str) -> None:
        """Apache Hudi runs a procedure under the options of the table."""
        self.peer.sql(f"call {procedure}", {**self.hudi_options, "hoodie.metadata.enable": "false", **more})

    def wait_for_death(self, instant: str, silence_s: float = 1.5) -> None:
        """Until the heartbeat of a writer that is gone is as old as `silence_s`."""
        beat = self.path / ".hoodie/.heartbeat" / instant
        while beat.exists() and time.time() - beat.stat().st_mtime < silence_s:
            time.sleep(0.1)

    def agree(self, compare: Comparison, what: str, expected: int | None = None) -> pa.Table:
        """Both read equal rows; returns them."""
        ours = Table.open(str(self.path)).read()
        compare.rows(ours, self.peer.read(self.path), what)
        if expected is not None:
            assert ours.num_rows == expected, what
        return ours
