"""The short form of the run: one table, one driver pod with one executor pod, one driver killed in the middle of its work."""

from __future__ import annotations

from e2e.cluster.errors import ClusterError
from e2e.fleet import faults, source
from e2e.fleet.pods import DRIVER, EXECUTOR
from e2e.fleet.session import Session

TABLE = "flights"
ACTIONS = (f"{TABLE} clustering",)
DRIVERS = 2
"""Driver pods that the plan needs at least: the one that is killed, and its successor, each with an executor pod of its own."""


def run(session: Session) -> None:
    """Run it from an empty table to an empty namespace. Raises ClusterError where something does not hold."""
    report = session.report
    session.begin([TABLE])
    with report.step("writes, and a driver killed"):
        started = session.begin_round("first", source.round_of(1))
        scene = faults.busy_scene(session, (), with_executor=True)
        done = faults.kill_driver(scene)
        report.say(done)
        session.end_round(started)
    with report.step("await the second driver"):
        faults.await_plan(scene)
        session.await_quiet()
    plan = (scene.driver.table_uid, scene.driver.instant)
    used = [pod for pod in session.journal.pods(DRIVER) if plan in pod.plans]
    helped = [pod for pod in session.journal.pods(EXECUTOR) if any(pod.belongs_to(driver) for driver in used)]
    text = f"{done}: {plan[1]} completed by {len(used)} driver pods with {len(helped)} executor pods"
    if len(used) < DRIVERS or len(helped) < DRIVERS:
        raise ClusterError(f"{text}; expected {DRIVERS} or more with an executor each")
    report.fact(text)
    session.verify(ACTIONS, ("clustering",))
    session.end()
