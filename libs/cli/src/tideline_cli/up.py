"""Runs all services on this machine under one supervisor, for `tideline up`. Its settings come from the environment."""

from __future__ import annotations

import os
import sys

from tideline_cli.failure import report_failure
from tideline_runtime.logging import logs
from tideline_runtime.members import PLATFORM
from tideline_runtime.setting_sources import FILE_VARIABLE
from tideline_runtime.settings import ServiceSettings
from tideline_runtime.supervisor import Child, Supervisor
from tideline_table.errors import InvalidOption, TidelineError
from tideline_table.storage import writing

_KILL_GRACE_S = 5.0


def run_services() -> int:
    """Run all services until SIGTERM or SIGINT and return the exit code. Raises `InvalidSetting` before any service is started."""
    settings = ServiceSettings.load()
    if not settings.tables:
        raise InvalidOption("no tables", expected="base paths or patterns", remedy="tideline up --tables '/data/lake/*'")
    settings_file = os.environ.get(FILE_VARIABLE)
    arguments = ("--settings", settings_file) if settings_file else ()
    with writing(repr(str(settings.state_folder))):
        settings.state_folder.mkdir(parents=True, exist_ok=True)
    children = [Child(name, (sys.executable, "-m", f"tideline_{name}", *arguments)) for name in PLATFORM]
    with logs("up", level=settings.log_level, log_format=settings.log_format, secrets=settings.secret_values()):
        return Supervisor(children, settings.state_folder, grace_s=settings.stop_grace_s + _KILL_GRACE_S).run()


if __name__ == "__main__":
    try:
        sys.exit(run_services())
    except TidelineError as error:
        sys.exit(report_failure(error))
