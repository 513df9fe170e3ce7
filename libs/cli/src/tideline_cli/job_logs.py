"""Finds and prints the log of an application, for `tideline job logs`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tideline_cli.failure import report_failure
from tideline_cli.report import print_line
from tideline_launcher.log_files import read_job_log
from tideline_launcher.names import digest_in, is_shared_name, place_digest
from tideline_launcher.settings import LauncherSettings
from tideline_runtime.registry import TableRegistry
from tideline_table.clock import SystemClock
from tideline_table.errors import InvalidOption, TidelineError
from tideline_table.storage import open_storage


def find_log(name: str, settings: LauncherSettings) -> bytes:
    """Return the stored log of the attempt `name`.

    The digest in the name identifies the table among those that the settings select.

    Raises `InvalidOption` for a name of no attempt, if no table has the digest, and if the table has no such log.
    """
    if is_shared_name(name):
        raise InvalidOption(
            f"application {name}, which runs plans of several tables",
            expected="the name of an attempt at one plan, such as trips-1f0a6c2e9b-20260101120000000-2",
            remedy="the launcher's log (`launched`) and the job events name the attempts of the application",
        )
    digest = digest_in(name)
    if digest is None:
        raise InvalidOption(
            f"application {name!r}",
            expected="a name such as trips-1f0a6c2e9b-20260101120000000-2, from the launcher's log or job events",
        )
    places = [base for base in TableRegistry(settings.tables, SystemClock()).tables() if place_digest(base) == digest]
    if not places:
        raise InvalidOption(
            f"none of the tables is that of application {name}", expected="its table among --tables or the setting `tables`"
        )
    for base_path in places:
        found = read_job_log(open_storage(base_path), name)
        if found is not None:
            return found
    raise InvalidOption(
        f"no log of application {name} in table {places[0]}",
        expected="an application that failed, among the newest ones of the table",
        remedy="if it still runs: kubectl logs NAME, or the folder `applications` in the launcher's state folder",
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Print the log that the arguments name, and return the exit code."""
    parser = argparse.ArgumentParser(prog="tideline job logs")
    parser.add_argument("name")
    parser.add_argument("--tables", action="append", default=[])
    parser.add_argument("--settings", type=Path)
    arguments = parser.parse_args(argv)
    try:
        given: dict[str, Any] = {"tables": tuple(arguments.tables)} if arguments.tables else {}
        settings = LauncherSettings.load(file=arguments.settings, **given)
        for line in find_log(arguments.name, settings).decode(errors="replace").splitlines():
            print_line(line.expandtabs(4))
    except TidelineError as error:
        return report_failure(error)
    return 0


if __name__ == "__main__":
    sys.exit(main())
