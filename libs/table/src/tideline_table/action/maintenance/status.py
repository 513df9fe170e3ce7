"""The state of a table for operators: the verdict about each service, its last run, the backlog, and findings. Writes nothing."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, tzinfo

from tideline_table.action.backlog import Backlog, ManagingGain, Objectives, backlog_of, managing_gain
from tideline_table.action.decision import TableService, service_of
from tideline_table.action.maintenance.verdict import Outcome, Rules, Verdict, verdicts_of
from tideline_table.coordination import is_alive
from tideline_table.errors import TidelineError
from tideline_table.hudi.instant import State
from tideline_table.log.action import ActionRecord
from tideline_table.log.state import TableState
from tideline_table.table.facade import Table
from tideline_table.table.findings import Finding, FindingKind, age_s, damage_of, findings_beside, lost_of
from tideline_table.table.standing import why_refused


class Standing(enum.StrEnum):
    """How a table that was found stands to Tideline."""

    MANAGED = "managed"
    UNMANAGED = "unmanaged"
    """Only Apache Hudi writes it."""
    UPGRADED = "upgraded"
    """It was Tideline's or shared, and Apache Hudi gave it a version that Tideline does not write."""
    MOVED = "moved"
    """It was copied or moved and has the identity of another place."""
    UNREADABLE = "unreadable"
    """It cannot be opened."""
    GONE = "gone"
    """It was found before and is not at its place any more."""


REMEDIES = {
    Standing.UNMANAGED: "share it, if Tideline's services shall work on it: tideline share PATH --check",
    Standing.UPGRADED: "return it to its writers: tideline leave PATH, and share it as it is: tideline share PATH; or downgrade it",
    Standing.MOVED: "if it was copied or moved on purpose: tideline adopt PATH",
    Standing.UNREADABLE: "mend what the error names",
    Standing.GONE: "restore it, adopt it at its new place (tideline adopt PATH), or take it out of the tables",
}
"""What ends a state in which no service works on a table."""


@dataclass(frozen=True, slots=True)
class LastRun:
    """The newest completed run of a service that is still on the active timeline. `ended` is ISO 8601, UTC."""

    instant: str
    ended: str
    age_s: float


@dataclass(frozen=True, slots=True)
class PendingJob:
    """A pending plan or rollback of a service."""

    instant: str
    service: TableService
    state: str
    age_s: float
    is_running: bool
    writer_id: str


@dataclass(frozen=True, slots=True)
class TableStatus:
    """The status of one table at one sequence of its log."""

    name: str
    uid: str
    base_path: str
    type: str
    sequence: int
    verdicts: tuple[Verdict, ...]
    last_runs: dict[TableService, LastRun | None]
    backlog: Backlog
    oldest_log_s: float | None
    """Age of the oldest log file that is not merged, None without one."""
    pending: tuple[PendingJob, ...]
    findings: tuple[Finding, ...]
    standing: Standing = Standing.MANAGED
    since: str = ""
    """Since when a managed table is (ISO 8601, UTC). Empty where storage does not say it."""
    gain: ManagingGain | None = None
    """Of a table that only Apache Hudi writes: what the services would do for it."""

    @property
    def verdict(self) -> str:
        """`unmanaged` if only Apache Hudi writes the table: no service works on it. Else `attention` with a finding.

        Else `due` if a service is due, `working` if one is planned or runs, `idle` otherwise.
        """
        if self.gain is not None:
            return "unmanaged"
        if self.findings:
            return "attention"
        found = {verdict.outcome for verdict in self.verdicts}
        if Outcome.DUE in found:
            return "due"
        return "working" if found & {Outcome.PLANNED, Outcome.RUNNING} else "idle"


def examine(table: Table, rules: Rules, services: Iterable[TableService] = tuple(TableService)) -> TableStatus:
    """Return the status of the last refreshed state, with the verdicts of `services`.

    Costs five requests (`why_refused`), listings of partitions (`damage_of`) and of the timeline, and one or
    two requests for each pending action.
    """
    return examine_beside(table, rules, why_refused(table), (*damage_of(table), *lost_of(table)), services)


