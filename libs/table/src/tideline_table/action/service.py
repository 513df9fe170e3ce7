"""A table service as one object: all that commands, maintenance, writers, the planner and Spark ask of it.

Each service has its object in the module `service` of its package; `tideline_table.action.services` lists them. Nothing else
asks which service it is.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, ClassVar

from tideline_table.action.backlog import Backlog, Objectives, Pressure
from tideline_table.action.decision import Check, Due, NotDue, TableService, Trigger, service_of, taken_groups
from tideline_table.config import Options
from tideline_table.coordination.committed import Committed
from tideline_table.file_group.slice import FileGroupId, FileSlice
from tideline_table.hudi.instant import Action
from tideline_table.log.action import ActionRecord
from tideline_table.log.plan import CompactionPlanned, Plan, path_named
from tideline_table.log.state import TableState
from tideline_table.table.definition import TableView
from tideline_table.table.facade import Table

Settings = Mapping[str, object] | None
"""Options that override those with which the table is open."""
RunTasks = Callable[[Sequence[Any]], Sequence[Any]]
"""Runs the tasks of a plan, and returns the result of each, in order."""


@dataclass(frozen=True, slots=True)
class Ran:
    """What one run of a service did."""

    service: TableService
    instants: tuple[str, ...]
    """The instants of the plans that ran; for a rollback those that it undid."""
    text: str
    """One line for people."""
    files: int = 0
    """Files written by a rewrite, deleted by a clean or a rollback; instants archived."""
    rows: int = 0
    facts: Mapping[str, Any] = field(default_factory=dict)
    """What only this service reports, for programs."""
    committed: Committed | None = None
    """The commit of a rewrite."""


@dataclass(frozen=True, slots=True)
class Step:
    """What maintenance did about one service. `error` is set if it failed; the other services were run all the same."""

    service: TableService
    outcome: str
    """`done`, `due` (a dry run), `nothing`, `failed`, or `postponed` for an error that a retry cures."""
    reason: str
    instants: tuple[str, ...] = ()
    files: int = 0
    """Files written by compaction and clustering, deleted by clean and rollback, instants archived."""
    rows: int = 0
    error: str = ""

    @classmethod
    def of(cls, service: TableService, ran: Sequence[Ran], answer: str | NotDue, why: str) -> Step:
        """Return the step of the runs; `answer` of the request for a plan says why there is none."""
        if not ran:
            return cls(service, "nothing", answer.reason if isinstance(answer, NotDue) else why)
        instants = tuple(instant for one in ran for instant in one.instants)
        return cls(service, "done", why, instants, sum(one.files for one in ran), sum(one.rows for one in ran))


@dataclass(frozen=True, slots=True)
class Inline:
    """What the options ask writers to do for a service behind their commits: plan, or plan and run."""

    runs: bool
    trigger: Trigger | None = None


class Service(ABC):
    """What every table service can be asked. Options override those with which the table is open."""

    name: ClassVar[TableService]
    deletes: ClassVar[bool] = False
    """Whether a run deletes files and writes none."""
    has_plans: ClassVar[bool] = True
    mends: ClassVar[bool] = False
    """Whether it ends what dead writers left. A pause does not stop it."""
    tidies: ClassVar[bool] = False
    """Whether its step has something to do without a due plan, too."""
    cancels_where_shared: ClassVar[bool] = False
    """Whether a plan can be cancelled in a table that Apache Hudi writes, too (docs/design/cancelling-plans.md)."""

    def excluded(self, table: Table) -> NotDue | None:
        """Return why the kind of the table excludes the service, None if it does not."""
        del table
        return None

    def is_on(self, options: Options, *, has_plan: bool) -> bool:
        """Return whether the engine's options switch the service on, for a table that has a plan of it or none."""
        del options, has_plan
        return True

    def pending(self, state: TableState) -> list[ActionRecord]:
        """Return its pending plans, oldest first, without those that are being cancelled."""
        return [record for record in state.pending() if not record.fenced_by and service_of(record) is self.name]

    def inline(self, table: Table, options: Options) -> Inline | None:
        """Return what the options ask writers of the table to do behind their commits, None for nothing."""
        del table, options
        return None

    @abstractmethod
    def decide(self, table: Table, options: Options, trigger: Trigger | None) -> Due | NotDue:
        """Return the plan that is due on the last refreshed state, or why there is none. Publishes nothing.

        `trigger` has the thresholds of a planner for clusterings. Raises `SchemaMismatch` and `InvalidOption` for options that
        do not fit the table.
        """

    @abstractmethod
    def plan(
        self, table: Table, options: Settings = None, trigger: Trigger | None = None, check: Check | None = None
    ) -> str | NotDue:
        """Publish the plan that is due and return its instant, or return why there is none. `check` as for `publish`."""

    @abstractmethod
    def run(self, table: Table, instant: str = "", *, options: Settings = None, run: RunTasks | None = None) -> Ran | None:
        """Run a pending plan (empty: the oldest); return None if there is none. `run` runs its tasks (None: in this process)."""

    def preview(self, plan: Plan) -> list[tuple[str, list[str]]] | None:
        """Return what a plan takes: the partition and the paths of each group of files.

        None: its plans name no files of the table.
        """
        del plan
        return None

    def maintain(self, table: Table, options: Settings, trigger: Trigger | None, why: str) -> Step:
        """Plan what is due and run what is pending, in this process. Raises the errors of both."""
        answer = self._planned(table, options, trigger, why)
        pending = [record.instant for record in self.pending(table.state)]
        ran = [done for instant in pending if (done := self.run(table, instant, options=options)) is not None]
        return Step.of(self.name, ran, answer, why)

    def _planned(self, table: Table, options: Settings, trigger: Trigger | None, why: str) -> str | NotDue:
        if not self.is_on(table.options.merged(options or {}), has_plan=False):
            return NotDue(why)  # a plan that a user made runs all the same
        return self.plan(table, options, trigger)


