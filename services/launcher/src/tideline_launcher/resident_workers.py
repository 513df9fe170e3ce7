"""Applications for small plans in resident Python processes (workers), which end with the launcher."""

# ruff: noqa: D102 - the port documents these methods

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tideline_launcher.application import Application, ApplicationSpec, End, EndKind, Place, PlanKey
from tideline_launcher.command import arguments_of, shared_name_of
from tideline_launcher.failure import recovery_in
from tideline_launcher.local_records import left_behind, unhandled, with_ends, write_record
from tideline_launcher.log_files import LOG, OUTCOMES, RECORD, TAIL_BYTES, local_file, log_end
from tideline_launcher.metrics import WORKER_ENDS
from tideline_launcher.settings import WorkerSettings
from tideline_launcher.worker_process import Ran, WorkerNotStarted, WorkerProcess, start_worker
from tideline_runtime.logging import get_logger
from tideline_runtime.metrics import Metrics
from tideline_runtime.state_folder import open_log_file
from tideline_spark.worker import Request
from tideline_table.clock import Clock
from tideline_table.storage import writing

FOLDER = "workers"
"""Folder below the state folder of the launcher, with logs and records of applications, and the logs of the workers."""
_POLL_S = 0.5
_REASONS = {EndKind.OUT_OF_MEMORY: "out_of_memory", EndKind.TIMED_OUT: "timed_out"}
_log = get_logger(__name__)


@dataclass(slots=True)
class _Held:
    """An application that waits, runs or has ended. `spec` is None for one that an earlier launcher left behind."""

    spec: ApplicationSpec | None
    applications: tuple[Application, ...]
    worker: WorkerProcess | None = None

    @property
    def has_ended(self) -> bool:
        return self.applications[0].end is not None


