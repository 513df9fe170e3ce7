"""Maintenance of one table in this process: everything that is due, once, in the order in which each step helps the next one."""

from __future__ import annotations

from collections.abc import Callable

from tideline_table.action.decision import TableService
from tideline_table.action.maintenance.verdict import Outcome, Rules, judge
from tideline_table.action.service import Step
from tideline_table.action.services import SERVICES
from tideline_table.errors import Recovery, TidelineError
from tideline_table.table.facade import Table

_READY = frozenset({Outcome.DUE, Outcome.PLANNED})
_NOT_NOW = frozenset({Outcome.OFF, Outcome.HELD, Outcome.NOT_APPLICABLE, Outcome.RUNNING})
"""Outcomes with which a step does nothing, whether or not it tidies."""


OnStep = Callable[[TableService], None]


def maintain(table: Table, rules: Rules, *, dry_run: bool = False, on_step: OnStep = lambda _: None) -> tuple[Step, ...]:
    """Run every service that is due by `rules` in this process, and pending plans that no process runs; return a report.

    One step for each service, in the order of `SERVICES`. A failing service does not keep the others from running. With `dry_run`
    nothing is written, and a service is judged by the present state alone. `on_step` is called before each service.
    """
    steps: list[Step] = []
    for service in SERVICES:
        on_step(service)
        table.refresh()
        verdict = judge(table, service, rules)
        if verdict.outcome is Outcome.FAILED:
            steps.append(Step(service, "failed", verdict.reason, error=verdict.reason))
        elif dry_run or (verdict.outcome not in _READY and not SERVICES[service].tidies):
            is_ready = verdict.outcome in _READY
            steps.append(Step(service, "due" if is_ready else "nothing", verdict.reason, verdict.instants if is_ready else ()))
        elif verdict.outcome in _NOT_NOW:
            steps.append(Step(service, "nothing", verdict.reason))
        else:
            steps.append(_attempt(table, service, rules, verdict.reason))
    return tuple(steps)


def _attempt(table: Table, service: TableService, rules: Rules, why: str) -> Step:
    try:
        return SERVICES[service].maintain(table, rules.options_of(service), rules.trigger, why)
    except TidelineError as error:
        outcome = "failed" if error.recovery is Recovery.STOP else "postponed"
        return Step(service, outcome, why, error=str(error))
