"""Renewal of a lease in the background while its holder works."""

from __future__ import annotations

import logging
import threading
from types import TracebackType

from tideline_locks.errors import LeaseLost
from tideline_locks.lease import Lease

_log = logging.getLogger(__name__)

RENEWALS_PER_TTL = 3
RETRIES_PER_TTL = 10
JOIN_TIMEOUT_S = 5.0


class KeptLease:
    """Renews `lease` in a thread every ttl/3 until its context ends, then releases it. A loss is logged.

    A failed renewal is retried after ttl/10 while the lease lasts. Renewals wait in real time, but the lease's own clock decides
    whether the lease lasts.
    """

    def __init__(self, lease: Lease) -> None:
        self.lease = lease
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"renew {lease.name}", daemon=True)
        self.last_error: Exception | None = None
        """Why the last renewal failed, None after a success."""

    def __enter__(self) -> KeptLease:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stop.set()
        self.lease.release_quietly()
        # A renewal that hangs must not block the holder; the thread ends when the renewal does.
        self._thread.join(JOIN_TIMEOUT_S)

    def renew_once(self) -> float | None:
        """Renew now. Return the seconds until the next renewal, None if there is nothing left to renew."""
        try:
            self.lease.renew()
        except Exception as error:  # noqa: BLE001 - the timer must survive every error
            return self._after_failure(error)
        self.last_error = None
        return self.lease.ttl_s / RENEWALS_PER_TTL

    def _after_failure(self, error: Exception) -> float | None:
        lease = self.lease
        if self._stop.is_set() or lease.released:
            return None
        self.last_error = error
        if isinstance(error, LeaseLost) or lease.lost:
            _log.error("lease %r of %r is lost: %r", lease.name, lease.owner, error)
            return None
        _log.warning("renewal of lease %r of %r failed, %.1f s left: %r", lease.name, lease.owner, lease.remaining_s, error)
        return min(lease.ttl_s / RETRIES_PER_TTL, lease.remaining_s)

    def _run(self) -> None:
        pause_s: float | None = self.lease.ttl_s / RENEWALS_PER_TTL
        while pause_s is not None and not self._stop.wait(pause_s):
            pause_s = self.renew_once()
