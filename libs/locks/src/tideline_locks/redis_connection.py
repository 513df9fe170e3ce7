"""A connection to one Redis server with time limits, one retry, and Tideline's errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import redis
from redis.backoff import ExponentialWithJitterBackoff
from redis.retry import Retry

from tideline_locks.errors import LockAccessDenied, LockUnreachable

KEY_PREFIX = "tideline:lock:"
SOCKET_TIMEOUT_S = 2.0


class RedisConnection:
    """A client of the server `url`. Connecting and answering may take `socket_timeout_s` each; a request is sent at most twice."""

    def __init__(self, url: str, socket_timeout_s: float = SOCKET_TIMEOUT_S) -> None:
        split = urlsplit(url)
        self._place = f"Redis at {split.hostname or 'localhost'}:{split.port or 6379}"
        self.client = redis.Redis.from_url(
            url,
            decode_responses=True,
            socket_timeout=socket_timeout_s,
            socket_connect_timeout=socket_timeout_s,
            retry=Retry(ExponentialWithJitterBackoff(base=0.02, cap=0.1), 1),
        )

    @contextmanager
    def translated(self) -> Iterator[None]:
        """Translate errors of the client into `LockAccessDenied` and `LockUnreachable`."""
        try:
            yield
        except (redis.AuthenticationError, redis.exceptions.AuthorizationError, redis.exceptions.NoPermissionError) as error:
            raise LockAccessDenied(
                f"{self._place} rejects the request: {error}",
                remedy="check the user, its password and its permissions on tideline:lock:*",
            ) from error
        except redis.RedisError as error:
            raise LockUnreachable(
                f"{self._place}: {error or type(error).__name__}", remedy="check the server and the network, then retry"
            ) from error
