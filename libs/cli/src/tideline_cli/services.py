"""`tideline plan`, `tideline run` and `tideline adopt`: table services by hand, one table at a time."""

from __future__ import annotations

import enum
from functools import partial
from typing import Annotated, Any

import typer

from tideline_cli.arguments import AsJson, LockUrl, Settings, TablePath, choice, settings_from
from tideline_cli.idleness import (
    why_no_archival_plan,
    why_no_clean_plan,
    why_no_clustering_plan,
    why_no_compaction_plan,
    why_nothing_to_run,
)
from tideline_cli.opening import open_writable
from tideline_cli.report import print_json, print_line
from tideline_cli.tables import committed_document
from tideline_table.errors import InstantNotFound, InvalidOption
from tideline_table.table import (
    Table,
    roll_back_dead,
    run_archival,
    run_clean,
    run_clustering,
    run_compaction,
    schedule_archival,
    schedule_clean,
    schedule_clustering,
    schedule_compaction,
    sweep_half_written,
    sweep_late_files,
)
from tideline_table.timeline.instant import Action

app = typer.Typer()


class Plannable(enum.StrEnum):
    """Services that publish plans."""

    CLUSTERING = "clustering"
    COMPACTION = "compaction"
    CLEAN = "clean"
    ARCHIVAL = "archival"


class Runnable(enum.StrEnum):
    """Services that can be run."""

    CLUSTERING = "clustering"
    COMPACTION = "compaction"
    CLEAN = "clean"
    ARCHIVAL = "archival"
    ROLLBACK = "rollback"


@app.command(epilog="Example: tideline plan clustering ./trips --option hoodie.clustering.plan.strategy.sort.columns=city")
def plan(
    service: Annotated[str, typer.Argument(metavar="|".join(Plannable), show_default=False, help="What to plan.")],
    path: TablePath,
    *,
    option: Settings = None,
    locks: LockUrl = "",
    as_json: AsJson = False,
) -> None:
    """Publish a plan on the timeline for anybody to run, or say why there is nothing to do.

    Clustering turns small files into fewer, sorted ones; compaction merges log files into base files (merge-on-read tables); clean deletes
    file slices that no retained query reads; archival takes old instants off the timeline (and first deletes what tasks of rolled-back writes
    wrote behind their rollback).
    """
    chosen = choice("service", service, Plannable)
    table = open_writable(path, settings_from(option), locks)
    if chosen is Plannable.CLUSTERING:
        instant, reason = schedule_clustering(table), why_no_clustering_plan
    elif chosen is Plannable.COMPACTION:
        instant, reason = schedule_compaction(table), why_no_compaction_plan
    elif chosen is Plannable.ARCHIVAL:
        swept = sweep_late_files(table).swept
        instant, reason = schedule_archival(table, swept=swept), partial(why_no_archival_plan, table, swept)
    else:
        instant, reason = schedule_clean(table), why_no_clean_plan
    why = "" if instant else reason(table.state, table.options)
    if as_json:
        print_json({"service": chosen.value, "instant": instant, "reason": why})
    elif instant:
        print_line(f"planned {chosen} {instant}; run it: tideline run {chosen} {path}")
    else:
        print_line(f"nothing to do: {why}")


@app.command(epilog="Example: tideline run clustering ./trips")
def run(
    service: Annotated[str, typer.Argument(metavar="|".join(Runnable), show_default=False, help="What to run.")],
    path: TablePath,
    *,
    instant: Annotated[
        str, typer.Option(metavar="INSTANT", help="Run this plan; the oldest pending one without it.", show_default=False)
    ] = "",
    option: Settings = None,
    locks: LockUrl = "",
    as_json: AsJson = False,
) -> None:
    """Run a plan that is on the timeline; rollback needs none: it undoes every write whose writer shows no heartbeat any more.

    Running is safe beside writers and beside other runs: one wins, the others are told so.
    """
    chosen = choice("service", service, Runnable)
    if instant and chosen is Runnable.ROLLBACK:
        raise InvalidOption(
            "--instant with rollback",
            expected="clustering, compaction, clean or archival",
            remedy="rollback finds dead writes by itself",
        )
    table = open_writable(path, settings_from(option), locks)
    if chosen is Runnable.CLUSTERING:
        document = _run_clustering(table, instant)
    elif chosen is Runnable.COMPACTION:
        document = _run_compaction(table, instant)
    elif chosen is Runnable.CLEAN:
        document = _run_clean(table, instant)
    elif chosen is Runnable.ARCHIVAL:
        document = _run_archival(table, instant)
    else:
        document = _roll_back(table)
    if as_json:
        print_json({"service": chosen.value, **document})
    else:
        print_line(str(document["outcome"]))


