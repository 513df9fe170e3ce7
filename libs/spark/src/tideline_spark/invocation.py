"""Arguments and exit codes of a table service run as a Spark application. Caller and application use it; it imports no Spark."""

from __future__ import annotations

import argparse
import enum
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tideline_table.action import TableService
from tideline_table.errors import InvalidOption

MODULE = "tideline_spark.application"
SERVICES = (TableService.CLUSTERING, TableService.COMPACTION)


class ExitCode(enum.IntEnum):
    """Exit codes of an application."""

    SUCCEEDED = 0
    FAILED = 1
    YIELDED = 3
    """Writers changed what the plan reads: it was rolled back and must be planned again."""
    SUPERSEDED = 4
    """Another process ended the instant; nothing is left to do."""
    TERMINATED = 128 + signal.SIGTERM
    """Ended by SIGTERM; rolled back."""


@dataclass(frozen=True, slots=True)
class Invocation:
    """One call of an application. `local_cores` 0: all cores, or the cluster of spark-submit; `result`: file for JSON output."""

    service: TableService
    table: str
    instant: str
    options: Mapping[str, str] = field(default_factory=dict)
    local_cores: int = 0
    result: Path | None = None

    def arguments(self) -> list[str]:
        """Return the arguments that `parse` reads."""
        given = [self.service.value, f"--table={self.table}", f"--instant={self.instant}", f"--local-cores={self.local_cores}"]
        given += [f"--options={key}={value}" for key, value in self.options.items()]
        return given if self.result is None else [*given, f"--result={self.result}"]


def parse(arguments: Sequence[str] | None) -> Invocation:
    """Parse `arguments` (default: those of this process). Raises `InvalidOption` for an option that is not KEY=VALUE."""
    parser = argparse.ArgumentParser(prog=f"python -m {MODULE}", allow_abbrev=False)
    services = parser.add_subparsers(dest="service", required=True)
    for name in SERVICES:
        service = services.add_parser(name, help=f"run a {name} plan", allow_abbrev=False)
        service.add_argument("--table", required=True, help="base path")
        service.add_argument("--instant", required=True, help="instant of the plan")
        service.add_argument(
            "--options", action="extend", nargs="*", default=[], metavar="KEY=VALUE", help="options of the engine; may be repeated"
        )
        service.add_argument(
            "--local-cores", type=int, default=0, help="number of cores in this process; 0: all, or the cluster of spark-submit"
        )
        service.add_argument("--result", type=Path, help="file for the result as JSON")
    parsed = parser.parse_args(arguments)
    options = {}
    for text in parsed.options:
        key, equals, value = text.partition("=")
        if not equals:
            raise InvalidOption(f"option {text!r}", expected="KEY=VALUE")
        options[key] = value
    return Invocation(TableService(parsed.service), parsed.table, parsed.instant, options, parsed.local_cores, parsed.result)
