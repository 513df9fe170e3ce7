"""The order of events of the whole run."""

from __future__ import annotations

from dataclasses import dataclass, field

from e2e.cluster.errors import ClusterError
from e2e.fleet import faults, outages, release, source
from e2e.fleet.pods import DRIVER
from e2e.fleet.session import Session

APPLICATIONS = ("flights clustering", "aircraft compaction")
ACTIONS = (*APPLICATIONS, "flights clean", "flights archival")
"""Table and action of what the services must have done."""
SERVICES = ("clustering", "compaction")
"""What driver pods must have run."""


@dataclass(frozen=True)
class Round:
    """A round of writes with a fault. `drivers`: how many driver pods its plan then needs, None for any number."""

    name: str
    fault: faults.Fault
    drivers: int | None = None
    with_executor: bool = False
    """Whether the fault waits for an executor pod."""


ROUNDS = (
    Round("driver pod deleted by force", faults.delete_driver, 2),
    Round("launcher's pod deleted", faults.delete_launcher, 1),
    Round("driver's process killed", faults.kill_driver, 2),
    Round("executor pod deleted by force", faults.delete_executor, 1, with_executor=True),
    Round("mirror killed, planner's pod deleted", outages.kill_mirror_and_planner),
    Round("Redis and Kafka killed", outages.restart_redis_and_kafka),
    Round("kubelet killed", outages.restart_kubelet),
    Round("API server away for two minutes", outages.restart_api_server),
    Round("two launchers at once", outages.run_two_launchers),
    Round("release upgraded", outages.upgrade),
)
FIRST_MONTH = 3


@dataclass
class Story:
    """One run of everything, from empty tables to an empty namespace."""

    session: Session
    struck: set[str] = field(default_factory=set)
    """Instants of the plans whose drivers had a fault."""
    chosen: tuple[str, ...] = ()
    """Names of the rounds to run, without the rounds before them; empty for all."""
    failed: list[str] = field(default_factory=list)
    """Rounds in which something did not hold."""

    def run(self, *, with_faults: bool, by_hudi: bool) -> None:
        """Run it. Raises ClusterError where something does not hold."""
        session, report = self.session, self.session.report
        session.begin(source.TABLES)
        with report.step("test the release"):
            release.test(session.folders)
        if not self.chosen:
            self._run_services(by_hudi=by_hudi and not with_faults)
        if with_faults:
            self._run_faults()
            # Some rounds alone need not make work for every service.
            session.verify(*(((), ()) if self.chosen else (ACTIONS, SERVICES)), by_hudi=by_hudi)
            if self.failed:
                raise ClusterError("; ".join(self.failed))
        session.end()

    def _run_services(self, *, by_hudi: bool) -> None:
        session, report = self.session, self.session.report
        with report.step("first round of writes"):
            session.round("first", source.round_of(1))
        with report.step("await clustering and compaction"):
            session.await_services(APPLICATIONS)
            session.await_quiet()
        with report.step("second round of writes"):
            session.round("second", source.round_of(2))
        with report.step("await clean and archival"):
            session.await_services(ACTIONS)
            session.await_quiet()
        session.verify(ACTIONS, SERVICES, by_hudi=by_hudi)

    def _run_faults(self) -> None:
        session = self.session
        for month, round_ in enumerate(ROUNDS, start=FIRST_MONTH):
            if self.chosen and round_.name not in self.chosen:
                continue
            with session.report.step(round_.name):
                try:
                    self._faulty_round(month, round_)
                except ClusterError as error:
                    # The other faults are tried, too, so that one run shows everything that does not hold.
                    self.failed.append(f"{round_.name}: {error}")
                    session.report.fact(f"FAILED {self.failed[-1]}")
        with session.report.step("corrections"):
            session.round("corrections", source.corrections(1))
        with session.report.step("await the end of all plans"):
            session.await_quiet()

    def _faulty_round(self, month: int, round_: Round) -> None:
        """Inject a fault while writers write and a driver works; its plan completes all the same."""
        session = self.session
        started = session.begin_round(f"month-{month}", source.round_of(month))
        try:
            scene = faults.busy_scene(session, self.struck, with_executor=round_.with_executor)
            self.struck.add(scene.driver.instant)
            done = round_.fault(scene)
            session.report.say(done)
            faults.await_plan(scene)
        finally:
            session.end_round(started)
        plan = (scene.driver.table_uid, scene.driver.instant)
        used = [pod for pod in session.journal.pods(DRIVER) if plan in pod.plans]
        text = f"{done}: {scene.driver.service} {scene.driver.instant} completed by {len(used)} driver pods"
        if round_.drivers is not None and len(used) != round_.drivers:
            raise ClusterError(f"{text}; expected {round_.drivers}")
        session.report.fact(text)
