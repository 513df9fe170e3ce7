"""Arguments and exit codes of table services run as a Spark application. Caller and application use it; it imports no Spark."""

from __future__ import annotations

import argparse
import enum
import json
import signal
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tideline_table.action import REWRITES, TableService
from tideline_table.errors import InvalidOption

MODULE = "tideline_spark.application"
SERVICES = tuple(REWRITES)
SEVERAL = "several"
_LOCAL_CORES = "number of cores in this process; 0: all, or the cluster of spark-submit"


class ExitCode(enum.IntEnum):
    """Exit codes of an application, and of each plan of a shared one."""

    SUCCEEDED = 0
    FAILED = 1
    """Of a shared application: at least one of its plans failed."""
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


@dataclass(frozen=True, slots=True)
class SharedInvocation:
    """One call of an application that runs several plans, of any tables, one after the other.

    Each plan has its own table, instant and options; its `local_cores` and `result` are not used. `outcomes`: the file of
    `OutcomeFile`.
    """

    plans: tuple[Invocation, ...]
    local_cores: int = 0
    outcomes: Path | None = None

    def arguments(self) -> list[str]:
        """Return the arguments that `parse` reads."""
        given = [SEVERAL, f"--local-cores={self.local_cores}"]
        given += [] if self.outcomes is None else [f"--outcomes={self.outcomes}"]
        return [*given, *(f"--plan={_plan_text(plan)}" for plan in self.plans)]


def parse(arguments: Sequence[str] | None) -> Invocation | SharedInvocation:
    """Parse `arguments` (default: those of this process).

    Raises `InvalidOption` for an option that is not KEY=VALUE, and for a plan that `SharedInvocation` did not write.
    """
    parser = argparse.ArgumentParser(prog=f"python -m {MODULE}", allow_abbrev=False)
    services = parser.add_subparsers(dest="service", required=True)
    for name in SERVICES:
        service = services.add_parser(name, help=f"run a {name} plan", allow_abbrev=False)
        service.add_argument("--table", required=True, help="base path")
        service.add_argument("--instant", required=True, help="instant of the plan")
        service.add_argument(
            "--options", action="extend", nargs="*", default=[], metavar="KEY=VALUE", help="options of the engine; may be repeated"
        )
        service.add_argument("--local-cores", type=int, default=0, help=_LOCAL_CORES)
        service.add_argument("--result", type=Path, help="file for the result as JSON")
    several = services.add_parser(SEVERAL, help="run several plans, one after the other", allow_abbrev=False)
    several.add_argument("--local-cores", type=int, default=0, help=_LOCAL_CORES)
    several.add_argument("--outcomes", type=Path, help="file for the outcome of each plan")
    several.add_argument(
        "--plan", action="append", required=True, metavar="JSON", help="service, table, instant and options of a plan; repeated"
    )
    parsed = parser.parse_args(arguments)
    if parsed.service == SEVERAL:
        return SharedInvocation(tuple(map(_plan_of, parsed.plan)), parsed.local_cores, parsed.outcomes)
    options = _options_of(parsed.options)
    return Invocation(TableService(parsed.service), parsed.table, parsed.instant, options, parsed.local_cores, parsed.result)


def _options_of(texts: Iterable[str]) -> dict[str, str]:
    options = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals:
            raise InvalidOption(f"option {text!r}", expected="KEY=VALUE")
        options[key] = value
    return options


def _plan_text(plan: Invocation) -> str:
    return json.dumps(
        {"service": plan.service.value, "table": plan.table, "instant": plan.instant, "options": dict(plan.options)},
        separators=(",", ":"),
    )


def _plan_of(text: str) -> Invocation:
    try:
        found = json.loads(text)
        service = SERVICES[SERVICES.index(found["service"])]
        options = {str(key): str(value) for key, value in found["options"].items()}
        return Invocation(service, str(found["table"]), str(found["instant"]), options)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        # The text is not shown: options may hold what only its own table's users may see.
        raise InvalidOption(
            f"a plan that cannot be read ({type(error).__name__})", expected="JSON with service, table, instant and options"
        ) from None
