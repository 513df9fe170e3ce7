"""The entry point of the `tideline` command: finds the module of a command and turns errors into lines and exit codes."""

from __future__ import annotations

import importlib
import importlib.metadata
import logging
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

import typer
import typer.core
import typer.main

from tideline_cli.failure import EXIT_FAILED, EXIT_INTERRUPTED, report_failure
from tideline_table.extras import DISTRIBUTION

COMMANDS = {
    "create": "create",
    "share": "share",
    "leave": "leave",
    "reappend": "reappend",
    "write": "write",
    "delete-partition": "write",
    "expire": "expiry",
    "read": "read",
    "sql": "sql",
    "show": "inspection",
    "timeline": "inspection",
    "files": "files",
    "advise": "advise",
    "resize-buckets": "resize",
    "plan": "services",
    "run": "services",
    "adopt": "services",
    "status": "status",
    "why": "status",
    "maintain": "status",
    "savepoint": "savepoints",
    "lease": "leases",
    "restore": "restore",
    "check": "metadata",
    "metadata": "metadata",
    "job": "jobs",
    "lock": "locks",
    "events": "events",
    "policy": "policies",
    "webhooks": "webhooks",
    "catalog": "catalogs",
    "up": "platform",
    "observe": "platform",
    "console": "platform",
}
"""The module that defines each command in its `app`. A module is imported when its command is run or described."""

_EPILOG = """Start with a table of your own:

tideline create ./trips --schema-from trips.csv --key trip_id

tideline write ./trips --from trips.csv

tideline read ./trips --limit 10

Exit codes: 0 done, 2 the request or its input is wrong and nothing was written, 1 anything else."""


class _Commands(Mapping[str, Any]):
    """The commands by name. Only those are imported that are asked for."""

    def __getitem__(self, name: str) -> Any:
        module = importlib.import_module(f"tideline_cli.{COMMANDS[name]}")
        return typer.main.get_group(module.app).commands[name]

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


class _Group(typer.core.TyperGroup):
    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = _Commands()  # type: ignore[assignment]


def _show_version(*, wanted: bool) -> None:
    if wanted:
        typer.echo(f"tideline {importlib.metadata.version(DISTRIBUTION)}")
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
    cls=_Group,
    callback=_start,
    invoke_without_command=True,
    epilog=_EPILOG,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)


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
    """Discard buffered output after a closed pipe (`| head`) or a full disk, so that flushing does not fail again at exit.

    Return 0.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def main() -> None:
    """Run the installed command."""
    logging.basicConfig(level=logging.WARNING, format="tideline: %(levelname)s: %(message)s", stream=sys.stderr)
    # It prints each of many attempts to reach a metastore; the error of the command says the last one.
    logging.getLogger("thrift.transport.TSocket").setLevel(logging.CRITICAL)
    sys.exit(run())


if __name__ == "__main__":
    main()
