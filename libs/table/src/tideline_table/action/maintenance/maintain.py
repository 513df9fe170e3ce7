"""Maintenance of one table in this process: everything that is due, once, in the order in which each step helps the next one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tideline_table.action.archival.run import delete_half_written, delete_late_files, request_archival, run_archival
from tideline_table.action.clean.run import request_clean, run_clean
from tideline_table.action.clustering.run import refused_clustering, request_clustering, run_clustering
from tideline_table.action.compaction.run import request_compaction, run_compaction
from tideline_table.action.decision import Reason, TableService
from tideline_table.action.log_compaction.run import request_log_compaction, run_log_compaction
from tideline_table.action.maintenance.verdict import Outcome, Rules, judge
from tideline_table.action.recovery import roll_back_dead
from tideline_table.config import LOG_COMPACTION_ENABLE
from tideline_table.coordination.committed import Committed
from tideline_table.errors import Recovery, TidelineError
from tideline_table.table.facade import Table

ORDER = (
    TableService.ROLLBACK,
    TableService.COMPACTION,
    TableService.LOG_COMPACTION,
    TableService.CLUSTERING,
    TableService.CLEAN,
    TableService.ARCHIVAL,
)
"""Dead writers first, because they hold back cleaning and archival; compaction before clustering, which then reads no log files. A log
compaction merges what compaction leaves."""
_READY = frozenset({Outcome.DUE, Outcome.PLANNED})
_NOT_NOW = frozenset({Outcome.OFF, Outcome.HELD, Outcome.NOT_APPLICABLE, Outcome.RUNNING})
"""Outcomes with which a step does nothing. Without a due plan, the step of archival still cleans up late files."""


@dataclass(frozen=True, slots=True)
class Step:
    """What maintenance did about one service. `error` is set if it failed; the other services were run all the same."""

    service: TableService
    outcome: str
    """`done`, `due` (a dry run), `nothing`, `failed`, or `postponed` for an error that a retry cures."""
    why: str
    instants: tuple[str, ...] = ()
    files: int = 0
    """Files written by compaction and clustering, deleted by clean and rollback, instants archived."""
    rows: int = 0
    error: str = ""


OnStep = Callable[[TableService], None]


def maintain(table: Table, rules: Rules, *, dry_run: bool = False, on_step: OnStep = lambda _: None) -> tuple[Step, ...]:
    """Run every service that is due by `rules` in this process, and pending plans that no process runs; return a report.

    One step for each service, in the order of `ORDER`. A failing service does not keep the others from running. With `dry_run`
    nothing is written, and a service is judged by the present state alone. `on_step` is called before each service.
    """
    steps: list[Step] = []
    for service in ORDER:
        on_step(service)
        table.refresh()
        verdict = judge(table, service, rules)
        if verdict.outcome is Outcome.FAILED:
            steps.append(Step(service, "failed", verdict.why, error=verdict.why))
        elif dry_run or (verdict.outcome not in _READY and service is not TableService.ARCHIVAL):
            is_ready = verdict.outcome in _READY
            steps.append(Step(service, "due" if is_ready else "nothing", verdict.why, verdict.instants if is_ready else ()))
        elif verdict.outcome in _NOT_NOW:
            steps.append(Step(service, "nothing", verdict.why))
        else:
            steps.append(_attempt(table, service, rules, verdict.why))
    return tuple(steps)


def _attempt(table: Table, service: TableService, rules: Rules, why: str) -> Step:
    try:
        return _RUNS[service](table, rules, why)
    except TidelineError as error:
        outcome = "failed" if error.recovery is Recovery.STOP else "postponed"
        return Step(service, outcome, why, error=str(error))


def _roll_back(table: Table, _rules: Rules, why: str) -> Step:
    undone = tuple(roll_back_dead(table))
    half_written = delete_half_written(table)
    return Step(TableService.ROLLBACK, "done" if undone or half_written else "nothing", why, undone, len(half_written))


def _compact(table: Table, rules: Rules, why: str) -> Step:
    answer = request_compaction(table, rules.options)
    pending = [a.instant for a in table.state.pending_compactions()]
    done = [d for instant in pending if (d := run_compaction(table, instant, options=rules.options)) is not None]
    return _committed(TableService.COMPACTION, done, answer, why)


def _log_compact(table: Table, rules: Rules, why: str) -> Step:
    is_on = table.options.merged(rules.options)[LOG_COMPACTION_ENABLE]
    answer = request_log_compaction(table, rules.options) if is_on else Reason(why)
    pending = [a.instant for a in table.state.pending_log_compactions()]
    done = [d for instant in pending if (d := run_log_compaction(table, instant, options=rules.options)) is not None]
    return _committed(TableService.LOG_COMPACTION, done, answer, why)


def _cluster(table: Table, rules: Rules, why: str) -> Step:
    # Plans that are pending are run also where no new one is made.
    refused = refused_clustering(table, table.options.merged(rules.options))
    answer = refused or request_clustering(table, rules.options, rules.trigger)
    pending = [a.instant for a in table.state.pending_clusterings()]
    done = [d for instant in pending if (d := run_clustering(table, instant, options=rules.options)) is not None]
    return _committed(TableService.CLUSTERING, done, answer, why)


def _committed(service: TableService, done: list[Committed], answer: str | Reason, why: str) -> Step:
    if not done:
        return Step(service, "nothing", answer.why if isinstance(answer, Reason) else why)
    stats = [stat for committed in done for stat in committed.stats]
    return Step(service, "done", why, tuple(d.instant for d in done), len(stats), sum(stat.num_writes for stat in stats))


def _clean(table: Table, rules: Rules, why: str) -> Step:
    options = rules.options_of(TableService.CLEAN)
    answer = request_clean(table, options)
    deleted = run_clean(table, options=options)
    if deleted is None:
        return Step(TableService.CLEAN, "nothing", answer.why if isinstance(answer, Reason) else why)
    return Step(TableService.CLEAN, "done", why, (answer,) if isinstance(answer, str) else (), deleted)


def _archive(table: Table, rules: Rules, why: str) -> Step:
    """Clean up late files of rolled-back writes, which hold archival back, then archive."""
    options = rules.options_of(TableService.ARCHIVAL)
    done = run_archival(table, options=options)
    found = delete_late_files(table, options)
    answer = request_archival(table, options, found.cleaned_up)
    if isinstance(answer, str):
        done = run_archival(table, answer, options=options) or done
    if done is None:
        return Step(TableService.ARCHIVAL, "nothing", answer.why if isinstance(answer, Reason) else why, files=len(found.deleted))
    return Step(TableService.ARCHIVAL, "done", why, (done.instant,), len(done.instants))


_RUNS: dict[TableService, Callable[[Table, Rules, str], Step]] = {
    TableService.ROLLBACK: _roll_back,
    TableService.COMPACTION: _compact,
    TableService.LOG_COMPACTION: _log_compact,
    TableService.CLUSTERING: _cluster,
    TableService.CLEAN: _clean,
    TableService.ARCHIVAL: _archive,
}
