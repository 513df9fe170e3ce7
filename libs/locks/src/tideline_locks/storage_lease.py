"""Locks on storage alone: lease epochs as objects, created put-if-absent.

`<prefix>/<name>/<20-digit epoch>.json`: the object of the highest epoch is the state of the lock. Whoever changes the state reads the
highest epoch e, decides, and creates e + 1; of many racing callers one wins. Epochs are deleted behind, never the newest `KEPT_EPOCHS`.
So a put may land on an epoch that had been there and was deleted; whoever put re-lists, and a win counts only if the highest epoch is
still less than `KEPT_EPOCHS` ahead: then nobody can have deleted that name before.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tideline_locks.attempting import AttemptingProvider
from tideline_locks.errors import LockUnreachable, StaleFence
from tideline_locks.lease import Grant, Lease
from tideline_locks.lease_object import LeaseObject, epoch_of, epoch_path, folder_path, lock_name
from tideline_locks.port import LOCK_NAME, Held, LeaseRequest, LeaseState, checked_name
from tideline_locks.rules import LeaseRecord, Stale, Standing, decide_acquire, decide_break, decide_release, decide_renew
from tideline_locks.waiting import Backoff, Chance
from tideline_table.clock import Clock
from tideline_table.errors import ObjectExists, ObjectNotFound, StorageError
from tideline_table.storage import Storage

_log = logging.getLogger(__name__)

LOCKS_PREFIX = ".hoodie/.tideline/locks"
"""Below a name that every Hudi reader ignores, so that locks may live under a table's own base path."""

KEPT_EPOCHS = 16
PUT_ATTEMPTS = 3
RACE_ATTEMPTS = 32
BACKOFF = Backoff(first_s=0.02, cap_s=1.0)


@dataclass(frozen=True, slots=True)
class _Head:
    """The highest epoch and its object; epoch 0 and None before the first lease."""

    epoch: int
    record: LeaseRecord | None