class ResidentWorkers:
    """Implements `Applications` with a pool of processes.

    Applications wait in order of their launch; each runs in one worker, alone.

    So the death of a worker ends one application, and the next application gets a new worker. A worker is ended with its
    application if the application takes too much memory or too long, and between applications after `max_plans` plans or after
    `idle_s` without one. On Linux the kernel kills workers when the launcher ends for any reason; a new launcher reads their
    records and lists their attempts as lost.
    """

    name = Place.WORKER.value
    poll_interval_s = _POLL_S
    make_worker = staticmethod(start_worker)

    def __init__(self, state_folder: Path, settings: WorkerSettings, clock: Clock, metrics: Metrics) -> None:
        self._state = state_folder / FOLDER
        self._settings = settings
        self._clock = clock
        self._metrics = metrics
        self._changed = threading.Condition()
        self._held: dict[str, _Held] = {}
        self._queue: deque[str] = deque()
        self._idle = 0
        self._threads: list[threading.Thread] = []
        self._closing = threading.Event()
        self._grace_s = 0.0
        self._wake: Callable[[], None] = _nothing

    def start(self, wake: Callable[[], None]) -> None:
        """See `Applications.start`. Reads the records of applications that ended with a killed launcher."""
        self._wake = wake
        for applications in left_behind(self._state):
            here = tuple(replace(a, place=Place.WORKER) for a in applications)
            driver = here[0].driver
            if driver not in self._held:
                end = End(EndKind.LOST, "ended with its launcher", self._clock.now())
                self._held[driver] = _Held(None, with_ends(self._state, here, end))

    def launch(self, spec: ApplicationSpec) -> None:
        """See `Applications.launch`. The application waits until a worker is free."""
        if spec.name in self._held:
            return
        log_file, outcomes = (local_file(self._state, spec.name, kind) for kind in (LOG, OUTCOMES))
        applications = tuple(
            Application(
                p.name,
                p.key,
                p.attempt,
                p.service,
                p.base_path,
                executors=0,
                memory_step=spec.resources.memory_step,
                created=self._clock.now(),
                shared=shared_name_of(spec),
                place=Place.WORKER,
            )
            for p in spec.plans
        )
        with writing(repr(str(log_file))):
            open_log_file(log_file).close()
            outcomes.unlink(missing_ok=True)
        write_record(self._state, applications)
        with self._changed:
            self._held[spec.name] = _Held(spec, applications)
            self._queue.append(spec.name)
            if len(self._queue) > self._idle and len(self._threads) < self._settings.count:
                number = len(self._threads)
                self._threads.append(threading.Thread(target=self._serve, args=(number,), name=f"worker-{number}", daemon=True))
                self._threads[-1].start()
            self._changed.notify()

    def known(self) -> Sequence[Application]:
        with self._changed:
            return [application for held in self._held.values() for application in held.applications]

    def attempts(self, keys: Collection[PlanKey]) -> Sequence[Application]:
        return [application for application in self.known() if application.key in keys]

    def log_tail(self, driver: str, max_bytes: int) -> bytes:
        return log_end(self._state, driver, max_bytes)

    def collect(self, driver: str) -> None:
        """See `Applications.collect`.

        Deletes all files of the application; the folders of tables have the logs of failed attempts.
        """
        with self._changed:
            held = self._held.get(driver)
            if held is None or not held.has_ended:
                return
            del self._held[driver]
        self._forget(driver)

    def tidy(self) -> None:
        """See `Applications.tidy`. Forgets applications whose end no launcher handles, because their table is gone."""
        for driver in unhandled(self.known(), self._clock.now()):
            self.collect(driver)

    def close(self, grace_s: float) -> None:
        """See `Applications.close`.

        Applications that wait or are stopped here leave no record, so that the stop counts as no lost attempt.
        """
        self._grace_s = grace_s
        self._closing.set()
        with self._changed:
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()
        for driver, held in self._held.items():
            if held.spec is not None and not held.has_ended:
                self._forget(driver)

    def _serve(self, number: int) -> None:
        """Run applications in a worker until the launcher closes. The worker ends with this thread at the latest."""
        worker: WorkerProcess | None = None
        try:
            while not self._closing.is_set():
                driver = self._next(worker)
                if driver is not None:
                    try:
                        worker = self._run(number, driver, worker)
                    except Exception as error:  # noqa: BLE001 - without this thread, the plans that wait would never end
                        self._lose(driver, worker, error)
                        worker = None
                    if worker is not None and worker.plans >= self._settings.max_plans:
                        self._retire(worker, "recycled")
                        worker = None
                elif worker is not None and not self._closing.is_set():
                    self._retire(worker, "idle")
                    worker = None
        finally:
            if worker is not None:
                worker.stop(self._grace_s)

    def _next(self, worker: WorkerProcess | None) -> str | None:
        """Wait for an application, and return the one that has waited longest; None after `idle_s` without one, and on close."""
        with self._changed:
            self._idle += 1
            self._changed.wait_for(lambda: self._queue or self._closing.is_set(), self._settings.idle_s if worker else None)
            self._idle -= 1
            if self._closing.is_set() or not self._queue:
                return None
            driver = self._queue.popleft()
            held = self._held[driver]
            # The duration of the attempts begins now, without the time in the queue.
            held.applications = tuple(replace(a, created=self._clock.now()) for a in held.applications)
            return driver

    def _run(self, number: int, driver: str, worker: WorkerProcess | None) -> WorkerProcess | None:
        """Run an application in the worker, or in a new one if there is none; return the worker, None if it is dead."""
        held = self._held[driver]
        spec = held.spec
        assert spec is not None
        own_log = self._state / f"worker-{number}.{LOG}"
        try:
            if worker is None:
                worker = self.make_worker(own_log, self._settings.memory_bytes, self._clock, self._closing.is_set)
                _log.info("worker started", worker=number, process=worker.pid)
        except (WorkerNotStarted, OSError) as error:
            if not self._closing.is_set():
                self._end(held, Ran(EndKind.NOT_STARTED, f"{error}; see {own_log}"))
            return None
        held.worker = worker
        arguments = arguments_of(spec, 1, local_file(self._state, driver, OUTCOMES))
        request = Request(tuple(arguments), local_file(self._state, driver, LOG).absolute(), spec.locks)
        ran = worker.run(request, spec.timeout_s, self._closing.is_set)
        if ran is None:
            return worker
        worker.plans += len(spec.plans)
        if ran.is_dead:
            reason = _REASONS.get(ran.kind, "died")
            self._metrics.increment(WORKER_ENDS, reason=reason)
            _log.warning("worker ended with its plan", worker=number, reason=reason, application=driver)
        self._end(held, ran)
        held.worker = None
        return None if ran.is_dead else worker

    def _end(self, held: _Held, ran: Ran) -> None:
        """Record the end of an application. Wake the launcher if at most half of `max_queued` applications wait."""
        driver = held.applications[0].driver
        recovery = recovery_in(self.log_tail(driver, TAIL_BYTES).decode(errors="replace")) if ran.kind is EndKind.FAILED else None
        ended = with_ends(
            self._state, held.applications, End(ran.kind, ran.reason, self._clock.now(), None if ran.is_dead else recovery)
        )
        with self._changed:
            held.applications = ended
            is_low = 2 * len(self._queue) <= self._settings.max_queued
        if is_low:
            self._wake()

    def _lose(self, driver: str, worker: WorkerProcess | None, error: Exception) -> None:
        """Kill a worker whose state is unknown after an error of the launcher, and record that its application is lost."""
        held = self._held[driver]
        _log.error("worker killed after an error of the launcher", application=driver, exc_info=error)
        for process in filter(None, (worker, held.worker)):
            process.kill()
        held.worker = None
        self._metrics.increment(WORKER_ENDS, reason="died")
        end = End(EndKind.LOST, f"an error of the launcher: {type(error).__name__}: {error}", self._clock.now())
        with self._changed:
            held.applications = tuple(replace(a, end=end) for a in held.applications)
        self._wake()

    def _retire(self, worker: WorkerProcess, reason: str) -> None:
        self._metrics.increment(WORKER_ENDS, reason=reason)
        worker.retire()

    def _forget(self, driver: str) -> None:
        for kind in (LOG, RECORD, OUTCOMES):
            local_file(self._state, driver, kind).unlink(missing_ok=True)


def _nothing() -> None:
    """Do nothing: the value of `_wake` until `start` replaces it."""
