"""Table services that are planned and run in this process."""

from __future__ import annotations

from collections.abc import Mapping

from tideline.results import Archival, Clean, Clustering, Compaction
from tideline_table import action
from tideline_table import table as engine

Options = Mapping[str, object] | None


def _run(service: action.Service, table: engine.Table, options: Options) -> tuple[action.Ran | None, str]:
    """Plan and run; if no plan is due, run the oldest pending one. Return what ran, and why there is no new plan."""
    table.refresh()
    answer = service.plan(table, options)
    instant, reason = ("", answer.why) if isinstance(answer, action.Reason) else (answer, "")
    return service.run(table, instant, options=options), reason


def cluster(table: engine.Table, options: Options) -> Clustering:
    """Plan and run a clustering. If no plan is due, run the oldest pending one."""
    done, reason = _run(action.SERVICES[action.TableService.CLUSTERING], table, options)
    if done is None or done.committed is None:
        return Clustering(reason=reason)
    return Clustering(
        instant=done.committed.instant, sequence=done.committed.sequence, rows_rewritten=done.rows, files_written=done.files
    )


def compact(table: engine.Table, options: Options, *, logs_only: bool = False) -> Compaction:
    """Plan and run a compaction, or one of log files alone. If no plan is due, run the oldest pending one."""
    service = action.TableService.LOG_COMPACTION if logs_only else action.TableService.COMPACTION
    done, reason = _run(action.SERVICES[service], table, options)
    if done is None or done.committed is None:
        return Compaction(reason=reason)
    merged = done.facts["log_files_merged"]
    return Compaction(
        instant=done.committed.instant, sequence=done.committed.sequence, log_files_merged=merged, files_written=done.files
    )


def clean(table: engine.Table, options: Options) -> Clean:
    """Plan and run a clean. If no plan is due, run the pending one."""
    done, reason = _run(action.SERVICES[action.TableService.CLEAN], table, options)
    return Clean(reason=reason) if done is None else Clean(instant=done.instants[0], files_deleted=done.files)


def archive(table: engine.Table, options: Options) -> Archival:
    """Run a pending archival, delete late files of rolled-back writes, then plan and run a new archival."""
    table.refresh()
    done = action.run_archival(table, options=options)
    found = action.delete_late_files(table, options)
    answer = action.request_archival(table, options, found.cleaned_up)
    instant, reason = ("", answer.why) if isinstance(answer, action.Reason) else (answer, "")
    if instant:
        done = action.run_archival(table, instant, options=options)
    if done is None:
        return Archival(reason=reason, late_files_deleted=found.deleted)
    return Archival(instant=done.instant, instants=done.instants, file=done.path, late_files_deleted=found.deleted)
