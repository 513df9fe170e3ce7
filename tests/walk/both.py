"""`python -m tests.walk.both`: random histories of tables of versions 6, 8 and 9 that Apache Hudi 1.2.0 and Tideline write in turn.

Writes, services of both, dead writers and archival are drawn by seeds. After each step both read equal rows, which are those of the
writes that succeeded. With a metadata table Apache Hudi reads by it and by listings, and the check of Tideline finds nothing.
"""

from __future__ import annotations

import argparse
import logging
import operator
import random
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.conformance.both_in_turn import Turns, abandoned_write, trips
from tests.conformance.matrix import Kind
from tests.conformance.peers.apache_hudi import ApacheHudi, PeerFailed
from tests.plans import schedule_clean, schedule_clustering, schedule_compaction, schedule_log_compaction

from tideline_table.action import (
    check_table,
    delete_partitions,
    roll_back_dead,
    run_clean,
    run_clustering,
    run_compaction,
    run_log_compaction,
)
from tideline_table.errors import TidelineError, WriteConflict
from tideline_table.table import BucketIndex, Table
from tideline_table.writer import Operation

COLUMNS = ["id", "ts", "price", "amount", "tags", "part"]
DEATH_S = 6.5
IMPATIENT = {"hoodie.client.heartbeat.interval_in_ms": 1000, "hoodie.client.heartbeat.tolerable.misses": 5}
"""A job on a loaded machine does not beat in time each second."""
AT_ONCE = {"hoodie.compact.inline.max.delta.commits": 1}
WHOLE = {"hoodie.clustering.plan.strategy.small.file.limit": 10**9, "hoodie.clustering.plan.strategy.target.file.max.bytes": 10**9}
ARCHIVAL = {
    "hoodie.clean.automatic": "true",
    "hoodie.clean.commits.retained": "2",
    "hoodie.archive.automatic": "true",
    "hoodie.keep.min.commits": "4",
    "hoodie.keep.max.commits": "5",
}
STATISTICS, RECORDS = "column_stats,files,partition_stats", "column_stats,files,partition_stats,record_index"
FILTERS = "bloom_filters,column_stats,files"
INDEXES = {
    "": {},
    "files": {
        "hoodie.metadata.index.partition.stats.enable": "false",
        "hoodie.metadata.index.column.stats.enable": "false",
    },
    STATISTICS: {
        "hoodie.metadata.index.partition.stats.enable": "true",
        "hoodie.metadata.index.column.stats.enable": "true",
    },
    FILTERS: {
        "hoodie.metadata.index.column.stats.enable": "true",
        "hoodie.metadata.index.bloom.filter.enable": "true",
    },
    RECORDS: {
        "hoodie.metadata.index.partition.stats.enable": "true",
        "hoodie.metadata.index.column.stats.enable": "true",
        "hoodie.metadata.record.index.enable": "true",
        "hoodie.index.type": "RECORD_INDEX",
    },
}
LOGS_THERE = {"enable": "true", "inline": "true", "blocks.threshold": "1"}
BLIND = {
    "hoodie.write.concurrency.mode": "NON_BLOCKING_CONCURRENCY_CONTROL",
    "hoodie.table.type": "MERGE_ON_READ",
    "hoodie.index.type": "BUCKET",
    "hoodie.bucket.index.num.buckets": "2",
}


@dataclass(frozen=True)
class Form:
    """What a table is."""

    version: int
    kind: Kind
    index: str
    """Empty, `buckets`, or `blind`: buckets with writers of Apache Hudi that look for no conflicts."""
    metadata: str
    """The partitions of the metadata table."""

    @classmethod
    def drawn(cls, seed: int) -> Form:
        draw = random.Random(seed)
        kind, index = draw.choice(list(Kind)), draw.choice(["", "", "buckets", "blind"])
        if seed % 3 == 0:
            # Before version 8 all writers look for conflicts, and a shared merge-on-read table has no metadata table.
            kept = ["", "files", FILTERS] if kind is Kind.COW else [""]
            return cls(6, kind, "buckets" if index else "", draw.choice(kept))
        if index == "blind":
            kind = Kind.MOR
        kept = [known for known in INDEXES if known != FILTERS and (known != RECORDS or not index)]
        return cls(draw.choice([8, 9]), kind, index, draw.choice(kept))


