"""Recorded table logs replayed through a candidate policy: which plans there would have been, and what they would have done.

The decisions are those of the planner (`examine`, `arbitrate`) on simulated file groups (`replay_table`). Nothing is written.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from tideline_runtime.planning.arbitration import arbitrate
from tideline_runtime.planning.demand import Demand, Held, Thresholds
from tideline_runtime.planning.examination import examine, services_of, shrunk
from tideline_runtime.planning.ledger import Ledger
from tideline_runtime.planning.replay_table import BYTES_PER_S, START_S, SimulatedTable, Tally, recorded_entries
from tideline_runtime.policy import Policies, TablePolicy
from tideline_table.action import pending_bytes, pending_rewrites
from tideline_table.config import Options
from tideline_table.errors import StorageError, TidelineError, UnsupportedTable
from tideline_table.hudi import Action
from tideline_table.log import Entry, TableState
from tideline_table.table import Table, TableView

ASSUMPTIONS = (
    (
        f"a job starts {START_S:g} s after its plan, rewrites {BYTES_PER_S >> 20} MiB/s, and runs alone; only a writer lets a "
        "clustering fail"
    ),
    "a log compaction fails if another service takes its file groups",
    "clustering keeps the bytes of its input; compaction writes those of base and log files, log compaction those of the log files",
    (
        "recorded writes go to the simulated file group with most of their rows, change it by the recorded bytes, and come at "
        "their time"
    ),
    "writes that filled small files, waited, or were repeated because of a recorded service are not undone",
)
_TICK = timedelta(minutes=15)
"""Interval of decisions without a recorded entry or the end of a job: windows, budgets and ages change by time."""
ThresholdsOf = Callable[[TablePolicy], Thresholds]


@dataclass(frozen=True, slots=True)
class Replayed:
    """Counts of the jobs that a policy would have caused on one table, and of the recorded jobs."""

    base_path: str
    uid: str
    jobs: int
    clusterings: int
    compactions: int
    log_compactions: int
    bytes_rewritten: int
    conflicts: int
    most_small_files: int
    largest_log_ratio: float
    largest_log_age_s: float
    recorded_jobs: int
    recorded_bytes: int

    @classmethod
    def of(cls, table: Table, tally: Tally) -> Replayed:
        """Return the counts of a table."""
        jobs = tally.clusterings + tally.compactions + tally.log_compactions
        return cls(table.base_path, table.uid, jobs, **asdict(tally))


@dataclass(slots=True)
class Outcome:
    """The outcome of a replay: per table, in order of base path, and the tables that could not be replayed, with the reason."""

    tables: list[Replayed] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    is_valid: bool = True
    """Whether no table is left out because of an error that `tideline policy check` reports."""
    largest_day_bytes: int = 0

    def leave_out(self, base_path: str, error: TidelineError) -> None:
        """Record why a table could not be replayed."""
        self.left_out[base_path] = str(error)
        if not isinstance(error, StorageError | UnsupportedTable):
            self.is_valid = False

    @property
    def jobs(self) -> int:
        """Jobs of all tables."""
        return sum(one.jobs for one in self.tables)

    @property
    def bytes_rewritten(self) -> int:
        """Bytes that these jobs write."""
        return sum(one.bytes_rewritten for one in self.tables)

    @property
    def conflicts(self) -> int:
        """Writes to file groups of a pending clustering."""
        return sum(one.conflicts for one in self.tables)

    def to_json(self) -> dict[str, Any]:
        """Return the document that `tideline policy test --json` prints."""
        return {
            "jobs": self.jobs,
            "bytes_rewritten": self.bytes_rewritten,
            "conflicts": self.conflicts,
            "largest_day_bytes": self.largest_day_bytes,
            "assumptions": list(ASSUMPTIONS),
            "left_out": self.left_out,
            "tables": [asdict(one) for one in self.tables],
        }


def replay(
    policies: Policies,
    options: Mapping[str, object],
    thresholds_of: ThresholdsOf,
    tables: Iterable[str],
    since: datetime,
    until: datetime,
) -> Outcome:
    """Replay the logs of the tables at these base paths from `since` to `until`. `options` are those of the planner's settings.

    `Outcome.left_out` has the reason for each table that has no log, has a restore among the entries that its log still holds, has
    contradictory rules, lacks a sort column of its rules, gets settings or options that are not valid, or cannot be read.
    """
    outcome = Outcome()
    run = _Replay(policies, thresholds_of, since, outcome.leave_out)
    recorded: list[tuple[datetime, int, str, Entry]] = []
    for base_path in tables:
        try:
            recorded += run.add(base_path, options)
        except TidelineError as error:
            outcome.leave_out(base_path, error)
    # A writer's clock may be ahead of this one.
    last = max((at for at, *_ in recorded), default=until)
    run.run(sorted(recorded, key=lambda own: own[:3]), max(until, last + _TICK))
    outcome.tables = [Replayed.of(one.table, one.tally) for _, one in sorted(run.tables.items())]
    rewrites = sorted(rewrite for one in run.tables.values() for rewrite in one.rewrites)
    ledger = Ledger(tuple(rewrites))
    outcome.largest_day_bytes = max(
        (Ledger(tuple(r for r in ledger.rewrites if r[0] <= at)).spent(at) for at, _ in rewrites), default=0
    )
    return outcome


class _Replay:
    """The fleet of a replay. Jobs run one after the other.

    A table for which a decision fails is removed, and `leave_out` is called with the error. The budgets of the fleet then count
    without its jobs.
    """

    def __init__(
        self,
        policies: Policies,
        thresholds_of: ThresholdsOf,
        since: datetime,
        leave_out: Callable[[str, TidelineError], None],
    ) -> None:
        self.tables: dict[str, SimulatedTable] = {}
        self._policies = policies
        self._own: dict[str, TablePolicy] = {}
        self._thresholds: dict[str, Thresholds] = {}
        self._thresholds_of = thresholds_of
        self._since = since
        self._leave_out = leave_out
        self._jobs: list[tuple[datetime, str, str]] = []
        self._free_at = since

    def add(self, base_path: str, options: Mapping[str, object]) -> list[tuple[datetime, int, str, Entry]]:
        """Open a table, apply its entries before `since`, and return those from `since` on with their times and sequences.

        Raises `UnsupportedTable` for a table without a log and for a log with a restore, and what `thresholds_of` raises.
        """
        table = Table.open(base_path)
        if not table.capabilities.keeps_log:
            raise UnsupportedTable(
                "a table without Tideline's log", expected="a table that Tideline created or shares with Apache Hudi"
            )
        own = self._policies.of(base_path, table.uid)
        made, thresholds = SimulatedTable(table, Options({**options, **own.options})), self._thresholds_of(own)
        entries = list(recorded_entries(table))
        times = [datetime.fromisoformat(entry.recorded) for entry in entries]
        if any(entry.action is Action.RESTORE for entry in entries):
            raise UnsupportedTable("a log with a restore", expected="a log of writes and services, to replay it")
        before = [entry for at, entry in zip(times, entries, strict=True) if at < self._since]
        if table.timeline.log.trimmed_to():
            first = min((entry.instant for entry in entries), default="")
            known = (s for s in table.state.latest_slices() if s.base_instant < first)
            made.begin_with(replace(s, log_files=tuple(g for g in s.log_files if g.instant < first)) for s in known)
            for entry in before:
                made.apply(entry, counts=False)
        else:
            folded = TableState()
            for entry in before:
                folded.apply(entry)
            made.begin_with(folded.latest_slices())
            made.state.actions = {a.instant: a for a in folded.actions.values() if not a.is_pending}
            made.state.sequence = folded.sequence
        self.tables[base_path], self._own[base_path], self._thresholds[base_path] = made, own, thresholds
        return [(at, e.sequence, base_path, e) for at, e in zip(times, entries, strict=True) if at >= self._since]

    def run(self, recorded: list[tuple[datetime, int, str, Entry]], until: datetime) -> None:
        """Apply recorded writes, ends of jobs and decisions in the order of their times."""
        # Before the first recorded entry there is nothing to decide.
        position, tick = 0, max(self._since, recorded[0][0]) if recorded else until
        while True:
            at_entry = recorded[position][0] if position < len(recorded) else until
            at_job = self._jobs[0][0] if self._jobs else until
            now = min(at_entry, at_job, tick)
            if now >= until:
                break
            if self._jobs and at_job == now:
                _, base_path, instant = heapq.heappop(self._jobs)
                if base_path in self.tables:
                    self.tables[base_path].complete(instant, now)
            elif position < len(recorded) and at_entry == now:
                _, _, base_path, entry = recorded[position]
                if base_path in self.tables:
                    self.tables[base_path].apply(entry, counts=True)
                    self.tables[base_path].observe(now)
                position += 1
            else:
                base_path = ""
                tick = now + _TICK
                for table in self.tables.values():
                    table.observe(now)
            self._decide(now, [base_path] if base_path else list(self.tables))

    def _decide(self, now: datetime, changed: list[str]) -> None:
        demands = [found for base in changed if base in self.tables for found in self._demands(base, now)]
        if not demands:
            return
        fleet = self._policies.fleet
        pending = sum(len(pending_rewrites(t.state)) for t in self.tables.values())
        spent = sum(Ledger(tuple(t.rewrites)).spent(now) + pending_bytes(t.state) for t in self.tables.values())
        for choice in arbitrate(demands, fleet, spent, pending, now, lambda d, limit: self._shrunk(d, limit, now)):
            if choice.held is None:
                self._start(choice.demand, now)

    def _start(self, demand: Demand, now: datetime) -> None:
        table = self.tables[demand.base_path]
        made = table.publish(demand, table.table.storage.root, now)
        if made is not None:
            instant, takes_s = made
            self._free_at = max(self._free_at, now) + timedelta(seconds=takes_s)
            heapq.heappush(self._jobs, (self._free_at, demand.base_path, instant))

    def _demands(self, base_path: str, now: datetime) -> list[Demand]:
        """Return what a table needs now. Leaves the table out, and returns nothing, if its policy does not fit it."""
        table, own, thresholds = self.tables[base_path], self._own[base_path], self._thresholds[base_path]
        ledger = Ledger(tuple(table.rewrites))
        try:
            view = self._view(table)
            found = [examine(service, view, own, thresholds, ledger, now) for service in services_of(view)]
        except TidelineError as error:
            del self.tables[base_path]
            self._leave_out(base_path, error)
            return []
        return [one for one in found if isinstance(one, Demand)]

    def _shrunk(self, demand: Demand, max_bytes: int, now: datetime) -> Demand | Held:
        if demand.cost_bytes <= max_bytes:
            return replace(demand, max_bytes=max_bytes if demand.max_bytes is None else min(max_bytes, demand.max_bytes))
        table, own = self.tables[demand.base_path], self._own[demand.base_path]
        return shrunk(demand, self._view(table), own, self._thresholds[demand.base_path], now, max_bytes)

    @staticmethod
    def _view(table: SimulatedTable) -> TableView:
        return replace(table.table.view(), state=table.state, options=table.options)
