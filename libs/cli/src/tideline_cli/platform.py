"""`tideline up` and `tideline demo`. Each runs another program in place of this process, so that other commands start fast."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
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
    _become("tideline_cli.up", environment=environment)


@app.command(epilog="Example: tideline demo --folder ./demo-tables")
def demo(
    *,
    folder: Annotated[
        Path, typer.Option(help="Folder for the tables, logs and settings of the demo. An earlier demo in it is replaced.")
    ] = Path("demo-tables"),
) -> None:
    """Show the main use case on real data: eight writers and all services on three tables, with a verified result.

    Takes a few minutes. Ctrl-C stops everything; the tables stay readable.
    """
    _become("tideline_cli.demo", str(folder))


def _become(module: str, *arguments: str, environment: Mapping[str, str] | None = None) -> None:
    sys.stdout.flush()
    command = [sys.executable, "-m", module, *arguments]
    os.execve(sys.executable, command, {**os.environ, **(environment or {})})  # noqa: S606 - a module of this package
