"""`tideline plan`, `tideline run` and `tideline adopt`: table services run by hand, one table at a time."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Annotated, Any

import typer

from tideline_cli.arguments import AsJson, LockUrl, Settings, TablePath, choice, option, settings_from
from tideline_cli.opening import open_readable, open_writable
from tideline_cli.progress import Progress
from tideline_cli.report import print_json, print_line, print_listing, print_result, size_text
from tideline_cli.tables import committed_document
from tideline_table.action import (
    PREVIEWED,
    REWRITES,
    SERVICES,
    ClusteringPreview,
    Due,
    NotDue,
    Preview,
    Rewrite,
    Rules,
    TableService,
    action_name,
    decide,
    preview_clustering,
    preview_due,
    preview_plan_of,
)
from tideline_table.action import adopt as adopt_table
from tideline_table.errors import InstantNotFound, InvalidOption
from tideline_table.storage import open_storage
from tideline_table.table import Table, renew_identity

app = typer.Typer()


PLANNABLE = tuple(name for name in TableService if SERVICES[name].has_plans)


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
    retained query reads; archival moves old instants to the archived timeline (and first deletes files that tasks of
    rolled-back writes created after the rollback).
    """
    chosen = choice("service", service, PLANNABLE)
    if dry_run or where:
        _preview(chosen, path, settings_from(option), where, is_dry_run=dry_run, as_json=as_json)
        return
    with Progress("files", None) as progress:
        progress.describe(f"planning {chosen}")
        table = open_writable(path, settings_from(option), locks, progress, every=True)
        answer = SERVICES[chosen].plan(table)
    instant, why = (None, answer.reason) if isinstance(answer, NotDue) else (answer, "")
    text = f"planned {chosen} {instant}; run it: tideline run {chosen} {path}" if instant else f"nothing to do: {why}"
    print_result({"service": chosen.value, "instant": instant, "reason": why}, text, as_json=as_json)


def _print_decision(service: TableService, found: Due | NotDue, *, as_json: bool) -> None:
    if isinstance(found, NotDue):
        plan, text = None, f"nothing to do: {found.reason}" + (f"; changed by: {found.until}" if found.until else "")
    else:
        plan, text = found.body.to_json(), f"{service} is due: {found.reason}"
    print_result({"service": service.value, "instant": None, "reason": found.reason, "plan": plan}, text, as_json=as_json)


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
    if service not in PREVIEWED:
        found = decide(table, service, Rules(trigger=None))
        return lambda as_json: _print_decision(service, found, as_json=as_json)
    document = preview_plan(service, table)
    return lambda as_json: print_preview(document, as_json=as_json)


def _print_clustering(found: ClusteringPreview, *, as_json: bool) -> None:
    about = {
        "service": TableService.CLUSTERING.value,
        "files": found.files_read,
        "bytes": found.bytes_read,
    }
    document = {**dataclasses.asdict(found), **about}
    print_result(document, *_preview_lines(found), as_json=as_json)


