"""Connections to Hive metastores for locks: one for each metastore and process, shared by the locks of all tables there."""

from __future__ import annotations

import os
import socket
import threading
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from tideline_locks.errors import LockAccessDenied, LockUnreachable
from tideline_table.extras import extra

with extra("catalogs"):
    from pymetastore.hive_metastore import ThriftHiveMetastore
    from pymetastore.hive_metastore import ttypes as t
    from thrift.protocol import TBinaryProtocol
    from thrift.Thrift import TApplicationException, TException
    from thrift.transport import TSocket, TTransport

ANSWER_S = 10.0
"""How long one request may take. A request that is not answered may have taken effect."""
_GONE = (t.NoSuchLockException, t.TxnAbortedException, t.NoSuchTxnException)
_HOST_LIMIT = 128
"""Of the metastore's column."""

_sessions: dict[tuple[int, str], MetastoreSession] = {}
_sessions_guard = threading.Lock()


@dataclass(frozen=True, slots=True)
class QueuedLock:
    """A request for a lock in the metastore's queue. `acquired` is None while it waits; `seen` is its last sign of life.

    Times are the metastore's, in UTC, with milliseconds.
    """

    lock_id: int
    user: str
    agent: str
    acquired: datetime | None
    seen: datetime


class MetastoreSession:
    """A connection to one of the metastores at `hosts` (`host:port,host:port`), made at the first request. Thread-safe.

    Requests raise `LockUnreachable` if there was no answer within `ANSWER_S`, `LockAccessDenied` if the metastore refuses them.
    """

    def __init__(self, hosts: str) -> None:
        self._hosts = hosts
        self._guard = threading.Lock()
        self.breaking = threading.Lock()
        """Held by the thread that ends a lease of another owner."""
        self._transport: Any = None
        self._client: Any = None

    def queue(self, database: str, table: str) -> list[QueuedLock]:
        """Return the requests for the lock of a table, those that hold or wait, in the order in which they are served."""
        asked = t.ShowLocksRequest(dbname=database, tablename=table, isExtended=True)
        found = self._ask("show_locks", asked).locks or ()
        mine = [lock for lock in found if (lock.dbname, lock.tablename) == (database, table)]
        return [_queued(lock) for lock in sorted(mine, key=lambda lock: int(lock.lockid))]

    def request(self, database: str, table: str, user: str, agent: str) -> bool:
        """Put a request for the exclusive lock at the end of the queue. Return whether it was granted at once."""
        component = t.LockComponent(type=t.LockType.EXCLUSIVE, level=t.LockLevel.TABLE, dbname=database, tablename=table)
        host = socket.gethostname()[:_HOST_LIMIT]
        asked = t.LockRequest(component=[component], user=user, hostname=host, agentInfo=agent)
        return bool(self._ask("lock", asked).state == t.LockState.ACQUIRED)

    def check(self, lock_id: int) -> bool | None:
        """Return whether a request is granted now, None if it is gone. It counts as alive."""
        try:
            return bool(self._ask("check_lock", t.CheckLockRequest(lockid=lock_id)).state == t.LockState.ACQUIRED)
        except _GONE:
            return None

    def heartbeat(self, lock_id: int) -> bool:
        """Show that a holder lives. Return False if the lock is gone."""
        try:
            self._ask("heartbeat", t.HeartbeatRequest(lockid=lock_id))
        except _GONE:
            return False
        return True

    def unlock(self, lock_id: int) -> bool:
        """End a request, granted or not. Return False if it was gone."""
        try:
            self._ask("unlock", t.UnlockRequest(lockid=lock_id))
        except _GONE:
            return False
        return True

    def stop(self) -> None:
        """Close the connection. The next request makes another."""
        with self._guard:
            self._close()

    def _ask(self, method: str, argument: Any) -> Any:
        with self._guard:
            try:
                if self._client is None:
                    self._connect()
                return getattr(self._client, method)(argument)
            except _GONE:
                raise
            except (TTransport.TTransportException, OSError) as error:
                self._close()
                raise LockUnreachable(
                    f"{method} in the metastore at {self._hosts}: {error}", remedy="check its address, then retry"
                ) from error
            except (TApplicationException, TException) as error:
                self._close()
                raise LockAccessDenied(
                    f"{method} in the metastore at {self._hosts}: {error}",
                    expected="a Hive metastore with the tables of its transactions",
                ) from error

    def _connect(self) -> None:
        failed: Exception | None = None
        for place in self._hosts.split(","):
            host, _, port = place.rpartition(":")
            connection = TSocket.TSocket(host.strip("[]"), int(port))
            connection.setTimeout(ANSWER_S * 1000)
            transport = TTransport.TBufferedTransport(connection)
            try:
                transport.open()
            except (TTransport.TTransportException, OSError) as error:
                failed = error
                continue
            self._transport = transport
            self._client = ThriftHiveMetastore.Client(TBinaryProtocol.TBinaryProtocolAccelerated(transport))
            return
        assert failed is not None
        raise failed

    def _close(self) -> None:
        transport, self._transport, self._client = self._transport, None, None
        if transport is not None:
            transport.close()


def metastore_session_of(hosts: str) -> MetastoreSession:
    """Return the connection of this process to the metastore at `hosts` (`host:port,host:port`)."""
    # A fork must not speak on the connection of its parent.
    key = (os.getpid(), hosts)
    with _sessions_guard:
        return _sessions.setdefault(key, MetastoreSession(hosts))


def _queued(lock: Any) -> QueuedLock:
    is_held = lock.state == t.LockState.ACQUIRED
    acquired = _time(lock.acquiredat) if is_held and lock.acquiredat else None
    seen = _time(lock.lastheartbeat or lock.acquiredat or 0)
    return QueuedLock(int(lock.lockid), lock.user or "", lock.agentInfo or "", acquired, seen)


def _time(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, UTC)
