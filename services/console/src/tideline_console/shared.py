"""Answers that viewers share: what a page asks for every two seconds is rendered once for all viewers of one role."""

from __future__ import annotations

import gzip
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

SHARED_S = 1.0
"""Age that a shared answer may have: less than the time between two requests of one page."""
MOST_BYTES = 64 << 20
_LEVEL = 4


@dataclass(slots=True)
class _Answer:
    guard: threading.Lock = field(default_factory=threading.Lock)
    made_s: float = float("-inf")
    body: bytes = b""


class SharedAnswers:
    """The last answers by what was asked, compressed. Thread-safe: a request for an answer that is being rendered waits for it."""

    def __init__(self, monotonic_s: Callable[[], float], most_bytes: int = MOST_BYTES) -> None:
        self._monotonic_s, self._most_bytes = monotonic_s, most_bytes
        self._guard = threading.Lock()
        self._kept: OrderedDict[Hashable, _Answer] = OrderedDict()

    def of(self, asked: Hashable, render: Callable[[], bytes]) -> bytes:
        """Return the gzip of what `render` returned for `asked` within the last `SHARED_S`. Raises what `render` raises."""
        with self._guard:
            answer = self._kept.setdefault(asked, _Answer())
            self._kept.move_to_end(asked)
        with answer.guard:
            now_s = self._monotonic_s()
            if not answer.made_s <= now_s < answer.made_s + SHARED_S:
                # As old as what it was rendered from.
                answer.body, answer.made_s = gzip.compress(render(), _LEVEL), now_s
                self._forget()
            return answer.body

    def _forget(self) -> None:
        """Forget what is too old, and the oldest beyond `most_bytes`."""
        old_s = self._monotonic_s() - SHARED_S
        with self._guard:
            for asked, answer in list(self._kept.items()):
                if answer.made_s <= old_s and not answer.guard.locked():
                    del self._kept[asked]
            while sum(len(answer.body) for answer in self._kept.values()) > self._most_bytes and len(self._kept) > 1:
                self._kept.popitem(last=False)