@dataclass
class History:
    """One table, what it must hold (number → ordering value and price), and its steps so far."""

    peer: ApacheHudi
    path: Path
    seed: int
    form: Form
    model: dict[int, tuple[int, float]] = field(default_factory=dict)
    steps: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        form = self.form
        self.draw = random.Random(f"steps of {self.seed}")
        self.own: dict[str, object] = {**IMPATIENT, **({"tideline.shared.metadata": form.metadata} if form.metadata else {})}
        options = {
            "hoodie.spark.sql.merge.into.partial.updates": "true",
            "hoodie.metadata.compact.max.delta.commits": "4",
            **{key: str(value) for key, value in IMPATIENT.items()},
            **INDEXES[form.metadata],
            **(BLIND if form.index == "blind" else {}),
        }
        request: dict[str, Any] = {"index": BucketIndex(2)} if form.index else {}
        self.turns = Turns(
            self.peer, self.path, form.kind, options, self.own, metadata=bool(form.metadata), version=form.version, request=request
        )
        self.turns.create_here()
        self.upsert_here(0)  # for `create table` needs a schema
        self.name = f"both_{self.seed}"
        self.peer.sql(f"create table {self.name} using hudi location '{self.path}'")

    # --- what both do --------------------------------------------------------------------------------------------------------

    @property
    def acts(self) -> list[Callable[[int], str | None]]:
        found: list[Callable[[int], str | None]] = [*(3 * [self.upsert_here, self.upsert_there])]
        found += [self.insert_here, self.insert_there, self.delete_here, self.delete_there, self.clean_here, self.clean_there]
        found += [self.dead_writer, self.cluster_here]
        if self.form.index != "blind":  # Apache Hudi hides new groups with the id of a replaced one
            found += [self.overwrite_here, self.overwrite_there, self.delete_partition]
        if self.form.kind is Kind.MOR:
            found += 2 * [self.compact_here] + [self.plan_here, self.plan_there, self.compact_there]
            # In version 6 Tideline leaves log compactions of a shared table to Apache Hudi.
            found += [self.compact_log_here, self.plan_log_here] if self.form.version > 6 else []
            found += [self.compact_log_there]
        if not self.form.index:
            found += [self.cluster_there]
            found += 2 * [self.merge_there] if self.form.kind is Kind.MOR else []
        return found

    def _some(self, most: int = 6) -> list[int]:
        low = self.draw.randrange(24)
        return sorted(self.draw.sample(range(low, low + 12), self.draw.randint(1, most)))

    def _put(self, numbers: list[int], ts: int) -> str:
        self.model |= {n: (ts, n * 1.5 + ts) for n in numbers}
        return str(numbers)

    def _take(self, gone: Callable[[int], bool]) -> None:
        self.model = {n: row for n, row in self.model.items() if not gone(n)}

    def upsert_here(self, ts: int) -> str:
        numbers = self._some()
        self.turns.ours(trips(numbers, ts))
        return self._put(numbers, ts)

    def upsert_there(self, ts: int) -> str:
        numbers, more = self._some(), ARCHIVAL if self.draw.random() < 0.4 else {}
        self.turns.theirs(trips(numbers, ts), computed=None, **more)
        return f"{self._put(numbers, ts)}{' with cleaning and archival' if more else ''}"

    def _new(self) -> list[int]:
        return sorted(self.draw.sample(sorted(set(range(60)) - self.model.keys()), self.draw.randint(1, 4)))

    def insert_here(self, ts: int) -> str:
        numbers = self._new()
        self.turns.ours(trips(numbers, ts), self.draw.choice([Operation.INSERT, Operation.BULK_INSERT]))
        return self._put(numbers, ts)

    def insert_there(self, ts: int) -> str:
        numbers = self._new()
        self.turns.theirs(trips(numbers, ts), "insert" if self.form.index else self.draw.choice(["insert", "bulk_insert"]))
        return self._put(numbers, ts)

    def delete_here(self, ts: int) -> str:
        numbers = self._some(3)
        self.turns.ours(trips(numbers, ts), Operation.DELETE)
        self._take(numbers.__contains__)
        return str(numbers)

    def delete_there(self, ts: int) -> str:
        numbers = self._some(3)
        self.turns.theirs(trips(numbers, ts), "delete")
        self._take(numbers.__contains__)
        return str(numbers)

    def overwrite_here(self, ts: int) -> str:
        numbers = [n for n in self._some() if n % 2] or [1]
        self.turns.ours(trips(numbers, ts), Operation.INSERT_OVERWRITE)
        self._take(lambda n: n % 2 == 1)
        return self._put(numbers, ts)

    def overwrite_there(self, ts: int) -> str:
        numbers = [n for n in self._some() if n % 2 == 0] or [2]
        self.turns.theirs(trips(numbers, ts), "insert_overwrite")
        self._take(lambda n: n % 2 == 0)
        return self._put(numbers, ts)

    def delete_partition(self, _: int) -> str | None:
        part = self.draw.randrange(2)
        if not any(n % 2 == part for n in self.model):
            return None  # it may not be there: that is refused by name
        delete_partitions(self.turns.open(), [f"p{part}"])
        self._take(lambda n: n % 2 == part)
        return f"p{part}"

    def merge_there(self, ts: int) -> str | None:
        """Partial records of the columns that a MERGE INTO sets."""
        numbers = [n for n in self._some() if n in self.model]
        if not numbers:
            return None
        columns = self.draw.choice([["price"], ["tags"], ["price", "tags"]])
        rows = " union all ".join(
            f"select 'k{n:04}' as id, 'p{n % 2}' as part, {ts}L as ts, {n * 1.5 + ts}D as price, array('m{ts}') as tags"
            for n in numbers
        )
        # Before version 8 there are no partial records: the statement reads the others, and has to name the keys.
        keys = ["id", "part"] if self.form.version < 8 else []
        changed = ", ".join(f"{column} = s.{column}" for column in [*keys, "ts", *columns])
        text = (
            f"merge into {self.name} t using ({rows}) s on t.id = s.id and t.part = s.part when matched then update set {changed}"
        )
        self.peer.sql(text, self.turns.hudi_options)
        self.model |= {n: (ts, n * 1.5 + ts if "price" in columns else self.model[n][1]) for n in numbers}
        return f"{numbers} {columns}"

    def plan_here(self, _: int) -> str:
        return str(schedule_compaction(self.turns.open(), AT_ONCE))

    def compact_here(self, _: int) -> str:
        return f"{schedule_compaction(self.turns.open(), AT_ONCE)} {run_compaction(self.turns.open()) is not None}"

    def plan_there(self, _: int) -> str:
        return self._call(f"run_compaction(op => 'schedule', path => '{self.path}')", **AT_ONCE)

    def compact_there(self, _: int) -> str:
        how = self.draw.choice(["run", "scheduleandexecute"])
        return self._call(f"run_compaction(op => '{how}', path => '{self.path}')", **AT_ONCE)

    def _call(self, procedure: str, **more: object) -> str:
        self.turns.call(
            procedure,
            **{key: str(value) for key, value in more.items()},
            **{"hoodie.metadata.enable": str(bool(self.form.metadata)).lower()},
        )
        return procedure.partition(",")[0]

    def plan_log_here(self, _: int) -> str:
        return str(schedule_log_compaction(self.turns.open(), {"hoodie.log.compaction.blocks.threshold": 2}))

    def compact_log_here(self, ts: int) -> str:
        return f"{self.plan_log_here(ts)} {run_log_compaction(self.turns.open()) is not None}"

    def compact_log_there(self, ts: int) -> str:
        """With its next write, as its options say."""
        numbers = self._some()
        own = {f"hoodie.log.compaction.{key}": value for key, value in LOGS_THERE.items()}
        self.turns.theirs(trips(numbers, ts), computed=None, **own)
        return self._put(numbers, ts)

    def cluster_here(self, _: int) -> str:
        planned = schedule_clustering(self.turns.open(), WHOLE)
        return f"{planned} {run_clustering(self.turns.open()) is not None if planned else ''}"

    def cluster_there(self, _: int) -> str:
        return self._call(f"run_clustering(op => 'scheduleandexecute', path => '{self.path}')")

    def clean_here(self, _: int) -> str:
        planned = schedule_clean(self.turns.open(), {"hoodie.cleaner.commits.retained": self.draw.randint(1, 3)})
        return f"{planned} {run_clean(self.turns.open()) is not None}"

    def clean_there(self, _: int) -> str:
        return self._call(f"run_clean(table => '{self.name}', retain_commits => {self.draw.randint(1, 3)})")

    def dead_writer(self, ts: int) -> str:
        """A process of Tideline dies with its files written; either side rolls it back."""
        instant = abandoned_write(self.turns.open(), trips(self._some(), ts + 1000))
        self.turns.wait_for_death(instant, DEATH_S)
        return f"{instant} {roll_back_dead(self.turns.open()) if self.draw.random() < 0.5 else ''}"

    # --- what must hold ------------------------------------------------------------------------------------------------------

    def step(self, ts: int) -> list[str]:
        """Take a step; return what is wrong then."""
        act = self.draw.choice(self.acts)
        try:
            done = act(ts)
        except WriteConflict as error:  # with a plan that is pending: nothing was written
            done = f"refused: {error.found}"
        except (PeerFailed, TidelineError) as error:
            return [f"{act.__name__} failed: {error}"[:2000]]
        self.steps.append(f"{act.__name__} {done}")
        try:
            return self._wrong()
        except (PeerFailed, TidelineError) as error:
            return [f"a reader failed: {error}"[:2000]]

    def _wrong(self) -> list[str]:
        ours = Table.open(str(self.path)).read().select(COLUMNS).to_pylist()
        rows = sorted(map(repr, ours))
        found = {int(row["id"][1:]): (row["ts"], row["price"]) for row in ours}
        wrong = [] if found == self.model and len(ours) == len(self.model) else [f"rows {found}, expected {self.model}"]
        for metadata in {False, bool(self.form.metadata)}:
            theirs = sorted(map(repr, self.peer.read(self.path, metadata=metadata, columns=COLUMNS).to_pylist()))
            if theirs != rows:
                only = sorted(set(rows) - set(theirs)), sorted(set(theirs) - set(rows))
                wrong.append(f"Apache Hudi{' by the metadata table' if metadata else ''}: {len(theirs)} rows; {only}")
        wrong += self._filtered(ours)
        if self.form.metadata:
            wrong += [str(finding) for finding in check_table(Table.open(str(self.path), options=self.own))]
        return wrong

    def _filtered(self, rows: list[dict[str, Any]]) -> list[str]:
        """What queries that may leave out files find else than the rows of this table that fit."""
        column, value = self.draw.choice(["ts", "price"]), self.draw.randint(1, len(self.steps) + 1)
        sign = self.draw.choice(["<", "=", ">"])
        where = f"{column} {sign} {value}"
        fits = {"<": operator.lt, "=": operator.eq, ">": operator.gt}[sign]
        expected = sorted(row["id"] for row in rows if fits(row[column], value))
        skipping = {"hoodie.enable.data.skipping": "true"}
        theirs = self.peer.read(self.path, metadata=bool(self.form.metadata), columns=["id"], where=where, options=skipping)
        found = {"Tideline": Table.open(str(self.path)).read(["id"], where=where), "Apache Hudi": theirs}
        return [
            f"{reader} where {where}: {ids}, expected {expected}"
            for reader, table in found.items()
            if (ids := sorted(table["id"].to_pylist())) != expected
        ]


def walk(peer: ApacheHudi, folder: Path, seed: int, number: int) -> bool:
    """Draw a table and walk so many steps; say how it went."""
    form, began = Form.drawn(seed), time.monotonic()
    history = History(peer, folder / f"both_{seed}", seed, form)
    for ts in range(1, number + 1):
        if wrong := history.step(ts):
            print(f"seed {seed}: {form}\n  steps: {history.steps}\n  WRONG after {ts}: " + "\n  ".join(wrong), flush=True)
            return False
    print(f"seed {seed}: {form}, {number} steps in {time.monotonic() - began:.0f} s", flush=True)
    return True


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.walk.both", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="of the first table")
    parser.add_argument("--tables", type=int, default=12)
    parser.add_argument("--steps", type=int, default=20, help="of each table")
    given = parser.parse_args()
    logging.basicConfig(level=logging.ERROR)
    seeds = range(given.seed, given.seed + given.tables)
    with tempfile.TemporaryDirectory(prefix="tideline-both-") as folder, ApacheHudi() as peer:
        good = [walk(peer, Path(folder), seed, given.steps) for seed in seeds]
    print(f"{sum(good)} of {len(good)} tables without a finding")
    sys.exit(not all(good))


if __name__ == "__main__":
    main()
