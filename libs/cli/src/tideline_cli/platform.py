"""`tideline up`. It runs another program in place of this process, so that other commands start fast."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer()


@app.command(epilog="Example: tideline up --tables '/data/lake/*' --state-folder ./state")
def up(
    *,
    tables: Annotated[
        list[str] | None, typer.Option(help="Base path of a table, or a pattern such as /data/lake/*. Repeatable.")
    ] = None,
    settings: Annotated[Path | None, typer.Option(help="Settings file (TOML); docs/settings.md lists all settings.")] = None,
    state_folder: Annotated[
        Path | None, typer.Option(help="Folder for logs, the embedded event log and the addresses of the services.")
    ] = None,
) -> None:
    """Run all services (mirror, planner, launcher, cleaner, lock service) for some tables until Ctrl-C.

    Without settings they use embedded defaults: an event log in SQLite, leases beside the tables, Spark as local processes.
    `event_log = "kafka://host:9092"` and `locks = "redis://host:6379/0"` in the settings file select Kafka and Redis instead.
    """
    environment: dict[str, str] = {}
    if tables:
        paths = [os.path.abspath(os.path.expanduser(path)) if ":" not in path and path[:1] != "!" else path for path in tables]
        environment["TIDELINE_TABLES"] = json.dumps(paths)
    if settings:
        environment["TIDELINE_SETTINGS_FILE"] = str(settings)
    if state_folder:
        environment["TIDELINE_STATE_FOLDER"] = os.path.abspath(os.path.expanduser(state_folder))
    sys.stdout.flush()
    command = [sys.executable, "-m", "tideline_cli.up"]
    os.execve(sys.executable, command, {**os.environ, **environment})  # noqa: S606 - a module of this package
