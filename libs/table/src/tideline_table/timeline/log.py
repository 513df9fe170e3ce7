"""The table log: one small object per transition, created put-if-absent; the commit point of exclusive tables.

`append` is the only way to change a table. A refused or unanswered put is read back and compared by its random append id, so a
retried put is never mistaken for somebody else's (field notes: "a retried conditional put reads as taken").
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import tenacity

from tideline_table.clock import Clock
from tideline_table.errors import CommitUnknown, CorruptMetadata, ObjectExists, ObjectNotFound, StorageError
from tideline_table.storage import Storage
from tideline_table.timeline.entry import BODY_FOLDER, INLINE_BODY_BYTES, BodyReference, Entry, entry_path
from tideline_table.timeline.files import timeline_files
from tideline_table.timeline.instant import Action, State

HEAL_DEADLINE_S = 60.0
"""A healer slower than this reads the log again and removes what a later entry removed."""
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
        if entry.body_reference is None:
            return entry
        return entry.with_body(self._body(entry.body_reference))

    def after(self, sequence: int) -> Iterator[Entry]:
        """All entries after `sequence`, in order, by GETs of the next one: nothing is listed."""
        while (entry := self.read(sequence + 1)) is not None:
            yield entry
            sequence += 1

    def append(self, draft: Draft, sequence: int) -> Entry | None:
        """Put `draft` at `sequence` if nobody else did. Returns the entry, or None when the place was lost.

        Raises `CommitUnknown` when the outcome cannot be learned even by reading back; the log knows it later.
        """
        body_text = json.dumps(dict(draft.body), ensure_ascii=False).encode()
        reference = self._store_body(body_text) if len(body_text) > INLINE_BODY_BYTES else None
        entry = Entry(
            sequence=sequence,
            append_id=uuid.uuid4().hex,
            recorded=self._clock.now().isoformat(timespec="microseconds"),
            writer_id=self.writer_id,
            instant=draft.instant,
            action=draft.action,
            before=draft.before,
            after=draft.after,
            operation=draft.operation,
            body=draft.body,
            body_reference=reference,
        )
        retrying = tenacity.Retrying(
            stop=tenacity.stop_after_attempt(_READ_BACKS),
            wait=tenacity.wait_exponential_jitter(multiplier=0.02, max=1.0),
            retry=tenacity.retry_if_exception_type(StorageError),
            sleep=self._clock.sleep,
        )
        try:
            return retrying(self._put, entry)
        except tenacity.RetryError as error:
            raise CommitUnknown(
                f"no answer about table log entry {sequence} ({error.last_attempt.exception()})",
                remedy="read the table again: the log knows whether it was written",
            ) from error

    def _put(self, entry: Entry) -> Entry | None:
        try:
            self._storage.put_if_absent(entry.path, entry.to_bytes())
        except ObjectExists:
            # Somebody's entry is there: perhaps ours, from an attempt whose answer got lost.
            found = self.read(entry.sequence)
            if found is None:
                raise StorageError(f"table log entry {entry.sequence} was refused and is not there") from None
            return entry if found.append_id == entry.append_id else None
        return entry

    def materialise(self, entry: Entry) -> None:
        """Make sure that the timeline files of `entry` exist; create-only, harmless to repeat."""
        started = self._clock.monotonic_s()
        files = timeline_files(entry)
        for path in files.delete:
            self._storage.delete(path)
        for path, content in files.create:
            with contextlib.suppress(ObjectExists):
                self._storage.put_if_absent(path, content)
        if self._clock.monotonic_s() - started > HEAL_DEADLINE_S:
            self._withdraw(entry)

    def _withdraw(self, entry: Entry) -> None:
        # So late that another process may have rolled the instant back and removed its files before we created them.
        for later in self.after(entry.sequence):
            if later.action is Action.ROLLBACK and later.after is State.COMPLETED and later.target == entry.instant:
                for path, _ in timeline_files(entry).create:
                    self._storage.delete(path)

    def _store_body(self, text: bytes) -> BodyReference:
        digest = hashlib.sha256(text).hexdigest()
        path = f"{BODY_FOLDER}/{digest}.json"
        with contextlib.suppress(ObjectExists):  # named by its content: the same body is there already
            self._storage.put_if_absent(path, text)
        return BodyReference(path, digest, len(text))

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
            body = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise CorruptMetadata(f"{reference.path} cannot be read ({error})", expected="a body in JSON") from None
        if not isinstance(body, dict):
            raise CorruptMetadata(f"{reference.path} holds a {type(body).__name__}", expected="a JSON object")
        return body


def resequenced(draft: Draft, instant: str) -> Draft:
    """`draft` at another instant: minting starts again when the place in the log was lost."""
    return replace(draft, instant=instant)
