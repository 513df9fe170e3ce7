"""Table services that are planned and run in this process."""

from __future__ import annotations

from collections.abc import Mapping

from tideline.results import Archival, Clean, Clustering, Compaction
from tideline_table import action
from tideline_table import table as engine
from tideline_table.hudi import Action

Options = Mapping[str, object] | None


def _planned(answer: str | action.Reason) -> tuple[str, str]:
    """Return the instant of a new plan, or the reason why there is none."""
    return ("", answer.why) if isinstance(answer, action.Reason) else (answer, "")


def cluster(table: engine.Table, options: Options) -> Clustering:
    """Plan and run a clustering. If no plan is due, run the oldest pending one."""
    table.refresh()
    instant, reason = _planned(action.request_clustering(table, options))
    done = action.run_clustering(table, instant, options=options)
    if done is None:
        return Clustering(reason=reason)
    rows = sum(stat.num_writes for stat in done.stats)
    return Clustering(instant=done.instant, sequence=done.sequence, rows_rewritten=rows, files_written=len(done.stats))


def compact(table: engine.Table, options: Options) -> Compaction:
    """Plan and run a compaction. If no plan is due, run the oldest pending one."""
    table.refresh()
    instant, reason = _planned(action.request_compaction(table, options))
    done = action.run_compaction(table, instant, options=options)
    if done is None:
        return Compaction(reason=reason)
    merged = sum(stat.log_files_compacted for stat in done.stats)
    return Compaction(instant=done.instant, sequence=done.sequence, log_files_merged=merged, files_written=len(done.stats))


def log_compact(table: engine.Table, options: Options) -> Compaction:
    """Plan and run a log compaction. If no plan is due, run the oldest pending one."""
    table.refresh()
    instant, reason = _planned(action.request_log_compaction(table, options))
    done = action.run_log_compaction(table, instant, options=options)
    if done is None:
        return Compaction(reason=reason)
    merged = sum(stat.log_files_compacted for stat in done.stats)
    return Compaction(instant=done.instant, sequence=done.sequence, log_files_merged=merged, files_written=len(done.stats))


def clean(table: engine.Table, options: Options) -> Clean:
    """Plan and run a clean. If no plan is due, run the pending one."""
    table.refresh()
    instant, reason = _planned(action.request_clean(table, options))
    instant = instant or next((a.instant for a in table.state.pending() if a.action is Action.CLEAN), "")
    deleted = action.run_clean(table, instant, options=options) if instant else None
    return Clean(reason=reason) if deleted is None else Clean(instant=instant, files_deleted=deleted)


def archive(table: engine.Table, options: Options) -> Archival:
    """Run a pending archival, delete late files of rolled-back writes, then plan and run a new archival."""
    table.refresh()
    done = action.run_archival(table, options=options)
    found = action.delete_late_files(table, options)
    instant, reason = _planned(action.request_archival(table, options, found.cleaned_up))
    if instant:
        done = action.run_archival(table, instant, options=options)
    if done is None:
        return Archival(reason=reason, late_files_deleted=found.deleted)
    return Archival(instant=done.instant, instants=done.instants, file=done.path, late_files_deleted=found.deleted)