def _preview_lines(found: ClusteringPreview) -> list[str]:
    if not found.due:
        return [f"nothing to do: {found.reason}"]
    size = f"{found.bytes_read / 2**20:.1f} MiB"
    where = f"{found.groups} group(s) of {len(found.partitions)} partition(s)"
    lines = [f"would cluster {found.files_read} files ({size}) into {found.files_written}, in {where}: {found.reason}"]
    lines += [
        f"overlap of {o.column}: a file overlaps {o.before:g} others of its group now, {o.after:g} after (estimated)"
        for o in found.overlaps
    ]
    if found.rows_scanned_before is not None and found.rows_scanned_after is not None:
        lines.append(
            f"the condition reads {found.rows_scanned_before} of {found.rows} rows now, {found.rows_scanned_after} after "
            "(estimated)"
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
    asked = SERVICES[chosen]
    if instant and not asked.has_plans:
        raise InvalidOption(
            "--instant with rollback",
            expected=f"{', '.join(PLANNABLE[:-1])} or {PLANNABLE[-1]}",
            remedy="run rollback without --instant: it finds writes without a heartbeat",
        )
    if dry_run:
        with Progress("files", None) as progress:
            progress.describe(f"reading the plan of {chosen}")
            document = preview_run(chosen, open_readable(path, settings_from(option), progress, every=True), instant)
        print_preview(document, as_json=as_json)
        return
    with Progress("files deleted" if asked.deletes else "file groups", None) as progress:
        progress.describe(chosen.value)
        table = open_writable(path, settings_from(option), locks, progress if asked.deletes else None)
        _check_pending(table, instant, chosen)
        run = (lambda tasks: asked.here(tasks, progress.counting(tasks))) if isinstance(asked, Rewrite) else None
        done = asked.run(table, instant, run=run)
    if done is None:
        reason = f"nothing to do: no {chosen} plan is pending; publish one: tideline plan {chosen} {table.base_path}"
        print_result({"service": chosen.value, "instant": None, "outcome": reason}, reason, as_json=as_json)
        return
    committed = {} if done.committed is None else committed_document(done.committed)
    print_result({"service": chosen.value, **committed, **done.facts, "outcome": done.text}, done.text, as_json=as_json)


def _check_pending(table: Table, instant: str, service: TableService) -> None:
    """Raise `InstantNotFound` for a plan to clean or archive that is not pending; of rewrites, runs say what became of a plan."""
    pending = [record.instant for record in SERVICES[service].pending(table.state)]
    if instant and instant not in pending and service not in REWRITES:
        raise InstantNotFound(
            f"no pending {service} {instant}", expected=f"one of {', '.join(pending)}" if pending else "a pending plan"
        )


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


DryRun = Annotated[
    bool,
    typer.Option("--dry-run", help="Print what would be done, with groups, files and bytes; change nothing.", show_default=False),
]
SHOWN_GROUPS = 20
"""Number of file groups printed as text; JSON lists all."""


def preview_plan(service: TableService, table: Table) -> dict[str, Any]:
    """Return what `tideline plan` would publish now. Raises `InvalidOption` for services without a preview of plans."""
    if service not in PREVIEWED:
        raise _no_preview(service, "plan")
    return _document(service, preview_due(table, service))


def preview_run(service: TableService, table: Table, instant: str) -> dict[str, Any]:
    """Return what `tideline run` would do: the content of the pending plan `instant` or, if empty, of the oldest pending plan.

    Raises `InstantNotFound` if `instant` is not a pending plan of the service, and `InvalidOption` as `preview_plan` does.
    """
    if service not in PREVIEWED:
        raise _no_preview(service, "run")
    pending = [a for a in table.state.pending() if action_name(a.action, a.operation) == service and not a.fenced_by]
    chosen = [a for a in pending if not instant or a.instant == instant]
    if not chosen and instant:
        there = ", ".join(a.instant for a in pending)
        raise InstantNotFound(f"no pending {service} {instant}", expected=f"one of {there}" if there else "a pending plan")
    if not chosen:
        return _document(service, NotDue(f"no {service} plan is pending; publish one: tideline plan {service} {table.base_path}"))
    found = preview_plan_of(table, service, table.state.plans[chosen[0].instant], f"plan {chosen[0].instant} is {chosen[0].state}")
    return {**_document(service, found), "instant": chosen[0].instant}


def print_preview(document: Mapping[str, Any], *, as_json: bool) -> None:
    """Print the document of a preview."""
    if as_json:
        print_json(dict(document))
        return
    service = document["service"]
    if not document["due"]:
        print_line(f"{service} would do nothing: {document['reason']}")
        return
    groups = document["groups"]
    print_line(
        f"{service} would take {document['files']} files, {size_text(document['bytes'])}, of {len(groups)} file groups: "
        f"{document['reason']}"
    )
    rows = [(g["partition"] or "-", ", ".join(g["file_ids"]), g["files"], size_text(g["bytes"])) for g in groups[:SHOWN_GROUPS]]
    print_listing(("PARTITION", "FILE GROUPS", "FILES", "SIZE"), rows, right=("FILES", "SIZE"))
    if len(groups) > len(rows):
        print_line(f"… and {len(groups) - len(rows)} more; --json lists all")


def _document(service: TableService, found: Preview | NotDue) -> dict[str, Any]:
    if isinstance(found, NotDue):
        return {"service": service.value, "due": False, "reason": found.reason, "groups": [], "files": 0, "bytes": 0}
    groups = [asdict(group) for group in found.groups]
    files, size = sum(g["files"] for g in groups), sum(g["bytes"] for g in groups)
    return {"service": service.value, "due": True, "reason": found.reason, "groups": groups, "files": files, "bytes": size}


def _no_preview(service: TableService, command: str) -> InvalidOption:
    return InvalidOption(f"tideline {command} {service} --dry-run", expected=f"--dry-run with {', '.join(PREVIEWED)}")
