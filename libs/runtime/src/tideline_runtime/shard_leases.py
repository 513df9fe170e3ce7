"""Shards by lease: the instances of a service that run at the moment divide its shards by leases of a lock provider.

Names in the lock provider: `shards:<group>:<service>:<count>:member:<place>` is the lease of an instance on one of `count` places
among the members, `shards:<group>:<service>:<count>:shard:<index>` that of a shard's holder. Nothing else is stored. A lease only
assigns work to instances; where two of them still work on one shard, the table log and the publishers' writer ids decide.
"""

# ruff: noqa: D102 - the port documents these methods

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from tideline_locks import LeaseLost, LeaseState, LockProvider, LockUnreachable, check_lock_url, open_lock_provider
from tideline_locks.lease import Lease
from tideline_runtime.contract import ServiceContext
from tideline_runtime.errors import InvalidSetting
from tideline_runtime.logging import get_logger
from tideline_runtime.metrics import SHARD_MEMBERS, SHARD_MOVES, SHARDS_HELD, Metrics
from tideline_runtime.settings import ServiceSettings
from tideline_runtime.shards import Moves, Shards, StaticShards, moves
from tideline_table.clock import Clock
from tideline_table.errors import InvalidOption

_log = get_logger(__name__)

SERVICES_WITH_LEASES = ("mirror", "planner", "cleaner")
"""Sections of the services that can divide shards by leases. The others keep state of their tables in the process."""

ROUNDS_PER_TTL = 3
RETRIES_PER_TTL = 10
_SHARED_SCHEMES = ("redis", "rediss", "storage", "memory")
_JOIN_TIMEOUT_S = 5.0


def check_shard_leases(settings: ServiceSettings) -> None:
    """Raise `InvalidSetting` if shards by lease are switched on and cannot work.

    They cannot work for a service outside of `SERVICES_WITH_LEASES`, with a `shard_index`, and with a store that instances
    cannot share.
    """
    if not settings.shard_leases.enabled:
        return

    def refused(name: str, found: str, expected: str, remedy: str) -> InvalidSetting:
        return InvalidSetting(found, name=name, origin=settings.origin(name), expected=expected, remedy=remedy)

    if settings.section is not None and settings.section not in SERVICES_WITH_LEASES:
        raise refused(
            "shard_leases.enabled",
            f"setting 'shard_leases.enabled' is true for service {settings.section}",
            f"shards by lease only for {', '.join(SERVICES_WITH_LEASES)}",
            "set it in the sections of those services, such as [mirror.shard_leases]",
        )
    if settings.shard_index:
        raise refused(
            "shard_index",
            f"setting 'shard_index' is {settings.shard_index} and 'shard_leases.enabled' is true",
            "no shard_index: leases give each instance its shards",
            "remove shard_index, or set shard_leases.enabled to false",
        )
    name = "shard_leases.store" if settings.shard_leases.store else "locks"
    store = settings.shard_leases.store or settings.locks
    scheme, _, rest = store.partition(":")
    if scheme not in _SHARED_SCHEMES or not rest:
        raise refused(
            name,
            f"setting {name!r} is {scheme and f'{scheme}:'}{rest and '...'} and 'shard_leases.enabled' is true",
            "one store for all instances: redis://<host>:<port>/<database>, or storage:<folder> for instances that share a folder",
            "set shard_leases.store, or locks, to such a store",
        )
    try:
        check_lock_url(store)
    except InvalidOption as error:
        raise refused(name, f"setting {name!r}: {error.found}", error.expected, error.remedy) from error


def open_shards(settings: ServiceSettings, context: ServiceContext) -> Shards:
    """Return the shards of an instance, by its settings. Sends no request to a store yet. Raises `InvalidSetting`."""
    own = settings.shard_leases
    if not own.enabled:
        return StaticShards(settings.shard_index, settings.shard_count)
    check_shard_leases(settings)
    return LeasedShards(
        open_lock_provider(own.store or settings.locks, clock=context.clock),
        context.clock,
        group=f"{own.group}:{context.name}",
        count=settings.shard_count,
        instance=context.instance,
        ttl_s=own.ttl_s,
        metrics=context.metrics,
        wake=context.wake,
    )