def _run_clustering(table: Table, instant: str) -> dict[str, Any]:
    committed = run_clustering(table, instant)
    if committed is None:
        return {"instant": None, "outcome": f"nothing to do: {why_nothing_to_run('clustering', table.base_path)}"}
    rows = sum(s.num_writes for s in committed.stats)
    outcome = f"clustering {committed.instant} completed: {rows} rows in {len(committed.stats)} new files"
    return {**committed_document(committed), "rows_rewritten": rows, "outcome": outcome}


def _run_compaction(table: Table, instant: str) -> dict[str, Any]:
    committed = run_compaction(table, instant)
    if committed is None:
        return {"instant": None, "outcome": f"nothing to do: {why_nothing_to_run('compaction', table.base_path)}"}
    logs = sum(s.log_files_compacted for s in committed.stats)
    outcome = f"compaction {committed.instant} completed: {logs} log files merged into {len(committed.stats)} base files"
    return {**committed_document(committed), "log_files_merged": logs, "outcome": outcome}


def _run_clean(table: Table, instant: str) -> dict[str, Any]:
    _check_pending(table, instant, Action.CLEAN)
    pending = [a.instant for a in table.state.pending() if a.action is Action.CLEAN]
    deleted = run_clean(table, instant)
    if deleted is None:
        return {"instant": None, "outcome": f"nothing to do: {why_nothing_to_run('clean', table.base_path)}"}
    ran = instant or pending[0]
    return {"instant": ran, "files_deleted": deleted, "outcome": f"clean {ran} completed: {deleted} files deleted"}


def _run_archival(table: Table, instant: str) -> dict[str, Any]:
    _check_pending(table, instant, Action.ARCHIVAL)
    done = run_archival(table, instant)
    if done is None:
        return {"instant": None, "outcome": f"nothing to do: {why_nothing_to_run('archival', table.base_path)}"}
    outcome = f"archival {done.instant} completed: {len(done.instants)} instants in {done.path}"
    return {"instant": done.instant, "archived": list(done.instants), "file": done.path, "outcome": outcome}


def _check_pending(table: Table, instant: str, action: Action) -> None:
    pending = [a.instant for a in table.state.pending() if a.action is action]
    if instant and instant not in pending:
        raise InstantNotFound(
            f"no pending {action} {instant}", expected=f"one of {', '.join(pending)}" if pending else "a pending plan"
        )


def _roll_back(table: Table) -> dict[str, Any]:
    undone = roll_back_dead(table)
    half_written = sweep_half_written(table)
    alive = [a.instant for a in table.state.pending()]
    outcome = f"rolled back {', '.join(undone)}" if undone else "nothing to do: no write has lost its writer"
    if half_written:
        outcome += f"; {len(half_written)} half-written files of killed writers deleted"
    if alive:
        outcome += f"; pending and left alone: {', '.join(alive)}"
    return {"rolled_back": undone, "left_alone": alive, "half_written": list(half_written), "outcome": outcome}


@app.command(epilog="Example: cp -r ./trips ./trial; tideline adopt ./trial")
def adopt(path: TablePath, *, as_json: AsJson = False) -> None:
    """Give a copied or moved table an identity of its own, so that it can be written at its new place.

    Do it for the copy, not for the original, and while nobody writes there.
    """
    table = Table.open(path)
    before = table.uid
    identity = table.adopt()
    if as_json:
        print_json({"uid": identity.uid, "base_path": identity.base_path, "previous_uid": before})
    else:
        print_line(f"table {table.definition.name} at {identity.base_path} has the uid {identity.uid} now (it was {before})")
