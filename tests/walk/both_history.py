"""The steps of a table of `tests.walk.both`, drawn by its seed: what Apache Hudi and Tideline do to it in turn."""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.conformance.both_in_turn import NAME, Turns, abandoned_write
from tests.conformance.matrix import Kind
from tests.conformance.peers.apache_hudi import ApacheHudi, PeerFailed
from tests.plans import schedule_clean, schedule_clustering, schedule_compaction, schedule_log_compaction
from tests.walk.both_checks import Checks
from tests.walk.both_form import RECORDS, SILENCE_S, Form
from tests.walk.both_rows import Model, Row

from tideline_locks import open_hudi_lock
from tideline_table.action import (
    delete_partitions,
    roll_back_dead,
    run_clean,
    run_clustering,
    run_compaction,
    run_log_compaction,
)
from tideline_table.config import SCHEMA_EVOLUTION
from tideline_table.errors import TidelineError, WriteConflict
from tideline_table.table import Table
from tideline_table.writer import Operation

AT_ONCE = {"hoodie.compact.inline.max.delta.commits": 1}
WHOLE = {"hoodie.clustering.plan.strategy.small.file.limit": 10**9, "hoodie.clustering.plan.strategy.target.file.max.bytes": 10**9}
ARCHIVAL = {
    "hoodie.clean.automatic": "true",
    "hoodie.clean.commits.retained": "2",
    "hoodie.archive.automatic": "true",
    "hoodie.keep.min.commits": "4",
    "hoodie.keep.max.commits": "5",
}
LOGS_THERE = {"enable": "true", "inline": "true", "blocks.threshold": "1"}
HASTY = {"hoodie.client.heartbeat.interval_in_ms": 100, "hoodie.client.heartbeat.tolerable.misses": 1}
NUMBERS = {6: "SIX", 8: "EIGHT", 9: "NINE"}
REFUSALS = ("Not allowed to update the clustering file group", "actionState=REQUESTED, actionType=clustering")
"""What says that Apache Hudi refuses a write beside a plan of a clustering."""
ENDS = ("is earlier than the latest compaction",)
"""What says that Apache Hudi cannot go back, here behind a compaction of its metadata table. What is left then ends the walk of the
table."""
PAST = 6
"""So many earlier states are kept for time travel."""
ADDED = 2
"""So many columns are added at most."""
Act = Callable[[int], str | None]


