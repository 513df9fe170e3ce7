"""What a transaction asks of a lock: efficiency and fairness, never correctness (design: principle 3)."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Protocol


class TableLock(Protocol):
    """The lock of one table."""

    def hold(self, fence: int) -> AbstractContextManager[object]:
        """Hold the lock inside the context. `fence` is the head sequence of the table log that the caller saw."""
        ...


class NoLock:
    """No lock: put-if-absent on the log alone decides."""

    def hold(self, fence: int) -> AbstractContextManager[object]:
        """See `TableLock.hold`."""
        return nullcontext(fence)
