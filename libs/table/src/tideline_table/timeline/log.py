"""The table log: one small object per transition, created put-if-absent; the commit point of exclusive tables.

`append` is the only way to change a table. A refused or unanswered put is read back and compared by its random append id, so a
retried put is never mistaken for somebody else's (field notes: "a retried conditional put reads as taken"). A win at a place that the
log was trimmed past is none (`retention`).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import uuid
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import tenacity

from tideline_table.clock import Clock
from tideline_table.errors import CommitUnknown, CorruptMetadata, ObjectExists, ObjectNotFound, StorageError, StorageRefused
from tideline_table.json_text import parse_json
from tideline_table.storage import Storage, holds
from tideline_table.timeline.entry import BODY_FOLDER, INLINE_BODY_BYTES, BodyReference, Entry, entry_path
from tideline_table.timeline.files import timeline_files, timeline_paths
from tideline_table.timeline.instant import Action, State
from tideline_table.timeline.retention import trimmed_to

_LOGGER = logging.getLogger(__name__)

HEAL_DEADLINE_S = 60.0
"""Who makes timeline files and is slower than this reads the log again and removes what a later entry removed.

What a restore undoes does not come back behind it by a writer that slept. Quicker ones spare the request: what they brought back goes with the
next look of a writer at the timeline.
"""
_READ_BACKS = 5


@dataclass(frozen=True, slots=True)
class Draft:
    """A transition that somebody wants to append; its sequence is decided by the log."""

    instant: str
    action: Action
    before: State
    after: State
    operation: str
    body: Mapping[str, Any]
    writer_id: str = ""
    """Empty: whoever appends it."""


class PlaceTrimmed(Exception):
    """The place of an append lies where the log was trimmed: its writer slept. The checkpoint knows whether `entry` ever counted."""

    def __init__(self, entry: Entry) -> None:
        super().__init__(entry.sequence)
        self.entry = entry


class TableLog:
    """Reads and appends entries of one table."""

    def __init__(self, storage: Storage, clock: Clock, writer_id: str) -> None:
        self._storage = storage
        self._clock = clock
        self.writer_id = writer_id

    def read(self, sequence: int) -> Entry | None:
        """Entry `sequence` with its body, None when the log is not that long."""
        path = entry_path(sequence)
        try:
            entry = Entry.from_bytes(self._storage.read(path), path)
        except ObjectNotFound:
            return None
        if entry.sequence != sequence:
            raise CorruptMetadata(f"table log entry {path} says sequence {entry.sequence}", expected=f"sequence {sequence}")
        return self.completed(entry)

    def completed(self, entry: Entry) -> Entry:
        """`entry` with its body, if it keeps that elsewhere."""
        return entry if entry.body_reference is None else entry.with_body(self._body(entry.body_reference))

    def trimmed_to(self) -> int:
        """The last sequence whose entry may have been deleted, 0 when the log is whole: `read` finds nothing there or what is void."""
        return trimmed_to(self._storage)

    def after(self, sequence: int) -> Iterator[Entry]:
        """All entries after `sequence`, in order, by GETs of the next one: nothing is listed."""
        while (entry := self.read(sequence + 1)) is not None:
            yield entry
            sequence += 1

    def append(self, draft: Draft, sequence: int) -> Entry | None:
        """Put `draft` at `sequence` if nobody else did. Returns the entry, or None when the place was lost.

        Raises `CommitUnknown` when the outcome cannot be learned even by reading back (the log knows it later), `StorageRefused` when the
        store refused the first put and so nothing was written, `PlaceTrimmed` when `sequence` is no longer the head's by far.
        """
        body_text = json.dumps(dict(draft.body), ensure_ascii=False).encode()
        append_id = uuid.uuid4().hex
        reference = self._store_body(body_text, sequence, append_id) if len(body_text) > INLINE_BODY_BYTES else None
        entry = Entry(
            sequence=sequence,
            append_id=append_id,
            recorded=self._clock.now().isoformat(timespec="microseconds"),
            writer_id=draft.writer_id or self.writer_id,
            instant=draft.instant,
            action=draft.action,
            before=draft.before,
            after=draft.after,
            operation=draft.operation,
            body=draft.body,
            body_reference=reference,
        )
        won = self._put_surely(entry)
        if won:
            self._check_place(entry)
            return entry
        if reference is not None:
            self._forget(reference.path)
        return None

    def _put_surely(self, entry: Entry) -> bool:
        retrying = self._retrying()
        try:
            return retrying(self._put, entry)
        except tenacity.RetryError as error:
            raise CommitUnknown(
                f"no answer about table log entry {entry.sequence} ({error.last_attempt.exception()})",
                remedy="read the table again: the log knows whether it was written",
            ) from error
        except StorageRefused as error:
            if retrying.statistics["attempt_number"] == 1:
                raise
            raise CommitUnknown(
                f"no answer about table log entry {entry.sequence}, then a refusal ({error})",
                remedy="read the table again: the log knows whether it was written",
            ) from error

    def _put(self, entry: Entry) -> bool:
        try:
            self._storage.put_if_absent(entry.path, entry.to_bytes())
        except ObjectExists:
            # Somebody's entry is there: perhaps ours, from an attempt whose answer got lost.
            found = self.read(entry.sequence)
            if found is None:
                raise StorageError(f"table log entry {entry.sequence} was refused and is not there") from None
            return found.append_id == entry.append_id
        return True

    def _check_place(self, entry: Entry) -> None:
        """Raise `PlaceTrimmed` when the put went through because the entry that stood there was deleted."""
        try:
            floor = self._retrying()(self.trimmed_to)
        except (tenacity.RetryError, StorageRefused) as error:
            raise CommitUnknown(
                f"table log entry {entry.sequence} was written, whether at the head is unknown",
                remedy="read the table again: the log knows",
            ) from error
        if floor < entry.sequence:
            return
        self._forget(entry.path)
        if entry.body_reference is not None:
            self._forget(entry.body_reference.path)
        raise PlaceTrimmed(entry)

    def _retrying(self) -> tenacity.Retrying:
        return tenacity.Retrying(
            stop=tenacity.stop_after_attempt(_READ_BACKS),
            wait=tenacity.wait_exponential_jitter(multiplier=0.02, max=1.0),
            retry=tenacity.retry_if_exception(_may_pass),
            sleep=self._clock.sleep,
        )

    def _forget(self, path: str) -> None:
        try:
            self._storage.delete(path)
        except StorageError as error:
            _LOGGER.warning("%s stays behind, void: %s", path, error)

    def materialise(self, entry: Entry) -> None:
        """Make sure that the timeline files of `entry` exist; create-only, harmless to repeat.

        Those of a savepoint may be deleted and made again under the same names: then what its latest entry says counts.
        """
        if entry.action is Action.SAVEPOINT:
            self._settle_savepoint(entry)
            return
        started = self._clock.monotonic_s()
        files = timeline_files(entry)
        for path in files.delete:
            self._storage.delete(path)
        created = False
        try:
            for path, content in files.create:
                with contextlib.suppress(ObjectExists):
                    self._storage.put_if_absent(path, content)
                    created = True
        except StorageError:
            # Some are there, and of the one that failed nobody knows.
            self._look_behind(entry, started, created=True)
            raise
        self._look_behind(entry, started, created=created)

    def _look_behind(self, entry: Entry, started_s: float, *, created: bool) -> None:
        # A begun instant may have been rolled back while we were on our way here, however short that was: its files would come back. A completed
        # one only a restore takes back. Its writer may have slept on the way from the log to here, so the age of the entry counts, too.
        age_s = (self._clock.now() - datetime.fromisoformat(entry.recorded)).total_seconds()
        late = max(self._clock.monotonic_s() - started_s, age_s) > HEAL_DEADLINE_S
        if late or (created and entry.after is not State.COMPLETED):
            self._withdraw(entry)

    def _withdraw(self, entry: Entry) -> None:
        # Another process may have rolled the instant back and removed its files before we created them.
        own, gone = set(timeline_paths(entry).create), set[str]()
        for later in self.after(entry.sequence):
            files = timeline_paths(later)
            gone = (gone | own.intersection(files.delete)).difference(files.create)
        for path in sorted(gone):
            self._storage.delete(path)

    def _settle_savepoint(self, entry: Entry) -> None:
        """Do what the latest entry says that names the files of this savepoint, until the log says nothing newer."""
        files = timeline_paths(entry)
        own = {*files.create, *files.delete}
        done, failure = 0, None
        while (latest := self._latest_of(own, entry)).sequence != done:
            try:
                self._hold(own, latest)
                failure = None
            except StorageError as error:
                # Some are there, and of the one that failed nobody knows: who deletes it has to be followed all the same.
                failure = error
            done = latest.sequence
        if failure is not None:
            raise failure

    def _latest_of(self, own: AbstractSet[str], entry: Entry) -> Entry:
        latest = entry
        for later in self.after(entry.sequence):
            files = timeline_paths(later)
            if not own.isdisjoint((*files.create, *files.delete)):
                latest = later
        return latest

    def _hold(self, own: AbstractSet[str], entry: Entry) -> None:
        files = timeline_files(entry)
        for path in files.delete:
            if path in own:
                self._storage.delete(path)
        for path, content in files.create:
            if path not in own:
                continue
            try:
                self._storage.put_if_absent(path, content)
            except ObjectExists:
                if not holds(self._storage, path, content):
                    # Of an earlier one. Nothing is written over: from somebody who died it could come behind all this.
                    self._storage.delete(path)
                    with contextlib.suppress(ObjectExists):
                        self._storage.put_if_absent(path, content)

    def _store_body(self, text: bytes, sequence: int, append_id: str) -> BodyReference:
        # Of one entry alone, and named by its place: it goes when the log is trimmed past it.
        path = f"{BODY_FOLDER}/{sequence:020d}-{append_id}.json"
        self._storage.put(path, text)
        return BodyReference(path, hashlib.sha256(text).hexdigest(), len(text))

    def _body(self, reference: BodyReference) -> dict[str, Any]:
        try:
            text = self._storage.read(reference.path)
        except ObjectNotFound:
            # Its own error: a writer takes a missing object for a cleaned base file and would try for ever.
            raise CorruptMetadata(
                f"{reference.path} is missing", expected="the body that a table log entry names", remedy="restore the file"
            ) from None
        if hashlib.sha256(text).hexdigest() != reference.sha256:
            raise CorruptMetadata(
                f"{reference.path} does not have the hash {reference.sha256}", expected="the body that its entry names"
            )
        try:
            body = parse_json(text)
        except (ValueError, RecursionError) as error:
            raise CorruptMetadata(f"{reference.path} cannot be read ({error})", expected="a body in JSON") from None
        if not isinstance(body, dict):
            raise CorruptMetadata(f"{reference.path} holds a {type(body).__name__}", expected="a JSON object")
        return body


def _may_pass(error: BaseException) -> bool:
    return isinstance(error, StorageError) and not isinstance(error, StorageRefused)