@dataclass(frozen=True, slots=True)
class Gain:
    """What readers gain by a plan."""

    files_read: int
    files_written: int
    log_bytes: int = 0
    """Bytes of log files that readers need not merge after the plan."""
    unsorted_bytes: int = 0
    """Input that no clustering has sorted yet, if the table has sort columns."""
    since: datetime | None = None
    """Since when the table waits for this service."""


class Rewrite(Service):
    """Clustering, compaction, log compaction: their plans name file groups, their tasks may run on Spark, and their runs commit."""

    action: ClassVar[Action]
    operation: ClassVar[str]
    """With `action`: what the log records for its plans and commits."""
    begins_slices: ClassVar[bool] = False
    """Whether writers append to the slices that a plan begins, before it runs. So a plan whose run failed stays pending."""
    is_for_logs: ClassVar[bool] = False
    """Whether it merges log files: a plan takes no slice without them."""
    yields_to: ClassVar[TableService | None] = None
    """The service whose due plan takes the same files and makes one of this service needless."""
    work: ClassVar[staticmethod[..., Any]]
    """Runs one task, here or in another process."""
    here: ClassVar[staticmethod[..., Sequence[Any]]]
    """Runs tasks in threads of this process; calls the second argument, if given, behind each."""
    splits_tasks: ClassVar[bool] = False
    """Whether several executors may share one task (`cluster_on_executors`)."""

    def why_not_planned(self, view: TableView) -> NotDue | None:
        """Return why no plan of this service is possible or may be made now, None if one may be due."""
        del view
        return None

    def is_examined(self, view: TableView) -> bool:
        """Return whether the planner examines a table for this service."""
        del view
        return True

    def reads(self, found: FileSlice) -> FileSlice:
        """Return the files of a slice that a plan names."""
        return found

    def cost(self, found: FileSlice) -> int:
        """Return the bytes that a plan reads of a slice."""
        return found.total_bytes

    def taken(self, state: TableState) -> dict[FileGroupId, str]:
        """Return file group → instant of the pending plan for which a plan of this service leaves the group out."""
        return taken_groups(state)

    @abstractmethod
    def pressure(self, objectives: Objectives, found: Backlog, now: datetime) -> Pressure:
        """Return how close a table is to the objectives that this service keeps. Pure."""

    @abstractmethod
    def thresholds(self, view: TableView, usual: Trigger, *, is_urgent: bool) -> Trigger:
        """Return from when on a plan is due, with the bound on bytes of `usual`, the planner's settings.

        With `is_urgent`, a backlog is near the objective of the table's policy, and a plan is due whatever the settings say.
        """

    @abstractmethod
    def due(self, view: TableView, trigger: Trigger | None, now: datetime) -> Due | NotDue:
        """Return the plan that is due, or why there is none. Pure; asks for no reservations. Errors as `Service.decide`."""

    @abstractmethod
    def gain(self, view: TableView, slices: Sequence[FileSlice], due: Due) -> Gain:
        """Return what readers gain by a plan that reads `slices`."""

    def waited(self, state: TableState, found: FileSlice, sequence: int) -> bool:
        """Return whether what a plan would take of a slice was written before the entry `sequence` of the log."""
        return any_before(state, (log.instant for log in found.log_files), sequence)

    @abstractmethod
    def ran(self, committed: Committed) -> Ran:
        """Describe a commit of this service."""

    @abstractmethod
    def _execute(self, table: Table, instant: str, options: Settings, run: RunTasks) -> Committed | None: ...

    def run(self, table: Table, instant: str = "", *, options: Settings = None, run: RunTasks | None = None) -> Ran | None:
        """See `Service.run`. Errors as for the functions of the service."""
        committed = self._execute(table, instant, options, run or self.here)
        return None if committed is None else self.ran(committed)


def any_before(state: TableState, instants: Iterable[str], sequence: int) -> bool:
    """Return whether one of these writes completed before the entry `sequence`. Archived writes count as completed before."""
    records = (state.actions.get(instant) for instant in instants)
    return any(record is None or record.sequence < sequence for record in records)


def logs_applied(slices: Iterable[FileSlice]) -> int:
    """Return the bytes of the log files that readers of the slices merge."""
    return sum(log.size_bytes for found in slices for log in found.applied.log_files)


def merged_logs(service: TableService, committed: Committed, into: str) -> Ran:
    """Describe a commit that merged log files."""
    logs, files = sum(stat.log_files_compacted for stat in committed.stats), len(committed.stats)
    rows = sum(stat.num_writes for stat in committed.stats)
    text = f"{service} {committed.instant} completed: {logs} log files merged into {files} {into}"
    return Ran(service, (committed.instant,), text, files, rows, {"log_files_merged": logs}, committed)


def operation_files(plan: CompactionPlanned, *, with_base: bool) -> list[tuple[str, list[str]]]:
    """Return the partition and the paths of the files of each operation of a plan that merges log files."""
    found = []
    for operation in plan.plan["operations"]:
        partition = str(operation["partitionPath"] or "")
        names = (operation["dataFilePath"] if with_base else None, *(operation["deltaFilePaths"] or ()))
        found.append((partition, [path_named(partition, str(name)) for name in names if name]))
    return found
