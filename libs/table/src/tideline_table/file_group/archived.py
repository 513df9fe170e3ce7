"""What an archival takes off the active timeline, as its plan and its completion say it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tideline_table.timeline.entry import Entry
from tideline_table.timeline.instant import Action, State


@dataclass(frozen=True, slots=True)
class ArchivedInstants:
    """Instants that leave the timeline, in order; rolled-back ones, which have no timeline files any more, are forgotten with them."""

    instants: tuple[str, ...]
    before: str
    """Where the active timeline begins then: its first completed write. All of `instants` are older."""

    def to_json(self) -> dict[str, Any]:
        """The body that `from_json` reads."""
        return {"instants": list(self.instants), "before": self.before}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> ArchivedInstants:
        """Raises what a document of another shape raises (`ValueError`, `KeyError`, `TypeError`)."""
        found = cls(tuple(str(instant) for instant in document["instants"]), str(document["before"]))
        if any(instant >= found.before for instant in found.instants):
            raise ValueError(f"instants that are not older than {found.before}")
        return found


def archived_by(entry: Entry) -> frozenset[str]:
    """The instants that left the timeline with `entry`."""
    if entry.action is not Action.ARCHIVAL or entry.after is not State.COMPLETED:
        return frozenset()
    return frozenset(ArchivedInstants.from_json(entry.body["metadata"]).instants)
