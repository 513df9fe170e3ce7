"""What a transaction asks of a lock: efficiency and fairness, never correctness (design: principle 3)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol


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
