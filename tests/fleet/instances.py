"""The services as processes, two instances of each, and the writers: started, killed, started again, asked by HTTP."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import httpx
from examples.demo.deployment import Process

from tideline_runtime.running import read_running

LEASED = ("mirror", "planner", "cleaner")
"""Services whose instances divide the shards by leases."""
STATIC = ("launcher", "lock_service")
"""Services whose instances have a shard each by their settings."""
SERVICES = (*LEASED, *STATIC)
LETTERS = ("a", "b")
SHARDS = 8
LEASE_TTL_S = 4.0
POLL_INTERVAL_S = 1.0
FRESHNESS_S = 3600.0
"""Without polling: longer than a run."""
LOOK_S = 0.25
REQUEST_TIMEOUT_S = 60.0
STOP_LIMIT_S = 300.0


class Killable(Process):
    """A process that can be killed without a warning. It has to be started by the main thread, with which it ends."""

    _was_asked = False

    def kill(self) -> None:
        """kill -9 of the process and of all that it started."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def end(self) -> int:
        """Ask it to stop unless that was done, wait until it has, and return its exit code."""
        self.ask_to_stop()
        return self._process.wait(STOP_LIMIT_S)

    def ask_to_stop(self) -> None:
        """Send SIGTERM once: a second one would strike a process that has restored the default of the signal before it ends."""
        if not self._was_asked:
            self._was_asked = True
            super().ask_to_stop()

    @property
    def pid(self) -> int:
        return self._process.pid


@dataclass(frozen=True)
class Place:
    """Where the services of a run find what they work with."""

    folder: Path
    tables: Sequence[str]
    event_log: str
    locks: str
    lease_store: str
    told_by: str = ""
    """Where the object store sends its notifications. With them the mirror looks at no table that nobody told of."""

    @property
    def policy_file(self) -> Path:
        return self.folder / "policies.yaml"

    @property
    def logs(self) -> Path:
        return self.folder / "logs"

    def state(self, letter: str) -> Path:
        return self.folder / f"state-{letter}"

    def settings(self, letter: str) -> Path:
        return self.folder / f"settings-{letter}.toml"

    def write_settings(self) -> None:
        """Write a settings file for each letter. Intervals and thresholds are small, so that little data makes much work."""
        for number, letter in enumerate(LETTERS):
            lines = [
                f"state_folder = {json.dumps(str(self.state(letter)))}",
                f"tables = {json.dumps(list(self.tables))}",
                f"event_log = {json.dumps(self.event_log)}",
                f"locks = {json.dumps(self.locks)}",
                f"policy_file = {json.dumps(str(self.policy_file))}",
                f"poll_interval_s = {POLL_INTERVAL_S}",
                "tables_rescan_s = 3.0",
                "retry_backoff_max_s = 2.0",
            ]
            shared = {"mirror": self._of_mirror(), "planner": PLANNER, "cleaner": CLEANER}
            for service in LEASED:
                lines += [f"[{service}]", f"shard_count = {SHARDS}", shared[service]]
                lines += [f"[{service}.shard_leases]", "enabled = true", f"store = {json.dumps(self.lease_store)}"]
                lines += [f"ttl_s = {LEASE_TTL_S}"]
            for service in STATIC:
                lines += [f"[{service}]", f"shard_count = {len(LETTERS)}", f"shard_index = {number}"]
                lines += [LAUNCHER] if service == "launcher" else []
            self.settings(letter).write_text("\n".join(lines) + "\n")

    def _of_mirror(self) -> str:
        rarely = f"freshness_s = {FRESHNESS_S}\nnotified_freshness_s = {FRESHNESS_S}\n"
        return f"{rarely}notifications = {json.dumps(self.told_by)}\n" if self.told_by else ""


PLANNER = """\
clustering_min_files = 4
clustering_min_commits = 4
clustering_backoff_s = 1.0
clustering_backoff_max_s = 8.0
options = {"hoodie.compact.inline.max.delta.commits" = "3", "tideline.clustering.yields" = "1"}
"""
CLEANER = """\
clean_min_commits = 4
clean_interval_s = 10
options = {"hoodie.cleaner.commits.retained" = "3", "hoodie.client.heartbeat.interval_in_ms" = "3000"}
"""
LAUNCHER = """\
options = {"hoodie.client.heartbeat.interval_in_ms" = "3000"}
workers = {count = 1}
"""


