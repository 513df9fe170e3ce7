"""The table log: one small object per transition, created by put-if-absent. An append is the commit point of exclusive tables.

`append` is the only way to change a table. If a put is refused or gets no reply, the writer reads the object back and compares its
random append id to recognise its own retried put (field notes: "a retried conditional put reads as taken"). An append at a sequence
that was trimmed already does not count (`retention`).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import uuid
from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import tenacity

from tideline_table.clock import Clock
from tideline_table.errors import (
    RESTORE_FILE,
    CommitUnknown,
    CorruptMetadata,
    ObjectExists,
    ObjectNotFound,
    StorageError,
    StorageFull,
    StorageRefused,
    UnsupportedTable,
    parsing,
)
from tideline_table.hudi.format import TableFormat
from tideline_table.hudi.instant import Action, Named, State
from tideline_table.json_text import parse_json
from tideline_table.log.body import Bare, Body, parse_body
from tideline_table.log.entry import BODY_FOLDER, INLINE_BODY_BYTES, BodyReference, Entry, entry_path
from tideline_table.log.retention import trimmed_to
from tideline_table.log.timeline_files import timeline_files, timeline_paths
from tideline_table.storage import Storage, exists, holds

_LOGGER = logging.getLogger(__name__)

HEAL_DEADLINE_S = 60.0
"""A writer that takes longer than this to create timeline files reads the log again and deletes files that a later entry deleted.

So a suspended writer does not bring back files that a restore deleted. A faster writer saves the request: the next writer that
reads the timeline deletes such files.
"""
_READ_BACKS = 5


@dataclass(frozen=True, slots=True)
class Draft(Named):
    """A transition to append. The log decides its sequence."""

    instant: str
    action: Action
    before: State
    after: State
    operation: str
    body: Body
    writer_id: str = ""
    """Empty: the writer id of the `TableLog` that appends it."""
    completion: str = ""
    """As of `Entry`; the timeline sets it when it appends."""

    def entry(
        self,
        sequence: int,
        recorded: datetime,
        append_id: str = "",
        writer_id: str = "",
        body_reference: BodyReference | None = None,
    ) -> Entry:
        """Return the entry that this draft becomes at `sequence`; `writer_id` counts if the draft has none."""
        return Entry(
            sequence=sequence,
            append_id=append_id,
            recorded=recorded.isoformat(timespec="microseconds"),
            writer_id=self.writer_id or writer_id,
            instant=self.instant,
            action=self.action,
            before=self.before,
            after=self.after,
            operation=self.operation,
            body=self.body,
            body_reference=body_reference,
            completion=self.completion,
        )


class PlaceTrimmed(Exception):
    """The sequence of an append was trimmed while its writer was suspended. The checkpoint shows whether `entry` took effect."""

    def __init__(self, entry: Entry) -> None:
        super().__init__(entry.sequence)
        self.entry = entry


class LogReader:
    """Reader of the log entries of one table."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def read(self, sequence: int) -> Entry | None:
        """Return entry `sequence` with its body, or None if there is no such entry. Raises `CorruptMetadata` if it is malformed."""
        path = entry_path(sequence)
        try:
            entry = Entry.from_bytes(self._storage.read(path), path)
        except ObjectNotFound:
            return None
        if entry.sequence != sequence:
            raise CorruptMetadata(f"table log entry {path} names sequence {entry.sequence}", expected=f"sequence {sequence}")
        return self.completed(entry)

    def holds(self, sequence: int) -> bool:
        """Return whether there is an entry `sequence`. One request."""
        return exists(self._storage, entry_path(sequence))

    def completed(self, entry: Entry) -> Entry:
        """Return `entry` with its body, which is read from storage if the entry only refers to it."""
        return entry if entry.body_reference is None else entry.with_body(self._body(entry.body_reference))

    def trimmed_to(self) -> int:
        """Return the last sequence that may have been deleted, 0 if the log is complete. Entries found up to it are void."""
        return trimmed_to(self._storage)

    def after(self, sequence: int) -> Iterator[Entry]:
        """Yield all entries after `sequence`, in order. Costs one GET per entry and no listing."""
        while (entry := self.read(sequence + 1)) is not None:
            yield entry
            sequence += 1

    def _body(self, reference: BodyReference) -> Any:
        try:
            text = self._storage.read(reference.path)
        except ObjectNotFound:
            # Not `ObjectNotFound`: a writer takes that for a cleaned base file and would retry forever.
            raise _no_body(f"{reference.path} is missing") from None
        if hashlib.sha256(text).hexdigest() != reference.sha256:
            raise _no_body(f"{reference.path} does not have the hash {reference.sha256}")
        with parsing(reference.path, "a body in JSON"):
            return parse_json(text)


