"""The decision about one table service: due, not due and why, or already planned.

The planner, `tideline why` and maintenance use it.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tideline_table.action.backlog import Objectives
from tideline_table.action.decision import Due, NotDue, TableService, Trigger
from tideline_table.action.services import SERVICES
from tideline_table.coordination import is_alive, may_live
from tideline_table.errors import TidelineError
from tideline_table.hudi.instant import State
from tideline_table.log.action import ActionRecord
from tideline_table.table.facade import Table
from tideline_table.table.findings import repair
from tideline_table.table.sharing import why_unsharable
from tideline_table.table.standing import why_refused

DEFAULT_TRIGGER = Trigger(min_files=8, min_commits=4)
_NOT_OURS = "only Apache Hudi writes the table"
_SHARE = (
    "tideline share PATH, which lets Tideline's services work on it, too; what its jobs need before: tideline share PATH --check"
)
_SWITCH = "a policy or setting that switches it on"


@dataclass(frozen=True, slots=True)
class Rules:
    """By what one table is maintained: the services that are on, the thresholds of the planner, and engine options."""

    trigger: Trigger | None = DEFAULT_TRIGGER
    """None: a clustering is due as soon as a partition has enough small files."""
    services: frozenset[TableService] = frozenset(TableService)
    off: Mapping[TableService, str] = field(default_factory=dict)
    """What switches services off that are not in `services`, where it is known."""
    held: Mapping[TableService, NotDue] = field(default_factory=dict)
    """Services that may not change the table now, although they are on: a pause, or a window that is closed."""
    objectives: Objectives = field(default_factory=Objectives)
    options: Mapping[str, object] = field(default_factory=dict)
    """They override the options with which the table is open."""
    service_options: Mapping[TableService, Mapping[str, object]] = field(default_factory=dict)
    """They override `options` for one service, which another process runs with options of its own."""

    def options_of(self, service: TableService) -> dict[str, object]:
        """Return what overrides the options with which the table is open, for this service."""
        return {**self.options, **self.service_options.get(service, {})}


class Outcome(enum.StrEnum):
    """What was decided about a service of a table."""

    DUE = "due"
    NOT_DUE = "not_due"
    PLANNED = "planned"
    """A plan is pending and no process runs it."""
    RUNNING = "running"
    HELD = "held"
    """Rules forbid it now: a pause, or a window that is closed."""
    OFF = "off"
    NOT_APPLICABLE = "not_applicable"
    """The kind of the table excludes the service."""
    FAILED = "failed"
    """The decision failed: the plan cannot be made until a user changes options or the table."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The decision about a service: `reason` says what led to it, `until` what would change it (empty if nothing would)."""

    service: TableService
    outcome: Outcome
    reason: str
    until: str = ""
    instants: tuple[str, ...] = ()
    """The pending plans of the service; for a rollback, the instants of dead writers."""
    score: float | None = None
    """The planner's rank of a plan that is due: of all plans of a fleet it serves the highest score first. None: it ranks none."""
    input_bytes: int | None = None
    """Bytes that this plan would read."""


def decide(table: Table, service: TableService, rules: Rules) -> Due | NotDue:
    """Return the plan of a service that is due by `rules`, or a reason.

    Decides on the last refreshed state without asking for reservations of file groups, and publishes nothing. Raises
    `SchemaMismatch` and `InvalidOption` for options that do not fit the table.
    """
    excluded = _not_applicable(table, service)
    if excluded is not None:
        return excluded
    return SERVICES[service].decide(table, table.options.merged(rules.options_of(service)), rules.trigger)


def judge(table: Table, service: TableService, rules: Rules) -> Verdict:
    """Return the verdict about `service`, as `judge_all`."""
    return judge_all(table, (service,), rules)[0]


