"""A simulated cluster on a table that Apache Hudi's writers share: the lock that both sides take lies in the table's storage
and fails as that does.

The lock is what protects such a table, and storage cannot fence who comes late. So some faults are left out, each because no
implementation could survive it (docs/faults.md names them): `SharedWorld._can_be_survived` is the list.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.simulation.disk import LOG, ProcessStorage
from tests.simulation.scheduler import Process
from tests.simulation.world import APPLICABLE, LIKE, TAKES_TIME, World

from tideline_locks import HudiLockProvider, ProviderHudiLock
from tideline_locks.hudi_cell import lease_in, parsed_lock
from tideline_locks.hudi_storage_lock import LOCK_OBJECT, StorageLockCell
from tideline_locks.waiting import RandomSource
from tideline_table.clock import Clock
from tideline_table.config import LOCK_TTL_S, LOCK_WAIT_S, Options
from tideline_table.coordination.lock import HeldHudiTableLock
from tideline_table.errors import ObjectExists
from tideline_table.hudi.formats import UPGRADED, format_to_create
from tideline_table.hudi.instant import Instant, State
from tideline_table.log.sharing import HudiLockKind, Sharing
from tideline_table.storage import MemoryStorage, Storage

SHARING = Sharing(HudiLockKind.STORAGE)
HUDI_LOCK_VALIDITY_S = 30.0
LOCK_TAKEN = "lock_taken"
"""Another process deletes the lock while one of Tideline holds it: Hudi's file lock is deleted by whichever client closes."""
STORAGE_FAULTS = tuple(
    sorted(
        kind
        for kind, calls in APPLICABLE.items()
        if kind != "clock_jump" and calls & {"read", "put", "put_if_absent", "delete", "list_folder"}
    )
)
SHARED_FAULTS = (*STORAGE_FAULTS, LOCK_TAKEN)
RESERVATION_FAULTS = tuple(sorted(kind for kind, calls in APPLICABLE.items() if "reservations" in calls))
"""Of the reservations that writers of Tideline have beside the lock."""
UNLOCKED = "unlocked"
"""What names of processes of Apache Hudi begin with that take no lock."""
NOBODY = "Hudi streamer (0.x)"
"""A kind of writer that wrote before the table was shared, and that no process is."""
STOPS = TAKES_TIME | {"lease_expiry"}
"""Kinds that let a process go on long after it asked."""


@dataclass(slots=True)
class Hold:
    """What happened while one process of Tideline had the lock."""

    seen: set[str] = field(default_factory=set)
    """Writes that a listing of the process showed as pending."""
    unlocked: set[str] = field(default_factory=set)
    """Of these, what completed without the lock since."""


class WatchedLock(ProviderHudiLock):
    """Tells the world while it is held."""

    holds: dict[str, Hold]
    name: str

    @contextmanager
    def hold(self) -> Iterator[HeldHudiTableLock]:
        with super().hold() as held:
            self.holds[self.name] = Hold()
            try:
                yield held
            finally:
                self.holds.pop(self.name, None)


