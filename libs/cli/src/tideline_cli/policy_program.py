"""The program behind `tideline policy`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tideline_cli.failure import EXIT_BAD_INPUT, report_failure
from tideline_cli.progress import Progress
from tideline_cli.report import print_facts, print_json, print_line, print_listing, print_warning, size_text
from tideline_planner.rules import thresholds_of
from tideline_planner.settings import PlannerSettings
from tideline_runtime.planning import Thresholds
from tideline_runtime.planning.replay import ASSUMPTIONS, Replayed, replay
from tideline_runtime.policy import Policies, PolicyRefused, TablePolicy, is_open, next_change, read_policies
from tideline_runtime.policy.model import policy_schema_text
from tideline_runtime.policy.table_checks import check_tables, found_tables
from tideline_runtime.policy.table_policy import BUILT_IN, PRIORITY
from tideline_runtime.table_settings import with_overrides
from tideline_table.action import TableService
from tideline_table.clock import SystemClock
from tideline_table.errors import InvalidOption, TidelineError
from tideline_table.hudi import PROPERTIES_PATH, parse_as_of, time_from_instant
from tideline_table.storage import exists, open_storage
from tideline_table.table import read_identity

_DEFAULTS: dict[str, Any] = {**{f"services.{service.value}": True for service in TableService}, "priority": PRIORITY}


def explain(arguments: argparse.Namespace) -> int:
    """Print the policy of a table, each value with the rule that gives it. Return the exit code."""
    settings = PlannerSettings.load(file=arguments.settings)
    file = arguments.file or settings.policy_file
    policies = read_policies(Path(file)) if file is not None else Policies()
    storage = open_storage(arguments.argument[0])
    identity = read_identity(storage)
    uid = identity.uid if identity is not None else ""
    own = policies.of(storage.root, uid)
    document = explained(policies, own)
    if arguments.json:
        print_json(document)
        return 0
    tags = ", ".join(document["tags"]) or "none"
    is_hudis = not uid and exists(storage, PROPERTIES_PATH)
    without = "none: only Apache Hudi writes the table, so it is observed whatever its mode" if is_hudis else "no table is there"
    facts = [
        ("table", storage.root),
        ("uid", uid or without),
        ("policy file", policies.source or "none"),
        ("tags", tags),
    ]
    print_facts([*facts, ("rules", "; ".join(document["rules"]) or "none"), *document["now"].items()])
    rows = [(one["field"], value_text(one["value"]), one["rule"], one["line"] or "") for one in document["values"]]
    print_listing(("field", "value", "rule", "line"), rows, right=("line",))
    return 0


def explained(policies: Policies, own: TablePolicy) -> dict[str, Any]:
    """Return the policy of a table now as a document: each value with the rule and the line that give it."""
    now = SystemClock().now()
    given = {name: (value.value, value.origin) for name, value in own.given.items()}
    values = {**{name: (value, BUILT_IN) for name, value in _DEFAULTS.items()}, **given}
    pause, change = own.paused_at(now), next_change(own.windows, now)
    window = "open" if is_open(own.windows, now) else "closed"
    return {
        "table": own.base_path,
        "uid": own.uid,
        "file": policies.source,
        "tags": list(policies.tags_of(own.base_path, own.uid)),
        "rules": [rule.label for rule in policies.rules_for(own.base_path, own.uid)],
        "now": {
            "window": window if change is None else f"{window} until {change:%Y-%m-%d %H:%M} UTC",
            "paused": "no" if pause is None else pause.reason,
        },
        "values": [
            {"field": name, "value": plain_value(value), "rule": origin.rule, "line": origin.line or None}
            for name, (value, origin) in sorted(values.items())
        ],
    }


def plain_value(value: Any) -> Any:
    """Return a value of a policy as JSON."""
    if isinstance(value, tuple):
        return [
            {"from": f"{w.begins:%H:%M}", "to": f"{w.ends:%H:%M}", "time_zone": w.zone.key, "days": sorted(w.days)} for w in value
        ]
    if hasattr(value, "reason"):
        return {"reason": value.reason, "until": None if value.until is None else value.until.isoformat()}
    return value


def value_text(value: Any) -> str:
    """Return a value of the document of `explained` as text."""
    if isinstance(value, list):
        return "; ".join(f"{w['from']}-{w['to']} {w['time_zone']}" for w in value) or "always"
    if isinstance(value, dict):
        return f"{value['reason']}" + (f" (until {value['until']})" if value["until"] else "")
    if isinstance(value, bool):
        return "on" if value else "off"
    return "none" if value is None else str(value)


def check(arguments: argparse.Namespace) -> int:
    """Check a policy file, by itself and against tables; print the findings. Return the exit code."""
    source = Path(arguments.argument[0])
    try:
        policies = read_policies(source)
    except PolicyRefused as error:
        if arguments.json:
            problems = [{"line": p.line, "place": p.place, "found": p.found, "expected": p.expected} for p in error.problems]
            print_json({"file": str(source), "valid": False, "problems": problems, "findings": []})
        for problem in () if arguments.json else error.problems:
            print_line(f"{source}, {problem}")
        return EXIT_BAD_INPUT
    settings = PlannerSettings.load(file=arguments.settings)
    tables, findings = found_tables(arguments.tables or settings.tables)
    with Progress("tables", None) as progress:
        findings += check_tables(policies, progress.over(tables), options=settings.options) if tables else []
    is_valid = not any(finding.is_error for finding in findings)
    if arguments.json:
        found = [{"subject": f.subject, "text": f.text, "error": f.is_error} for f in findings]
        print_json({"file": str(source), "valid": is_valid, "tables": len(tables), "problems": [], "findings": found})
        return 0 if is_valid else EXIT_BAD_INPUT
    for finding in findings:
        (print_line if finding.is_error else print_warning)(str(finding))
    if is_valid:
        print_line(f"{source}: {len(policies.rules)} rules are valid, checked against {len(tables)} tables")
    return 0 if is_valid else EXIT_BAD_INPUT


def test(arguments: argparse.Namespace) -> int:
    """Replay table logs through a policy file, and print what it would have done. Return the exit code.

    As for `check`, it is `EXIT_BAD_INPUT` if the policies do not fit a table.
    """
    policies = read_policies(Path(arguments.argument[0]))
    settings = PlannerSettings.load(file=arguments.settings)
    tables, findings = found_tables(arguments.tables or settings.tables)
    if not tables:
        raise InvalidOption("no tables", expected="base paths or patterns with tables", remedy="--tables '/data/lake/*'")

    def thresholds(own: TablePolicy) -> Thresholds:
        return thresholds_of(with_overrides(settings, own.settings("planner")))

    since, until = time_from_instant(parse_as_of(arguments.since)), SystemClock().now()
    with Progress("tables", None) as progress:
        progress.describe("reading table logs")
        outcome = replay(policies, settings.options, thresholds, progress.over(tables), since, until)
    for finding in findings:
        print_warning(str(finding))
    if arguments.json:
        print_json(outcome.to_json())
        return 0 if outcome.is_valid else EXIT_BAD_INPUT
    columns = ("table", "jobs", "rewritten", "conflicts", "small files", "log ratio", "log age", "recorded jobs", "rewritten then")
    print_listing(columns, [_row(one) for one in outcome.tables], right=columns[1:])
    print_line(
        f"since {arguments.since}: {outcome.jobs} jobs rewrite {size_text(outcome.bytes_rewritten)}, at most "
        f"{size_text(outcome.largest_day_bytes)} in 24 hours; {outcome.conflicts} conflicts. Small files, log ratio and age: the "
        "largest"
    )
    for text in ASSUMPTIONS:
        print_line(f"assumed: {text}")
    for base_path, why in outcome.left_out.items():
        print_warning(f"{base_path} is left out: {why}")
    return 0 if outcome.is_valid else EXIT_BAD_INPUT


def _row(one: Replayed) -> tuple[object, ...]:
    age = f"{one.largest_log_age_s / 3600:.1f} h" if one.largest_log_age_s else ""
    return (
        one.base_path,
        one.jobs,
        size_text(one.bytes_rewritten),
        one.conflicts,
        one.most_small_files,
        f"{one.largest_log_ratio:.2f}",
        age,
        one.recorded_jobs,
        size_text(one.recorded_bytes),
    )


def schema(_arguments: argparse.Namespace) -> int:
    """Print the JSON schema of policy files. Return the exit code."""
    print(policy_schema_text(), end="")  # noqa: T201 - a command's output
    return 0


_COMMANDS = {"explain": explain, "check": check, "test": test, "schema": schema}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program and return the exit code."""
    parser = argparse.ArgumentParser(prog="tideline policy")
    parser.add_argument("command", choices=_COMMANDS)
    parser.add_argument("--file", type=Path)
    parser.add_argument("--settings", type=Path)
    parser.add_argument("--since", default="")
    parser.add_argument("--tables", action="append", default=[])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("argument", nargs="*")
    arguments = parser.parse_args(argv)
    try:
        return _COMMANDS[arguments.command](arguments)
    except TidelineError as error:
        return report_failure(error)


if __name__ == "__main__":
    sys.exit(main())