def judge_all(table: Table, services: Iterable[TableService], rules: Rules) -> tuple[Verdict, ...]:
    """Return the verdicts about `services` for the last refreshed state.

    An error of the decision is a verdict, too, as is why writers refuse the table (`Outcome.FAILED`). Raises `InvalidOption` for
    options that cannot be read, and the errors of storage if the heartbeats of pending actions cannot be read.
    """
    return verdicts_of(table, services, rules, why_refused(table))


def verdicts_of(table: Table, services: Iterable[TableService], rules: Rules, refused: TidelineError | None) -> tuple[Verdict, ...]:
    """As `judge_all`, for a caller that knows why writers refuse the table."""
    if refused is not None:
        until = refused.remedy or f"expected {refused.expected}"
        return tuple(Verdict(service, Outcome.FAILED, str(refused), until) for service in services)
    if not table.capabilities.keeps_log:
        hint = why_unsharable(table)
        until = f"sharing is not possible: {hint}" if hint else _SHARE
        return tuple(Verdict(service, Outcome.NOT_APPLICABLE, _NOT_OURS, until) for service in services)
    return tuple(_verdict(table, service, rules) for service in services)


def _verdict(table: Table, service: TableService, rules: Rules) -> Verdict:
    excluded = _not_applicable(table, service)
    if excluded is not None:
        return Verdict(service, Outcome.NOT_APPLICABLE, excluded.reason, excluded.until)
    asked, options = SERVICES[service], table.options.merged(rules.options_of(service))
    pending = asked.pending(table.state)
    if service not in rules.services or not asked.is_on(options, has_plan=bool(pending)):
        by = f" by {rules.off[service]}" if service in rules.off else ""
        return Verdict(service, Outcome.OFF, f"the service is switched off for this table{by}", _SWITCH)
    if service in rules.held:
        return Verdict(service, Outcome.HELD, rules.held[service].reason, rules.held[service].until)
    if not asked.has_plans:
        return _of_rollback(table)
    if pending:
        return _of_pending(table, service, pending)
    try:
        found = decide(table, service, rules)
    except TidelineError as error:
        return Verdict(service, Outcome.FAILED, str(error), error.remedy or f"expected {error.expected}")
    if isinstance(found, Due):
        return Verdict(service, Outcome.DUE, found.reason, f"tideline plan {service} PATH publishes the plan")
    return Verdict(service, Outcome.NOT_DUE, found.reason, found.until)


def dead_writers(table: Table) -> tuple[ActionRecord, ...]:
    """Return the pending writes, rollbacks and restores whose process is dead (`may_live`)."""
    found = (record for record in table.state.pending() if repair(record) == TableService.ROLLBACK)
    return tuple(record for record in found if not may_live(table.storage, record, table.clock, table.options))


def _not_applicable(table: Table, service: TableService) -> NotDue | None:
    return SERVICES[service].excluded(table) if table.capabilities.keeps_log else NotDue(_NOT_OURS)


def _of_rollback(table: Table) -> Verdict:
    dead = tuple(record.instant for record in dead_writers(table))
    if dead:
        why = f"{len(dead)} pending action(s) without a heartbeat: {', '.join(dead)}"
        return Verdict(TableService.ROLLBACK, Outcome.DUE, why, "tideline run rollback PATH ends them", dead)
    return Verdict(TableService.ROLLBACK, Outcome.NOT_DUE, "every pending action may have a live process", "a writer that dies")


def _of_pending(table: Table, service: TableService, pending: list[ActionRecord]) -> Verdict:
    instants = tuple(record.instant for record in pending)
    runs = [r for r in pending if r.state is State.INFLIGHT and is_alive(table.storage, r, table.clock, table.options)]
    if runs:
        return Verdict(service, Outcome.RUNNING, f"{service} {runs[0].instant} is run by {runs[0].writer_id}", "its end", instants)
    more = f" and {len(pending) - 1} more" if len(pending) > 1 else ""
    why = f"{service} {instants[0]}{more} is planned, and no process runs it"
    until = f"tideline run {service} PATH, a launcher, or tideline job cancel PATH {instants[0]}"
    return Verdict(service, Outcome.PLANNED, why, until, instants)