class TableLog(LogReader):
    """Reader and appender of the log entries of one table."""

    def __init__(self, storage: Storage, clock: Clock, writer_id: str, form: TableFormat) -> None:
        super().__init__(storage)
        self.format = form
        self._clock = clock
        self.writer_id = writer_id

    def append(self, draft: Draft, sequence: int) -> Entry | None:
        """Append `draft` at `sequence`. Return the entry, or None if another writer's entry has that sequence.

        Raises `CommitUnknown` if the outcome is unknown even after reading back (a later read of the log shows it), `StorageError`
        if no put can have taken effect, and `PlaceTrimmed` if the log was trimmed past `sequence`.
        A `KeyError` says that a transition of this action needs a body: nothing was changed.
        """
        body = draft.body.to_json()
        if isinstance(draft.body, Bare):
            parse_body(draft.action, draft.after, body)  # fails here rather than in every later reader
        body_text = json.dumps(body, ensure_ascii=False).encode()
        append_id = uuid.uuid4().hex
        reference = self._store_body(body_text, sequence, append_id) if len(body_text) > INLINE_BODY_BYTES else None
        entry = draft.entry(sequence, self._clock.now(), append_id, self.writer_id, reference)
        try:
            won = self._put_surely(entry, entry.to_bytes(body))
        except StorageError:
            if reference is not None:
                self._forget(reference.path)
            raise
        if won:
            self._check_place(entry)
            return entry
        if reference is not None:
            self._forget(reference.path)
        return None

    def _put_surely(self, entry: Entry, content: bytes) -> bool:
        unanswered = False

        def put() -> bool:
            nonlocal unanswered
            try:
                return self._put(entry, content)
            except StorageError as error:
                unanswered |= not error.changed_nothing
                raise

        try:
            return self._retrying()(put)
        except StorageError as error:
            if not unanswered:
                raise
            raise CommitUnknown(
                f"storage did not confirm table log entry {entry.sequence} ({error})",
                remedy="read the table again: the table log shows whether the entry exists",
            ) from error

    def _put(self, entry: Entry, content: bytes) -> bool:
        try:
            self._storage.put_if_absent(entry.path, content)
        except (ObjectExists, StorageFull) as error:
            # The entry may be from an earlier attempt of this writer, or of its object store client, whose reply was lost.
            found = self.read(entry.sequence)
            if found is None and isinstance(error, StorageFull):
                raise
            if found is None:
                raise StorageError(
                    f"storage refused to create {entry.path} because it exists, but cannot read it",
                    expected="a store whose reads show every object that it has accepted",
                    remedy="retry; if it happens again, check the store for reads that lag behind writes",
                ) from None
            return found.append_id == entry.append_id
        return True

    def _check_place(self, entry: Entry) -> None:
        """Raise `PlaceTrimmed` if the put succeeded only because the earlier entry with this sequence was trimmed."""
        try:
            floor = self._retrying()(self.trimmed_to)
        except StorageError as error:
            raise CommitUnknown(
                f"table log entry {entry.sequence} was written, but the log may have been trimmed past it",
                remedy="read the table again: the table log shows the outcome",
            ) from error
        if floor < entry.sequence:
            return
        self.forget(entry)
        raise PlaceTrimmed(entry)

    def forget(self, entry: Entry) -> None:
        """Delete an entry of this process that is void. A failure is a warning."""
        self._forget(entry.path)
        if entry.body_reference is not None:
            self._forget(entry.body_reference.path)

    def forget_late(self, entry: Entry) -> None:
        """Delete an entry of this process that came after its log was removed, unless another log has its place by now."""
        try:
            is_own = Entry.from_bytes(self._storage.read(entry.path), entry.path).append_id == entry.append_id
        except (CorruptMetadata, ObjectNotFound, UnsupportedTable):
            return
        if is_own:
            self.forget(entry)

    def _retrying(self) -> tenacity.Retrying:
        return tenacity.Retrying(
            stop=tenacity.stop_after_attempt(_READ_BACKS),
            wait=tenacity.wait_exponential_jitter(multiplier=0.02, max=1.0),
            retry=tenacity.retry_if_exception(_may_pass),
            sleep=self._clock.sleep,
            reraise=True,
        )

    def _forget(self, path: str) -> None:
        try:
            self._storage.delete(path)
        except StorageError as error:
            _LOGGER.warning("void object %s was not deleted: %s", path, error)

    def materialise(self, entry: Entry, before_files: Callable[[], None] = lambda: None) -> None:
        """Create the missing timeline files of `entry` and delete those that it removes. Idempotent.

        `before_files` is called after files were deleted and before others are created: as soon as these exist, the entry has
        everything that readers need.

        Savepoint files may be deleted and created again under the same names, so the latest entry of the savepoint decides.
        """
        if entry.action is Action.SAVEPOINT:
            self._settle_savepoint(entry)
            return
        started = self._clock.monotonic_s()
        files = timeline_files(entry, self.format)
        for path in files.delete:
            self._storage.delete(path)
        before_files()
        created = False
        try:
            for path, content in files.create:
                with contextlib.suppress(ObjectExists):
                    self._storage.put_if_absent(path, content)
                    created = True
        except StorageError:
            # Some files were created, and the failed put may have taken effect.
            self._look_behind(entry, started, created=True)
            raise
        self._look_behind(entry, started, created=created)

    def _look_behind(self, entry: Entry, started_s: float, *, created: bool) -> None:
        # Another process may have rolled back a pending instant before its files were created here. A completed instant is undone
        # only by a restore, so it is checked only when late. The age of the entry covers a suspension between the append and this
        # call. `abs`, because clocks that differ give a negative age.
        age_s = abs((self._clock.now() - datetime.fromisoformat(entry.recorded)).total_seconds())
        late = max(self._clock.monotonic_s() - started_s, age_s) > HEAL_DEADLINE_S
        if late or (created and entry.after is not State.COMPLETED):
            self._withdraw(entry)

    def _withdraw(self, entry: Entry) -> None:
        # Another process may have rolled back the instant and deleted its files before this process created them.
        own, gone = set(timeline_paths(entry, self.format).create), set[str]()
        for later in self.after(entry.sequence):
            files = timeline_paths(later, self.format)
            gone = (gone | own.intersection(files.delete)).difference(files.create)
        for path in sorted(gone):
            self._storage.delete(path)

    def _settle_savepoint(self, entry: Entry) -> None:
        """Apply the latest entry that names the files of this savepoint, and repeat until the log has no newer one."""
        files = timeline_paths(entry, self.format)
        own = {*files.create, *files.delete}
        done, failure = 0, None
        while (latest := self._latest_of(own, entry)).sequence != done:
            try:
                self._hold(own, latest)
                failure = None
            except StorageError as error:
                # Some files were created, and the failed put may have taken effect, so a later deletion must still be applied.
                failure = error
            done = latest.sequence
        if failure is not None:
            raise failure

    def _latest_of(self, own: AbstractSet[str], entry: Entry) -> Entry:
        latest = entry
        for later in self.after(entry.sequence):
            files = timeline_paths(later, self.format)
            if not own.isdisjoint((*files.create, *files.delete)):
                latest = later
        return latest

    def _hold(self, own: AbstractSet[str], entry: Entry) -> None:
        files = timeline_files(entry, self.format)
        # A completed file of an earlier savepoint of this write has another name, where names have completion times.
        others = own - {*files.delete, *(name for name, _ in files.create)}
        for path in (*files.delete, *sorted(others)):
            if path in own:
                self._storage.delete(path)
        for path, content in files.create:
            if path not in own:
                continue
            try:
                self._storage.put_if_absent(path, content)
            except ObjectExists:
                if not holds(self._storage, path, content):
                    # The file is of an earlier savepoint. Never overwrite: a late put of a dead writer could replace newer content.
                    self._storage.delete(path)
                    with contextlib.suppress(ObjectExists):
                        self._storage.put_if_absent(path, content)

    def _store_body(self, text: bytes, sequence: int, append_id: str) -> BodyReference:
        # A body belongs to one entry and has its sequence in the name, so that trimming can delete both.
        path = f"{BODY_FOLDER}/{sequence:020d}-{append_id}.json"
        self._storage.put(path, text)
        return BodyReference(path, hashlib.sha256(text).hexdigest(), len(text))


def _no_body(found: str) -> CorruptMetadata:
    return CorruptMetadata(found, expected="the body that a table log entry names", remedy=RESTORE_FILE)


def _may_pass(error: BaseException) -> bool:
    return isinstance(error, StorageError) and not isinstance(error, StorageRefused)
