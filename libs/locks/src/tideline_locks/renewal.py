"""Keeping a lease alive in the background while its holder works."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from types import TracebackType

from tideline_locks.errors import LeaseLost
from tideline_locks.lease import Lease

_log = logging.getLogger(__name__)

RENEWALS_PER_TTL = 3
RETRIES_PER_TTL = 10
JOIN_TIMEOUT_S = 5.0


class KeptLease:
    """Renews `lease` every ttl/3 until its context ends, then releases it.

    A failed renewal is tried again after ttl/10, for as long as the lease lasts. When it is lost, `on_lost` is called once, from a
    background thread, and `lost` is True. A second thread watches the deadline, so that a renewal that hangs hides nothing.
    Renewals wait in real time; whether the lease lasts is judged by the lease's own clock.
    """

    def __init__(self, lease: Lease, *, on_lost: Callable[[Lease], None] | None = None) -> None:
        self._lease = lease
        self._on_lost = on_lost
        self._stop = threading.Event()
        self._guard = threading.Lock()
        self._reported = False
        self._last_error: Exception | None = None
        self._threads = (
            threading.Thread(target=self._run, args=(self.renew_once,), name=f"renew {lease.name}", daemon=True),
            threading.Thread(target=self._run, args=(self.watch_once,), name=f"watch {lease.name}", daemon=True),
        )

    def __enter__(self) -> KeptLease:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stop.set()
        self._lease.release_quietly()
        for thread in self._threads:
            # A renewal that hangs must not hang its holder; the thread ends by itself once the renewal does.
            if thread is not threading.current_thread():
                thread.join(JOIN_TIMEOUT_S)

    @property
    def lease(self) -> Lease:
        """The lease that is kept."""
        return self._lease

    @property
    def lost(self) -> bool:
        """See `Lease.lost`."""
        return self._lease.lost

    @property
    def last_error(self) -> Exception | None:
        """Why the last renewal failed; None after a success."""
        return self._last_error

    def check(self) -> None:
        """Raise `LeaseLost` if the lease is lost: for the holder, before each step that another holder must not repeat."""
        if self._lease.lost:
            raise LeaseLost(self._lease.name, owner=self._lease.owner, why=str(self._last_error or "no renewal in time"))

    def renew_once(self) -> float | None:
        """Renew now. Seconds until the next renewal, or None when there is nothing left to renew."""
        try:
            self._lease.renew()
        except Exception as error:  # noqa: BLE001 - whatever it is, the timer must outlive it
            return self._after_failure(error)
        self._last_error = None
        return self._lease.ttl_s / RENEWALS_PER_TTL

    def watch_once(self) -> float | None:
        """Report a loss if the lease ran out. Seconds until it would, or None when there is nothing left to watch."""
        if self._lease.released:
            return None
        if self._lease.lost:
            self._report_loss()
            return None
        return self._lease.remaining_s

    def _after_failure(self, error: Exception) -> float | None:
        if self._stop.is_set() or self._lease.released:
            return None
        self._last_error = error
        if isinstance(error, LeaseLost) or self._lease.lost:
            self._report_loss()
            return None
        _log.warning(
            "renewal of lease %r of %r failed, %.1f s left: %r", self._lease.name, self._lease.owner, self._lease.remaining_s, error
        )
        return min(self._lease.ttl_s / RETRIES_PER_TTL, self._lease.remaining_s)

    def _report_loss(self) -> None:
        with self._guard:
            if self._reported:
                return
            self._reported = True
        _log.error("lease %r of %r is lost: %r", self._lease.name, self._lease.owner, self._last_error)
        if self._on_lost is None:
            return
        try:
            self._on_lost(self._lease)
        except Exception:  # noqa: BLE001 - a callback's failure is logged; the loss stands
            _log.exception("the callback for the loss of lease %r failed", self._lease.name)

    def _run(self, once: Callable[[], float | None]) -> None:
        # The first renewal is due after a third of the ttl, the first look at the deadline at once.
        pause_s: float | None = self._lease.ttl_s / RENEWALS_PER_TTL if once == self.renew_once else 0.0
        while pause_s is not None and not self._stop.wait(pause_s):
            pause_s = once()
