"""The instants that a restore undoes, as its entries list them. They define the timeline files to delete (format reference 6.4)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tideline_table.hudi.format import TableFormat
from tideline_table.hudi.instant import Action, Instant, State

_STATES = (State.COMPLETED, State.INFLIGHT, State.REQUESTED)
_SAVEPOINT_STATES = (State.COMPLETED, State.INFLIGHT)

Named = tuple[str, Action]


@dataclass(frozen=True, slots=True)
class Rewind:
    """All instants newer than a savepoint, newest first."""

    savepoint: str
    undone: tuple[Named, ...]
    """Completed writes: the restore removes the files and replacements that they published."""
    fenced: tuple[Named, ...]
    """Pending writes, plans and rollbacks: they never complete."""
    rollbacks: tuple[Named, ...]
    """Completed rollbacks, whose timeline files are deleted, too."""
    savepoints: tuple[str, ...]
    """Savepoints of undone writes; the restore deletes them."""
    completions: Mapping[str, str] = field(default_factory=dict)
    """Completion times of `undone` and `rollbacks`; empty if the table's names have none."""
    saved: Mapping[str, str] = field(default_factory=dict)
    """Completion times of `savepoints`, too."""

    @property
    def undone_instants(self) -> frozenset[str]:
        """The instants of `undone`."""
        return frozenset(instant for instant, _ in self.undone)

    def timeline_files(self, form: TableFormat) -> tuple[str, ...]:
        """Return the files to delete, newest first, so that a concurrent reader of the timeline sees an earlier state of the table.

        For each instant, the order is: the files of its savepoint, its completed file, its other files.
        """
        gone = [Instant(i, a, s) for i, a in (*self.undone, *self.fenced, *self.rollbacks) for s in _STATES]
        gone += [Instant(i, Action.SAVEPOINT, s) for i in self.savepoints for s in _SAVEPOINT_STATES]
        order = sorted(gone, key=lambda i: (i.time, i.action is Action.SAVEPOINT, -_STATES.index(i.state)), reverse=True)
        return tuple(path for instant in order for path in form.possible_paths(instant, self._completion(instant)))

    def _completion(self, instant: Instant) -> str:
        return (self.saved if instant.action is Action.SAVEPOINT else self.completions).get(instant.time, "")

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form that `from_json` reads."""
        return {
            "savepoint": self.savepoint,
            "undone": _plain(self.undone),
            "fenced": _plain(self.fenced),
            "rollbacks": _plain(self.rollbacks),
            "savepoints": list(self.savepoints),
            **({"completions": dict(self.completions)} if self.completions else {}),
            **({"saved": dict(self.saved)} if self.saved else {}),
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Rewind:
        """Parse the JSON form. Raises `ValueError`, `KeyError` or `TypeError` for a document of another shape."""
        return cls(
            str(document["savepoint"]),
            _named(document["undone"]),
            _named(document["fenced"]),
            _named(document["rollbacks"]),
            tuple(str(instant) for instant in document["savepoints"]),
            _times(document.get("completions", {})),
            _times(document.get("saved", {})),
        )


def _plain(named: Iterable[Named]) -> list[list[str]]:
    return [[instant, action.value] for instant, action in named]


def _named(document: Iterable[Any]) -> tuple[Named, ...]:
    return tuple((str(instant), Action(action)) for instant, action in document)


def _times(document: Mapping[str, Any]) -> dict[str, str]:
    return {str(instant): str(completion) for instant, completion in document.items()}
