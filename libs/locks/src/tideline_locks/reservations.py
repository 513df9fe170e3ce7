"""File-group reservations on storage or in one process: writers of one table post the file groups that they will write.

A reservation expires after `EXPIRY_S`, which removes those of dead writers. Two concurrent claims may both succeed; then one writer
loses its attempt. Paths and keys have the older word `intents`, because writers of all releases read them.
"""

# ruff: noqa: D102 - the port documents these methods

from __future__ import annotations

import json
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable
from datetime import timedelta

from tideline_table.clock import Clock
from tideline_table.coordination import PostedReservation, Reservation, going_first
from tideline_table.errors import CorruptMetadata, ObjectNotFound
from tideline_table.storage import Storage

EXPIRY_S = 3600.0
RESERVATIONS_PREFIX = ".hoodie/.tideline/intents"


class TextReservations(ABC):
    """`Reservations` on a store with one text per instant."""

    def claim(self, reservation: Reservation) -> list[Reservation]:
        first = going_first(reservation, self._posted(reservation.instant))
        self._post(PostedReservation(reservation, is_active=not first))
        return first

    @abstractmethod
    def withdraw(self, instant: str) -> None:
        """See `Reservations.withdraw`."""

    def posted(self) -> list[PostedReservation]:
        return list(self._posted(""))

    @abstractmethod
    def _posted(self, instant: str) -> Iterable[PostedReservation]:
        """Return the unexpired reservations of all instants except `instant`."""

    @abstractmethod
    def _post(self, posted: PostedReservation) -> None: ...


class InProcessReservations(TextReservations):
    """Reservations of the writers in one process, which share this object. They are lost when the process ends."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._by_instant: dict[str, PostedReservation] = {}

    def claim(self, reservation: Reservation) -> list[Reservation]:
        with self._guard:
            return super().claim(reservation)

    def withdraw(self, instant: str) -> None:
        with self._guard:
            self._by_instant.pop(instant, None)

    def posted(self) -> list[PostedReservation]:
        with self._guard:
            return super().posted()

    def _posted(self, instant: str) -> Iterable[PostedReservation]:
        return [posted for other, posted in self._by_instant.items() if other != instant]

    def _post(self, posted: PostedReservation) -> None:
        self._by_instant[posted.reservation.instant] = posted


class StorageReservations(TextReservations):
    """One object per reservation below the table: `.hoodie/.tideline/intents/<instant>.json`."""

    def __init__(self, storage: Storage, clock: Clock) -> None:
        self._storage = storage
        self._clock = clock

    def withdraw(self, instant: str) -> None:
        self._storage.delete(_path(instant))

    def _posted(self, instant: str) -> Iterable[PostedReservation]:
        oldest = self._clock.now() - timedelta(seconds=EXPIRY_S)
        for found in self._storage.list_folder(RESERVATIONS_PREFIX).objects:
            if found.modified < oldest:
                self._storage.delete(found.path)
            elif found.path != _path(instant):
                try:
                    yield from_text(self._storage.read(found.path), found.path)
                except ObjectNotFound:
                    continue  # withdrawn in the meantime

    def _post(self, posted: PostedReservation) -> None:
        self._storage.put(_path(posted.reservation.instant), to_text(posted).encode())


def _path(instant: str) -> str:
    return f"{RESERVATIONS_PREFIX}/{instant}.json"


def to_text(posted: PostedReservation) -> str:
    """Return what a store keeps of a reservation."""
    reservation = posted.reservation
    return json.dumps(
        {
            "instant": reservation.instant,
            "groups": sorted(reservation.groups),
            "appends": sorted(reservation.appends),
            "whole_table": reservation.is_whole_table,
            "priority": reservation.has_priority,
            "active": posted.is_active,
        }
    )


def from_text(text: bytes, place: str) -> PostedReservation:
    """Return the reservation that a store keeps at `place`. Raises `CorruptMetadata` for anything else."""
    try:
        found = json.loads(text)
        # Writers of older releases write neither `appends` nor `whole_table`.
        groups, appends = (frozenset(map(str, named)) for named in (found["groups"], found.get("appends", ())))
        reservation = Reservation(str(found["instant"]), groups, bool(found["priority"]), appends, bool(found.get("whole_table")))
        return PostedReservation(reservation, bool(found["active"]))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CorruptMetadata(
            f"{place} is not a file-group reservation ({error})", expected="the JSON object that a writer posts", remedy="delete it"
        ) from None
