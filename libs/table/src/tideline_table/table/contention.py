"""What one write learns while it loses against others, and the turn that it takes because of it."""

from __future__ import annotations

from collections.abc import Iterable

from tideline_table.config import PRIORITY_AFTER, Options
from tideline_table.table.facade import Table
from tideline_table.transaction.intents import Intent, Turn, await_turn, withdraw


class Contention:
    """The file groups that a write needed so far and how often it lost, over all of its attempts. Not for several threads."""

    def __init__(self, table: Table, options: Options) -> None:
        self.table = table
        self.options = options
        self._losses = 0
        self._groups: frozenset[str] = frozenset()
        self._appends: frozenset[str] = frozenset()
        self._posted: set[str] = set()

    @property
    def has_priority(self) -> bool:
        """Whether it lost so often that others wait for it."""
        return self._losses >= self.options[PRIORITY_AFTER]

    def lost(self) -> None:
        """An attempt ended with a conflict."""
        self._losses += 1

    def needs(self, rewrites: Iterable[str], appends: Iterable[str]) -> None:
        """The write turned out to write over the file groups `rewrites`, and to append log files to `appends`."""
        self._groups |= frozenset(rewrites)
        self._appends |= frozenset(appends)

    def take_turn(self, instant: str) -> Turn:
        """Wait until the file groups that the write needs, as far as it knows, are its own to write."""
        intent = Intent(instant, self._groups, self.has_priority, self._appends - self._groups)
        if not intent.written:
            return Turn.AT_ONCE
        self._posted.add(instant)
        return await_turn(self.table.intents, self.table.timeline, intent, self.options)

    def end_turn(self) -> None:
        """The attempt is over: whoever waits for it may go on."""
        for instant in self._posted:
            withdraw(self.table.intents, instant)
        self._posted.clear()
