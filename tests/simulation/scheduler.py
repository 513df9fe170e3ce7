"""A seeded scheduler: production code runs in threads of which exactly one runs at a time.

A task hands the baton on at every call to storage, lock, clock or event log; a random number generator decides who gets it. Time is
simulated and moves only between steps. Nothing here reads the machine's clock, so a seed replays exactly.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.simulation.faults import SimulatedCrash

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
SECOND = 1_000_000
"""Simulated time is counted in microseconds."""
NEVER = 1 << 62


class NoEnd(BaseException):
    """A history that went on for far longer than its actors' work explains.

    No `Exception`: what outlives every error would outlive it too.
    """


class Process:
    """What lives, stalls and dies together: a main task, its heartbeats and lease renewals, and its clock."""

    def __init__(self, name: str, actor: str) -> None:
        self.name = name
        self.actor = actor
        self.dead = False
        self.stalled_until_us = 0
        self.clock_offset_us = 0
        self.disk_full_calls = 0
        self.on_executors = False
        self.rows_at_begin: Callable[..., Any] | None = None


class Task:
    """One thread of a process."""

    __slots__ = ("condition", "done", "gate", "name", "process", "run", "wake_us")

    def __init__(self, name: str, process: Process, run: Callable[[], None]) -> None:
        self.name = name
        self.process = process
        self.run = run
        self.gate = threading.Lock()
        self.gate.acquire()
        self.wake_us = 0
        self.condition: Callable[[], bool] | None = None
        self.done = False


class _Workers:
    """Threads that outlive a history: starting one costs more than most steps."""

    def __init__(self) -> None:
        self._idle: list[_Worker] = []

    def run(self, body: Callable[[], None]) -> None:
        worker = self._idle.pop() if self._idle else _Worker(self._idle)
        worker.body = body
        worker.gate.release()

    def stop(self) -> None:
        for worker in self._idle:
            worker.gate.release()
            worker.join()
        self._idle.clear()


class _Worker(threading.Thread):
    def __init__(self, idle: list[_Worker]) -> None:
        super().__init__(name="simulated", daemon=True)
        self.gate = threading.Lock()
        self.gate.acquire()
        self.body: Callable[[], None] | None = None
        self._idle = idle
        self.start()

    def run(self) -> None:
        while True:
            self.gate.acquire()
            body, self.body = self.body, None
            if body is None:
                return
            body()  # puts this worker back before it hands the baton on
            del body

    def rest(self) -> None:
        self._idle.append(self)


_WORKERS = _Workers()


def stop_workers() -> None:
    """End the threads that histories left for the next ones: the interpreter must not end under them."""
    _WORKERS.stop()


class Scheduler:
    """Who runs when. `stickiness` is how often a task that could go on does so."""

    def __init__(self, choose: random.Random, *, stickiness: float, step_limit: int) -> None:
        self.now_us = 0
        self.steps = 0
        self.current: Task | None = None
        self.failures: list[tuple[str, BaseException]] = []
        self._choose_from = choose
        self._bits = choose.getrandbits
        self._stickiness = stickiness
        self._step_limit = step_limit
        self._tasks: list[Task] = []
        self._main = threading.Lock()
        self._main.acquire()

    # --- what simulated code calls -----------------------------------------------------------------------------------

    @property
    def process(self) -> Process:
        """Whose step it is."""
        assert self.current is not None
        return self.current.process

    def spawn(self, name: str, process: Process, run: Callable[[], None], *, delay_us: int = 0) -> Task:
        """A new task; it starts when the scheduler picks it."""
        task = Task(name, process, run)
        task.wake_us = self.now_us + delay_us
        self._tasks.append(task)
        _WORKERS.run(lambda: self._body(task))
        return task

    def step(self) -> None:
        """Let others go first, perhaps, and a little time pass. The next call of the current task follows."""
        self._wait(self.now_us, None)
        self.steps += 1
        self.now_us += 500 + self._below(19_500)
        if self.steps > self._step_limit:
            raise NoEnd(f"{self.steps} steps")

    def sleep(self, duration_us: int) -> None:
        """Let `duration_us` pass for the current task."""
        self._wait(self.now_us + max(duration_us, 0), None)

    def wait_for(self, condition: Callable[[], bool], timeout_us: int | None) -> None:
        """Until `condition` holds or the timeout is over."""
        self._wait(NEVER if timeout_us is None else self.now_us + timeout_us, condition)

    def run(self) -> None:
        """Run until every task has ended."""
        first = self._pick()
        if first is None:
            return
        self.current = first
        first.gate.release()
        self._main.acquire()
        self.current = None

    # --- passing the baton -------------------------------------------------------------------------------------------

    def _wait(self, wake_us: int, condition: Callable[[], bool] | None) -> None:
        me = self.current
        assert me is not None
        if me.process.dead:
            raise SimulatedCrash
        me.wake_us, me.condition = wake_us, condition
        following = self._pick()
        assert following is not None
        if following is not me:
            self.current = following
            following.gate.release()
            me.gate.acquire()
        if me.process.dead:
            raise SimulatedCrash

    def _body(self, task: Task) -> None:
        task.gate.acquire()
        try:
            if not task.process.dead:
                task.run()
        except SimulatedCrash:
            pass
        except BaseException as error:  # noqa: BLE001 - the history reports it
            self.failures.append((task.process.name, error))
        task.done = True
        self._tasks.remove(task)
        following = self._pick()
        worker = threading.current_thread()
        assert isinstance(worker, _Worker)
        worker.rest()
        if following is None:
            self._main.release()
        else:
            self.current = following
            following.gate.release()

    def _pick(self) -> Task | None:
        tasks = self._tasks
        if not tasks:
            return None
        if len(tasks) == 1 and self._is_ready(tasks[0], self.now_us):
            return tasks[0]
        while True:
            now = self.now_us
            # As `_is_ready` says: most wait for a time alone, and this is asked for every task at every step.
            ready = [
                t
                for t in tasks
                if (t.wake_us <= now and t.process.stalled_until_us <= now)
                or ((t.condition is not None or t.process.dead) and self._is_ready(t, now))
            ]
            if ready:
                break
            self.now_us = min(max(t.wake_us, t.process.stalled_until_us) for t in tasks)
            assert self.now_us < NEVER, f"everybody waits: {[t.name for t in tasks]}"
        if len(ready) == 1:
            return ready[0]
        if self.current in ready and self._choose_from.random() < self._stickiness:
            return self.current
        return ready[self._below(len(ready))]

    def _below(self, end: int) -> int:
        """As `randrange(end)` draws it, which asks again and again of which type its argument is."""
        size = end.bit_length()
        drawn = self._bits(size)
        while drawn >= end:
            drawn = self._bits(size)
        return drawn

    @staticmethod
    def _is_ready(task: Task, now: int) -> bool:
        process = task.process
        if process.dead:
            return True
        if process.stalled_until_us > now:
            return False
        return task.wake_us <= now or (task.condition is not None and task.condition())


class SimulatedClock:
    """The clock of one process."""

    def __init__(self, scheduler: Scheduler, process: Process | None = None) -> None:
        self._scheduler = scheduler
        self._process = process or Process("storage", "storage")

    def now(self) -> datetime:
        return EPOCH + timedelta(microseconds=self._scheduler.now_us + self._process.clock_offset_us)

    def set_right(self) -> None:
        """As NTP does."""
        self._process.clock_offset_us = 0

    def monotonic_s(self) -> float:
        return self._scheduler.now_us / SECOND

    def sleep(self, duration_s: float) -> None:
        self._scheduler.sleep(_microseconds(duration_s))


class SimulatedThreading:
    """Stands in for the `threading` module where production code starts threads of its own: they become tasks of the process."""

    Lock = staticmethod(threading.Lock)

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        simulated = self

        class Event(_Event):
            def __init__(self) -> None:
                super().__init__(scheduler)

        class Thread(_Thread):
            def __init__(self, *, target: Callable[..., None], args: tuple[object, ...] = (), name: str, daemon: bool) -> None:
                super().__init__(simulated._scheduler, target, args, name)

        self.Event = Event
        self.Thread = Thread

    def current_thread(self) -> Task | None:
        return self._scheduler.current


def _microseconds(duration_s: float) -> int:
    """At least one for any wait: who waits for the rest of what rounding left would wait for ever, and no time would pass."""
    return max(1, round(duration_s * SECOND)) if duration_s > 0 else 0


class _Event:
    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._set = False

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True

    def wait(self, timeout: float | None = None) -> bool:
        if not self._set:
            self._scheduler.wait_for(self.is_set, None if timeout is None else _microseconds(timeout))
        return self._set


class _Thread:
    def __init__(self, scheduler: Scheduler, target: Callable[..., None], args: tuple[object, ...], name: str) -> None:
        self._scheduler = scheduler
        self._run = lambda: target(*args)
        self._name = name
        self._task: Task | None = None

    def start(self) -> None:
        assert self._scheduler.current is not None
        self._task = self._scheduler.spawn(self._name, self._scheduler.current.process, self._run)

    def is_alive(self) -> bool:
        return self._task is not None and not self._task.done

    def join(self, timeout: float | None = None) -> None:
        if self.is_alive():
            self._scheduler.wait_for(lambda: not self.is_alive(), None if timeout is None else _microseconds(timeout))
