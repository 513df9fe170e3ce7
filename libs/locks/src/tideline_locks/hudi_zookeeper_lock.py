"""The lock of Hudi's `ZookeeperBasedLockProvider`: a queue of ephemeral nodes, as Curator's InterProcessMutex makes it.

Each contender creates `<path>/_c_<id>-lock-<sequence>`. The one with the least sequence holds the lock until its node is gone,
which happens with its session, too. Curator compares what follows the last "lock-" of a name, and ignores the data of a node:
Tideline keeps the record of its lease there.
"""

# ruff: noqa: D102 - the port documents these methods

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from tenacity import wait_exponential

from tideline_locks.errors import LockAccessDenied, LockUnreachable, StaleFence
from tideline_locks.hudi_cell import NEVER, hudi_lease, lease_fields, lease_in, parsed_lock
from tideline_locks.hudi_lock_queue import HudiLockQueue
from tideline_locks.lease import Grant, Lease
from tideline_locks.port import Held, LeaseRequest, LeaseState, checked_name
from tideline_locks.rules import LeaseRecord, Stale, Standing, decide_acquire, decide_break, decide_renew
from tideline_locks.waiting import RandomSource
from tideline_locks.zookeeper_session import SESSION_S, ZooKeeperSession
from tideline_table.clock import Clock
from tideline_table.extras import extra

with extra("zookeeper"):
    from kazoo.exceptions import BadVersionError, NoNodeError
    from kazoo.protocol.states import ZnodeStat

LOCK_PART = "lock-"
_LEFT = "tideline_left"
SKEW_ALLOWANCE_S = 0.5
_RACE_ATTEMPTS = 32


@dataclass(frozen=True, slots=True)
class _Head:
    """The node that holds the lock: its name, its version, and the lease that it stands for."""

    name: str
    version: int
    record: LeaseRecord