@dataclass(frozen=True, slots=True)
class _Seen:
    """A live lease of the group: on the place of a member, or on a shard. `count` is the `shard_count` of its holder."""

    count: int
    is_member: bool
    number: int
    state: LeaseState


class LeasedShards:
    """Implements `Shards` with leases. A thread renews them; the thread that ticks takes and gives back shards between two ticks.

    A shard counts as held for as long as its lease lasts by this process's monotonic clock. So an instance that was paused, or
    does not reach the store, stops work on the shard before another instance begins.
    """

    def __init__(
        self,
        provider: LockProvider,
        clock: Clock,
        *,
        group: str,
        count: int,
        instance: str,
        ttl_s: float,
        metrics: Metrics,
        wake: Callable[[], None] = lambda: None,
        renews: bool = True,
    ) -> None:
        self._provider = provider
        self._clock = clock
        self._prefix = f"shards:{group}:"
        self.count = count
        self._instance = instance
        self._ttl_s = ttl_s
        self._metrics = metrics
        self._wake = wake
        self._guard = threading.Lock()
        self._place: Lease | None = None
        self._leases: dict[int, Lease] = {}
        self._balanced_s: float | None = None
        self._other_count: int | None = None
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="shard-leases", daemon=True) if renews else None
        metrics.expose(SHARDS_HELD, SHARD_MEMBERS)

    def held(self) -> tuple[int, ...]:
        with self._guard:
            return tuple(sorted(shard for shard, lease in self._leases.items() if lease.remaining_s > 0))

    def term(self, shard: int) -> str | None:
        with self._guard:
            lease = self._leases.get(shard)
        return lease.lease_id if lease is not None and lease.remaining_s > 0 else None

    def balance(self) -> None:
        """See `Shards.balance`. Asks the store every third of a lease, and at once after a loss."""
        has_lost = self._forget_lost()
        now_s = self._clock.monotonic_s()
        if not has_lost and self._balanced_s is not None and now_s - self._balanced_s < self._ttl_s / ROUNDS_PER_TTL:
            return
        if self._thread is not None and not self._thread.is_alive():
            self._thread.start()
        seen = self._join(self._seen())
        self._carry_out(self._decided(seen))
        self._balanced_s = now_s

    def give_up(self, shard: int, why: str) -> bool:
        self._end(shard, "lost", why)
        return True

    def renew(self) -> float:
        """Renew every lease; return the seconds until the next renewal is due. Only the thread of this object calls this."""
        with self._guard:
            leases = [*self._leases.values(), *([] if self._place is None else [self._place])]
        for lease in leases:
            if lease.released or lease.lost:
                continue
            try:
                lease.renew()
            except LeaseLost as error:
                if not lease.released:
                    _log.warning("lease lost", lease=lease.name, reason=str(error))
                    self._wake()
            except Exception as error:  # noqa: BLE001 - the thread must survive every error; the leases end by themselves
                _log.warning("lease not renewed", lease=lease.name, remaining_s=round(lease.remaining_s, 1), reason=str(error))
                return self._ttl_s / RETRIES_PER_TTL
        return self._ttl_s / ROUNDS_PER_TTL

    def close(self) -> None:
        self._stopped.set()
        with self._guard:
            leases = [*self._leases.values(), *([] if self._place is None else [self._place])]
        try:
            for lease in leases:
                lease.release()
        except LockUnreachable as error:
            # The other requests would fail, too, each after its time limit, and a stop has a deadline.
            _log.warning("shards are not given back; their leases end by themselves", reason=str(error))
        self._leases.clear()
        self._metrics.set(SHARDS_HELD, 0)
        if self._thread is not None and self._thread.is_alive():
            # A renewal that hangs must not block the stop.
            self._thread.join(_JOIN_TIMEOUT_S)
        self._provider.close()

    def _keep(self) -> None:
        pause_s = self._ttl_s / ROUNDS_PER_TTL
        while not self._stopped.wait(pause_s):
            pause_s = self.renew()

    def _forget_lost(self) -> bool:
        with self._guard:
            lost = [shard for shard, lease in self._leases.items() if lease.lost]
        for shard in lost:
            self._end(shard, "lost", "its lease ended before it was renewed")
        return bool(lost)

    def _seen(self) -> list[_Seen]:
        found = []
        for state in self._provider.list(self._prefix):
            count, kind, number = state.name.removeprefix(self._prefix).split(":")
            if not state.expired:
                found.append(_Seen(int(count), kind == "member", int(number), state))
        return found

    def _join(self, seen: list[_Seen]) -> list[_Seen]:
        """Take a place among the members unless this instance has one; return the live leases of the group afterwards."""
        if self._place is not None and not self._place.lost:
            return seen
        self._place = None
        taken = {other.number for other in seen if other.is_member and other.count == self.count}
        for place in range(self.count):
            if place not in taken:
                lease = self._provider.try_acquire(self._name("member", place), owner=self._instance, ttl_s=self._ttl_s)
                if lease is not None:
                    with self._guard:
                        self._place = lease
                    # Read again: of two instances with different counts that join at the same time, one sees the other's lease.
                    return self._seen()
        return seen

    def _decided(self, seen: list[_Seen]) -> Moves:
        members = sorted((s for s in seen if s.is_member), key=lambda s: (s.state.acquired, s.count, s.number))
        self._note_other_count(members)
        if self._other_count is not None:
            return Moves(give=self.held())
        if any(not s.is_member and s.count != self.count for s in seen):
            return Moves()
        own = [s for s in members if s.count == self.count]
        self._metrics.set(SHARD_MEMBERS, len(own))
        me = "" if self._place is None else self._place.lease_id
        holders = {s.number: s.state.lease_id for s in seen if not s.is_member}
        return moves(me, [s.state.lease_id for s in own], holders, self.held(), self.count)

    def _note_other_count(self, members: list[_Seen]) -> None:
        """Note the `shard_count` of the first member if it differs, and log it once.

        Two counts would divide the tables in two ways.
        """
        first = members[0].count if members else self.count
        other = first if first != self.count else None
        if other is not None and other != self._other_count:
            _log.warning("no shard is taken while instances with another shard_count run", own=self.count, other=other)
        self._other_count = other

    def _carry_out(self, decided: Moves) -> None:
        for shard in decided.give:
            self._end(shard, "given", "another instance gets it")
        taken = 0
        for shard in decided.take:
            if taken == decided.wanted:
                break
            lease = self._provider.try_acquire(self._name("shard", shard), owner=self._instance, ttl_s=self._ttl_s)
            if lease is None:
                continue
            taken += 1
            with self._guard:
                self._leases[shard] = lease
            self._metrics.increment(SHARD_MOVES, change="taken")
            _log.info("shard taken", shard=shard, of=self.count)
        self._metrics.set(SHARDS_HELD, len(self.held()))

    def _end(self, shard: int, change: str, why: str) -> None:
        with self._guard:
            lease = self._leases.pop(shard, None)
        if lease is None:
            return
        lease.release_quietly()
        self._metrics.increment(SHARD_MOVES, change=change)
        self._metrics.set(SHARDS_HELD, len(self.held()))
        log = _log.warning if change == "lost" else _log.info
        log("shard lost" if change == "lost" else "shard given back", shard=shard, of=self.count, reason=why)

    def _name(self, kind: str, number: int) -> str:
        return f"{self._prefix}{self.count}:{kind}:{number}"