def examine_beside(
    table: Table,
    rules: Rules,
    refused: TidelineError | None,
    damage: Iterable[Finding],
    services: Iterable[TableService] = tuple(TableService),
) -> TableStatus:
    """As `examine`, for a caller that knows why writers refuse the table and which files are damaged."""
    state, now = table.state, table.clock.now()
    verdicts = verdicts_of(table, services, rules, refused)
    findings = list(findings_beside(table, refused))
    findings += (
        []
        if refused is not None
        else [
            Finding(FindingKind.CANNOT_PLAN, f"{v.service} cannot be planned: {v.reason}")
            for v in verdicts
            if v.outcome is Outcome.FAILED
        ]
    )
    backlog = backlog_of(state, table.options.merged(rules.options), table.zone)
    findings += [*_missed(backlog, rules.objectives, now), *damage]
    return TableStatus(
        name=table.definition.name,
        uid=table.uid,
        base_path=table.storage.root,
        type=table.definition.type.name.lower(),
        sequence=state.sequence,
        verdicts=verdicts,
        last_runs={service: _last_run(state, service, now, table.zone) for service in TableService},
        backlog=backlog,
        oldest_log_s=backlog.oldest_log_s(now),
        pending=pending_jobs(table),
        findings=tuple(findings),
        standing=(standing := _standing(table, refused)),
        since=table.identity.created if table.identity is not None and standing is Standing.MANAGED else "",
        gain=None if table.capabilities.keeps_log or refused is not None else managing_gain(state, table.options),
    )


def _standing(table: Table, refused: TidelineError | None) -> Standing:
    if table.identity is not None and table.identity.base_path != table.storage.root:
        return Standing.MOVED
    if table.capabilities.keeps_log:
        return Standing.MANAGED
    return Standing.UNMANAGED if refused is None else Standing.UPGRADED


def _missed(backlog: Backlog, bounds: Objectives, now: datetime) -> list[Finding]:
    """Return a finding for each objective that the backlog exceeds."""
    age_s = backlog.oldest_log_s(now)
    met = (
        ("small files", backlog.small_files, bounds.small_files, None),
        ("bytes of log files for each byte of base files", round(backlog.log_to_base_ratio, 3), bounds.log_to_base_ratio, None),
        ("s is the age of the oldest log file", round(age_s or 0.0), bounds.unmerged_log_age_s, age_s),
    )
    return [
        Finding(
            FindingKind.OBJECTIVE,
            f"{what}, more than the objective of {bound:g}" if age is None else f"{what}, over {bound:g} s",
            age,
        )
        for what, found, bound, age in ((f"{found} {what}", found, bound, age) for what, found, bound, age in met)
        if bound is not None and found > bound
    ]


def pending_jobs(table: Table) -> tuple[PendingJob, ...]:
    """Return the pending plans and rollbacks, oldest first. One request for each that has begun."""
    now, found = table.clock.now(), []
    for record in table.state.pending():
        service = service_of(record)
        if service is not None:
            is_running = record.state is State.INFLIGHT and is_alive(table.storage, record, table.clock, table.options)
            state = "cancelled" if record.fenced_by else record.state.value
            found.append(
                PendingJob(record.instant, service, state, age_s(record.instant, now, table.zone), is_running, record.writer_id)
            )
    return tuple(found)


def _last_run(state: TableState, service: TableService, now: datetime, zone: tzinfo) -> LastRun | None:
    done: list[ActionRecord] = [a for a in list(state.actions.values()) if a.state is State.COMPLETED and service_of(a) is service]
    if not done:
        return None
    last = max(done, key=lambda a: a.sequence)
    ended = datetime.fromisoformat(last.since) if last.since else None
    return LastRun(last.instant, last.since, max(0.0, (now - ended).total_seconds()) if ended else age_s(last.instant, now, zone))
