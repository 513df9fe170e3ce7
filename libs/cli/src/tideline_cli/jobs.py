"""`tideline job`: pending plans of tables, cancelling them, and logs of applications that ran them for the launcher.

`job logs` runs another program in place of this process, so that other commands start without importing the services.
"""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from tideline_cli.arguments import AsJson, LockUrl, Settings, TablePath, settings_from
from tideline_cli.failure import EXIT_FAILED
from tideline_cli.opening import open_writable
from tideline_cli.progress import Progress
from tideline_cli.report import print_json, print_line, print_listing, print_result
from tideline_cli.status import FLEET, SettingsFile, age_text, searched
from tideline_table.action import cancel_plan
from tideline_table.errors import InstantNotFound
from tideline_table.table import Table, forget_given_up, given_up_plans

app = typer.Typer()
job = typer.Typer(help="List, cancel and retry the plans of table services, and read the logs of their applications.")
app.add_typer(job, name="job")


@job.command(epilog="Example: tideline job logs trips-1f0a6c2e9b-20260101120000000-2 --tables 's3://lake/*'")
def logs(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Name of the application, as the launcher logs it.", show_default=False)
    ],
    *,
    tables: Annotated[
        list[str] | None,
        typer.Option(help="Base path of its table, or a pattern such as /data/lake/*. Default: those of the settings. Repeatable."),
    ] = None,
    settings: Annotated[Path | None, typer.Option(help="Settings file (TOML) of the launcher.")] = None,
) -> None:
    """Print the end of the log of an application that failed.

    The launcher stores it in the table's folder. Logs of running applications are with the platform: kubectl logs NAME, or the
    launcher's state folder.
    """
    arguments = [name, *(argument for pattern in tables or () for argument in ("--tables", pattern))]
    arguments += ["--settings", str(settings)] if settings else []
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", "tideline_cli.job_logs", *arguments])  # noqa: S606 - a module of this package


Instant = Annotated[
    str, typer.Argument(metavar="INSTANT", help="Instant of the plan; tideline job list shows it.", show_default=False)
]


@job.command(name="list", epilog="Example: tideline job list '/data/lake/*'")
def list_jobs(
    patterns: Annotated[
        list[str] | None,
        typer.Argument(metavar="PATTERN…", help="Base paths, or patterns such as /data/lake/*. Default: those of the settings."),
    ] = None,
    *,
    settings: SettingsFile = None,
    as_json: AsJson = False,
) -> None:
    """List the pending plans of tables, oldest first.

    Service, state, age, whether a process runs it, and why the launcher does not.

    The exit code is 1 if a table could not be read.
    """
    loaded = importlib.import_module(FLEET)
    fleet = loaded.Fleet.load(patterns or (), settings, {})
    with Progress("tables", None) as progress:
        found, failures = searched(fleet, progress)
        tables = [*loaded.examined(found, fleet.jobs, progress.advance), *failures]
    jobs: list[dict[str, Any]] = sorted((job for table in tables for job in table.get("jobs", ())), key=lambda j: str(j["instant"]))
    errors = {table["base_path"]: table["error"] for table in tables if table["error"]}
    if as_json:
        print_json({"jobs": jobs, "errors": errors})
    else:
        columns = ("TABLE", "INSTANT", "SERVICE", "STATE", "AGE", "WRITER", "GIVEN UP")
        rows = [
            (
                j["table"],
                j["instant"],
                j["service"],
                "running" if j["is_running"] else j["state"],
                age_text(j["age_s"]),
                j["writer_id"],
                j["given_up"],
            )
            for j in jobs
        ]
        print_listing(columns, rows, right=("AGE",))
        for base_path, error in errors.items():
            print_line(f"{base_path}: {error}")
    if errors:
        raise typer.Exit(EXIT_FAILED)


@job.command(epilog="Example: tideline job cancel ./trips 20260101120000000")
def cancel(path: TablePath, instant: Instant, *, option: Settings = None, locks: LockUrl = "", as_json: AsJson = False) -> None:
    """Cancel a pending plan, whether or not an executor runs it: an executor fails at its commit, and its files are deleted.

    No row of the table changes. Clusterings and compactions can be cancelled until they complete; cleans and archivals until they
    begin. The planner may plan the same work again. In a table shared with Apache Hudi only clusterings can be cancelled.
    """
    with Progress("files", None) as progress:
        progress.describe(f"cancelling {instant}")
        table = open_writable(path, settings_from(option), locks, progress, every=True)
        done = cancel_plan(table, instant)
        forget_given_up(table.storage, instant)
    text = f"cancelled {done.service} {done.instant} by rollback {done.rollback}"
    text += "; an executor that still runs it fails at its commit" if done.was_begun else ""
    text += f"; {done.moved_log_files} log files written since went back to the slice before" if done.moved_log_files else ""
    document = {
        "service": done.service.value,
        "instant": done.instant,
        "rollback": done.rollback,
        "was_begun": done.was_begun,
        "moved_log_files": done.moved_log_files,
    }
    print_result(document, text, as_json=as_json)


@job.command(epilog="Example: tideline job retry ./trips 20260101120000000")
def retry(path: TablePath, instant: Instant, *, as_json: AsJson = False) -> None:
    """Let the launcher run a plan again that it gave up. Remove the cause first; tideline job logs shows the error.

    The launcher runs the plan after its next tick. Without a launcher: tideline run SERVICE PATH --instant INSTANT.
    """
    table = Table.open(path)
    known = given_up_plans(table.storage)
    if not table.state.is_pending(instant) or instant not in known:
        pending = [at for at in known if table.state.is_pending(at)]
        raise InstantNotFound(
            f"no plan {instant} that a launcher gave up",
            expected=f"one of {', '.join(pending)}" if pending else "a plan that was given up; this table has none",
            remedy="a pending plan runs without this, by a launcher or tideline run SERVICE PATH",
        )
    forget_given_up(table.storage, instant)
    text = f"a launcher runs {known[instant].service} {instant} again"
    print_result({"service": known[instant].service, "instant": instant}, text, as_json=as_json)
