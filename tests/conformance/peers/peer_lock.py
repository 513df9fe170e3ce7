"""The near side of a lock that Apache Hudi takes in the peer's process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


class PeerObjectStoreLock:
    """Hudi's storage based lock provider.

    `ask` sends the name of a method of `object_store_lock.ObjectStoreLock` with its arguments.
    """

    def __init__(self, ask: Callable[[str, Mapping[str, Any]], Any]) -> None:
        self._ask = ask

    def take(self, *, wait_s: float = 0.0) -> bool:
        """Take and keep the lock; whether it was to be had within `wait_s`."""
        return bool(self._ask("take", {"wait_s": wait_s}))

    def give_back(self) -> None:
        """Give back what `take` took."""
        self._ask("give_back", {})

    def interrupted(self) -> bool:
        """Whether Hudi interrupted the thread that had taken the lock, since it lost it; told once."""
        return bool(self._ask("interrupted", {}))

    def cut_off(self, yes: bool = True) -> None:
        """Let no request of Hudi's come to the store, as if its process stood still."""
        self._ask("cut_off", {"yes": yes})

    def count(self, times: int, counter: str, *, wait_s: float) -> int:
        """Add one so often to the number in the object `counter`, each time under the lock.

        How often it came to it within `wait_s`.
        """
        return int(self._ask("count", {"times": times, "counter": counter, "wait_s": wait_s}))
