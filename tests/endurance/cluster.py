"""Real processes on one table, and what is done to them: SIGKILL, SIGSTOP longer than lease and heartbeat, Redis emptied and
restarted.

What happens is planned by the seed and hangs on progress (acknowledged commits), not on time.
"""

from __future__ import annotations

import os
import queue
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

import redis
from tests.endurance.member import DEAD_AFTER_S, LEASE_S, SERVICES, Settings, enough
from tests.forked import Forked, parent_of
from tests.real.redis import RedisServer

WRITERS = 4
STOPPED_S = max(LEASE_S, DEAD_AFTER_S) + 2
"""How long a stopped process sleeps: its lease has run out by then, and others took it for dead."""
RESTART_S = 0.5
REPOSITORY = Path(__file__).parents[2]
MEMBER = str(Path(__file__).with_name("member.py"))

FAULTS: Mapping[str, int] = {
    "kill writer": 6,
    "stop writer": 2,
    "kill arranger": 2,
    "stop arranger": 1,
    "kill cleaner": 2,
    "kill reader": 1,
    "flush redis": 3,
    "restart redis": 1,
    "freeze redis": 1,
}
"""Kind of fault → how often, in 25 commits of each writer."""


def member(
    role: str, number: int, generation: int, settings: Settings, environment: Mapping[str, str], loaded_with: Mapping[str, str]
) -> Forked:
    """Start a member. `loaded_with`: what its environment must have before anything is imported."""
    given = (*loaded_with.items(), ("PYTHONPATH", str(REPOSITORY)))
    parent = parent_of(("tests.endurance.member",), environment=given)
    argv = [MEMBER, role, str(number), str(generation), settings.to_json()]
    return Forked(parent, argv, {**os.environ, **environment})


@dataclass(slots=True)
class _Running:
    """One living process of a member."""

    role: str
    number: int
    generation: int
    process: Forked
    threads: list[threading.Thread] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    is_stopped: bool = False

    @property
    def name(self) -> str:
        return f"{self.role}{self.number}"


