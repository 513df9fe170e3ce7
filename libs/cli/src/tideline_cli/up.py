"""All services of the platform on this machine, under one supervisor: what `tideline up` becomes."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tideline_cli.failure import report_failure
from tideline_service.logging import logs
from tideline_service.settings import ServiceSettings
from tideline_service.supervisor import Child, Supervisor
from tideline_table.errors import InvalidOption, TidelineError

SERVICES = ("mirror", "planner", "launcher", "cleaner", "lock_service")
"""In order of start; they stop in reverse order."""
_KILL_GRACE_S = 5.0


def run_services(settings_file: Path | None, environment: Mapping[str, str]) -> int:
    """Run all services until SIGTERM or SIGINT; returns the exit code. `environment` holds settings as `TIDELINE_*` variables.

    Raises `InvalidSetting` before anything is started.
    """
    settings = ServiceSettings.load(file=settings_file, environment={**os.environ, **environment})
    if not settings.tables:
        raise InvalidOption(
            "no tables to look after", expected="base paths or patterns", remedy="tideline up --tables '/data/lake/*'"
        )
    arguments = ("--settings", str(settings_file)) if settings_file else ()
    settings.state_folder.mkdir(parents=True, exist_ok=True)
    children = [Child(name, (sys.executable, "-m", f"tideline_{name}", *arguments), environment) for name in SERVICES]
    with logs("up", level=settings.log_level, log_format=settings.log_format, secrets=settings.secret_values()):
        return Supervisor(children, settings.state_folder, grace_s=settings.stop_grace_s + _KILL_GRACE_S).run()


def main(argv: Sequence[str] | None = None) -> int:
    """The program."""
    parser = argparse.ArgumentParser(prog="tideline up")
    parser.add_argument("--tables", action="append", default=[])
    parser.add_argument("--settings", type=Path)
    parser.add_argument("--state-folder", type=Path)
    arguments = parser.parse_args(argv)
    environment: dict[str, str] = {}
    if arguments.tables:
        environment["TIDELINE_TABLES"] = json.dumps(
            [os.path.abspath(os.path.expanduser(t)) if ":" not in t else t for t in arguments.tables]
        )
    if arguments.state_folder:
        environment["TIDELINE_STATE_FOLDER"] = str(arguments.state_folder.absolute())
    try:
        return run_services(arguments.settings, environment)
    except TidelineError as error:
        return report_failure(error)


if __name__ == "__main__":
    sys.exit(main())
