"""The order of events of the run. Every step either holds or raises ClusterError."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from e2e.cluster.commands import wait_until
from e2e.cluster.errors import ClusterError
from e2e.cluster.folders import Folders
from e2e.fleet import events, faults, release, source, tables, verification, writers
from e2e.fleet.pods import DRIVER, ENDED, EXECUTOR, Journal
from e2e.fleet.report import Report
from e2e.fleet.servers import Servers
from tideline_events import Transition
from tideline_table.table import Table

QUIET_TIMEOUT_S = 300.0
QUIET_S = 6.0
QUIET_POLL_S = 1.0
SERVICES_TIMEOUT_S = 300.0
SERVICES_POLL_S = 3.0
APPLICATIONS = ("flights clustering", "aircraft compaction")
SERVICES = (*APPLICATIONS, "flights clean", "flights archival")
"""Table and action of what the services must have done."""
FAULTS: tuple[tuple[str, faults.Fault, int], ...] = (
    ("driver pod deleted by force", faults.delete_by_force, 2),
    ("launcher's pod deleted", faults.delete_launcher, 1),
    ("driver's process killed", faults.kill_process, 2),
)
"""Name, fault, and how many driver pods its plan then needs."""


@dataclass
class Story:
    """One run on a cluster that is up. `written` and `commits` grow with every round."""

    folders: Folders
    servers: Servers
    report: Report
    journal: Journal
    work: Path
    opened: dict[str, Table] = field(default_factory=dict)
    written: list[source.Batch] = field(default_factory=list)
    commits: list[writers.Acknowledged] = field(default_factory=list)
    struck: set[str] = field(default_factory=set)
    """Instants of the plans whose drivers had a fault."""

    def run(self, *, with_faults: bool) -> None:
        """Run everything from empty tables to an empty namespace."""
        # What reads the tables from this machine takes address and credentials from the environment.
        os.environ.update(self.servers.store.settings, AWS_ALLOW_HTTP="true")
        release.prepare(self.folders, self.servers)
        with self.report.step("create the tables"):
            self.opened = tables.create_tables()
        with self.report.step("install the release"):
            release.install(self.folders, self.servers, self.work)
        with self.report.step("test the release"):
            release.test(self.folders)
        with self.report.step("first round of writes"):
            self._round("first", list(source.round_of(1)))
        with self.report.step("await clustering and compaction"):
            self._await_services(APPLICATIONS)
            self._await_quiet()
        with self.report.step("second round of writes"):
            self._round("second", list(source.round_of(2)))
        with self.report.step("await clean and archival"):
            self._await_services(SERVICES)
            self._await_quiet()
        self._verify()
        if with_faults:
            self._run_faults()
            self._verify()
        with self.report.step("uninstall the release"):
            writers.delete_program(self.folders)
            release.uninstall(self.folders)
            self.report.fact("nothing is left in the namespace after helm uninstall")
            release.delete_namespace(self.folders)

    def _verify(self) -> None:
        with self.report.step("verify rows, events, pods"):
            self._verify_rows()
            self._verify_events()
            self._verify_pods()

    def _run_faults(self) -> None:
        for month, (name, fault, drivers) in enumerate(FAULTS, start=3):
            with self.report.step(name):
                self._faulty_round(month, fault, drivers)
        with self.report.step("corrections"):
            self._round("corrections", list(source.corrections(1)))
        with self.report.step("await the end of all plans"):
            self._await_quiet()

    def _round(self, name: str, batches: Sequence[source.Batch]) -> None:
        """Let writers write the batches at once, and wait for them."""
        self._end_round(self._begin_round(name, batches))

    def _begin_round(self, name: str, batches: Sequence[source.Batch]) -> list[writers.Writer]:
        tables.upload(self.servers, batches)
        started = writers.writers_of(name, batches)
        writers.start(self.folders, self.servers, started)
        self.written += batches
        return started

    def _end_round(self, started: Sequence[writers.Writer]) -> None:
        commits = writers.await_end(self.folders, started)
        self.commits += commits
        conflicts = sum(commit.attempts - 1 for commit in commits)
        self.report.say(f"{len(started)} writers made {len(commits)} commits, {conflicts} conflicts were repeated")

    def _faulty_round(self, month: int, fault: faults.Fault, drivers: int) -> None:
        """Inject a fault while writers write and a driver works; its plan completes all the same."""
        started = self._begin_round(f"month-{month}", list(source.round_of(month)))
        pod = faults.busy_driver(self.journal, self.opened, self.struck)
        self.struck.add(pod.instant)
        done = fault(self.folders, pod)
        self.report.say(done)
        table = next(table for table in self.opened.values() if table.uid == pod.table_uid)
        faults.await_plan(table, pod.instant)
        self._end_round(started)
        used = [p for p in self.journal.pods(DRIVER) if (pod.table_uid, pod.instant) in p.plans]
        text = f"{done}: {pod.service} {pod.instant} completed by {len(used)} driver pods"
        if len(used) != drivers:
            raise ClusterError(f"{text}; expected {drivers}")
        self.report.fact(text)

    def _await_services(self, names: Sequence[str]) -> None:
        """Wait until each of these actions was completed at least once, by the events in Kafka."""
        missing: list[str] = []

        def is_complete() -> bool:
            missing[:] = events.missing(names, events.read_transitions(self.servers, tables.heads(self.opened)))
            return not missing

        try:
            wait_until("every service completes something", is_complete, timeout_s=SERVICES_TIMEOUT_S, poll_s=SERVICES_POLL_S)
        except ClusterError as error:
            raise ClusterError(f"{error}; found no completed {', '.join(missing)}") from error

    def _await_quiet(self) -> None:
        """Wait until no plan is pending and no driver runs for some seconds, in which the planner could have planned."""
        since_s = time.monotonic()

        def is_quiet() -> bool:
            nonlocal since_s
            if tables.pending(self.opened) or not all(pod.phase in ENDED for pod in self.journal.present(DRIVER)):
                since_s = time.monotonic()
            return time.monotonic() - since_s > QUIET_S

        try:
            wait_until("no plan is pending", is_quiet, timeout_s=QUIET_TIMEOUT_S, poll_s=QUIET_POLL_S)
        except ClusterError as error:
            raise ClusterError(
                f"{error}; pending: {', '.join(tables.pending(self.opened)) or 'no plan, but a driver runs'}"
            ) from error

    def _verify_rows(self) -> None:
        for kind in source.TABLES.values():
            expected = source.expected_rows(kind, [batch.rows for batch in self.written if batch.table == kind.name])
            for check in verification.verify(kind, expected):
                if check.difference:
                    raise ClusterError(f"{check.table} read by {check.reader}: {check.difference}")
                self.report.fact(f"{check.table}: {check.rows} rows read by {check.reader} equal what was acknowledged")

    def _verify_events(self) -> None:
        uids = {name: table.uid for name, table in self.opened.items()}
        heads = tables.heads(self.opened)
        transitions = events.read_transitions(self.servers, heads)
        if wrong := events.problems(transitions, heads, uids, self.commits):
            raise ClusterError(f"events: {'; '.join(wrong)}")
        self.report.fact(f"{len(transitions)} events in Kafka, each once and in sequence; {len(self.commits)} commits among them")
        self._verify_services(transitions)

    def _verify_services(self, transitions: Sequence[Transition]) -> None:
        counts = events.completed_actions(transitions)
        self.report.fact("completed: " + ", ".join(f"{count} {name}" for name, count in counts.items()))
        if missing := events.missing(SERVICES, transitions):
            raise ClusterError(f"found no completed {', '.join(missing)}; expected each at least once")

    def _verify_pods(self) -> None:
        if overlaps := self.journal.overlaps():
            raise ClusterError(f"found two live driver pods at once for {', '.join(overlaps)}; expected one")
        drivers, executors = self.journal.pods(DRIVER), self.journal.pods(EXECUTOR)
        for service in ("clustering", "compaction"):
            if not any(pod.service in (service, "shared") for pod in drivers):
                raise ClusterError(f"found no driver pod for {service}; expected one")
        if not executors:
            raise ClusterError("found no executor pod; expected one for each clustering")
        self.report.fact(f"{len(drivers)} driver pods and {len(executors)} executor pods, never two live drivers for a plan")
