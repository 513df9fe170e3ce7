"""What a transaction requires of a lock.

The lock of an exclusive table serves efficiency and fairness, never correctness: the table log decides. The correctness of a shared
table depends on the lock that Apache Hudi's writers take, too, because nothing else excludes them.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from tideline_table.clock import Clock
from tideline_table.config import Options
from tideline_table.log.sharing import Sharing
from tideline_table.storage import Storage


class TableLock(Protocol):
    """The lock of one table."""

    def hold(self, fence: Callable[[], int]) -> AbstractContextManager[object]:
        """Hold the lock inside the context.

        `fence` reads the table log and returns its head sequence. It is called again if a holder with a newer sequence went first.
        """
        ...


class NoLock:
    """No lock: put-if-absent on the log alone decides."""

    def hold(self, fence: Callable[[], int]) -> AbstractContextManager[object]:
        """See `TableLock.hold`."""
        return nullcontext(fence)


class HeldHudiTableLock(Protocol):
    """The lock of a shared table while its holder has it."""

    def is_held(self) -> bool:
        """Renew the lock and return whether it is still held. Reads the lock itself, not a clock, because Hudi can take it away."""
        ...


class HudiTableLock(Protocol):
    """The lock that Apache Hudi's writers of one table take."""

    def hold(self) -> AbstractContextManager[HeldHudiTableLock]:
        """Hold the lock inside the context. Not re-entrant. Raises if the lock is not available in time."""
        ...

    def was_taken(self) -> bool:
        """Return whether a client of Apache Hudi took the lock after the last process of Tideline released it."""
        ...


OpenHudiTableLock = Callable[[Storage, Sharing, str, Clock, Options], HudiTableLock]
"""Opens the lock of the table in a storage, for the writer with this name; for example `tideline_locks.open_hudi_lock`."""
