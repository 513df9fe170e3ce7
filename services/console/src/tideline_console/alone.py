"""The console of `tideline console`: tables alone, without an event log, with its read model in a folder that goes with it."""

from __future__ import annotations

import tideline_console.requirement  # noqa: F401 isort: skip - first: it names the extra

import os
import sys
import tempfile

from tideline_cli.failure import report_failure
from tideline_console.service import ConsoleService
from tideline_console.settings import ConsoleSettings
from tideline_runtime.contract import ServiceContext
from tideline_runtime.lifecycle import run_service
from tideline_table.errors import InvalidOption, TidelineError


def main() -> int:
    """Run the console until Ctrl-C, and return the exit code. It prints the address of its pages."""

    def console(settings: ConsoleSettings, context: ServiceContext) -> ConsoleService:
        if not settings.tables:
            raise InvalidOption("no tables", expected="base paths or patterns", remedy="tideline console --tables '/data/lake/*'")
        return ConsoleService(settings, context, _print_address)

    with tempfile.TemporaryDirectory(prefix="tideline-console-") as folder:
        os.environ |= {"TIDELINE_STATE_FOLDER": folder, "TIDELINE_CONSOLE__SOURCE": "tables"}
        os.environ.setdefault("TIDELINE_LOG_LEVEL", "warning")
        os.environ.setdefault("TIDELINE_LOG_FORMAT", "console")
        return run_service(console, ConsoleSettings, [])


def _print_address(address: str) -> None:
    sys.stdout.write(f"console: {address} (Ctrl-C ends it)\n")
    sys.stdout.flush()


if __name__ == "__main__":
    try:
        sys.exit(main())
    except TidelineError as error:
        sys.exit(report_failure(error))
