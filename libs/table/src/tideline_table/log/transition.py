"""Rules for the next valid transition of a table in a given state. `TableState.check` applies them. No I/O."""

from __future__ import annotations

from typing import Protocol

from tideline_table.errors import CorruptMetadata, IllegalTransition
from tideline_table.hudi.instant import PUBLISHING_ACTIONS, Action, State, check_transition
from tideline_table.log.action import ActionRecord
from tideline_table.log.body import RestoreBegun
from tideline_table.log.entry import Entry
from tideline_table.log.plan import RestorePlanned, RollbackStep
from tideline_table.log.rewind import Rewind
from tideline_table.log.savepoint import Savepoint
from tideline_table.log.sharing import HUDI_WRITER, Sharing
from tideline_table.log.table_log import Draft


class KnownSteps(Protocol):
    """The part of a table's state (`TableState`) that decides which transition may follow."""

    actions: dict[str, ActionRecord]
    savepoints: dict[str, Savepoint]
    sharing: Sharing | None

    @property
    def restoring(self) -> str:
        """Instant of the pending restore; empty if there is none."""


def check_step(state: KnownSteps, step: Draft | Entry) -> None:
    """Raise `IllegalTransition` unless `step` is a valid next transition; `CorruptMetadata` if a rollback names a wrong action."""
    named = f"{step.action} {step.instant}"
    if state.restoring not in ("", step.instant) and state.sharing is None:
        raise IllegalTransition(
            f"{named} while restore {state.restoring} is pending", expected="no other action until it completes"
        )
    if step.action is Action.SAVEPOINT:
        _check_savepoint(state, step)
        return
    known = state.actions.get(step.instant)
    before = known.state if known else State.NONE
    if before is not step.before:
        raise IllegalTransition(f"a step of {named} from {step.before} to {step.after}", expected=f"a step from {before}")
    check_transition(step.instant, step.action, step.before, step.after)
    if known is not None and known.action is not step.action:
        raise IllegalTransition(f"a step of {named}", expected=f"a step of {known.action} {step.instant}")
    if known is not None and known.fenced_by and step.after is not State.ROLLED_BACK:
        raise IllegalTransition(
            f"a step of {named} to {step.after} after rollback {known.fenced_by} was requested for it", expected="no further step"
        )
    if step.action is Action.ROLLBACK:
        _check_rollback(state, step)
    if isinstance(step.body, RestorePlanned | RestoreBegun):
        _check_rewind(state, step.body.rewind, step.instant)


def _check_savepoint(state: KnownSteps, step: Draft | Entry) -> None:
    before = State.COMPLETED if step.instant in state.savepoints else State.NONE
    if before is not step.before:
        raise IllegalTransition(f"a step of savepoint {step.instant} from {step.before}", expected=f"a step from {before}")
    check_transition(step.instant, step.action, step.before, step.after)
    write = state.actions.get(step.instant)
    if write is None or write.state is not State.COMPLETED or write.action not in PUBLISHING_ACTIONS:
        raise IllegalTransition(f"a savepoint of {step.instant}", expected="a completed write")


def _check_rewind(state: KnownSteps, back: Rewind, restore: str) -> None:
    if back.savepoint not in state.savepoints:
        raise IllegalTransition(f"restore {restore} to {back.savepoint}", expected="a savepoint")
    ended, pending = (State.COMPLETED,), (State.REQUESTED, State.INFLIGHT)
    for named, states in (((*back.undone, *back.rollbacks), ended), (back.fenced, pending)):
        for instant, action in named:
            known = state.actions.get(instant)
            if known is None or known.action is not action or known.state not in states:
                raise IllegalTransition(f"restore {restore} undoes {instant}", expected=f"a {action} that is {states[-1]}")


def _check_rollback(state: KnownSteps, step: Draft | Entry) -> None:
    body = step.body if isinstance(step.body, RollbackStep) else RollbackStep("", "")
    target = state.actions.get(body.target)
    if step.writer_id == HUDI_WRITER and state.sharing is not None:
        return  # it has happened already, and Apache Hudi may also roll back completed writes
    if state.sharing is not None and step.after is State.COMPLETED and target is not None and target.fenced_by:
        return  # Apache Hudi rolled back the same instant at the same time
    if target is None or not target.is_pending:
        raise IllegalTransition(
            f"rollback {step.instant} of {body.target or 'no instant'}", expected="a pending instant as its target"
        )
    if target.fenced_by not in ("", step.instant):
        raise IllegalTransition(
            f"rollback {step.instant} of {target.instant}", expected=f"rollback {target.fenced_by}, which began first"
        )
    if body.target_action != target.action:
        raise CorruptMetadata(
            f"rollback {step.instant} of {target.instant} as action {body.target_action!r}", expected=f"action {target.action}"
        )