@dataclass
class History:
    """One table, what it must hold, and its steps so far."""

    peer: ApacheHudi
    path: Path
    seed: int
    form: Form
    counts: Counter[str]
    seconds: Counter[str]
    """By the name of a step, and of the checks."""
    steps: list[str] = field(default_factory=list)
    past: dict[str, Model] = field(default_factory=dict)
    saved: tuple[str, Model] | None = None
    """The savepoint, and what the table held then."""
    names: int = 0
    has_parts: bool = False
    """Whether there are partial records of Apache Hudi."""
    end: str = ""
    """What ended the walk of the table before its last step."""

    def __post_init__(self) -> None:
        form = self.form
        self.draw = random.Random(f"steps of {self.seed}")
        self.model = Model(form.merge, random.Random(f"rows of {self.seed}"))
        self.turns = Turns(
            self.peer,
            self.path,
            form.kind,
            form.hudi_options,
            form.own_options,
            metadata=bool(form.metadata),
            version=form.version,
            request=form.request,
        )
        self.checks = Checks(self.peer, self.path, form, random.Random(f"checks of {self.seed}"), self.counts)
        self.turns.create_here()
        self.upsert_here(0)  # for `create table` needs a schema
        self._name()

    def _name(self) -> None:
        """Name the table to Spark, which keeps the schema that it has now."""
        self.names += 1
        self.name = f"both_{self.seed}_{self.names}"
        self.peer.sql(f"create table {self.name} using hudi location '{self.path}'")

    # --- what both do --------------------------------------------------------------------------------------------------------

    @property
    def acts(self) -> list[Act]:
        found: list[Act] = [*(3 * [self.upsert_here, self.upsert_there])]
        found += [self.insert_here, self.insert_there, self.delete_here, self.delete_there, self.clean_here, self.clean_there]
        found += [self.grow_here, self.grow_there]
        # In logs that merge cells, late rows fill cells of rows that then count as a whole: the model knows no logs.
        if self.form.kind is Kind.COW or (self.form.merge != "partial_update" and not self.has_parts):
            found += [self.late_here, self.late_there]
        found += [self.dead_writer, self.failed_there, self.savepoint_there, self.restore_there, self.roll_back_there, self.move]
        found += [self.cluster_here, self.plan_clustering_here]
        if self.form.index != "blind":  # Apache Hudi hides new groups with the id of a replaced one
            found += [self.overwrite_here]
            # Behind these, a clean of Apache Hudi deletes a partition with what a savepoint protects (peer difference 38).
            found += [self.overwrite_all, self.delete_partition] if self.saved is None else []
            found += [self.overwrite_there] if self._overwrites_there else []
        if self.form.kind is Kind.MOR:
            found += 2 * [self.compact_here] + [self.plan_here, self.plan_there, self.compact_there]
            # In version 6 Tideline leaves log compactions of a shared table to Apache Hudi.
            # Cell by cell, Tideline refuses them everywhere.
            merges_logs = self.turns.version > 6 and self.form.merge != "partial_update"
            found += [self.compact_log_here, self.plan_log_here] if merges_logs else []
            # Its log compactions cannot merge partial records (peer difference 39).
            found += [self.compact_log_there] if not self.has_parts else []
        if not self.form.index:
            found += [self.cluster_there]
            # In version 6 its `MERGE INTO` leaves the other columns null (peer difference 35).
            merges_rows = self.form.merge != "partial_update" and self.turns.version > 6
            found += 2 * [self.merge_there] if self.form.kind is Kind.MOR and merges_rows else []
        return found

    @property
    def _overwrites_there(self) -> bool:
        """Whether Apache Hudi can overwrite partitions: peer difference 36."""
        return self.form.metadata != RECORDS

    @property
    def _awaits_metadata(self) -> bool:
        """Whether Apache Hudi makes the metadata table with its next write."""
        return bool(self.form.metadata) and not (self.path / ".hoodie/metadata").exists()

    def _some(self, most: int = 6) -> list[int]:
        low = self.draw.randrange(24)
        return sorted(self.draw.sample(range(low, low + 12), self.draw.randint(1, most)))

    def _write(self, numbers: list[int], ts: int, write: Callable[[list[Row]], object], *, late: bool = False) -> str:
        rows = self.model.make(numbers, ts, late=late)
        write(rows)
        self.model.put(rows)
        return str(numbers)

    def _ours(self, rows: list[Row], operation: Operation = Operation.UPSERT, **options: object) -> None:
        self.turns.ours(self.model.table(rows), operation, **options)

    def _theirs(self, rows: list[Row], operation: str = "upsert", **options: str) -> None:
        self.turns.theirs(self.model.table(rows), operation, **options)

    # --- writes --------------------------------------------------------------------------------------------------------------

    def upsert_here(self, ts: int) -> str:
        return self._write(self._some(), ts, self._ours)

    def upsert_there(self, ts: int) -> str:
        numbers, more = self._some(), ARCHIVAL if self.draw.random() < 0.4 else {}
        if more:
            self.turns.open().timeline.heal(0)  # as the mirror does: what it never saw is archived behind five writes in a row
        return self._write(numbers, ts, lambda rows: self._theirs(rows, **more)) + " with cleaning and archival" * bool(more)

    def _held(self) -> list[int]:
        held = sorted(self.model.rows)
        return sorted(self.draw.sample(held, min(len(held), self.draw.randint(1, 4))))

    def late_here(self, ts: int) -> str | None:
        """Rows of any time before, of keys that are there: behind deletions, types of tables differ (peer differences, 32)."""
        return self._write(numbers, ts, self._ours, late=True) if (numbers := self._held()) else None

    def late_there(self, ts: int) -> str | None:
        return self._write(numbers, ts, self._theirs, late=True) if (numbers := self._held()) else None

    def _new(self) -> list[int]:
        return sorted(self.draw.sample(sorted(set(range(60)) - self.model.rows.keys()), self.draw.randint(1, 4)))

    def insert_here(self, ts: int) -> str:
        operation = self.draw.choice([Operation.INSERT, Operation.BULK_INSERT])
        return self._write(self._new(), ts, lambda rows: self._ours(rows, operation))

    def insert_there(self, ts: int) -> str:
        operation = "insert" if self.form.index else self.draw.choice(["insert", "bulk_insert"])
        return self._write(self._new(), ts, lambda rows: self._theirs(rows, operation))

    def delete_here(self, ts: int) -> str:
        numbers = self._some(3)
        self._ours(self.model.make(numbers, ts), Operation.DELETE)
        self.model.take(numbers.__contains__)
        return str(numbers)

    def delete_there(self, ts: int) -> str:
        numbers = self._some(3)
        self._theirs(self.model.make(numbers, ts), "delete")
        self.model.take(numbers.__contains__)
        return str(numbers)

    def overwrite_here(self, ts: int) -> str:
        numbers = [n for n in self._some() if n % 2] or [1]
        return self._overwrite(numbers, ts, lambda rows: self._ours(rows, Operation.INSERT_OVERWRITE))

    def overwrite_there(self, ts: int) -> str:
        numbers = [n for n in self._some() if n % 2 == 0] or [2]
        return self._overwrite(numbers, ts, lambda rows: self._theirs(rows, "insert_overwrite"))

    def overwrite_all(self, ts: int) -> str:
        """Either side replaces the whole table."""
        side = self.draw.choice(["here", "there"]) if self._overwrites_there else "here"

        def write(rows: list[Row]) -> None:
            if side == "here":
                self._ours(rows, Operation.INSERT_OVERWRITE_TABLE)
            else:
                self._theirs(rows, "insert_overwrite_table")

        return f"{self._overwrite(self._some(), ts, write, whole=True)} {side}"

    def _overwrite(self, numbers: list[int], ts: int, write: Callable[[list[Row]], object], *, whole: bool = False) -> str:
        rows = self.model.make(numbers, ts)
        write(rows)
        self.model.take(lambda n: whole or n % 2 == numbers[0] % 2)
        self.model.put(rows)
        return str(numbers)

    def delete_partition(self, _: int) -> str | None:
        part = self.draw.randrange(2)
        if not any(n % 2 == part for n in self.model.rows):
            return None  # it may not be there: that is refused by name
        delete_partitions(self.turns.open(), [f"p{part}"])
        self.model.take(lambda n: n % 2 == part)
        return f"p{part}"

    def grow_here(self, ts: int) -> str | None:
        """Upsert rows with a column more."""
        return self._grow(ts, lambda rows: self._ours(rows, **{SCHEMA_EVOLUTION.key: "evolve"}))

    def grow_there(self, ts: int) -> str | None:
        return self._grow(ts, self._theirs)

    def _grow(self, ts: int, write: Callable[[list[Row]], object]) -> str | None:
        if len(self.model.added) >= ADDED:
            return None
        before, self.model = self.model, self.model.grown()
        try:
            done = self._write(self._some(), ts, write)
        except (WriteConflict, PeerFailed):
            self.model = before
            raise
        self._name()
        return f"{done} with {[*self.model.added][-1]}"

    def merge_there(self, ts: int) -> str | None:
        """Partial records of the columns that a MERGE INTO sets."""
        numbers = [n for n in self._some() if n in self.model.rows]
        if not numbers:
            return None
        columns = self.draw.choice([["price"], ["tags"], ["price", "tags"]])
        rows = " union all ".join(
            f"select 'k{n:04}' as id, 'p{n % 2}' as part, {ts}L as ts, {n * 1.5 + ts}D as price, array('m{ts}') as tags"
            for n in numbers
        )
        # Before version 8 there are no partial records: the statement reads the others, and has to name the keys.
        keys = ["id", "part"] if self.turns.version < 8 else []
        changed = ", ".join(f"{column} = s.{column}" for column in [*keys, "ts", *columns])
        text = (
            f"merge into {self.name} t using ({rows}) s on t.id = s.id and t.part = s.part when matched then update set {changed}"
        )
        self.peer.sql(text, self.turns.hudi_options)
        self.has_parts = True
        for n in numbers:
            new = {"price": n * 1.5 + ts, "tags": [f"m{ts}"]}
            self.model.rows[n] = {**self.model.rows[n], "ts": ts, **{column: new[column] for column in columns}}
        return f"{numbers} {columns}"

    # --- services ------------------------------------------------------------------------------------------------------------

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
        own = {f"hoodie.log.compaction.{key}": value for key, value in LOGS_THERE.items()}
        return self._write(self._some(), ts, lambda rows: self._theirs(rows, **own))

    def plan_clustering_here(self, _: int) -> str:
        return str(schedule_clustering(self.turns.open(), WHOLE))

    def cluster_here(self, ts: int) -> str:
        return f"{self.plan_clustering_here(ts)} {run_clustering(self.turns.open()) is not None}"

    def cluster_there(self, _: int) -> str:
        how = self.draw.choice(["execute", "scheduleandexecute"])
        return self._call(f"run_clustering(op => '{how}', path => '{self.path}')")

    def clean_here(self, _: int) -> str:
        planned = schedule_clean(self.turns.open(), {"hoodie.cleaner.commits.retained": self.draw.randint(1, 3)})
        return f"{planned} {run_clean(self.turns.open()) is not None}"

    def clean_there(self, _: int) -> str:
        return self._call(f"run_clean(table => '{self.name}', retain_commits => {self.draw.randint(1, 3)})")

    # --- failures and ways back ----------------------------------------------------------------------------------------------

    def dead_writer(self, ts: int) -> str:
        """A process of Tideline dies with its files written. Tideline rolls it back at once, or either side once it is silent."""
        dead = abandoned_write(self.turns.open(), self.model.table(self.model.make(self._some(), ts + 1000)))
        beat = self.path / ".hoodie/.heartbeat" / dead
        beat.parent.mkdir(exist_ok=True)
        beat.touch()  # it ended with the writer, as it does not if a process dies
        if self.draw.random() < 0.5:
            return dead
        return f"{dead} {self._roll_back_dead()}"

    def _roll_back_dead(self) -> list[str]:
        """Let Tideline roll back all writes that are pending, as if their writers had been silent for long."""
        then = time.time() - 2 * SILENCE_S
        for beat in (self.path / ".hoodie/.heartbeat").glob("*"):
            os.utime(beat, (then, then))
        time.sleep(HASTY["hoodie.client.heartbeat.interval_in_ms"] / 1000)  # the entry that began a write is a sign of life, too
        hasty = {**self.form.own_options, **HASTY}
        return roll_back_dead(Table.open(str(self.path), options=hasty, hudi_lock=open_hudi_lock))

    def failed_there(self, ts: int) -> str:
        """A task of a write of Apache Hudi fails behind others: what it began stays until either side rolls it back."""
        rows = self.model.make([*self._some(), 59], ts + 1000)
        spoiled = {"price": "if(id = 'k0059', cast(raise_error('spoiled') as double), price)"}
        try:
            self.turns.theirs(self.model.table(rows), computed=spoiled)
        except PeerFailed as error:
            if "spoiled" not in str(error):
                raise
            return "as asked for"
        return "which it did not"

    def _newest(self) -> str:
        """The instant of the last write that has completed."""
        return self.turns.open().state.completed_writes()[-1].instant

    def savepoint_there(self, _: int) -> str | None:
        """Apache Hudi protects the last write: Tideline leaves savepoints of a shared table to it."""
        at = self._newest()
        if self._awaits_metadata:
            return None  # it could not be restored: peer difference 40
        if self.saved is not None:
            if self.saved[0] == at:
                return None
            self._call(f"delete_savepoint(path => '{self.path}', instant_time => '{self.saved[0]}')")
            self.saved = None
        self._call(f"create_savepoint(path => '{self.path}', commit_time => '{at}')")
        self.saved = at, self.model.copied()
        return at

    def restore_there(self, _: int) -> str | None:
        if self.saved is None:
            return None
        at, model = self.saved
        self.peer.restore(self.path, NAME, at, self.turns.hudi_options)
        self.model = model.copied()
        self.past.clear()
        self._name()
        return at

    def roll_back_there(self, ts: int) -> str | None:
        """Apache Hudi undoes a write that has completed, of either side."""
        if self._awaits_metadata:
            return None  # it would list what it deletes: peer difference 37
        numbers, write = self._some(), self.draw.choice([self._ours, self._theirs])
        write(self.model.make(numbers, ts))
        at = self._newest()
        self.peer.roll_back(self.path, NAME, at, self.turns.hudi_options)
        return f"{at} by {write.__name__.strip('_')}"

    def move(self, ts: int) -> str | None:
        """Apache Hudi upgrades the table with its next write, or downgrades it; Tideline goes on with it in its new version."""
        between = {8, 9} if self.form.metadata or self.form.index == "blind" else {6, 8, 9}
        targets = sorted(between - {self.turns.version})
        # A write that is pending ends neither upgrades nor downgrades under the lock, and a savepoint is of one version.
        if not targets or self.saved is not None or self.turns.version not in between or not self.form.moves:
            return None
        target = self.draw.choice(targets)
        self._roll_back_dead()
        while 6 in (target, self.turns.version) and self.form.kind is Kind.MOR and run_compaction(self.turns.open()) is not None:
            pass  # log files behind its plan are refused by name
        before, done = self.turns.version, ""
        try:
            if target > before:
                self.turns.version = target
                done = self._write(self._some(), ts, lambda rows: self._theirs(rows, **{"hoodie.write.auto.upgrade": "true"}))
            else:
                self._call(f"downgrade_table(table => '{self.name}', to_version => '{NUMBERS[target]}')")
        finally:  # a write that a plan refuses has upgraded the table, and a downgrade that fails says nothing
            self.turns.version = int(self.peer.properties(self.path)["hoodie.table.version"])
            if self.turns.version != before:
                self.turns.share()
                self.past.clear()
        return f"from {before} to {self.turns.version}, asked for {target} {done}"

    # --- one step ------------------------------------------------------------------------------------------------------------

    def step(self, ts: int) -> list[str]:
        """Take a step; return what is wrong then."""
        began, done = time.monotonic(), None
        while done is None:  # some have nothing to do
            act = self.draw.choice(self.acts)
            try:
                done = act(ts)
            except WriteConflict as error:  # with a plan that is pending: nothing was written
                done = f"refused: {error.found}"
                self.counts["refused"] += 1
            except (PeerFailed, TidelineError) as error:
                if end := next((text for text in ENDS if text in str(error)), ""):
                    self.end = f"{act.__name__}: {end}"
                    return []
                if not any(text in str(error) for text in REFUSALS):
                    return [f"{act.__name__} failed: {error}"[:4000]]
                done = f"refused: {error}"[:200]
                self.counts["refused"] += 1
        self.steps.append(f"{act.__name__} {done}")
        self.counts["steps"] += 1
        self.seconds[act.__name__] += time.monotonic() - began
        began = time.monotonic()
        try:
            self.past[self._newest()] = self.model.copied()
            while len(self.past) > PAST:
                del self.past[next(iter(self.past))]
            return self.checks.wrong(self.model, self.past)
        except (PeerFailed, TidelineError) as error:
            return [f"a reader failed: {error}"[:4000]]
        finally:
            self.seconds["checks"] += time.monotonic() - began
