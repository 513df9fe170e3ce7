"""The platform that the settings choose: one for Spark applications, combined with the resident workers if there are any."""

# ruff: noqa: D102 - the port documents these methods

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor

from tideline_launcher.application import Application, Applications, ApplicationSpec, Place, PlanKey
from tideline_launcher.local_processes import LocalProcesses
from tideline_launcher.resident_workers import ResidentWorkers
from tideline_launcher.settings import LauncherSettings
from tideline_runtime.contract import ServiceContext
from tideline_table.extras import extra


def applications_of(settings: LauncherSettings, context: ServiceContext) -> Applications:
    """Return the platform that the settings name, with resident workers if there are any. Raises `InvalidSetting`."""
    spark: Applications
    if settings.runner == "kubernetes":
        with extra("kubernetes"):
            from tideline_launcher.kubernetes import DriverPods

        spark = DriverPods(settings.kubernetes, context.clock)
    else:
        spark = LocalProcesses(settings.state_folder, settings.local_cores, context.clock)
    if not settings.workers.count:
        return spark
    return PlacedApplications(spark, ResidentWorkers(settings.state_folder, settings.workers, context.clock, context.metrics))


class PlacedApplications:
    """Implements `Applications` with two platforms. `ApplicationSpec.place` says on which of them an application runs.

    The numbers of attempts count the attempts on both platforms, so no two attempts at a plan have the same name.
    """

    def __init__(self, spark: Applications, workers: Applications) -> None:
        self._spark = spark
        self._workers = workers
        self.name = spark.name

    @property
    def poll_interval_s(self) -> float:
        is_busy = any(a.end is None for a in self._workers.known())
        return min(self._workers.poll_interval_s, self._spark.poll_interval_s) if is_busy else self._spark.poll_interval_s

    def start(self, wake: Callable[[], None]) -> None:
        self._spark.start(wake)
        self._workers.start(wake)

    def launch(self, spec: ApplicationSpec) -> None:
        (self._workers if spec.place is Place.WORKER else self._spark).launch(spec)

    def known(self) -> Sequence[Application]:
        return [*self._workers.known(), *self._spark.known()]

    def attempts(self, keys: Collection[PlanKey]) -> Sequence[Application]:
        return [*self._workers.attempts(keys), *self._spark.attempts(keys)]

    def log_tail(self, driver: str, max_bytes: int) -> bytes:
        return self._of(driver).log_tail(driver, max_bytes)

    def collect(self, driver: str) -> None:
        self._of(driver).collect(driver)

    def tidy(self) -> None:
        self._workers.tidy()
        self._spark.tidy()

    def close(self, grace_s: float) -> None:
        with ThreadPoolExecutor(1, thread_name_prefix="stop") as pool:
            workers = pool.submit(self._workers.close, grace_s)
            self._spark.close(grace_s)
            workers.result()

    def _of(self, driver: str) -> Applications:
        return self._workers if any(a.driver == driver for a in self._workers.known()) else self._spark
