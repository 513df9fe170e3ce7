"""Tables by patterns, and the rules by which they are judged, for `status`, `why`, `maintain` and `job list`.

These commands import this module by name, because it imports the settings of the services, and other commands start without them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tideline_locks import LockProbe, open_hudi_lock
from tideline_locks.table_lock import attach_lock
from tideline_planner.rules import rules_of, with_planner
from tideline_planner.settings import PlannerSettings
from tideline_runtime.cleaner_settings import CleanerSettings
from tideline_runtime.cleaning import with_cleaner, with_cleaner_options
from tideline_runtime.planning.ledger import rewriting_of
from tideline_runtime.policy import Policies, read_policies
from tideline_runtime.table_search import TablePattern, find_tables
from tideline_table.action import (
    Rules,
    Standing,
    TableService,
    TableStatus,
    Verdict,
    examine,
    failure_document,
    job_document,
    pending_jobs,
    status_document,
)
from tideline_table.clock import SystemClock
from tideline_table.errors import TidelineError
from tideline_table.storage import Storage, open_storage
from tideline_table.table import Finding, FindingKind, Table, given_up_plans, read_identity

PARALLEL = 16
"""Tables that are examined at once. An examination mostly waits for the store."""

Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Fleet:
    """The settings by which tables are judged: those of planner and cleaner, policies, engine options of the command."""

    settings: PlannerSettings
    cleaner: CleanerSettings
    options: Mapping[str, object]
    locks: str = ""
    policies: Policies = field(default_factory=Policies)
    probe: LockProbe = field(default_factory=lambda: LockProbe("", SystemClock()))

    @classmethod
    def load(cls, patterns: Sequence[str], settings: Path | None, options: Mapping[str, object], locks: str = "") -> Fleet:
        """Read the settings of planner and cleaner: file, environment variables, defaults.

        Raises `InvalidSetting` and `PolicyRefused`.
        """
        given: dict[str, Any] = {"tables": tuple(patterns)} if patterns else {}
        loaded = PlannerSettings.load(file=settings, **given)
        policies = read_policies(loaded.policy_file) if loaded.policy_file is not None else Policies()
        cleaner = CleanerSettings.load(file=settings)
        return cls(loaded, cleaner, options, locks, policies, LockProbe(locks or loaded.locks, SystemClock()))

    def open(self, base_path: str) -> Table:
        """Open a table without checking that it can be written. Raises the errors of `Table.open`, and `ContradictoryRules`."""
        storage = open_storage(base_path)
        return Table.open(base_path, options=self.options_of(storage), hudi_lock=open_hudi_lock, storage=storage)

    def options_of(self, storage: Storage) -> dict[str, object]:
        """Return the engine options of a table.

        Options of the command override those of its policy, and these override the settings.
        """
        identity = read_identity(storage)
        policy = self.policies.of(storage.root, identity.uid if identity is not None else "")
        return {**self.settings.options, **policy.options, **self.options}

    def rules(self, table: Table) -> Rules:
        """Return the rules by which planner and cleaner judge a table, from their settings and the policy file.

        Options of the command override those of policies. Raises `ContradictoryRules`.
        """
        policy = self.policies.of(table.storage.root, table.uid)
        rules = rules_of(self.settings, policy, table, self.options)
        return with_cleaner_options(rules, self.cleaner, policy, table, self.options)

    def find(self, on_found: Callable[[], None] = lambda: None) -> tuple[list[str], list[Document]]:
        """Return the base paths that the patterns select, and a document for each pattern that selects none or cannot be searched.

        `on_found` is called for each table that is found. Raises `InvalidSetting` for a pattern that is not valid.
        """
        found: dict[str, None] = {}
        failures: list[Document] = []
        for text in self.settings.tables:
            pattern = TablePattern.parse(text)
            try:
                matches = []
                for base_path in find_tables(pattern, open_storage(pattern.root)):
                    matches.append(base_path)
                    on_found()
            except TidelineError as error:
                failures.append(failure_document(text, Finding(FindingKind.CANNOT_OPEN, str(error))))
                continue
            if not matches:
                failures.append(failure_document(text, Finding(FindingKind.NO_TABLE, f"no table matches {text}")))
            found.update(dict.fromkeys(matches))
        return sorted(found), failures

    def examine(self, base_path: str, services: Iterable[TableService] = tuple(TableService)) -> TableStatus:
        """Return the status of one table, as the services decide about it. Raises as `open` and `rules` do."""
        return self.examine_table(self.open(base_path), services)

    def examine_table(self, table: Table, services: Iterable[TableService] = tuple(TableService)) -> TableStatus:
        """Return the status of an open table in its last refreshed state. Raises as `rules` does."""
        status = examine(table, self.rules(table), services)
        verdicts = tuple(self._as_services_decide(table, verdict) for verdict in status.verdicts)
        return replace(status, verdicts=verdicts, findings=(*status.findings, *self._lock_finding(table)))

    def status(self, base_path: str) -> Document:
        """Return the document of one table. For a table that cannot be examined, the document has the error."""
        try:
            return status_document(self.examine(base_path))
        except TidelineError as error:
            return failure_document(base_path, Finding(FindingKind.CANNOT_OPEN, str(error)))
        except Exception as error:  # noqa: BLE001 - a table that breaks the engine must not hide the others
            return failure_document(base_path, Finding(FindingKind.CANNOT_OPEN, f"unexpected {type(error).__name__}: {error}"))

    def status_and_usage(self, base_path: str) -> Document:
        """Return the document of one table as `status` does, with `usage`: what table services wrote and ran in the last day.

        `usage` is None for a table that cannot be examined, or that only Apache Hudi writes.
        """
        document = self.status(base_path)
        if document["error"] or document["state"] == Standing.UNMANAGED:
            return {**document, "usage": None}
        try:
            table = self.open(base_path)
            size, seconds = rewriting_of(table, table.clock.now())
        except TidelineError as error:
            return {**document, "usage": None, "error": str(error)}
        return {**document, "usage": {"rewritten_day_bytes": size, "processor_day_s": round(seconds, 3)}}

    def jobs(self, base_path: str) -> Document:
        """Return a document with the pending plans of one table (`jobs`), or with the error."""
        try:
            table = self.open(base_path)
            pending = pending_jobs(table)
            given_up = given_up_plans(table.storage) if pending else {}
        except TidelineError as error:
            return {"base_path": base_path, "error": str(error)}
        named = {"table": table.definition.name, "base_path": table.storage.root}
        reasons = {instant: f"{record.reason}, attempt {record.attempts}" for instant, record in given_up.items()}
        jobs = [{**named, **job_document(job), "given_up": reasons.get(job.instant)} for job in pending]
        return {**named, "error": None, "jobs": jobs}

    def _lock_finding(self, table: Table) -> tuple[Finding, ...]:
        try:
            if self.locks and table.capabilities.keeps_log:
                attach_lock(table, self.locks)
        except TidelineError as error:
            return (Finding(FindingKind.LOCKS, f"the locks cannot be used: {error}"),)
        failure = self.probe.failure() if table.capabilities.queues_writers else ""
        return (Finding(FindingKind.LOCKS, f"the locks cannot be used: {failure}"),) if failure else ()

    def _as_services_decide(self, table: Table, verdict: Verdict) -> Verdict:
        if self.options:
            return verdict  # the services do not have the options of this command
        policy = self.policies.of(table.storage.root, table.uid)
        return with_cleaner(self.cleaner, policy, table, with_planner(self.settings, policy, table, verdict))


def examined(
    base_paths: Sequence[str], status: Callable[[str], Document], on_done: Callable[[], None] = lambda: None
) -> list[Document]:
    """Return `status` of each base path, in the given order. `PARALLEL` threads call `status`, and `on_done` after each call."""

    def one(base_path: str) -> Document:
        try:
            return status(base_path)
        finally:
            on_done()

    with ThreadPoolExecutor(max_workers=PARALLEL, thread_name_prefix="status") as pool:
        return list(pool.map(one, base_paths))
