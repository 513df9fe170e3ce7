"""What a transaction asks of a lock.

The lock of an exclusive table is for efficiency and fairness, never for correctness (design: principle 3). A shared table rests on the one
lock that Apache Hudi's writers take, too: nothing else keeps them out.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from tideline_table.clock import Clock
from tideline_table.config import Options
from tideline_table.storage import Storage
from tideline_table.timeline.sharing import Sharing


class TableLock(Protocol):
    """The lock of one table."""

    def hold(self, fence: Callable[[], int]) -> AbstractContextManager[object]:
        """Hold the lock inside the context.

        `fence` reads the table log and returns its head sequence; it is asked again when somebody with a newer one went first.
        """
        ...


class NoLock:
    """No lock: put-if-absent on the log alone decides."""

    def hold(self, fence: Callable[[], int]) -> AbstractContextManager[object]:
        """See `TableLock.hold`."""
        return nullcontext(fence)


class HeldPeerLock(Protocol):
    """The lock of a shared table in the hands of its holder."""

    def is_held(self) -> bool:
        """Whether it is, by a look at the lock itself and not at a clock: Hudi can take it away. Renews it."""
        ...


class PeerLock(Protocol):
    """The lock that Apache Hudi's writers of one table take."""

    def hold(self) -> AbstractContextManager[HeldPeerLock]:
        """Hold the lock inside the context. Not re-entrant. Raises when it is not to be had in time."""
        ...


OpenPeerLock = Callable[[Storage, Sharing, str, Clock, Options], PeerLock]
"""Opens the lock of the table in a storage for a writer of that name. `tideline_locks.open_peer_lock` is one."""
