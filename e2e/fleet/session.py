"""One run on a cluster that is up: what it has written so far, and the steps that the whole run and its short form share.

Every step either holds or raises ClusterError.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from e2e.cluster.commands import wait_until
from e2e.cluster.errors import ClusterError
from e2e.cluster.folders import Folders
from e2e.fleet import events, release, source, tables, verification, writers
from e2e.fleet.pods import DRIVER, ENDED, EXECUTOR, Journal
from e2e.fleet.report import Report
from e2e.fleet.servers import Servers
from tideline_table.table import Table

QUIET_TIMEOUT_S = 300.0
QUIET_S = 6.0
QUIET_POLL_S = 1.0
SERVICES_TIMEOUT_S = 300.0
SERVICES_POLL_S = 3.0


@dataclass
class Session:
    """`written` and `commits` grow with every round."""

    folders: Folders
    servers: Servers
    report: Report
    journal: Journal
    work: Path
    opened: dict[str, Table] = field(default_factory=dict)
    written: list[source.Batch] = field(default_factory=list)
    commits: list[writers.Acknowledged] = field(default_factory=list)

    def begin(self, names: Iterable[str]) -> None:
        """Prepare the namespace, create the tables of these names and install the release."""
        # What reads the tables from this machine takes address and credentials from the environment.
        os.environ.update(self.servers.store.settings, AWS_ALLOW_HTTP="true")
        release.prepare(self.folders, self.servers)
        with self.report.step("create the tables"):
            self.opened = tables.create_tables(names)
        with self.report.step("install the release"):
            release.install(self.folders, self.servers, self.work)

    def end(self) -> None:
        """Uninstall the release; nothing may be left of it."""
        with self.report.step("uninstall the release"):
            writers.delete_program(self.folders)
            release.uninstall(self.folders)
            self.report.fact("nothing is left in the namespace after helm uninstall")
            release.delete_namespace(self.folders)

    def round(self, name: str, batches: Iterable[source.Batch]) -> None:
        """Let writers write the batches of the open tables at once, and wait for them."""
        self.end_round(self.begin_round(name, batches))

    def begin_round(self, name: str, batches: Iterable[source.Batch]) -> list[writers.Writer]:
        """Start the writers of a round."""
        chosen = [batch for batch in batches if batch.table in self.opened]
        tables.upload(self.servers, chosen)
        started = writers.writers_of(name, chosen)
        writers.start(self.folders, self.servers, started)
        self.written += chosen
        return started

    def end_round(self, started: Sequence[writers.Writer]) -> None:
        """Wait for the writers of a round."""
        commits = writers.await_end(self.folders, started)
        self.commits += commits
        conflicts, errors = sum(commit.attempts - 1 for commit in commits), sum(commit.errors for commit in commits)
        text = f"{len(started)} writers made {len(commits)} commits, {conflicts} conflicts were repeated"
        self.report.say(f"{text}, {errors} errors" if errors else text)

    def await_services(self, names: Sequence[str]) -> None:
        """Wait until each of these actions, each the name of a table and an action, was completed at least once, by the events
        in Kafka."""
        missing: list[str] = []

        def is_complete() -> bool:
            missing[:] = events.missing(names, events.read_transitions(self.servers, tables.heads(self.opened)))
            return not missing

        try:
            wait_until("every service completes something", is_complete, timeout_s=SERVICES_TIMEOUT_S, poll_s=SERVICES_POLL_S)
        except ClusterError as error:
            raise ClusterError(f"{error}; found no completed {', '.join(missing)}") from error

    def await_quiet(self) -> None:
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

    def verify(self, actions: Sequence[str], services: Iterable[str], *, by_hudi: bool = False) -> None:
        """Compare rows and events with what was acknowledged.

        These actions and driver pods of these services must have been seen.
        """
        with self.report.step("verify rows, events, pods"):
            self._verify_rows(by_hudi=by_hudi)
            self._verify_events(actions)
            self._verify_pods(services)

    def _verify_rows(self, *, by_hudi: bool) -> None:
        kinds = [source.TABLES[name] for name in self.opened]
        expected = {
            kind.name: source.expected_rows(kind, [batch.rows for batch in self.written if batch.table == kind.name])
            for kind in kinds
        }
        for check in verification.verify(kinds, expected, self.work / "copies" if by_hudi else None):
            if check.difference:
                raise ClusterError(f"{check.table} read by {check.reader}: {check.difference}")
            self.report.fact(f"{check.table}: {check.rows} rows read by {check.reader} equal what was acknowledged")

    def _verify_events(self, actions: Sequence[str]) -> None:
        uids = {name: table.uid for name, table in self.opened.items()}
        heads = tables.heads(self.opened)
        transitions = events.read_transitions(self.servers, heads)
        if wrong := events.problems(transitions, heads, uids, self.commits):
            raise ClusterError(f"events: {'; '.join(wrong)}")
        self.report.fact(f"{len(transitions)} events in Kafka, each once and in sequence; {len(self.commits)} commits among them")
        counts = events.completed_actions(transitions)
        self.report.fact("completed: " + ", ".join(f"{count} {name}" for name, count in counts.items()))
        if missing := events.missing(actions, transitions):
            raise ClusterError(f"found no completed {', '.join(missing)}; expected each at least once")

    def _verify_pods(self, services: Iterable[str]) -> None:
        if overlaps := self.journal.overlaps():
            raise ClusterError(f"found two live driver pods at once for {', '.join(overlaps)}; expected one")
        drivers, executors = self.journal.pods(DRIVER), self.journal.pods(EXECUTOR)
        for service in services:
            if not any(pod.service in (service, "shared") for pod in drivers):
                raise ClusterError(f"found no driver pod for {service}; expected one")
        if not executors:
            raise ClusterError("found no executor pod; expected one for each clustering")
        self.report.fact(f"{len(drivers)} driver pods and {len(executors)} executor pods, never two live drivers for a plan")
