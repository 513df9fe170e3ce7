"""`tideline plan`, `tideline run` and `tideline adopt`: table services run by hand, one table at a time."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Annotated, Any

import typer

from tideline_cli.arguments import AsJson, LockUrl, Settings, TablePath, choice, option, settings_from
from tideline_cli.dry_run import DryRun, preview_plan, preview_run, print_preview
from tideline_cli.opening import open_readable, open_writable
from tideline_cli.progress import Progress
from tideline_cli.report import print_result
from tideline_cli.tables import committed_document
from tideline_table.action import (
    ClusteringPreview,
    Due,
    Reason,
    Rules,
    TableService,
    cluster_here,
    compact_here,
    decide,
    delete_half_written,
    delete_late_files,
    log_compact_here,
    preview_clustering,
    request_archival,
    request_clean,
    request_clustering,
    request_compaction,
    request_log_compaction,
    roll_back_dead,
    run_archival,
    run_clean,
    run_clustering,
    run_compaction,
    run_log_compaction,
)
from tideline_table.action import adopt as adopt_table
from tideline_table.errors import InstantNotFound, InvalidOption
from tideline_table.hudi import Action
from tideline_table.storage import open_storage
from tideline_table.table import Table, renew_identity

app = typer.Typer()


_REQUESTS: Mapping[TableService, Callable[[Table], str | Reason]] = {
    TableService.CLUSTERING: request_clustering,
    TableService.COMPACTION: request_compaction,
    TableService.LOG_COMPACTION: request_log_compaction,
    TableService.CLEAN: request_clean,
}
PLANNABLE = tuple(service for service in TableService if service is not TableService.ROLLBACK)


@app.command(epilog="Example: tideline plan clustering ./trips --option hoodie.clustering.plan.strategy.sort.columns=city")
def plan(
    service: Annotated[str, typer.Argument(metavar="|".join(PLANNABLE), show_default=False, help="Table service to plan.")],
    path: TablePath,
    *,
    where: Annotated[
        str,
        typer.Option(
            "--where",
            metavar="EXPRESSION",
            help="With --dry-run: also estimate the rows that a query with this condition reads before and after.",
            show_default=False,
        ),
    ] = "",
    option: Settings = None,
    dry_run: DryRun = False,
    locks: LockUrl = "",
    as_json: AsJson = False,
) -> None:
    """Publish a plan on the timeline for any executor to run, or print why there is nothing to do.

    Clustering rewrites small files as fewer, sorted ones; compaction merges log files into base files (merge-on-read tables);
    logcompaction merges many log files of a slice into one, and leaves its base file as it is; clean deletes file slices that no
    retained query reads; archival moves old instants to the archived timeline (and first deletes files that tasks of rolled-back writes
    created after the rollback).
    """
    chosen = choice("service", service, PLANNABLE)
    if dry_run or where:
        _preview(chosen, path, settings_from(option), where, is_dry_run=dry_run, as_json=as_json)
        return
    with Progress("files", None) as progress:
        progress.describe(f"planning {chosen}")
        table = open_writable(path, settings_from(option), locks, progress, every=True)
        if chosen is TableService.ARCHIVAL:
            answer = request_archival(table, cleaned_up=delete_late_files(table).cleaned_up)
        else:
            answer = _REQUESTS[chosen](table)
    instant, why = (None, answer.why) if isinstance(answer, Reason) else (answer, "")
    text = f"planned {chosen} {instant}; run it: tideline run {chosen} {path}" if instant else f"nothing to do: {why}"
    print_result({"service": chosen.value, "instant": instant, "reason": why}, text, as_json=as_json)


def _print_decision(service: TableService, found: Due | Reason, *, as_json: bool) -> None:
    if isinstance(found, Reason):
        plan, text = None, f"nothing to do: {found.why}" + (f"; changed by: {found.until}" if found.until else "")
    else:
        plan, text = found.body.to_json(), f"{service} is due: {found.why}"
    print_result({"service": service.value, "instant": None, "reason": found.why, "plan": plan}, text, as_json=as_json)


def _preview(service: TableService, path: str, settings: dict[str, str], where: str, *, is_dry_run: bool, as_json: bool) -> None:
    if not is_dry_run:
        raise InvalidOption("--where without --dry-run", expected="both", remedy="add --dry-run: a plan has no condition")
    if where and service is not TableService.CLUSTERING:
        raise InvalidOption(f"--where with {service}", expected="clustering", remedy="leave it out")
    with Progress("files", None) as progress:
        progress.describe(f"planning {service}")
        table = open_readable(path, settings, progress, every=True)
        show = _previewed(service, table, where)
    show(as_json)


def _previewed(service: TableService, table: Table, where: str) -> Callable[[bool], None]:
    """Return a function that prints the preview of a plan; its argument is whether to print JSON.

    The preview is computed by this call, so that the caller can remove its progress bar before the text is printed.
    """
    if service is TableService.CLUSTERING:
        clustering = preview_clustering(table, where=where)
        return lambda as_json: _print_clustering(clustering, as_json=as_json)
    if service is TableService.ARCHIVAL:
        found = decide(table, service, Rules(trigger=None))
        return lambda as_json: _print_decision(service, found, as_json=as_json)
    document = preview_plan(service, table)
    return lambda as_json: print_preview(document, as_json=as_json)


def _print_clustering(found: ClusteringPreview, *, as_json: bool) -> None:
    about = {
        "service": TableService.CLUSTERING.value,
        "due": not found.reason,
        "files": found.files_read,
        "bytes": found.bytes_read,
    }
    document = {**dataclasses.asdict(found), **about, "reason": found.reason or found.why}
    print_result(document, *_preview_lines(found), as_json=as_json)


def _preview_lines(found: ClusteringPreview) -> list[str]:
    if found.reason:
        return [f"nothing to do: {found.reason}"]
    size = f"{found.bytes_read / 2**20:.1f} MiB"
    where = f"{found.groups} group(s) of {len(found.partitions)} partition(s)"
    lines = [f"would cluster {found.files_read} files ({size}) into {found.files_written}, in {where}: {found.why}"]
    lines += [
        f"overlap of {o.column}: a file overlaps {o.before:g} others of its group now, {o.after:g} after (estimated)"
        for o in found.overlaps
    ]
    if found.rows_scanned_before is not None and found.rows_scanned_after is not None:
        lines.append(
            f"the condition reads {found.rows_scanned_before} of {found.rows} rows now, {found.rows_scanned_after} after (estimated)"
        )
    return lines


@app.command(epilog="Example: tideline run clustering ./trips")
def run(
    service: Annotated[str, typer.Argument(metavar="|".join(TableService), show_default=False, help="Table service to run.")],
    path: TablePath,
    *,
    instant: Annotated[str, option(metavar="INSTANT", help="Run the plan of this instant. Default: the oldest pending plan.")] = "",
    option: Settings = None,
    dry_run: DryRun = False,
    locks: LockUrl = "",
    as_json: AsJson = False,
) -> None:
    """Run a plan that is on the timeline. Rollback needs no plan: it undoes every write whose writer no longer sends heartbeats.

    Running is safe beside writers and other runs of the plan: one run succeeds, every other run fails with an error.
    """
    chosen = choice("service", service, TableService)
    if instant and chosen is TableService.ROLLBACK:
        raise InvalidOption(
            "--instant with rollback",
            expected="clustering, compaction, logcompaction, clean or archival",
            remedy="run rollback without --instant: it finds writes without a heartbeat",
        )
    if dry_run:
        with Progress("files", None) as progress:
            progress.describe(f"reading the plan of {chosen}")
            document = preview_run(chosen, open_readable(path, settings_from(option), progress, every=True), instant)
        print_preview(document, as_json=as_json)
        return
    deletes = chosen not in (TableService.CLUSTERING, TableService.COMPACTION)
    bar = Progress("files deleted", None) if deletes else None
    table = open_writable(path, settings_from(option), locks, bar)
    with bar or nullcontext():
        document = _RUNS[chosen](table, instant) if chosen in _RUNS else _roll_back(table)
    print_result({"service": chosen.value, **document}, document["outcome"], as_json=as_json)


def _run_clustering(table: Table, instant: str) -> dict[str, Any]:
    with Progress("file groups", None) as progress:
        progress.describe("clustering")
        committed = run_clustering(table, instant, run=lambda tasks: cluster_here(tasks, progress.counting(tasks)))
    if committed is None:
        return _no_plan(TableService.CLUSTERING, table)
    rows = sum(s.num_writes for s in committed.stats)
    outcome = f"clustering {committed.instant} completed: {rows} rows in {len(committed.stats)} new files"
    return {**committed_document(committed), "rows_rewritten": rows, "outcome": outcome}


def _run_compaction(table: Table, instant: str) -> dict[str, Any]:
    with Progress("file groups", None) as progress:
        progress.describe("compaction")
        committed = run_compaction(table, instant, run=lambda tasks: compact_here(tasks, progress.counting(tasks)))
    if committed is None:
        return _no_plan(TableService.COMPACTION, table)
    logs = sum(s.log_files_compacted for s in committed.stats)
    outcome = f"compaction {committed.instant} completed: {logs} log files merged into {len(committed.stats)} base files"
    return {**committed_document(committed), "log_files_merged": logs, "outcome": outcome}


def _run_log_compaction(table: Table, instant: str) -> dict[str, Any]:
    with Progress("file groups", None) as progress:
        progress.describe("logcompaction")
        committed = run_log_compaction(table, instant, run=lambda tasks: log_compact_here(tasks, progress.counting(tasks)))
    if committed is None:
        return _no_plan(TableService.LOG_COMPACTION, table)
    logs = sum(s.log_files_compacted for s in committed.stats)
    outcome = f"logcompaction {committed.instant} completed: {logs} log files merged into {len(committed.stats)} log files"
    return {**committed_document(committed), "log_files_merged": logs, "outcome": outcome}


def _run_clean(table: Table, instant: str) -> dict[str, Any]:
    _check_pending(table, instant, Action.CLEAN)
    pending = [a.instant for a in table.state.pending() if a.action is Action.CLEAN]
    deleted = run_clean(table, instant)
    if deleted is None:
        return _no_plan(TableService.CLEAN, table)
    ran = instant or pending[0]
    return {"instant": ran, "files_deleted": deleted, "outcome": f"clean {ran} completed: {deleted} files deleted"}


def _run_archival(table: Table, instant: str) -> dict[str, Any]:
    _check_pending(table, instant, Action.ARCHIVAL)
    done = run_archival(table, instant)
    if done is None:
        return _no_plan(TableService.ARCHIVAL, table)
    outcome = f"archival {done.instant} completed: {len(done.instants)} instants in {done.path}"
    return {"instant": done.instant, "archived": list(done.instants), "file": done.path, "outcome": outcome}


_RUNS = {
    TableService.CLUSTERING: _run_clustering,
    TableService.COMPACTION: _run_compaction,
    TableService.LOG_COMPACTION: _run_log_compaction,
    TableService.CLEAN: _run_clean,
    TableService.ARCHIVAL: _run_archival,
}


def _no_plan(service: TableService, table: Table) -> dict[str, Any]:
    found = f"no {service} plan is pending; publish one: tideline plan {service} {table.base_path}"
    return {"instant": None, "outcome": f"nothing to do: {found}"}


def _check_pending(table: Table, instant: str, action: Action) -> None:
    pending = [a.instant for a in table.state.pending() if a.action is action]
    if instant and instant not in pending:
        raise InstantNotFound(
            f"no pending {action} {instant}", expected=f"one of {', '.join(pending)}" if pending else "a pending plan"
        )


def _roll_back(table: Table) -> dict[str, Any]:
    undone = roll_back_dead(table)
    half_written = delete_half_written(table)
    alive = [a.instant for a in table.state.pending()]
    outcome = f"rolled back {', '.join(undone)}" if undone else "nothing to do: every pending write has a live writer"
    if half_written:
        outcome += f"; {len(half_written)} partial files of killed writers deleted"
    if alive:
        outcome += f"; still pending: {', '.join(alive)}"
    return {"rolled_back": undone, "left_alone": alive, "half_written": list(half_written), "outcome": outcome}


@app.command(epilog="Example: cp -r ./trips ./trial; tideline adopt ./trial")
def adopt(
    path: TablePath,
    *,
    yes: Annotated[
        bool,
        typer.Option(
            "--yes", help="Also give a table that is at its recorded place another uid. Its open writers stop with an error."
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Give a copied or moved table its own identity, so that it can be written at its new place.

    Run it for the copy, not for the original, and while no writer uses the copy. Plans that the copy brought along are cancelled,
    because they name files of the original; the services plan the work again. A table that was neither copied nor moved is
    refused without --yes. A table whose identity file was lost gets a new one.
    """
    with Progress("files", None) as progress:
        progress.describe("adopting the table")
        renewed = renew_identity(open_storage(path))
        table = open_readable(path, progress=progress, every=True)
        before = "" if renewed else table.uid
        done = adopt_table(table, in_place=yes or renewed is not None)
    identity, cancelled = done.identity, [{"service": c.service.value, "instant": c.instant} for c in done.cancelled]
    text = f"table {table.definition.name} at {identity.base_path} now has uid {identity.uid} (before: {before or 'none'})"
    if cancelled:
        text += f"; cancelled {len(cancelled)} plan(s), which named files of the original: "
        text += ", ".join(f"{c['service']} {c['instant']}" for c in cancelled)
    document = {"uid": identity.uid, "base_path": identity.base_path, "previous_uid": before, "cancelled": cancelled}
    print_result(document, text, as_json=as_json)
