"""Taking, renewing and releasing the reader leases of a table."""

from __future__ import annotations

import getpass
import logging
import os
import socket
import threading
import uuid
from dataclasses import replace
from datetime import timedelta
from types import TracebackType

from tideline_table.config import LEASE_TTL_S, MOST_LEASE_S
from tideline_table.coordination.leases import Lease, check_lease, check_storable, every_lease, leased_instant, live_leases
from tideline_table.errors import InstantNotFound, InvalidOption, TidelineError, UnsupportedTable
from tideline_table.hudi.point import Point, is_sequence
from tideline_table.table.facade import Table

_LOGGER = logging.getLogger(__name__)
_RENEWALS = 3
"""How often a held lease is renewed before it would expire."""


def take_lease(
    table: Table, as_of: Point = "", *, after: Point = "", holder: str = "", reads: str = "", ttl_s: float | None = None
) -> Lease:
    """Register that a reader reads the table as of a point in time (empty: now) and later; return the stored lease.

    With `after`, a point as for `Table.incremental`, it reads what was written after this point. `holder` is by default the
    user, host and process. It expires after `ttl_s` seconds (`tideline.lease.ttl`) unless it is renewed. Raises
    `UnsupportedTable` for a table that Apache Hudi writes, whose cleaner knows no leases; `InstantNotFound` for a cleaned
    instant or an empty table; `WriteConflict` while a pending clean or archival takes what the reader needs.
    """
    if not table.capabilities.keeps_leases:
        raise UnsupportedTable(
            f"a reader lease of table {table.definition.name!r}, which Apache Hudi writes",
            expected="a table that only Tideline writes: Apache Hudi's cleaner knows no leases",
            remedy="keep a savepoint (procedure create_savepoint of Apache Hudi) while the reader runs",
        )
    ttl_s = table.options[LEASE_TTL_S] if ttl_s is None else ttl_s
    if not 1 <= ttl_s <= MOST_LEASE_S:
        raise InvalidOption(f"a lease of {ttl_s} s", expected=f"at least 1 s and at most {MOST_LEASE_S:.0f} s")
    state = table.refresh()
    asked = table.instant_of(as_of)
    table.slices(asked)  # raises for an instant whose files were cleaned
    # A reader of a sequence needs what later writes replaced, like a reader of changes after it.
    begins = [point for point in (asked if is_sequence(asked) else "", table.point_of(after)) if point]
    instant = leased_instant(state, "" if is_sequence(asked) else asked)
    for begin in begins:
        instant = min(instant, table.first_write_after(begin) or instant)
    if not instant:
        raise InstantNotFound("a reader lease of a table without a completed write", expected="a completed write")
    since = table.timeline.time.now().isoformat(timespec="milliseconds")
    lease = Lease(uuid.uuid4().hex, holder or _holder(), instant, since, float(ttl_s), reads)
    check_storable(lease)
    stored = renew_lease(table, lease)
    try:
        # Read after the lease was stored: a service that did not see the lease has published its plan by now.
        state = table.refresh()
        if instant < state.last_clean_retained and (asked or begins):
            table.slices(instant)
        check_lease(state, lease)
    except TidelineError:
        table.storage.delete(lease.path)
        raise
    return stored


def renew_lease(table: Table, lease: Lease) -> Lease:
    """Store the lease again, so that its time restarts; return it with the time when it expires."""
    table.storage.put(lease.path, lease.to_bytes())
    return replace(lease, expires=table.storage.stat(lease.path).modified + timedelta(seconds=lease.ttl_s))


def known_lease(table: Table, lease_id: str) -> Lease:
    """Return the lease with this id. Raises `InstantNotFound`, which names the existing ones."""
    leases = every_lease(table.storage)
    for lease in leases:
        if lease.lease_id == lease_id:
            return lease
    there = ", ".join(lease.lease_id for lease in leases)
    raise InstantNotFound(f"no reader lease {lease_id}", expected=f"one of {there}" if there else "a lease")


def release_lease(table: Table, lease_id: str) -> Lease:
    """Delete a lease, so that cleaning and archival no longer wait for it; return it. Raises `InstantNotFound`."""
    found = known_lease(table, lease_id)
    table.storage.delete(found.path)
    return found


def leases_of(table: Table, *, expired: bool = False) -> list[Lease]:
    """Return the live leases of the table, oldest instant first; with `expired` also those that their holders did not renew."""
    return every_lease(table.storage) if expired else live_leases(table.storage)


class HeldLease:
    """A lease that a thread renews until the context ends, which releases it.

    A renewal that fails is logged and tried again. Leases are for the life of one reader; `lease` says what was registered.
    """

    def __init__(
        self, table: Table, as_of: Point = "", *, after: Point = "", holder: str = "", reads: str = "", ttl_s: float | None = None
    ) -> None:
        self._table = table
        self.lease = take_lease(table, as_of, after=after, holder=holder, reads=reads, ttl_s=ttl_s)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._renew, name=f"lease-{self.lease.lease_id}", daemon=True)
        self._thread.start()

    def __enter__(self) -> HeldLease:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.release()

    def release(self) -> None:
        """End the renewals and delete the lease. Safe to repeat."""
        if self._stopped.is_set():
            return
        self._stopped.set()
        self._thread.join()
        try:
            self._table.storage.delete(self.lease.path)
        except TidelineError as error:
            _LOGGER.warning("reader lease %s stays until it expires: %s", self.lease.lease_id, error)

    def _renew(self) -> None:
        while not self._stopped.wait(self.lease.ttl_s / _RENEWALS):
            try:
                renew_lease(self._table, self.lease)
            except TidelineError as error:
                _LOGGER.warning("reader lease %s was not renewed: %s; trying again", self.lease.lease_id, error)


def _holder() -> str:
    try:
        user = getpass.getuser()
    except (OSError, KeyError):
        user = "unknown"  # a container may run under a user id without a name
    return f"{user}@{socket.gethostname()}:{os.getpid()}"