class ZooKeeperLockProvider(HudiLockQueue):
    """`LockProvider` on locks of Hudi's writers in ZooKeeper. `path_of` returns the path of a lock name, `known` the names to list.

    The holder trusts a lease for at most `SESSION_S` without renewal: after that, ZooKeeper may have ended the session and given
    the lock to the next. The fence is kept until the release.
    A lock that Hudi holds has no lease id and no expiry: it ends with Hudi's session.
    """

    _backoff = wait_exponential(multiplier=0.01, max=0.25)

    def __init__(
        self,
        session: ZooKeeperSession,
        path_of: Callable[[str], str],
        known: Callable[[], Sequence[str]],
        *,
        clock: Clock,
        randomness: RandomSource | None = None,
    ) -> None:
        super().__init__(known, clock=clock, randomness=randomness)
        self._session = session
        self._path_of = path_of

    def read(self, name: str) -> LeaseState | None:
        head = self._head(checked_name(name), self._queue(name))
        return head.record.state(name, expired=self._expired(head)) if head else None

    def break_expired(self, name: str) -> LeaseState | None:
        head = self._head(checked_name(name), self._queue(name))
        if head is None or decide_break(head.record, expired=self._expired(head)) is None:
            return None
        return head.record.state(name, expired=True) if self._remove_head(name, head) else None

    def was_taken(self, name: str) -> bool:
        """See `HudiLocks.was_taken`: more nodes left the queue than when Tideline's last one did, or Hudi's is at its head."""
        try:
            content, stat = self._session.ask(f"reading {self._path_of(name)}", "get", self._path_of(name))
        except NoNodeError:
            return False
        left = parsed_lock(content).get(_LEFT)
        if not isinstance(left, int) or _nodes_left(stat) > left:
            return isinstance(left, int)
        head = self._head(name, self._queue(name))
        return head is not None and not head.record.lease_id

    def _mark(self, name: str) -> None:
        """Note behind a release how many nodes have left the queue. Curator ignores the data of the lock's own node."""
        path = self._path_of(name)
        with suppress(LockUnreachable, LockAccessDenied, NoNodeError, BadVersionError):
            stat = self._session.ask(f"reading {path}", "exists", path)
            if stat is not None:
                content = json.dumps({_LEFT: _nodes_left(stat)}).encode()
                self._session.ask(f"writing {path}", "set", path, content, version=stat.version)

    def renew_grant(self, grant: Grant) -> bool:
        """See `LeaseStore.renew_grant`. ZooKeeper refuses the write if the session had ended: its nodes are gone."""
        node = _node_of(grant.lease_id, self._queue(grant.name))
        read = self._read(grant.name, node) if node else None
        record = decide_renew(read.record, grant.lease_id, now=self._clock.now()) if read else None
        return read is not None and record is not None and self._write(grant.name, read.name, record)

    def release_grant(self, grant: Grant) -> bool:
        with self._leaving(grant.name, grant.lease_id):
            node = _node_of(grant.lease_id, self._queue(grant.name))
            read = self._read(grant.name, node) if node else None
        if read is None:
            return False
        self._session.remove(self._path_of(grant.name), read.name)
        self._mark(grant.name)
        return not read.record.expired(self._clock.now())

    def _withdraw(self, wish: LeaseRequest) -> None:
        # What could not be deleted now is deleted by the session once it is connected, or goes with it.
        with suppress(LockUnreachable, LockAccessDenied):
            with self._leaving(wish.name, wish.lease_id):
                node = _node_of(wish.lease_id, self._queue(wish.name))
            if node is not None:
                self._session.remove(self._path_of(wish.name), node)
                self._mark(wish.name)

    @contextmanager
    def _leaving(self, name: str, lease_id: str) -> Iterator[None]:
        """Look for the node of a request that ends. If ZooKeeper does not tell its name now, the session looks for it later."""
        try:
            yield
        except LockUnreachable:
            self._session.abandon(self._path_of(name), _start_of(lease_id))
            raise

    def _attempt(self, wish: LeaseRequest) -> Lease | Held:
        for _ in range(_RACE_ATTEMPTS):
            queue = self._queue(wish.name)
            mine = _node_of(wish.lease_id, queue)
            if mine is None:
                self._join(wish)
                continue
            if queue[0] == mine:
                lease = self._granted(wish, mine)
                if lease is not None:
                    return lease
                continue
            head = self._head(wish.name, queue)
            if head is None:
                continue
            decision = decide_acquire(head.record, wish, now=self._clock.now(), expired=self._expired(head))
            if isinstance(decision, Stale):
                raise StaleFence(wish.name, fence=wish.fence, greatest=decision.greatest)
            if isinstance(decision, Held):
                return decision
            self._remove_head(wish.name, head)
        raise LockUnreachable(f"lock {wish.name!r} changed {_RACE_ATTEMPTS} times during one request", remedy="retry")

    def _join(self, wish: LeaseRequest) -> None:
        path = self._path_of(wish.name)
        now = self._clock.now()
        # Others see who waits. It has no end: a waiter that is dead goes with its session.
        waiting = LeaseRecord(Standing.HELD, wish.owner, wish.lease_id, wish.fence, now, NEVER, wish.ttl_s)
        try:
            self._create(path, wish.lease_id, waiting)
        except NoNodeError:
            self._session.ensure_path(path)
            self._create(path, wish.lease_id, waiting)

    def _create(self, path: str, lease_id: str, record: LeaseRecord) -> None:
        node = f"{path}/{_start_of(lease_id)}{LOCK_PART}"
        self._session.ask(f"queueing for {path}", "create", node, _content(record), ephemeral=True, sequence=True)

    def _granted(self, wish: LeaseRequest, node: str) -> Lease | None:
        """Return the lease of the first node of the queue; None if the node is gone."""
        # ZooKeeper hears of the session after `asked_s`, so it keeps the node for as long as the lease lasts.
        asked_s, now = self._clock.monotonic_s(), self._clock.now()
        seen = self._read(wish.name, node)
        if seen is None:
            return None
        if seen.record.expires == NEVER:
            acquired = now
            expires = now + timedelta(seconds=wish.ttl_s)
            record = LeaseRecord(Standing.HELD, wish.owner, wish.lease_id, wish.fence, now, expires, wish.ttl_s)
            if not self._write(wish.name, node, record):
                return None
        else:
            # An earlier attempt, whose reply was lost, was granted: the lease started then.
            acquired = seen.record.acquired
            asked_s -= max(0.0, (now - acquired).total_seconds())
        grant = Grant(wish.name, wish.owner, wish.lease_id, wish.fence, min(wish.ttl_s, SESSION_S), acquired, asked_s)
        return Lease(grant, self, self._clock)

    def _queue(self, name: str) -> Sequence[str]:
        path = self._path_of(name)
        try:
            found: Sequence[str] = self._session.ask(f"reading the queue of {path}", "get_children", path)
        except NoNodeError:
            return []
        return sorted(found, key=place_in_queue)

    def _head(self, name: str, queue: Sequence[str]) -> _Head | None:
        return next((read for node in queue[:1] if (read := self._read(name, node)) is not None), None)

    def _read(self, name: str, node: str) -> _Head | None:
        path = f"{self._path_of(name)}/{node}"
        try:
            content, stat = self._session.ask(f"reading {path}", "get", path)
        except NoNodeError:
            return None
        ours = lease_in(parsed_lock(content))
        created = datetime.fromtimestamp(stat.ctime / 1000, UTC)
        return _Head(node, stat.version, ours or hudi_lease(created, NEVER))

    def _write(self, name: str, node: str, record: LeaseRecord) -> bool:
        """Write to a node of this process, whose version it thereby raises; False if the node is gone."""
        path = f"{self._path_of(name)}/{node}"
        try:
            self._session.ask(f"writing {path}", "set", path, _content(record))
        except NoNodeError:
            return False
        return True

    def _remove_head(self, name: str, head: _Head) -> bool:
        """Delete the node of an expired lease, unless it was renewed or is gone."""
        path = f"{self._path_of(name)}/{head.name}"
        try:
            self._session.ask(f"deleting {path}", "delete", path, version=head.version)
        except (NoNodeError, BadVersionError):
            return False
        return True

    def _expired(self, head: _Head) -> bool:
        return head.record.expired(self._clock.now(), SKEW_ALLOWANCE_S)


def place_in_queue(node: str) -> str:
    """Return what Curator orders the nodes of a lock by."""
    _, found, sequence = node.rpartition(LOCK_PART)
    return sequence if found else node


def _nodes_left(stat: ZnodeStat) -> int:
    """Return how many nodes were created below a node and are gone. ZooKeeper counts both as changes of the children."""
    return int(stat.cversion - stat.numChildren) // 2


def _node_of(lease_id: str, queue: Sequence[str]) -> str | None:
    return next((node for node in queue if lease_id and node.startswith(_start_of(lease_id))), None)


def _start_of(lease_id: str) -> str:
    return f"_c_{lease_id}-"


def _content(record: LeaseRecord) -> bytes:
    return json.dumps(lease_fields(record)).encode()
