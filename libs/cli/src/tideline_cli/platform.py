"""`tideline up`, `tideline observe` and `tideline console`.

They run another program in place of this process, so that other commands start fast.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from importlib import import_module
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
    settings: Annotated[
        Path | None, typer.Option(help="Settings file (TOML); docs/settings.md and docs/settings-advanced.md list all.")
    ] = None,
    state_folder: Annotated[
        Path | None, typer.Option(help="Folder for logs, the embedded event log and the addresses of the services.")
    ] = None,
) -> None:
    """Run all services (mirror, planner, launcher, cleaner, lock service) for some tables until Ctrl-C, and the console.

    Without settings they use embedded defaults: an event log in SQLite, leases beside the tables, Spark as local processes.
    `event_log = "kafka://host:9092"` and `locks = "redis://host:6379/0"` in the settings file select Kafka and Redis instead.
    """
    _replace("tideline_cli.up", _environment(tables, settings, state_folder))


@app.command(epilog="Example: tideline observe '/data/lake/*' --state-folder ./state")
def observe(
    patterns: Annotated[list[str], typer.Argument(metavar="PATTERN…", help="Base paths, or patterns such as /data/lake/*.")],
    *,
    settings: Annotated[
        Path | None, typer.Option(help="Settings file (TOML); docs/settings.md and docs/settings-advanced.md list all.")
    ] = None,
    state_folder: Annotated[
        Path | None, typer.Option(help="Folder for logs, the embedded event log and the addresses of the services.")
    ] = None,
) -> None:
    """Watch tables that others write until Ctrl-C, and write nothing below them: events, findings, history, the console.

    First prints what `tideline status` prints: the verdict of a table that only Apache Hudi writes is `unmanaged`, with what
    managing it would gain. Then runs mirror, planner and console with the policy `mode: observe` for all tables, whatever the
    policy file says. Only the log of a table that was shared goes on: the mirror continues it under the common lock.
    """
    environment = _environment(patterns, settings, state_folder)
    with suppress(typer.Exit):  # a table that cannot be examined has its line, and is observed all the same
        import_module("tideline_cli.status").status(json.loads(environment["TIDELINE_TABLES"]), settings=settings)
    _replace("tideline_cli.up", environment, "--observe")


@app.command(epilog="Example: tideline console --tables '/data/lake/*'")
def console(
    *,
    tables: Annotated[
        list[str] | None, typer.Option(help="Base path of a table, or a pattern such as /data/lake/*. Repeatable.")
    ] = None,
    settings: Annotated[
        Path | None, typer.Option(help="Settings file (TOML); docs/settings.md and docs/settings-advanced.md list all.")
    ] = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Port of the pages; 0: a free one.", show_default="8380")
    ] = None,
) -> None:
    """Show tables in a browser, without services and without an event log: it reads the tables alone, until Ctrl-C.

    It prints the address of its pages, which only this machine can reach. `tideline up` has a console of its own.
    """
    environment = _environment(tables, settings, None)
    if port is not None:
        environment["TIDELINE_CONSOLE__LISTEN_PORT"] = str(port)
    import_module("tideline_console.requirement")  # says which extra is missing, in one line
    _replace("tideline_console.alone", environment)


def _environment(tables: list[str] | None, settings: Path | None, state_folder: Path | None) -> dict[str, str]:
    """Return the variables that give the program its settings."""
    environment: dict[str, str] = {}
    if tables:
        paths = [
            os.path.abspath(os.path.expanduser(path)) if path and ":" not in path and path[0] != "!" else path for path in tables
        ]
        environment["TIDELINE_TABLES"] = json.dumps(paths)
    if settings:
        environment["TIDELINE_SETTINGS_FILE"] = str(settings)
    if state_folder:
        environment["TIDELINE_STATE_FOLDER"] = os.path.abspath(os.path.expanduser(state_folder))
    return environment


def _replace(module: str, environment: dict[str, str], *arguments: str) -> None:
    sys.stdout.flush()
    os.execve(sys.executable, [sys.executable, "-m", module, *arguments], {**os.environ, **environment})  # noqa: S606 - a module
