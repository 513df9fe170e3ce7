"""The entry point of the `tideline` command: registers the groups of commands and turns errors into lines and exit codes."""

from __future__ import annotations

import importlib.metadata
import logging
import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from tideline_cli import (
    advise,
    create,
    files,
    index,
    inspection,
    jobs,
    leases,
    locks,
    platform,
    policies,
    read,
    resize,
    restore,
    savepoints,
    services,
    share,
    status,
    write,
)
from tideline_cli.failure import EXIT_FAILED, EXIT_INTERRUPTED, report_failure

GROUPS = (
    create,
    share,
    write,
    read,
    inspection,
    files,
    advise,
    resize,
    services,
    status,
    savepoints,
    leases,
    restore,
    index,
    jobs,
    locks,
    policies,
    platform,
)
"""Modules that each define an `app` of commands."""

_EPILOG = """Start with a table of your own:

tideline create ./trips --schema-from trips.csv --key trip_id

tideline write ./trips --from trips.csv

tideline read ./trips --limit 10

Exit codes: 0 done, 2 the request or its input is wrong and nothing was written, 1 anything else."""


def _show_version(*, wanted: bool) -> None:
    if wanted:
        typer.echo(f"tideline {importlib.metadata.version('tideline-cli')}")
        raise typer.Exit


def _start(
    context: typer.Context,
    *,
    version: Annotated[bool, typer.Option("--version", help="Print the version.", is_eager=True)] = False,
) -> None:
    """Create, write, read and maintain Apache Hudi tables."""
    _show_version(wanted=version)
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


app = typer.Typer(
    name="tideline",
    callback=_start,
    invoke_without_command=True,
    epilog=_EPILOG,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
for _group in GROUPS:
    app.add_typer(_group.app)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code. Never raises. None means the arguments of this process."""
    try:
        code = app(args=None if arguments is None else list(arguments), prog_name="tideline", standalone_mode=False)
        sys.stdout.flush()
    except BrokenPipeError:
        return _end_quietly()
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):  # Typer exits with code 1 when a pipe is closed
            return _end_quietly()
        return end.code if isinstance(end.code, int) else EXIT_FAILED if end.code else 0
    except Exception as error:  # noqa: BLE001 - the outermost handler of the process
        try:
            sys.stdout.flush()
        except OSError:
            _end_quietly()
        return report_failure(error)
    if code == EXIT_INTERRUPTED:
        return report_failure(KeyboardInterrupt())
    return code if isinstance(code, int) else 0


def _end_quietly() -> int:
    """Discard buffered output after a closed pipe (`| head`) or a full disk, so that flushing does not fail again at exit. Return 0."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def main() -> None:
    """Run the installed command."""
    logging.basicConfig(level=logging.WARNING, format="tideline: %(levelname)s: %(message)s", stream=sys.stderr)
    sys.exit(run())


if __name__ == "__main__":
    main()
