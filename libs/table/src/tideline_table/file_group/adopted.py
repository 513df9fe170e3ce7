"""The state of a table that others had made, as the log entry holds it with which Tideline came in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tideline_table.file_group.savepoint import progress_from, progress_json
from tideline_table.file_group.slice import FileGroupId, FileSlice
from tideline_table.timeline.instant import Action, State
from tideline_table.timeline.progress import Progress

AdoptedAction = tuple[str, str, str, str, str]
"""Instant, action, state, operation, and when it completed."""


@dataclass(frozen=True, slots=True)
class AdoptedTable:
    """File groups and actions of the active timeline; what was archived before is known by its files only."""

    actions: tuple[AdoptedAction, ...]
    slices: Mapping[FileGroupId, dict[str, FileSlice]]
    replaced: Mapping[FileGroupId, str]
    plans: Mapping[str, Mapping[str, Any]]
    schema_json: str
    last_clean_retained: str
    archived_before: str
    whole_since: str = ""
    progress: Mapping[str, Progress] = field(default_factory=dict)
    """Of those who fed the table while it had a log before."""

    def to_json(self) -> dict[str, Any]:
        """As the entry's body keeps it."""
        return {
            "actions": [list(action) for action in self.actions],
            "slices": [[*group, [s.to_list() for s in slices.values()]] for group, slices in self.slices.items()],
            "replaced": [[*group, instant] for group, instant in self.replaced.items()],
            "plans": dict(self.plans),
            "schema": self.schema_json,
            "last_clean_retained": self.last_clean_retained,
            "archived_before": self.archived_before,
            "whole_since": self.whole_since,
            "progress": progress_json(self.progress),
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> AdoptedTable:
        """Raises what a document of another shape raises: `KeyError`, `TypeError`, `ValueError`."""
        return cls(
            actions=tuple(_action(fields) for fields in document["actions"]),
            slices=dict(_group(*fields) for fields in document["slices"]),
            replaced={FileGroupId(str(p), str(f)): str(instant) for p, f, instant in document["replaced"]},
            plans={str(instant): dict(body) for instant, body in document["plans"].items()},
            schema_json=str(document["schema"]),
            last_clean_retained=str(document["last_clean_retained"]),
            archived_before=str(document["archived_before"]),
            whole_since=str(document.get("whole_since", "")),
            progress=progress_from(document.get("progress", {})),
        )


def _action(fields: Iterable[Any]) -> AdoptedAction:
    instant, action, state, operation, since = map(str, fields)
    return instant, Action(action).value, State(state).value, operation, since


def _group(partition: str, file_id: str, slices: Iterable[Any]) -> tuple[FileGroupId, dict[str, FileSlice]]:
    group = FileGroupId(str(partition), str(file_id))
    return group, {str(fields[0]): FileSlice.from_list(group, fields) for fields in slices}
