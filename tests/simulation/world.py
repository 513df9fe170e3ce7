"""One simulated cluster: processes, what goes wrong with them, and the trace of it all."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping
from typing import NamedTuple

from tests.simulation.disk import LOG, Disk, ProcessStorage
from tests.simulation.hints import Hints
from tests.simulation.lock_service import LockService, SimulatedReservations
from tests.simulation.scheduler import SECOND, Process, Scheduler, SimulatedClock

from tideline_locks import InProcessReservations
from tideline_locks.in_process import LeaseTable
from tideline_locks.rules import LeaseRecord, Standing
from tideline_locks.table_lock import ProviderLock
from tideline_table.coordination import NoLock, TableLock
from tideline_table.coordination.reservations import NoReservations, Reservations

LOCK = "table:t"

_ANY = frozenset({"read", "read_range", "stat", "open_input", "list_objects", "list_folder"})
_LISTS = frozenset({"list_objects", "list_folder"})
_PUTS = frozenset({"put", "put_if_absent", "open_output"})
_WRITES = _PUTS | {"delete"}

APPLICABLE: dict[str, frozenset[str]] = {
    "kill_before": _ANY | _WRITES,
    "kill_after": _WRITES,
    "power_failure": _WRITES,
    "pause_before": _ANY | _WRITES,
    "pause_after": _WRITES,
    "stall_before": _ANY | _WRITES,
    "stall_after": _WRITES,
    "slow": _ANY | _WRITES,
    "io_error": _ANY | _WRITES,
    "no_space": _PUTS,
    "reply_lost": _WRITES,
    "torn_write": frozenset({"put", "open_output"}),
    "unsynced_loss": _WRITES,
    "late_write": _PUTS,
    "retried_put": frozenset({"put_if_absent"}),
    "refused_without_object": frozenset({"put_if_absent"}),
    "stale_listing": _LISTS,
    "clock_jump": _ANY | _WRITES,
    "lease_expiry": frozenset({"put_if_absent"}),
    "lock_unreachable": frozenset({"lock"}),
    "lock_reply_lost": frozenset({"lock"}),
    "lock_state_lost": frozenset({"lock"}),
    "lock_lies": frozenset({"lock"}),
    "fail_over": frozenset({"lock"}),
    "intents_unreachable": frozenset({"reservations"}),
    "intents_lost": frozenset({"reservations"}),
    "event_lost": frozenset({"publish"}),
    "event_delayed": frozenset({"publish"}),
    "event_doubled": frozenset({"publish"}),
    "event_reordered": frozenset({"publish"}),
    "rebalance": frozenset({"publish"}),
}
"""Kinds of fault and the calls that they can hit."""

TAKES_TIME = frozenset({"clock_jump", "pause_before", "pause_after", "stall_before", "stall_after", "slow"})
"""With these a process may miss by far how old the log is."""

LEAVES_LATE_FILES = TAKES_TIME | {"late_write", "stale_listing", "lease_expiry"}
"""After these a file of a fenced attempt may appear, invisible, where nobody looks any more."""


LIKE = {"put_if_version": "put_if_absent", "read_versioned": "read"}
"""Calls that fail as another one does."""
LOOSENS_LOCK = TAKES_TIME | {"lease_expiry", "late_write"} | {kind for kind, calls in APPLICABLE.items() if "lock" in calls}
"""After these another process may publish without the table lock: the log decides."""


class Step(NamedTuple):
    """One line of a trace."""

    number: int
    at_us: int
    process: str
    call: str
    path: str
    fault: str

    def __str__(self) -> str:
        fault = f"   !! {self.fault}" if self.fault else ""
        return f"{self.number:5d} {self.at_us / SECOND:12.6f} {self.process:<14} {self.call:<13} {self.path}{fault}"


class World:
    """What happens around the actors. Everything random comes from the seed."""

    def __init__(self, seed: int, *, faulty: bool = True, focus: str = "") -> None:
        """`focus` on `trimmed`, `slow`, `archived`, `saved`, `forgetful`, `mirrored`, `fed`, `global`, `bucketed`, `resized`,
        `rings`, `several`, `filtered`, `carried`, `logs` or `merged` (all three merge-on-read) makes every history of that
        kind; without it some are."""
        self.seed = seed
        self.is_mirrored = focus == "mirrored" or (random.Random(f"mirrored {seed}").random() < 0.1 and not focus)
        """Mirrors publish the table log, and another process follows the table by its events: beside whatever else there is."""
        self.is_fed = focus == "fed" or (random.Random(f"fed {seed}").random() < 0.1 and not focus)
        """Applications take a topic in, its offsets in the table's commits: beside whatever else there is."""
        focus = "" if focus in ("mirrored", "fed") else focus
        choose = random.Random(f"world {seed}")
        self.choose = choose
        self.scheduler = Scheduler(
            random.Random(f"schedule {seed}"), stickiness=choose.choice((0.0, 0.5, 0.8, 0.95)), step_limit=20_000
        )
        self.disk = Disk(self.scheduler)
        self.trace: list[Step] = []
        self.faults: Counter[str] = Counter()
        self.closing = False
        self.budget_steps = choose.randrange(200, 420)
        self._draw_faults(focus, faulty=faulty)
        self.is_merge_on_read = focus in ("logs", "merged", "rings", "carried") or (
            choose.random() < 0.5 and focus in ("", "archived", "forgetful", "global", "bucketed", "resized", "filtered", "several")
        )
        self.is_crowded = choose.random() < 0.5
        """Writers hardly rest: most writes meet others."""
        self.is_loaded = choose.random() < 0.5
        """The table holds every key already, in few file groups: writers meet in them."""
        # Drawn apart: histories without them stay the same.
        self.is_saved = focus == "saved" or (random.Random(f"saved {seed}").random() < 0.15 and not focus)
        """Another process makes savepoints and restores the table to them."""
        self.keeps_long = focus == "saved"
        """Between a savepoint and a restore much is written and cleaned."""
        self.is_overwritten = random.Random(f"overwritten {seed}").random() < {"": 0.15, "saved": 0.8, "rings": 0.4}.get(focus, 0.0)
        """Another process overwrites and drops partitions."""
        self.is_global = focus == "global" or (
            random.Random(f"global {seed}").random() < 0.1 and not (focus or self.is_overwritten or self.is_mirrored or self.is_fed)
        )
        """Keys are unique in the table, and rows move between its partitions."""
        self._choose_index(focus)
        self._choose_services(focus)
        self._restart: dict[str, Callable[[Process], None]] = {}
        self._processes: list[Process] = []
        self._started: Counter[str] = Counter()
        self._storage_clock = SimulatedClock(self.scheduler)
        self._leases = LeaseTable(self._storage_clock)
        self._is_locked = choose.random() < 0.6
        self._has_reservations = choose.random() < 0.5
        self.stored_reservations = InProcessReservations()
        """What the writers of the table posted."""
        self._replicas: list[tuple[int, dict[str, LeaseRecord]]] = []
        self.events = Hints(self)

    def _choose_services(self, focus: str) -> None:
        self.is_carried = focus == "carried"
        """Clusterings carry over what was written while they ran."""
        if self.is_carried:
            self.is_crowded = self.is_loaded = True
            self.is_saved = random.Random(f"saved {self.seed}").random() < 0.4
            self.is_global = random.Random(f"global {self.seed}").random() < 0.2
        self.is_merged = focus == "merged" or (
            random.Random(f"merged {self.seed}").random() < 0.2 and self.is_merge_on_read and not focus
        )
        """Another process merges the log files of slices (log compaction). These take writes, one behind the other."""
        if self.is_merged:
            self.is_loaded = True
            self.budget_steps += 400
        self.is_archived = focus == "archived" or (random.Random(f"archived {self.seed}").random() < 0.25 and not focus)
        """Another process archives, and few commits stay on the timeline. Time goes by between them: only what is old leaves."""
        self.is_forgetful = focus == "forgetful" or (random.Random(f"forgetful {self.seed}").random() < 0.1 and not focus)
        """Who runs the tasks of table services loses results, or takes one for another, and says nothing."""
        self.results_lost = 0
        if self.is_archived:
            self.budget_steps += 250
            if self.kinds and random.Random(f"late {self.seed}").random() < 0.5:
                # Files of the dead come behind their rollback: what the orphan-file cleanup is for.
                self.kinds = sorted({*self.kinds[:2], "late_write"})
                self._rate = max(self._rate, 0.03)

    def _choose_index(self, focus: str) -> None:
        self.is_filtered = focus == "filtered"
        """Writers look keys up by Bloom filters."""
        if self.is_filtered:
            self.is_global = random.Random(f"filtered {self.seed}").random() < 0.4
        self.is_ringed = focus == "rings"
        """The table has consistent hashing, and somebody splits and merges its buckets; in some histories, somebody clusters
        them."""
        if self.is_ringed:
            self.is_loaded = True
            self.budget_steps += 150
        self.is_resized = focus == "resized"
        """The table has numbers of buckets by partition, and somebody changes them."""
        self.has_several = focus == "several"
        """The table has a bucket index with several file groups in a bucket."""
        self.is_bucketed = focus in ("bucketed", "resized", "rings", "several")
        """The table has a bucket index, with one file group in each bucket if not said otherwise, and no clustering without hash
        rings."""

    def _draw_faults(self, focus: str, *, faulty: bool) -> None:
        choose = self.choose
        # Some kinds per history: all at once would hide what only few show.
        kinds = sorted(APPLICABLE)
        self.kinds = choose.sample(kinds, choose.randrange(2, 9)) if faulty and choose.random() < 0.95 else []
        self._rate = choose.choice((0.01, 0.03, 0.08))
        self._left = choose.randrange(1, 16)
        self.is_slow = False
        # Trimming takes the age of entries for the truth: it is looked at where clocks are right and only commits are late.
        self.is_trimmed = focus == "trimmed" or (choose.random() < 0.15 and not focus)
        if self.is_trimmed and self.kinds:
            self.kinds = ["lease_expiry", *choose.sample(sorted(set(APPLICABLE) - TAKES_TIME - {"lease_expiry"}), 3)]
            self.budget_steps += 300
        elif self.kinds and (choose.random() < 0.2 or focus == "slow"):
            # Much that is slow and little that breaks: the living count as dead, and two do the work of one.
            self.kinds = choose.sample(("slow", "pause_before", "pause_after", "stall_after", "clock_jump", "stall_before"), 3)
            self._rate, self._left, self.is_slow = 0.15, 60, True
        if focus == "saved" and not self.is_slow:
            # Writes that complete behind a savepoint although they began before the write that it protects.
            self.kinds, self._rate, self._left = sorted({*self.kinds[:2], "slow", "stall_before"}), 0.05, 40
            self.budget_steps += 250

    # --- processes ---------------------------------------------------------------------------------------------------

    def start(self, actor: str, main: Callable[[Process], None], *, delay_us: int = 0, restarts: bool = True) -> Process:
        """A new process that runs `main`; when it is killed another one takes its place."""
        self._started[actor] += 1
        process = Process(f"{actor}#{self._started[actor]}", actor)
        self._processes.append(process)
        if restarts:
            self._restart[actor] = main

        def body() -> None:
            try:
                main(process)
            finally:
                process.dead = True

        self.scheduler.spawn(process.name, process, body, delay_us=delay_us)
        return process

    def kill(self, process: Process) -> None:
        """End a process; its actor starts again some time later."""
        if process.dead:
            return
        process.dead = True
        main = self._restart.get(process.actor)
        if main is not None and not self.closing:
            self.start(process.actor, main, delay_us=self.between(0.1, 60))

    def kill_all(self) -> None:
        """Power fails everywhere."""
        for process in list(self._processes):
            self.kill(process)

    def later(self, delay_us: int, do: Callable[[], None]) -> None:
        """Something that happens without anybody's doing."""
        self.scheduler.spawn("network", Process("network", "network"), do, delay_us=delay_us)

    def storage(self, process: Process) -> ProcessStorage:
        """The disk as `process` reaches it."""
        return ProcessStorage(self.disk, process, self.scheduler, self)

    def lock(self, process: Process, owner: str = "") -> TableLock:
        """The table lock as `process` reaches it, held under the name of `owner` where the process writes by another name."""
        if not self._is_locked:
            return NoLock()
        return ProviderLock(LockService(self, process, self._leases), LOCK, owner or process.name)

    def lock_holder(self) -> str | None:
        """Who holds the table lock (empty: nobody), None where it may be held in vain, or by two."""
        if not self._is_locked or LOOSENS_LOCK & set(self.faults):
            return None
        held = self._leases.records.get(LOCK)
        return held.owner if held is not None and held.standing is Standing.HELD else ""

    def reservations(self, process: Process) -> Reservations:
        """The reservations of the table's writers as `process` reaches it."""
        return SimulatedReservations(self, process) if self._has_reservations else NoReservations()

    def replicate(self, leases: Mapping[str, LeaseRecord]) -> None:
        """The lock service as others will see it that follow it."""
        self._replicas.append((self.scheduler.now_us, dict(leases)))
        del self._replicas[:-50]

    def replica(self, lag_us: int) -> dict[str, LeaseRecord]:
        """The leases as they were so long ago."""
        then_us = self.scheduler.now_us - lag_us
        return next((leases for at_us, leases in reversed(self._replicas) if at_us <= then_us), {})

    def chooser(self, name: str) -> random.Random:
        """Random numbers of one actor's own: a change in one does not change the others."""
        return random.Random(f"{name} {self.seed}")

    def is_over(self) -> bool:
        """Whether actors shall end."""
        if not self.closing and self.scheduler.steps >= self.budget_steps:
            self.closing = True
        return self.closing

    # --- faults ------------------------------------------------------------------------------------------------------

    def calm(self) -> None:
        """No more faults."""
        self._left = 0
        self.is_forgetful = False

    def draw(self, process: Process, call: str, path: str) -> str:
        """What goes wrong with this call, mostly nothing."""
        if self._left <= 0 or not self.kinds:
            return ""
        is_log_put = call == "put_if_absent" and path.startswith(LOG)
        if self.choose.random() >= (4 * self._rate if is_log_put or call in ("lock", "publish", "reservations") else self._rate):
            return ""
        usable = [k for k in self.kinds if LIKE.get(call, call) in APPLICABLE[k]]
        if not usable:
            return ""
        kind = self.choose.choice(usable)
        if kind in ("refused_without_object", "lease_expiry") and not is_log_put:
            return ""
        self._left -= 1
        self.faults[kind] += 1
        if kind == "clock_jump":
            process.clock_offset_us = self.between(-3600, 3600)
        return kind

    @property
    def task_lifetime_s(self) -> float:
        """No task of a writer lives on for longer behind its rollback, for all that can happen here; and how far clocks differ."""
        if "clock_jump" in self.kinds:
            return 9000
        return 3600 if TAKES_TIME & set(self.kinds) else 150

    def between(self, low: float, high: float) -> int:
        """A random duration in microseconds, from seconds."""
        return int(self.choose.uniform(low, high) * SECOND)

    def note(self, process: Process, call: str, path: str, fault: str) -> None:
        """A line of the trace."""
        self.trace.append(Step(self.scheduler.steps, self.scheduler.now_us, process.name, call, path, fault))
