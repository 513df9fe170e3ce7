"""Table services that a writer plans, or plans and runs, behind its own commit (Apache Hudi's inline services).

The commit is valid whatever the service does: a conflict or an error is logged, and the writer continues. A plan that failed to
run stays for the launcher or for the next writer.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from tideline_table.action.decision import NotDue, TableService
from tideline_table.action.service import Inline, Rewrite, RunTasks, Settings
from tideline_table.action.services import REWRITES
from tideline_table.errors import TidelineError
from tideline_table.table.facade import Table

_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class InlineService:
    """What a writer did for one table service behind its commit: a plan, whether it ran it, and the error that it logged."""

    service: TableService
    instant: str
    """Instant of the plan; empty if publishing one failed."""
    is_run: bool = False
    error: str = ""


def in_process(service: Rewrite, tasks: Sequence[Any]) -> Sequence[Any]:
    """Run the tasks of a plan in threads of this process."""
    return service.here(tasks)


def run_inline(
    table: Table,
    options: Mapping[str, object] | None = None,
    *,
    run: Callable[[Rewrite, Sequence[Any]], Sequence[Any]] = in_process,
) -> tuple[InlineService, ...]:
    """Plan, or plan and run, the services that the options ask writers for, where one is due; call it behind a commit.

    Errors of the services are logged and returned. Where both options of a service are set, the plan is run; `run` runs its
    tasks. Raises `InvalidOption` for options that cannot be read, which a write with the same options has refused before its
    commit.
    """
    chosen = table.options.merged(options or {})
    found = [
        _behind_commit(service, asked, table, options, partial(run, service))
        for service in REWRITES.values()
        if (asked := service.inline(table, chosen)) is not None
    ]
    return tuple(done for done in found if done is not None)


def _behind_commit(service: Rewrite, asked: Inline, table: Table, options: Settings, run: RunTasks) -> InlineService | None:
    instant = ""
    try:
        answer = service.plan(table, options, asked.trigger)
        if isinstance(answer, NotDue):
            _LOGGER.debug("no inline %s: %s", service.name, answer.reason)
            return None
        instant = answer
        is_run = asked.runs and service.run(table, instant, options=options, run=run) is not None
    except TidelineError as error:
        _LOGGER.warning("inline %s %s failed; the commit before it stands: %s", service.name, instant, error)
        return InlineService(service.name, instant, error=str(error))
    _LOGGER.info("inline %s %s %s", service.name, instant, "completed" if is_run else "planned")
    return InlineService(service.name, instant, is_run)
