"""Sessions with ZooKeeper: one for each ensemble and process, shared by the locks of all tables there."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from tideline_locks.errors import LockAccessDenied, LockUnreachable
from tideline_table.extras import extra

with extra("zookeeper"):
    from kazoo.client import KazooClient, KazooState
    from kazoo.exceptions import AuthFailedError, BadVersionError, KazooException, NoAuthError, NoNodeError
    from kazoo.handlers.threading import KazooTimeoutError

_LOGGER_OF_KAZOO = logging.getLogger(f"{__name__}.kazoo")
_LOGGER_OF_KAZOO.setLevel(logging.ERROR)  # kazoo warns at each of many attempts; the caller gets one error

SESSION_S = 10.0
"""Asked of the ensemble, which grants 4 to 40 s unless it is set up otherwise. Nodes of a dead process go after this time."""
ANSWER_S = 4.0
"""How long one request may take. A request that is not answered may have taken effect."""

_sessions: dict[tuple[int, str], ZooKeeperSession] = {}
_sessions_guard = threading.Lock()


class ZooKeeperSession:
    """A session with an ensemble, begun at the first request. Thread-safe.

    Requests raise `NoNodeError` and `BadVersionError` of kazoo, which are answers; `LockUnreachable` if there was none within
    `ANSWER_S`; `LockAccessDenied`.
    """

    def __init__(self, hosts: str) -> None:
        self._hosts = hosts
        self._guard = threading.Lock()
        self._client: KazooClient | None = None
        self._abandoned: set[tuple[str, str]] = set()
        """Nodes to delete once ZooKeeper answers: the path of the lock, and how their names begin."""
        self._sweeping = threading.Lock()

    def ask(self, doing: str, method: str, *arguments: Any, **named: Any) -> Any:
        """Return the answer to the request that is called `method` in kazoo."""
        with _translated(doing, self._hosts):
            answer = getattr(self._started(), f"{method}_async")(*arguments, **named).get(timeout=ANSWER_S)
        self._sweep_soon()
        return answer

    def ensure_path(self, path: str) -> None:
        """Create `path` and what lies above, unless it exists."""
        self.ask(f"creating {path}", "ensure_path", path)

    def remove(self, path: str, node: str) -> None:
        """Delete a node of this session below `path`, and if ZooKeeper does not answer now, as soon as it does."""
        try:
            with suppress(NoNodeError):
                self.ask(f"deleting {path}/{node}", "delete", f"{path}/{node}")
        except LockUnreachable:
            self.abandon(path, node)
            raise

    def abandon(self, path: str, start: str) -> None:
        """Delete this session's nodes below `path` whose names begin with `start` when ZooKeeper answers again.

        As long as the session lives, they block all others: Hudi's writers know no end of a lease.
        """
        with self._guard:
            self._abandoned.add((path, start))

    def stop(self) -> None:
        """End the session, and with it its nodes. The next request begins another."""
        with self._guard:
            client, self._client = self._client, None
        if client is not None:
            client.stop()
            client.close()

    def _started(self) -> KazooClient:
        with self._guard:
            if self._client is None:
                client = KazooClient(hosts=self._hosts, timeout=SESSION_S, logger=_LOGGER_OF_KAZOO)
                client.add_listener(self._on_state)
                client.start(timeout=ANSWER_S)
                self._client = client
            return self._client

    def _on_state(self, state: str) -> None:
        if state == KazooState.CONNECTED:
            self._sweep_soon()

    def _sweep_soon(self) -> None:
        # kazoo calls this in the thread that delivers answers, which must not wait for one.
        if self._abandoned and not self._sweeping.locked():
            threading.Thread(target=self._sweep, name="abandoned nodes", daemon=True).start()

    def _sweep(self) -> None:
        if not self._sweeping.acquire(blocking=False):
            return
        try:
            with self._guard:
                abandoned, self._abandoned = self._abandoned, set()
            for path, start in abandoned:
                with suppress(LockUnreachable, LockAccessDenied):
                    self._remove_all(path, start)
        finally:
            self._sweeping.release()

    def _remove_all(self, path: str, start: str) -> None:
        try:
            with suppress(NoNodeError):
                for node in self.ask(f"reading the queue of {path}", "get_children", path):
                    if node.startswith(start):
                        self.remove(path, node)
        except LockUnreachable:
            self.abandon(path, start)
            raise


def session_of(hosts: str) -> ZooKeeperSession:
    """Return the session of this process with the ensemble at `hosts` (`host:port,host:port`)."""
    # A fork has none of its parent's threads, and must not speak in its session.
    key = (os.getpid(), hosts)
    with _sessions_guard:
        return _sessions.setdefault(key, ZooKeeperSession(hosts))


@contextmanager
def _translated(doing: str, hosts: str) -> Iterator[None]:
    try:
        yield
    except (NoAuthError, AuthFailedError) as error:
        raise LockAccessDenied(
            f"{doing} in ZooKeeper at {hosts}: {type(error).__name__}",
            remedy="let everybody read, create, write and delete nodes below the lock's path",
        ) from error
    except (NoNodeError, BadVersionError):
        raise
    except (KazooTimeoutError, KazooException, OSError) as error:
        raise LockUnreachable(
            f"{doing} in ZooKeeper at {hosts}: {type(error).__name__} {error}".rstrip(), remedy="check the ensemble, then retry"
        ) from error
