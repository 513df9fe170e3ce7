"""From a lock URL as people write it to a `LockProvider`."""

from __future__ import annotations

import threading
from urllib.parse import urlsplit

from tideline_locks.fallback import FallbackLockProvider
from tideline_locks.in_process import InProcessLockProvider, LeaseTable
from tideline_locks.port import LockProvider
from tideline_locks.redis import OnUnreachable, RedisLockProvider
from tideline_locks.storage_lease import StorageLockProvider
from tideline_table.clock import Clock
from tideline_table.errors import InvalidOption
from tideline_table.storage import open_storage

EXPECTED_URL = "storage:<base path or file: URI>, redis://host:port/db, rediss://host:port/db or memory:<space>"

_spaces: dict[str, LeaseTable] = {}
_spaces_guard = threading.Lock()


def open_lock_provider(
    url: str,
    *,
    clock: Clock,
    on_unreachable: OnUnreachable = OnUnreachable.WAIT,
    fallback_url: str | None = None,
    skew_allowance_s: float = 2.0,
) -> LockProvider:
    """The provider behind `url`.

    `storage:` leases lie below the base path, in `.hoodie/.tideline/locks`; `skew_allowance_s` is what clocks may differ by there.
    `redis:` and `rediss:` (TLS) follow `on_unreachable`; with STORAGE, `fallback_url` names the storage to go on with.
    `memory:` providers of one process share the leases of a space of the same name.
    Raises `InvalidOption` for anything else. A URL may carry a password: it appears in no error.
    """
    scheme, _, rest = url.partition(":")
    if (fallback_url is not None) != (on_unreachable is OnUnreachable.STORAGE):
        raise InvalidOption(
            f"on_unreachable={on_unreachable.value} {'with' if fallback_url is not None else 'without'} a fallback URL",
            expected="a fallback URL exactly with on_unreachable=storage",
        )
    if scheme in ("redis", "rediss"):
        primary = RedisLockProvider(_checked_redis(url), clock=clock, on_unreachable=on_unreachable)
        if fallback_url is None:
            return primary
        secondary = open_lock_provider(fallback_url, clock=clock, skew_allowance_s=skew_allowance_s)
        return FallbackLockProvider(primary, secondary, clock=clock)
    if fallback_url is not None:
        raise InvalidOption(f"a fallback for lock provider {scheme}:", expected="a fallback only behind redis: or rediss:")
    if scheme == "storage" and rest:
        return StorageLockProvider(open_storage(rest), clock=clock, skew_allowance_s=skew_allowance_s)
    if scheme == "memory":
        with _spaces_guard:
            return InProcessLockProvider(clock=clock, table=_spaces.setdefault(rest, LeaseTable(clock)))
    raise InvalidOption(f"lock provider {scheme}:", expected=EXPECTED_URL)


def _checked_redis(url: str) -> str:
    try:
        split = urlsplit(url)
        known = bool(split.hostname) and split.port != 0 and (split.path.strip("/") or "0").isdecimal() and not split.query
    except ValueError:
        known = False
    if not known:
        raise InvalidOption(
            "a Redis URL that cannot be understood", expected=EXPECTED_URL, remedy="check host, port and database number"
        )
    return url
