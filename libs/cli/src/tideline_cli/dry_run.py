"""`--dry-run` of `tideline plan` and `tideline run`: the content of the plan that would be published or run. Nothing is written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated, Any

import typer

from tideline_cli.report import print_json, print_line, print_listing, size_text
from tideline_table.action import PREVIEWED, NotDue, Preview, TableService, action_name, preview_due, preview_plan_of
from tideline_table.errors import InstantNotFound, InvalidOption
from tideline_table.table import Table

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
