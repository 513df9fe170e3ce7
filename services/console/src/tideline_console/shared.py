"""What viewers share: what a page asks for every two seconds is rendered once for all viewers of one role, and so are its parts."""

from __future__ import annotations

import gzip
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from typing import Generic, TypeVar

SHARED_S = 1.0
"""Age from which an answer is rendered again."""
WAITED_S = 1.9
"""Age from which a request waits for that: less than the time between two requests of one page, so that who looks alone waits."""
LATE_S = 5.0
"""Age up to which a request gets an answer that another one renders again: where rendering does not keep up, one waits, not all."""
RENDERING = 8
"""Threads that render: those of requests are left to what is asked once, such as the API."""
MOST_BYTES = 64 << 20
LEVEL = 4
"""Level of compression: more takes the loop that answers all viewers longer than it saves bytes."""

V = TypeVar("V")


class Recent(Generic[V]):
    """The values that were made last, by key: each is made again for another stamp, or once it is too old. Thread-safe."""

    def __init__(self, most: int) -> None:
        self._most, self._guard = most, threading.Lock()
        self._kept: OrderedDict[Hashable, tuple[object, float, V]] = OrderedDict()

    def of(self, key: Hashable, make: Callable[[], V], stamp: object = None, now_s: float = 0.0, age_s: float = inf) -> V:
        """Return what `make` returned for this key and stamp within `age_s`; callers do not change it."""
        with self._guard:
            known = self._kept.get(key)
        if known is None or known[0] != stamp or not known[1] <= now_s < known[1] + age_s:
            known = stamp, now_s, make()
        with self._guard:
            self._kept[key] = known
            self._kept.move_to_end(key)
            while len(self._kept) > self._most:
                self._kept.popitem(last=False)
        return known[2]


class Watch(Generic[V]):
    """What one thread asks of others, kept for `age_s`. Thread-safe: who waited long enough gets what was answered before."""

    def __init__(self, ask: Callable[[], V], first: V, age_s: float) -> None:
        self._ask, self._age_s, self._kept = ask, age_s, (-inf, first)
        self._guard, self._pool = threading.Lock(), ThreadPoolExecutor(1, "watch")
        self._asking: Future[None] | None = None

    def of(self, now_s: float, patience_s: float | None = None) -> V:
        """Return the answer, after at most `patience_s`. Raises what `ask` raises."""
        with self._guard:
            if not self._kept[0] <= now_s < self._kept[0] + self._age_s and (self._asking is None or self._asking.done()):
                self._asking = self._pool.submit(self._renew, now_s)
            asking = self._asking
        if asking is not None:
            with suppress(TimeoutError):
                asking.result(patience_s)
        return self._kept[1]

    def _renew(self, now_s: float) -> None:
        self._kept = now_s, self._ask()


@dataclass(slots=True)
class _Answer:
    made_s: float = -inf
    body: bytes = b""
    renewed: Future[bytes] | None = None
    """The rendering that is asked for and not over; None if there is none."""


class SharedAnswers:
    """The last answers by what was asked, compressed. Thread-safe; no call waits, so that the loop that answers all may call it."""

    def __init__(self, monotonic_s: Callable[[], float], most_bytes: int = MOST_BYTES) -> None:
        self._monotonic_s, self._most_bytes = monotonic_s, most_bytes
        self._guard = threading.Lock()
        self._kept: OrderedDict[Hashable, _Answer] = OrderedDict()
        self._pool = ThreadPoolExecutor(RENDERING, "render")

    def of(self, asked: Hashable, render: Callable[[], bytes]) -> bytes | Future[bytes]:
        """Return the gzip of what `render` returned for `asked` within the last `WAITED_S`, or the rendering to wait for.

        While another one waits for a rendering, the answer before may be `LATE_S` old. The future raises what `render` raises.
        """
        with self._guard:
            answer = self._kept.setdefault(asked, _Answer())
            self._kept.move_to_end(asked)
            another = answer.renewed
            if another is None and not self._is_younger(answer, SHARED_S):
                answer.renewed = self._pool.submit(self._rendered, answer, render)
            if answer.renewed is None or self._is_younger(answer, WAITED_S if another is None else LATE_S):
                return answer.body
            return answer.renewed

    def _is_younger(self, answer: _Answer, age_s: float) -> bool:
        return answer.made_s <= self._monotonic_s() < answer.made_s + age_s

    def _rendered(self, answer: _Answer, render: Callable[[], bytes]) -> bytes:
        now_s = self._monotonic_s()  # As old as what it is rendered from.
        body, made_s = answer.body, answer.made_s
        try:
            body, made_s = gzip.compress(render(), LEVEL), now_s
        finally:
            with self._guard:
                answer.body, answer.made_s, answer.renewed = body, made_s, None
                self._forget()
        return body

    def _forget(self) -> None:
        """Forget what is too old, and the oldest beyond `most_bytes`. The caller holds the guard."""
        old_s = self._monotonic_s() - LATE_S
        for asked, answer in list(self._kept.items()):
            if answer.made_s <= old_s and answer.renewed is None:
                del self._kept[asked]
        while sum(len(answer.body) for answer in self._kept.values()) > self._most_bytes and len(self._kept) > 1:
            self._kept.popitem(last=False)
