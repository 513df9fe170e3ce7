"""State of a Hudi-written table, as the log entry that adopts the table holds it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tideline_table.file_group.slice import FileGroupId, FileSlice
from tideline_table.hudi.instant import Action, State
from tideline_table.log.plan import Plan, parse_plan
from tideline_table.log.progress import Progress, progress_from, progress_json

AdoptedAction = tuple[str, str, str, str, str]
"""Instant, action, state, operation, time of the completion (ISO 8601)."""
Slices = Mapping[FileGroupId, Mapping[str, FileSlice]]
"""File group → base instant → slice."""


@dataclass(frozen=True, slots=True)
class AdoptedTable:
    """File groups and actions of the active timeline. Writes that were archived earlier are known by their files only."""

    actions: tuple[AdoptedAction, ...]
    slices: Slices
    replaced: Mapping[FileGroupId, str]
    plans: Mapping[str, Plan]
    schema_json: str
    last_clean_retained: str
    archived_before: str
    whole_since: str = ""
    progress: Mapping[str, Progress] = field(default_factory=dict)
    """Ingestion progress from earlier commits, made while the table had a table log before."""
    completions: Mapping[str, str] = field(default_factory=dict)
    """Completion times of completed actions as the timeline names them; empty if the table's names have none."""

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form that the body of the entry holds."""
        return {
            "actions": [list(action) for action in self.actions],
            "slices": slices_json(self.slices),
            "replaced": [[*group, instant] for group, instant in self.replaced.items()],
            "plans": {instant: plan.to_json() for instant, plan in self.plans.items()},
            "schema": self.schema_json,
            "last_clean_retained": self.last_clean_retained,
            "archived_before": self.archived_before,
            "whole_since": self.whole_since,
            "progress": progress_json(self.progress),
            **({"completions": dict(self.completions)} if self.completions else {}),
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> AdoptedTable:
        """Parse the JSON form. Raises `KeyError`, `TypeError` or `ValueError` for a document of another shape."""
        actions = tuple(_action(fields) for fields in document["actions"])
        kinds = {instant: Action(action) for instant, action, *_ in actions}
        return cls(
            actions=actions,
            slices=slices_from(document["slices"]),
            replaced={FileGroupId(str(p), str(f)): str(instant) for p, f, instant in document["replaced"]},
            plans={str(instant): parse_plan(kinds[instant], body) for instant, body in document["plans"].items()},
            schema_json=str(document["schema"]),
            last_clean_retained=str(document["last_clean_retained"]),
            archived_before=str(document["archived_before"]),
            whole_since=str(document.get("whole_since", "")),
            progress=progress_from(document.get("progress", {})),
            completions={str(instant): str(at) for instant, at in document.get("completions", {}).items()},
        )


def _action(fields: Iterable[Any]) -> AdoptedAction:
    instant, action, state, operation, since = map(str, fields)
    return instant, Action(action).value, State(state).value, operation, since


def slices_json(slices: Slices) -> list[object]:
    """Return the JSON form of file slices in entries and checkpoints. `slices_from` parses it."""
    return [[*group, [s.to_list() for s in by_instant.values()]] for group, by_instant in slices.items()]


def slices_from(rows: Iterable[Any]) -> dict[FileGroupId, dict[str, FileSlice]]:
    """Parse the output of `slices_json`."""
    groups = ((FileGroupId(str(partition), str(file_id)), slices) for partition, file_id, slices in rows)
    return {group: {str(fields[0]): FileSlice.from_list(group, fields) for fields in slices} for group, slices in groups}
