"""`tideline up` and `tideline demo`: many processes. Both become programs of their own, so that other commands start fast."""

from __future__ import annotations

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
        list[str] | None, typer.Option(help="Base path of a table, or a pattern such as /data/lake/*. Repeat it for more.")
    ] = None,
    settings: Annotated[Path | None, typer.Option(help="Settings file (TOML); docs/settings.md lists all settings.")] = None,
    state_folder: Annotated[
        Path | None, typer.Option(help="Where logs, the embedded event log and the services' addresses are kept.")
    ] = None,
) -> None:
    """Run all services (mirror, planner, launcher, cleaner, lock service) for some tables until Ctrl-C.

    Without settings they use embedded defaults: an event log in SQLite, leases beside the tables, Spark as local processes.
    `event_log = "kafka://host:9092"` and `locks = "redis://host:6379/0"` in the settings file switch them to Kafka and Redis.
    """
    arguments = [argument for pattern in tables or () for argument in ("--tables", pattern)]
    arguments += ["--settings", str(settings)] if settings else []
    arguments += ["--state-folder", str(state_folder)] if state_folder else []
    _become("tideline_cli.up", arguments)


@app.command(epilog="Example: tideline demo --folder ./demo-tables")
def demo(
    *,
    folder: Annotated[
        Path, typer.Option(help="Where the tables, logs and settings of the demo go; an earlier demo's are replaced.")
    ] = Path("demo-tables"),
) -> None:
    """Show the main job on real data: eight writers and all services on three tables, with a verified result.

    Takes a few minutes. Ctrl-C stops everything; the tables stay readable.
    """
    _become("tideline_cli.demo", ["--folder", str(folder)])


def _become(module: str, arguments: list[str]) -> None:
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", module, *arguments])  # noqa: S606 - our own module
