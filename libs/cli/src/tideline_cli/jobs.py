"""`tideline job logs`: the logs of failed applications. It replaces the process, so that other commands start without the services."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer()
job = typer.Typer(help="Look at applications that ran plans for the launcher.")
app.add_typer(job, name="job")


@job.command(epilog="Example: tideline job logs trips-1f0a6c2e9b-20260101120000000-2 --tables 's3://lake/*'")
def logs(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Name of the application, as the launcher logs it.", show_default=False)
    ],
    *,
    tables: Annotated[
        list[str] | None,
        typer.Option(help="Base path of its table, or a pattern such as /data/lake/*; those of the settings without it."),
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