@dataclass
class Instances:
    """The running instances, by service and letter. All methods are called by the main thread."""

    place: Place
    running: dict[tuple[str, str], Killable] = field(default_factory=dict)
    codes: dict[str, int] = field(default_factory=dict)
    """Exit codes of the instances that were asked to stop."""
    _client: httpx.Client = field(default_factory=lambda: httpx.Client(timeout=REQUEST_TIMEOUT_S, trust_env=False))
    """One for all questions: a client that is made anew reads the certificates of the machine, which takes 40 ms."""

    def start(self, service: str, letter: str) -> None:
        is_told = service == "mirror" and self.place.told_by
        module = "tests.fleet.told_mirror" if is_told else f"tideline_{service}"
        command = [sys.executable, "-m", module, "--settings", str(self.place.settings(letter))]
        log = self.place.logs / f"{service}-{letter}.log"
        for path in self._announcements(service, letter):
            path.unlink()  # of a predecessor that was killed
        self.running[service, letter] = Killable(f"{service}-{letter}", command, log)

    def start_all(self) -> None:
        for service in SERVICES:
            for letter in LETTERS:
                self.start(service, letter)

    def kill(self, service: str, letter: str) -> None:
        self.running.pop((service, letter)).kill()

    def end(self, service: str, letter: str) -> None:
        """Stop an instance in order."""
        self.codes[f"{service}-{letter}"] = self.running.pop((service, letter)).end()

    def end_all(self) -> None:
        for service, letter in reversed(list(self.running)):
            self.running[service, letter].ask_to_stop()
        for service, letter in reversed(list(self.running)):
            self.end(service, letter)

    def kill_all(self) -> None:
        for process in self.running.values():
            if process.exit_code is None:
                process.kill()
        self._client.close()

    def check(self) -> None:
        """Raise `AssertionError` for an instance that ended by itself."""
        for process in self.running.values():
            assert process.exit_code is None, f"{process.name} ended with {process.exit_code}: {process.log.read_text()[-3000:]}"

    def url(self, service: str, letter: str) -> str | None:
        """Return the URL of a running instance, None before it announced itself."""
        for path in self._announcements(service, letter):
            found = read_running(path)
            if found is not None and found.pid == self.running[service, letter].pid:
                return found.url
        return None

    def metric(self, service: str, letter: str, name: str, **labels: str) -> float | None:
        """Return a value of `/metrics`, None if the instance does not answer or does not have it."""
        url = self.url(service, letter)
        if url is None:
            return None
        try:
            text = self._client.get(f"{url}/metrics").text
        except httpx.HTTPError:
            return None
        return value_in(text, name, labels)

    def total(self, service: str, name: str, **labels: str) -> float:
        """Return the sum of a metric over the running instances of a service."""
        return sum(self.metric(s, letter, name, **labels) or 0.0 for s, letter in self.running if s == service)

    def documents(self) -> list[dict[str, object]]:
        """Return the documents of all tables by the fleet API of both planners. A shard that just moved is in none or in both."""
        found: list[dict[str, object]] = []
        for service, letter in self.running:
            url = self.url(service, letter) if service == "planner" else None
            if url is not None:
                reply = self._client.get(f"{url}/api/v1/tables")
                assert reply.status_code == httpx.codes.OK, reply.text
                found += reply.json()["tables"]
        return found

    def _announcements(self, service: str, letter: str) -> Iterator[Path]:
        # An instance with shards is announced by its shard or, with leases, by the id of its process.
        yield from list(self.place.state(letter).glob(f"{service.replace('_', '-')}*.json"))
        yield from list(self.place.state(letter).glob(f"{service}*.json")) if "_" in service else ()


def value_in(text: str, name: str, labels: dict[str, str]) -> float | None:
    """Return the sum of the samples of a metric that have these labels, None without one."""
    wanted = [f'{label}="{value}"' for label, value in labels.items()]
    found = [
        float(line.rpartition(" ")[2])
        for line in text.splitlines()
        if line.startswith((f"{name} ", f"{name}{{")) and all(label in line for label in wanted)
    ]
    return sum(found) if found else None


def wait_until(what: str, met: Callable[[], bool], instances: Instances, limit_s: float, look_s: float = LOOK_S) -> float:
    """Wait until `met` and return the seconds that it took. Raises `AssertionError` after `limit_s`, or if an instance ended."""
    began_s = time.monotonic()
    while not met():
        instances.check()
        waited_s = time.monotonic() - began_s
        assert waited_s < limit_s, f"waited {waited_s:.0f} s until {what}"
        time.sleep(look_s)
    return time.monotonic() - began_s
