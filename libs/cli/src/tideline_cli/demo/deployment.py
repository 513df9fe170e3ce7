"""The processes of the demo: the services under `tideline up`, and the writers. None of them outlives the demo."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tideline_cli.demo.fleet import Writer
from tideline_cli.demo.protocol import Progress, receive
from tideline_service import tether

SMALL_FILE_BYTES = 512 * 1024
SORT_COLUMNS = {"flights": "carrier,dest"}
COMMITS_RETAINED = 40
GROUPS_PER_PLAN = 4
"""Smaller plans meet fewer writers."""
_GRACE_S = 20.0


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the demo keeps things."""

    folder: Path

    @property
    def tables(self) -> Path:
        """Base paths are the folders in here."""
        return self.folder / "tables"

    @property
    def state(self) -> Path:
        """State folder of the services."""
        return self.folder / "state"

    @property
    def logs(self) -> Path:
        """Standard error of the writers."""
        return self.folder / "logs"

    @property
    def settings(self) -> Path:
        """Settings file of the services."""
        return self.folder / "settings.toml"

    @property
    def event_log(self) -> str:
        """URL of the embedded event log."""
        return f"sqlite://{self.state / 'events.db'}"

    def write_settings(self) -> None:
        """The settings that the services of the demo run with: embedded defaults, thresholds that fit small data."""
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
    """A child in a session of its own that dies with us, however we end."""

    def __init__(self, name: str, command: list[str], log: Path, on_progress: Callable[[Progress], None] | None = None) -> None:
        self.name = name
        log.parent.mkdir(parents=True, exist_ok=True)
        tied = [sys.executable, "-I", "-S", tether.__file__, str(os.getpid()), *command]
        with log.open("ab") as sink:
            self._process = subprocess.Popen(  # noqa: S603 - our own modules
                tied, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=sink, start_new_session=True, text=True
            )
        self.log = log
        self._reader = threading.Thread(target=self._read, args=(on_progress,), daemon=True, name=f"read-{name}")
        self._reader.start()

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._process.poll()

    def ask_to_stop(self) -> None:
        """SIGTERM to the process itself: it stops its own children."""
        if self._process.poll() is None:
            self._process.terminate()

    def stop(self) -> None:
        """Wait for the end, then by force; its whole group is gone afterwards."""
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
    """All services, under one supervisor."""
    command = [sys.executable, "-m", "tideline_cli.main", "up", "--settings", str(layout.settings)]
    return Process("services", command, layout.logs / "services.log")


def start_writer(writer: Writer, layout: Layout, on_progress: Callable[[Progress], None]) -> Process:
    """One writer process."""
    command = [sys.executable, "-m", "tideline_cli.demo.writer", writer.name, str(layout.tables / writer.table)]
    return Process(writer.name, command, layout.logs / f"{writer.name}.log", on_progress)


@contextlib.contextmanager
def stopping(processes: list[Process]) -> Iterator[None]:
    """Stop everything in `processes` at the end: the writers first, the services last."""
    try:
        yield
    finally:
        for process in reversed(processes):
            process.ask_to_stop()
        for process in reversed(processes):
            process.stop()
