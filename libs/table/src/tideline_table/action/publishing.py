"""Publish a plan on the timeline if a pure decision on the newest state finds that one is due."""

from __future__ import annotations

from collections.abc import Callable

from tideline_table.action.decision import Check, Due, NotDue
from tideline_table.hudi.instant import Action, State
from tideline_table.log.state import TableState
from tideline_table.log.table_log import Draft
from tideline_table.table.facade import Table


class NothingToDo(Exception):
    """Raised in a decision when there is nothing to append."""


def publish(
    table: Table,
    action: Action,
    operation: str,
    decide: Callable[[TableState], Due | NotDue],
    *,
    mint: Callable[[TableState], str] | None = None,
    reserve_kept: int | None = None,
    check: Check | None = None,
    after: State = State.REQUESTED,
) -> str | NotDue:
    """Append the entry of the plan that `decide` returns. Return its instant, or the reason why there is no plan.

    `decide` is called where facts are gathered, so it may read storage, and so may `mint`, which creates the instant of a plan.
    `reserve_kept` as for `ActiveTimeline.append`. `check` judges the plan on the same state.
    """
    why = NotDue("")

    def plan(state: TableState) -> tuple[Due | NotDue, str]:
        found = decide(state)
        if check is not None and isinstance(found, Due):
            found = check(state, found) or found
        return found, (mint or table.timeline.mint)(state) if isinstance(found, Due) else ""

    def draft(_state: TableState, planned: tuple[Due | NotDue, str]) -> Draft:
        nonlocal why
        found, instant = planned
        if isinstance(found, NotDue):
            why = found
            raise NothingToDo
        return Draft(instant, action, State.NONE, after, operation, found.body)

    try:
        return table.timeline.append(draft, plan, reserve_kept=reserve_kept).instant
    except NothingToDo:
        return why
