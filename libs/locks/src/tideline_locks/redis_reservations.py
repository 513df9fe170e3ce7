"""File-group reservations on Redis, beside the lock of their table."""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

from tideline_locks.port import checked_name
from tideline_locks.redis_connection import KEY_PREFIX, RedisConnection
from tideline_locks.reservations import EXPIRY_S, TextReservations, from_text, to_text
from tideline_table.clock import Clock
from tideline_table.coordination import PostedReservation


class RedisReservations(TextReservations):
    """One hash per table beside its lock, `<lock key>:intents`: instant → reservation."""

    def __init__(self, connection: RedisConnection, name: str, clock: Clock) -> None:
        self._connection = connection
        self._key = f"{KEY_PREFIX}{{{checked_name(name)}}}:intents"
        self._clock = clock

    def withdraw(self, instant: str) -> None:
        """See `Reservations.withdraw`."""
        with self._connection.translated():
            self._connection.client.hdel(self._key, instant)

    def _posted(self, instant: str) -> Iterable[PostedReservation]:
        with self._connection.translated():
            texts = cast("dict[str, str]", self._connection.client.hgetall(self._key))
        now_s, expired = self._clock.now().timestamp(), []
        for other, text in texts.items():
            if other == instant:
                continue
            posted_s, _, document = text.partition(" ")
            if not posted_s.isdecimal() or now_s - int(posted_s) > EXPIRY_S:
                expired.append(other)
            else:
                yield from_text(document.encode(), f"{self._key} {other}")
        if expired:
            with self._connection.translated():
                self._connection.client.hdel(self._key, *expired)

    def _post(self, posted: PostedReservation) -> None:
        text = f"{int(self._clock.now().timestamp())} {to_text(posted)}"
        with self._connection.translated(), self._connection.client.pipeline(transaction=False) as pipeline:
            pipeline.hset(self._key, posted.reservation.instant, text)
            pipeline.pexpire(self._key, int(EXPIRY_S * 1000))
            pipeline.execute()