def plan_of(seed: int, commits: int) -> list[tuple[int, str]]:
    """(acknowledged commits of all writers, fault) in order: spread over the run, none at its very end."""
    choose = random.Random(f"faults {seed}")
    times = max(1, commits // 25)
    faults = [kind for kind, count in FAULTS.items() for _ in range(count * times)]
    choose.shuffle(faults)
    last = WRITERS * commits * 85 // 100
    return sorted(zip((choose.randrange(1, last) for _ in faults), faults, strict=True))


class Cluster:
    """The members of one run. Use as a context: whatever happens, no process is left."""

    def __init__(self, settings: Settings, server: RedisServer, wanted: Collection[str], *, silence_s: float) -> None:
        self.settings = settings
        self.wanted = frozenset(wanted)
        self.trace: list[str] = []
        self.suffered: Counter[str] = Counter()
        self.worked: Counter[str] = Counter()
        self._server = server
        self._lines: queue.Queue[tuple[_Running, str]] = queue.Queue()
        self._running: dict[str, _Running] = {}
        self._due: list[tuple[float, str, _Running | None]] = []
        self._choose = random.Random(f"victims {settings.seed}")
        self._began_s = self._heard_s = time.monotonic()
        self._silence_s = silence_s
        self._generations: Counter[str] = Counter()

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._server.thaw()
        for running in list(self._running.values()):
            self._end(running, signal.SIGKILL)

    def run(self) -> None:
        """Until every writer has all its commits and all that is wanted was done beside them.

        Raises `AssertionError` for a member that fails.
        """
        members = [("writer", n) for n in range(WRITERS)] + [(role, 0) for role in SERVICES]
        for role, number in members:
            self._start(role, number)
        plan = plan_of(self.settings.seed, self.settings.commits)
        done = 0
        while any(r.role == "writer" for r in self._running.values()):
            self._do_due()
            _, line = self._hear() or (None, "")
            if line == "done":
                done += 1
            elif line.startswith("worked "):
                self.worked[line.removeprefix("worked ")] += 1
            if done >= WRITERS * self.settings.commits and self.wanted <= set(self.worked):
                enough(self.settings).touch()
            plan = [(at, fault) for at, fault in plan if at > done or not self._suffer(fault, done)]
        while self._due:
            self._do_due()
            self._hear()
        for running in list(self._running.values()):
            assert self._end(running, signal.SIGTERM) == 0, self._explained(running)

    # --- processes ---------------------------------------------------------------------------------------------------

    def _start(self, role: str, number: int) -> None:
        name = f"{role}{number}"
        generation = self._generations[name]
        self._generations[name] += 1
        process = member(role, number, generation, self.settings, {}, {"OMP_NUM_THREADS": "1"})
        running = _Running(role, number, generation, process)
        self._running[name] = running
        for read in (self._read_lines, self._read_errors):
            thread = threading.Thread(target=read, args=(running,), daemon=True)
            thread.start()
            running.threads.append(thread)

    def _read_lines(self, running: _Running) -> None:
        for line in running.process.stdout:
            self._lines.put((running, line.rstrip("\n")))
        self._lines.put((running, ""))

    def _read_errors(self, running: _Running) -> None:
        for line in running.process.stderr:
            running.errors.append(line)

    def _hear(self) -> tuple[_Running, str] | None:
        """The next line of anybody; None when something is due before, or a process ended."""
        left_s = self._silence_s - (time.monotonic() - self._heard_s)
        assert left_s > 0, f"no writer got anything done in {self._silence_s:.0f} s: {self.story()}"
        due_s = min((at - self._elapsed_s() for at, _, _ in self._due), default=left_s)
        try:
            running, line = self._lines.get(timeout=max(0.001, min(due_s, left_s)))
        except queue.Empty:
            return None
        if line:
            # Readers always get on; the writers have to.
            self._heard_s = self._heard_s if line == "worked reading" else time.monotonic()
            return running, line
        if self._running.get(running.name) is running:
            self._forget(running)
            assert running.process.returncode == 0, self._explained(running)
            assert running.role == "writer", f"{running.name} ended"
            self._note(f"{running.name} has all its commits")
        return None

    def _end(self, running: _Running, number: signal.Signals) -> int:
        """Send `number` (and wake up who is stopped), wait for the end; the exit code."""
        running.process.send_signal(number)
        running.process.send_signal(signal.SIGCONT)
        code = running.process.wait(60)
        self._forget(running)
        return code

    def _forget(self, running: _Running) -> None:
        del self._running[running.name]
        running.process.wait()
        for thread in running.threads:
            thread.join()
        running.process.close()

    # --- faults ------------------------------------------------------------------------------------------------------

    def _suffer(self, fault: str, done: int) -> bool:
        """Whether it struck: what cannot do so now, as its victim is stopped or down, is due again later."""
        what, whom = fault.split()
        if whom == "redis":
            if any(action == "start" for _, action, _ in self._due):
                return False
            self._redis(what)
        else:
            candidates = [r for r in self._running.values() if r.role == whom and not r.is_stopped]
            if not candidates:
                return False
            victim = self._choose.choice(sorted(candidates, key=lambda r: r.number))
            if what == "kill":
                self._end(victim, signal.SIGKILL)
                self._start(victim.role, victim.number)
            else:
                victim.is_stopped = True
                victim.process.send_signal(signal.SIGSTOP)
                self._due.append((self._elapsed_s() + STOPPED_S, "continue", victim))
            fault = f"{what} {victim.name}"
        self.suffered[f"{what} {whom}"] += 1
        self._note(f"{fault} after {done} commits")
        return True

    def _redis(self, what: str) -> None:
        if what == "flush":
            with redis.Redis.from_url(self._server.url, socket_timeout=10) as client:
                client.flushall()
        elif what == "restart":
            self._server.stop()
            self._due.append((self._elapsed_s() + RESTART_S, "start", None))
        else:
            self._server.freeze()
            self._due.append((self._elapsed_s() + STOPPED_S, "thaw", None))

    def _do_due(self) -> None:
        now_s = self._elapsed_s()
        for entry in [e for e in self._due if e[0] <= now_s]:
            self._due.remove(entry)
            _, action, running = entry
            if action == "start":
                self._server.start()
            elif action == "thaw":
                self._server.thaw()
            elif running is not None:
                running.is_stopped = False
                running.process.send_signal(signal.SIGCONT)
            self._note(f"{action} {running.name if running else 'redis'}")

    # --- for people --------------------------------------------------------------------------------------------------

    def _elapsed_s(self) -> float:
        return time.monotonic() - self._began_s

    def _note(self, what: str) -> None:
        self.trace.append(f"{self._elapsed_s():8.2f} {what}")

    def _explained(self, running: _Running) -> str:
        return (
            f"{running.name}#{running.generation} ended with {running.process.poll()}:\n{''.join(running.errors)}\n{self.story()}"
        )

    def story(self, problems: Sequence[str] = ()) -> str:
        """What happened, for a person: seed and faults in order."""
        again = f"again: TIDELINE_ENDURANCE_SEED={self.settings.seed}"
        return "\n".join([*problems, f"seed {self.settings.seed}", *self.trace, again])