class StorageLockProvider(AttemptingProvider):
    """`LockProvider` on a `Storage`. Waiters are not served in order of arrival.

    Expiry is judged by the injected wall clock; others grant a holder's clock `skew_allowance_s`. An epoch that this provider saw
    unchanged for its whole ttl + allowance has expired whatever the clock of its holder said.
    """

    def __init__(
        self,
        storage: Storage,
        *,
        clock: Clock,
        prefix: str = LOCKS_PREFIX,
        skew_allowance_s: float = 2.0,
        chance: Chance | None = None,
    ) -> None:
        super().__init__(clock, chance, BACKOFF)
        self._storage = storage
        self._prefix = prefix
        self._skew_allowance_s = skew_allowance_s
        self._guard = threading.Lock()
        self._first_seen: dict[str, tuple[int, float]] = {}

    def read(self, name: str) -> LeaseState | None:
        """See `LockProvider.read`."""
        with _translated(f"reading lock {checked_name(name)!r}"):
            head = self._head(name)
        return head.record.state(name, expired=self._expired(name, head)) if head.record else None

    def list(self, prefix: str = "") -> list[LeaseState]:
        """See `LockProvider.list`. One listing and one read per lock."""
        with _translated("listing locks"):
            folders = self._storage.list_folder(self._prefix).folders
        names = sorted(n for n in map(lock_name, folders) if n.startswith(prefix) and LOCK_NAME.fullmatch(n))
        return [state for name in names if (state := self.read(name)) is not None]

    def break_expired(self, name: str) -> LeaseState | None:
        """See `LockProvider.break_expired`."""
        checked_name(name)

        def decide(head: _Head) -> LeaseRecord | None:
            return decide_break(head.record, expired=self._expired(name, head))

        before, _ = self._change(name, decide)
        return before.record.state(name, expired=True) if before is not None and before.record is not None else None

    def close(self) -> None:
        """See `LockProvider.close`; the storage belongs to who opened it."""

    def renew_grant(self, grant: Grant) -> bool:
        """See `LeaseStore.renew_grant`."""
        before, _ = self._change(grant.name, lambda head: decide_renew(head.record, grant.lease_id, now=self._clock.now()))
        return before is not None

    def release_grant(self, grant: Grant) -> bool:
        """See `LeaseStore.release_grant`."""
        before, after = self._change(grant.name, lambda head: decide_release(head.record, grant.lease_id, now=self._clock.now()))
        return before is not None and after is not None and after.standing is Standing.RELEASED

    def _attempt(self, wish: LeaseRequest) -> Lease | Held:
        refusal: Held | Stale | None = None
        asked_s = 0.0

        def decide(head: _Head) -> LeaseRecord | None:
            nonlocal refusal, asked_s
            asked_s, now = self._clock.monotonic_s(), self._clock.now()
            decision = decide_acquire(head.record, wish, now=now, expired=self._expired(wish.name, head))
            if not isinstance(decision, LeaseRecord):
                refusal = decision
                return None
            if decision is head.record:
                # Granted by an earlier attempt whose answer got lost: it has run since then.
                asked_s -= max(0.0, (now - decision.acquired).total_seconds())
            return decision

        _, granted = self._change(wish.name, decide)
        if isinstance(refusal, Stale):
            raise StaleFence(wish.name, fence=wish.fence, greatest=refusal.greatest)
        if isinstance(refusal, Held):
            return refusal
        assert granted is not None
        grant = Grant(wish.name, wish.owner, wish.lease_id, wish.fence, wish.ttl_s, granted.acquired, asked_s)
        return Lease(grant, self, self._clock)

    def _change(self, name: str, decide: Callable[[_Head], LeaseRecord | None]) -> tuple[_Head, LeaseRecord] | tuple[None, None]:
        """Append what `decide` makes of the head, again while others win the race. The head it was made of, and what was appended.

        Two None when `decide` refuses; a decision for the record that is there appends nothing.
        """
        with _translated(f"changing lock {name!r}"):
            for _ in range(RACE_ATTEMPTS):
                head = self._head(name)
                record = decide(head)
                if record is None:
                    return None, None
                if record is head.record or self._append(name, head.epoch + 1, record):
                    return head, record
        raise LockUnreachable(f"lock {name!r} changed {RACE_ATTEMPTS} times while it was being changed", remedy="retry")

    def _append(self, name: str, epoch: int, record: LeaseRecord) -> bool:
        """Whether this put created `epoch` and nobody can have created it before."""
        path = epoch_path(self._prefix, name, epoch)
        mine = LeaseObject(self._chance.new_id(), record)
        body = mine.to_bytes()
        failure: Exception | None = None
        for _ in range(PUT_ATTEMPTS):
            try:
                self._storage.put_if_absent(path, body)
            except (ObjectExists, ObjectNotFound, StorageError) as error:
                # Neither a refusal nor silence says who won: a retried put may meet its own object. The object does.
                failure = error
                there = self._read_object(path)
                if there is None:
                    continue
                if there.append_id != mine.append_id:
                    return False
            return self._confirmed(name, epoch)
        raise LockUnreachable(
            f"{PUT_ATTEMPTS} puts of {path!r} left no object", remedy="check the storage, then retry"
        ) from failure

    def _confirmed(self, name: str, epoch: int) -> bool:
        epochs = self._epochs(name)
        highest = max(epochs, default=0)
        if highest >= epoch + KEPT_EPOCHS:
            return False
        for old in epochs:
            if old <= highest - KEPT_EPOCHS:
                self._delete_quietly(epoch_path(self._prefix, name, old))
        return True

    def _delete_quietly(self, path: str) -> None:
        # The change of the lock has happened: a leftover object is deleted by a later one, it is no reason to report a failure.
        try:
            self._storage.delete(path)
        except StorageError as error:
            _log.warning("old lease object %r could not be deleted: %s", path, error)

    def _head(self, name: str) -> _Head:
        for _ in range(RACE_ATTEMPTS):
            epoch = max(self._epochs(name), default=0)
            if not epoch:
                return _Head(0, None)
            found = self._read_object(epoch_path(self._prefix, name, epoch))
            # Absent: the lock moved on by `KEPT_EPOCHS` between the listing and the read.
            if found is not None:
                return _Head(epoch, found.record)
        raise LockUnreachable(
            f"the objects of lock {name!r} vanish as soon as they are listed", remedy="check the storage, then retry"
        )

    def _epochs(self, name: str) -> tuple[int, ...]:
        listing = self._storage.list_folder(folder_path(self._prefix, name))
        return tuple(epoch for stat in listing.objects if (epoch := epoch_of(stat.path)) is not None)

    def _read_object(self, path: str) -> LeaseObject | None:
        try:
            return LeaseObject.from_bytes(self._storage.read(path), path)
        except ObjectNotFound:
            return None

    def _expired(self, name: str, head: _Head) -> bool:
        if head.record is None or head.record.standing is not Standing.HELD:
            return False
        now_s = self._clock.monotonic_s()
        with self._guard:
            epoch, since_s = self._first_seen.get(name, (0, now_s))
            if epoch != head.epoch:
                since_s = now_s
                self._first_seen[name] = (head.epoch, since_s)
        watched_out = now_s - since_s >= head.record.ttl_s + self._skew_allowance_s
        return watched_out or head.record.expired(self._clock.now(), self._skew_allowance_s)


@contextmanager
def _translated(doing: str) -> Iterator[None]:
    try:
        yield
    except StorageError as error:
        raise LockUnreachable(f"{doing}: {error.found}", remedy=error.remedy or "check the storage, then retry") from error