class SharedWorld(World):
    """What happens around the actors of a shared table."""

    def __init__(self, seed: int, *, faulty: bool = True, version: int = 6) -> None:
        super().__init__(seed, faulty=faulty, focus="shared")
        self.form = format_to_create(version)
        choose = random.Random(f"shared {seed}")
        self.budget_steps += 100
        self.is_loaded = choose.random() < 0.8
        if self.is_slow:
            self.kinds = choose.sample(sorted(STOPS - {"clock_jump"}), 3)
        elif self.kinds:
            self.kinds = choose.sample(SHARED_FAULTS, choose.randrange(2, 9))
        if self.kinds and self._has_reservations and self.chooser("board").random() < 0.5:
            self.kinds += RESERVATION_FAULTS
        self.awaited: tuple[str, ...] | None = self.chooser("probation").choice((*[None] * 8, (), (NOBODY,)))
        """Nothing is planned before these writers of Apache Hudi, and those that come, were seen with the lock. None: at once."""
        self.taking_step: Counter[str] = Counter()
        """Processes of Tideline whose look at the lock is behind them and whose step is on its way to the storage."""
        self.peers_in_lock: set[str] = set()
        """Processes of Apache Hudi that hold the lock: they do not look at it again."""
        self.holds: dict[str, Hold] = {}
        """Name of a process of Tideline that holds the lock → what happened since it did."""
        self.proved: set[str] = set()
        """Writes without the lock that completed between a listing and a step of one process that had it: it has to say so."""
        self.peers_starting: set[str] = set()
        """Processes of Apache Hudi that have an instant and did not look at the table yet: who stops there for long merges into
        what is later."""

    def storage(self, process: Process) -> SharedStorage:
        """The disk as `process` reaches it."""
        return SharedStorage(self, process)

    def hudi_lock(self, storage: Storage, sharing: Sharing, owner: str, clock: Clock, options: Options) -> ProviderHudiLock:
        """As `open_hudi_lock`, with the ids and the jitter of the seed."""
        assert isinstance(storage, MemoryStorage)
        jitter = self.chooser(f"lock {owner}")
        cell = StorageLockCell(storage, lambda _: LOCK_OBJECT, lambda: (), validity_s=HUDI_LOCK_VALIDITY_S)
        provider = HudiLockProvider(
            cell, clock=clock, randomness=RandomSource(jitter, lambda: f"{owner}-{jitter.getrandbits(64):x}")
        )
        ttl_s = min(options[LOCK_TTL_S], sharing.expire_min * 60.0)
        lock = WatchedLock(provider, owner, ttl_s=ttl_s, wait_s=options[LOCK_WAIT_S])
        lock.holds, lock.name = self.holds, owner
        return lock

    def note(self, process: Process, call: str, path: str, fault: str) -> None:
        """See `World.note`; follows what completes while a process of Tideline has the lock. The call takes effect now."""
        super().note(process, call, path, fault)
        hold = self.holds.get(process.name)
        if hold is not None and call.startswith("list") and path == self.form.timeline_folder:
            hold.seen |= self._pending()
        elif call == "put_if_absent" and is_timeline_file(path) and not fault:
            if process.name.startswith(UNLOCKED) and is_commit_point(path):
                completed = instant_of(path)
                assert completed is not None
                for other in self.holds.values():
                    other.unlocked |= {completed.time} & other.seen
            elif hold is not None:
                self.proved |= hold.unlocked

    def _pending(self) -> set[str]:
        found = [instant_of(path) for path in self.disk._objects]
        done = {i.time for i in found if i is not None and i.state is State.COMPLETED}
        return {i.time for i in found if i is not None} - done

    def draw(self, process: Process, call: str, path: str) -> str:
        """What goes wrong with this call, mostly nothing."""
        if self._left <= 0 or not self.kinds:
            return ""
        likely = 2 if is_timeline_file(path) or path in (LOCK_OBJECT, self.form.timeline_folder) else 1
        if call == "reservations" and set(RESERVATION_FAULTS) <= set(self.kinds):
            likely = 5  # such calls are few
        if self.choose.random() >= likely * self._rate:
            return ""
        usable = [kind for kind in self.kinds if self._hits(kind, call) and self._can_be_survived(kind, process, call, path)]
        if not usable:
            return ""
        kind = self.choose.choice(usable)
        if kind == LOCK_TAKEN:
            if not self._take_lock(process):
                return ""
            self.note(process, call, path, kind)
        self._left -= 1
        self.faults[kind] += 1
        return "" if kind == LOCK_TAKEN else kind

    def _hits(self, kind: str, call: str) -> bool:
        return kind == LOCK_TAKEN or LIKE.get(call, call) in APPLICABLE[kind]

    def _can_be_survived(self, kind: str, process: Process, call: str, path: str) -> bool:
        if kind in STOPS:
            # Between the last look at the lock and the step, and for who never looks again.
            return not self.taking_step[process.name] and process.name not in self.peers_in_lock | self.peers_starting
        if kind == LOCK_TAKEN:
            return not self.taking_step[process.name]
        if kind == "late_write":
            return path != LOCK_OBJECT and not is_timeline_file(path)
        if kind == "stale_listing":
            return path != self.form.timeline_folder
        if kind == "refused_without_object":
            return path.startswith(LOG) or is_timeline_file(path)
        return True

    def _take_lock(self, process: Process) -> bool:
        found = self.disk._objects.get(LOCK_OBJECT)
        lease = lease_in(parsed_lock(found[0])) if found is not None else None
        if lease is None or lease.owner != process.name:
            return False
        self.disk.change(LOCK_OBJECT, Process("somebody", "network"), lambda: self.disk.delete(LOCK_OBJECT))
        return True


_FORMATS = {form.timeline_folder: form for form in (format_to_create(6), UPGRADED)}


def instant_of(path: str) -> Instant | None:
    """The instant, in its state, that a timeline file of any layout tells of; None for other files."""
    parsed = _parsed(path)
    return parsed[0] if parsed is not None else None


def completion_of(path: str) -> str:
    """The completion time in the name of a timeline file; empty if it has none."""
    parsed = _parsed(path)
    return parsed[1] if parsed is not None else ""


def _parsed(path: str) -> tuple[Instant, str] | None:
    folder, _, name = path.rpartition("/")
    return _FORMATS[folder].parse_timeline_file_name(name) if folder in _FORMATS else None


def is_timeline_file(path: str) -> bool:
    """Whether it tells of an instant's state."""
    return instant_of(path) is not None


def is_commit_point(path: str) -> bool:
    """Whether another process's step is done when it is there."""
    instant = instant_of(path)
    return instant is not None and instant.state is State.COMPLETED


class SharedStorage(ProcessStorage, MemoryStorage):
    """An object store with conditional puts of both kinds, as one process sees it."""

    def __init__(self, world: SharedWorld, process: Process) -> None:
        ProcessStorage.__init__(self, world.disk, process, world.scheduler, world)
        self._world = world

    def _write(self, call: str, path: str, data: bytes) -> Any:
        if call != "put_if_absent" or not is_commit_point(path):
            return super()._write(call, path, data)
        with self._taking_step():
            return super()._write(call, path, data)

    @contextmanager
    def _taking_step(self) -> Iterator[None]:
        self._world.taking_step[self.process.name] += 1
        try:
            yield
        finally:
            self._world.taking_step[self.process.name] -= 1

    def at_once(self, *files: tuple[str, bytes]) -> None:
        """Create files at one moment: nobody sees one without the others. Raises `ObjectExists`."""
        self._scheduler.step()
        for path, _ in files:
            if path in self.disk._objects:
                raise ObjectExists(path)
        for path, content in files:
            self._faults.note(self.process, "put_if_absent", path, "")
            self._do("put_if_absent", path, content)
