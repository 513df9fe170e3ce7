"""What a restore takes back, as its entries say it; the timeline files that go follow from that alone (format reference 6.4)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tideline_table.timeline.instant import Action, Instant, State, timeline_file_name

REWIND_KEY = "rewind"
"""In the body of the requested and of the first inflight entry of a restore."""
_STATES = (State.COMPLETED, State.INFLIGHT, State.REQUESTED)
_SAVEPOINT_STATES = (State.COMPLETED, State.INFLIGHT)

Named = tuple[str, Action]


@dataclass(frozen=True, slots=True)
class Rewind:
    """Everything newer than a savepoint, newest first."""

    savepoint: str
    undone: tuple[Named, ...]
    """Completed writes: what they published is gone."""
    fenced: tuple[Named, ...]
    """Pending writes, plans and rollbacks: they never complete."""
    rollbacks: tuple[Named, ...]
    """Completed rollbacks, of which nothing is left to tell."""
    savepoints: tuple[str, ...]
    """Savepoints of undone writes."""

    @property
    def undone_instants(self) -> frozenset[str]:
        """The instants of `undone`."""
        return frozenset(instant for instant, _ in self.undone)

    def timeline_files(self) -> tuple[str, ...]:
        """The files to delete: newest first, so that whoever reads the timeline meanwhile sees the table as it was at some time.

        The completed file of an instant goes first, its savepoint's before it.
        """
        gone = [Instant(i, a, s) for i, a in (*self.undone, *self.fenced, *self.rollbacks) for s in _STATES]
        gone += [Instant(i, Action.SAVEPOINT, s) for i in self.savepoints for s in _SAVEPOINT_STATES]
        order = sorted(gone, key=lambda i: (i.time, i.action is Action.SAVEPOINT, -_STATES.index(i.state)), reverse=True)
        return tuple(f".hoodie/{timeline_file_name(instant)}" for instant in order)

    def to_json(self) -> dict[str, Any]:
        """The document that `from_json` reads."""
        return {
            "savepoint": self.savepoint,
            "undone": _plain(self.undone),
            "fenced": _plain(self.fenced),
            "rollbacks": _plain(self.rollbacks),
            "savepoints": list(self.savepoints),
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Rewind:
        """Raises what a document of another shape raises (`ValueError`, `KeyError`, `TypeError`)."""
        return cls(
            str(document["savepoint"]),
            _named(document["undone"]),
            _named(document["fenced"]),
            _named(document["rollbacks"]),
            tuple(str(instant) for instant in document["savepoints"]),
        )


def _plain(named: Iterable[Named]) -> list[list[str]]:
    return [[instant, action.value] for instant, action in named]


def _named(document: Iterable[Any]) -> tuple[Named, ...]:
    return tuple((str(instant), Action(action)) for instant, action in document)
