"""The page of policies: the file with its rules, which tables each matches, pauses, and what is wrong with it."""

from __future__ import annotations

import threading
from datetime import datetime
from typing import Any

from tideline_cli.policy_program import plain_value
from tideline_console.model import ReadModel, Row
from tideline_console.text import policy_text
from tideline_runtime.policy import Policies
from tideline_runtime.policy.resolution import TablePolicy
from tideline_table.clock import Clock
from tideline_table.errors import TidelineError

LISTED = 5
"""Tables that are named beside a rule."""
MOST_CHECKED = 20_000


class Matches:
    """Which rules match which table, found once for each reading of the policy file. Thread-safe."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._policies: Policies | None = None
        self._found: dict[tuple[str, str], tuple[tuple[str, ...], TablePolicy | None, str]] = {}

    def of(self, policies: Policies, rows: list[Row]) -> list[tuple[tuple[str, ...], TablePolicy | None, str]]:
        """Return for each table the labels of its rules, and its policy or why it has none."""
        with self._guard:
            known = self._found if policies is self._policies else {}
            found = {key: known.get(key) or _matched(policies, *key) for key in ((row["base_path"], row["uid"]) for row in rows)}
            self._policies, self._found = policies, found
        return [found[row["base_path"], row["uid"]] for row in rows]


def _matched(policies: Policies, base_path: str, uid: str) -> tuple[tuple[str, ...], TablePolicy | None, str]:
    labels = tuple(rule.label for rule in policies.rules_for(base_path, uid))
    try:
        return labels, policies.of(base_path, uid), ""
    except TidelineError as error:
        return labels, None, str(error)


def policies_context(model: ReadModel, policies: Policies, refusal: str, clock: Clock, matches: Matches) -> dict[str, Any]:
    """Return what the page of policies shows: the policies in force, by the tables that the console knows."""
    rows = model.query("SELECT key, name, folder, base_path, uid FROM tables ORDER BY name, base_path LIMIT ?", MOST_CHECKED)
    matched: dict[str, list[Row]] = {rule.label: [] for rule in policies.rules}
    paused = []
    known, now = rows if policies.rules or policies.defaults or policies.requested else [], clock.now()
    for row, (labels, own, problem) in zip(known, matches.of(policies, known), strict=True):
        for label in labels:
            matched[label].append(row)
        pause = None if own is None else _pause(own, now)
        if pause is not None or problem:
            paused.append({**row, "pause": pause, "problem": problem})
    rules = [
        {
            "label": rule.label,
            "line": min((own.origin.line for own in rule.fields.values()), default=0),
            "fields": [(name, policy_text(name, plain_value(own.value))) for name, own in sorted(rule.fields.items())],
            "tables": matched[rule.label][:LISTED],
            "total": len(matched[rule.label]),
        }
        for rule in policies.rules
    ]
    return {
        "title": "Policies",
        "file": policies.source,
        "rules": rules,
        "defaults": [
            (name, policy_text(name, plain_value(own.value)), own.origin.line) for name, own in sorted(policies.defaults.items())
        ],
        "paused": [one for one in paused if one["pause"] is not None],
        "contradictions": [one for one in paused if one["problem"]],
        "refusal": refusal,
        "resources": [
            {**row, "asks": policies.requested[row["base_path"]]} for row in rows if row["base_path"] in policies.requested
        ],
    }


def _pause(own: TablePolicy, now: datetime) -> dict[str, Any] | None:
    pause = own.paused_at(now)
    if pause is None:
        return None
    origin = own.given["pause"].origin
    return {"reason": pause.reason, "until": pause.until, "rule": origin.rule, "line": origin.line}
