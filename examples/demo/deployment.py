"""The processes of the demo: the services under `tideline up`, and the writers. All of them end with the demo."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from examples.demo.fleet import Writer
from examples.demo.protocol import Progress, receive

from tideline_runtime import child_process

SMALL_FILE_BYTES = 512 * 1024
SORT_COLUMNS = {"flights": "carrier,dest"}
COMMITS_RETAINED = 40
GROUPS_PER_PLAN = 4
"""Smaller plans conflict with fewer writers."""
_GRACE_S = 20.0


class Layout:
    """The folders and files of the demo."""

    def __init__(self, folder: Path) -> None:
        self.tables = folder / "tables"
        self.state = folder / "state"
        """The state folder of the services."""
        self.logs = folder / "logs"
        """The standard error output of the writers."""
        self.settings = folder / "settings.toml"
        """The settings file of the services."""
        self.event_log = f"sqlite://{self.state / 'events.db'}"
        """The URL of the embedded event log."""

    def write_settings(self) -> None:
        """Write the settings of the services: embedded defaults, and thresholds that fit small data."""
        clustering = {
            "hoodie.clustering.plan.strategy.small.file.limit": str(SMALL_FILE_BYTES),
            "hoodie.clustering.plan.strategy.max.num.groups": str(GROUPS_PER_PLAN),
            "tideline.clustering.yields": "1",
        }
        lines = [
            f"state_folder = {json.dumps(str(self.state))}",
            f"tables = [{json.dumps(str(self.tables / '*'))}]",
            f"event_log = {json.dumps(self.event_log)}",
            "tables_rescan_s = 2.0",
            "poll_interval_s = 1.0",
            "[planner]",
            "clustering_min_files = 12",
            "clustering_min_commits = 60",
            f"clustering_sort_columns = {_inline(SORT_COLUMNS)}",
            f"options = {_inline(clustering)}",
            "[cleaner]",
            "clean_min_commits = 20",
            f"options = {_inline({'hoodie.cleaner.commits.retained': str(COMMITS_RETAINED)})}",
        ]
        self.settings.write_text("\n".join(lines) + "\n")


def _inline(pairs: dict[str, str]) -> str:
    return "{" + ", ".join(f"{json.dumps(k)} = {json.dumps(v)}" for k, v in pairs.items()) + "}"


class Process:
    """A child process in its own session. On Linux, the kernel kills it when this process ends for any reason."""

    def __init__(self, name: str, command: list[str], log: Path, on_progress: Callable[[Progress], None] | None = None) -> None:
        self.name = name
        log.parent.mkdir(parents=True, exist_ok=True)
        tied = [sys.executable, "-I", "-S", child_process.__file__, str(os.getpid()), *command]
        with log.open("ab") as sink:
            self._process = subprocess.Popen(
                tied, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=sink, start_new_session=True, text=True
            )
        self.log = log
        self._reader = threading.Thread(target=self._read, args=(on_progress,), daemon=True, name=f"read-{name}")
        self._reader.start()

    @property
    def exit_code(self) -> int | None:
        """The exit code, or None while the process runs."""
        return self._process.poll()

    def ask_to_stop(self) -> None:
        """Send SIGTERM to the process itself, which then stops its own children."""
        if self._process.poll() is None:
            self._process.terminate()

    def stop(self) -> None:
        """Stop the process, by force after a grace period, and kill the rest of its process group."""
        self.ask_to_stop()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_GRACE_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._reader.join(_GRACE_S)

    def _read(self, on_progress: Callable[[Progress], None] | None) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                progress = receive(line)
                if progress is not None and on_progress is not None:
                    on_progress(progress)


def start_services(layout: Layout) -> Process:
    """Start all services under one supervisor."""
    command = [sys.executable, "-m", "tideline_cli.main", "up", "--settings", str(layout.settings)]
    return Process("services", command, layout.logs / "services.log")


def start_writer(writer: Writer, layout: Layout, on_progress: Callable[[Progress], None]) -> Process:
    """Start one writer process."""
    command = [sys.executable, "-m", "examples.demo.writer", writer.name, str(layout.tables / writer.table)]
    return Process(writer.name, command, layout.logs / f"{writer.name}.log", on_progress)


@contextlib.contextmanager
def stopping(processes: list[Process]) -> Iterator[None]:
    """Stop all `processes` at the end of the context: writers first, services last."""
    try:
        yield
    finally:
        for process in reversed(processes):
            process.ask_to_stop()
        for process in reversed(processes):
            process.stop()
