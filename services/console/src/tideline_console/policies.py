"""The page of policies: the file with its rules, which tables each matches, pauses, and what is wrong with it."""

from __future__ import annotations

from typing import Any

from tideline_cli.policy_program import value_text
from tideline_console.model import ReadModel, Row
from tideline_runtime.policy import Policies
from tideline_table.clock import Clock
from tideline_table.errors import TidelineError

LISTED = 5
"""Tables that are named beside a rule."""
MOST_CHECKED = 20_000


def policies_context(model: ReadModel, policies: Policies, refusal: str, clock: Clock) -> dict[str, Any]:
    """Return what the page of policies shows: the policies in force, by the tables that the console knows."""
    rows = model.query("SELECT key, name, folder, base_path, uid FROM tables ORDER BY name, base_path LIMIT ?", MOST_CHECKED)
    matched: dict[str, list[Row]] = {rule.label: [] for rule in policies.rules}
    paused = []
    for row in rows if policies.rules or policies.defaults else ():
        for rule in policies.rules_for(row["base_path"], row["uid"]):
            matched[rule.label].append(row)
        pause, problem = _pause(policies, row, clock)
        if pause is not None or problem:
            paused.append({**row, "pause": pause, "problem": problem})
    rules = [
        {
            "label": rule.label,
            "line": min((own.origin.line for own in rule.fields.values()), default=0),
            "fields": [(name, value_text(_plain(own.value))) for name, own in sorted(rule.fields.items())],
            "tables": matched[rule.label][:LISTED],
            "total": len(matched[rule.label]),
        }
        for rule in policies.rules
    ]
    return {
        "title": "Policies",
        "file": policies.source,
        "rules": rules,
        "defaults": [(name, value_text(_plain(own.value)), own.origin.line) for name, own in sorted(policies.defaults.items())],
        "paused": [one for one in paused if one["pause"] is not None],
        "contradictions": [one for one in paused if one["problem"]],
        "refusal": refusal,
    }


def _pause(policies: Policies, row: Row, clock: Clock) -> tuple[Any, str]:
    try:
        own = policies.of(row["base_path"], row["uid"])
    except TidelineError as error:
        return None, str(error)
    pause = own.paused_at(clock.now())
    if pause is None:
        return None, ""
    origin = own.given["pause"].origin
    return {"reason": pause.reason, "until": pause.until, "rule": origin.rule, "line": origin.line}, ""


def _plain(value: Any) -> Any:
    if isinstance(value, tuple) and value and hasattr(value[0], "begins"):
        return [{"from": f"{w.begins:%H:%M}", "to": f"{w.ends:%H:%M}", "time_zone": w.zone.key} for w in value]
    if isinstance(value, tuple):
        return ", ".join(str(one) for one in value)
    if hasattr(value, "reason"):
        return {"reason": value.reason, "until": None if value.until is None else value.until.isoformat()}
    return value
