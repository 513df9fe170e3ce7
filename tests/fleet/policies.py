"""The policy file of a run: what holds for each group of tables, and the causes of findings, by phase."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from tests.fleet.tables import EARLY, FRUGAL, LATE, PAUSED, TIMED

BUDGET_BYTES = 48 * 2**10
SMALL_FILES = 400
AT_REST_SMALL_FILES = 8
"""The objective of the last phase: without one, a clustering that lost to the last writes would wait for more writes."""
PENDING_PLANS = 40
ZONE = "UTC"


@dataclass(frozen=True)
class Window:
    """A window of whole minutes."""

    opens: datetime
    closes: datetime

    def document(self) -> dict[str, str]:
        return {"from": f"{self.opens:%H:%M}", "to": f"{self.closes:%H:%M}", "time_zone": ZONE}


def closed_window(now: datetime) -> Window:
    """Return a window of one hour that is half a day away."""
    return Window(now + timedelta(hours=12), now + timedelta(hours=13))


def open_window(now: datetime) -> Window:
    """Return a window that has been open for an hour and stays open for three."""
    return Window(now - timedelta(hours=1), now + timedelta(hours=3))


def next_window(now: datetime, least_s: float) -> Window:
    """Return the window of one minute that opens with the first whole minute from `least_s` seconds on."""
    opens = (now + timedelta(seconds=least_s + 60)).replace(second=0, microsecond=0)
    return Window(opens, opens + timedelta(minutes=1))


@dataclass(frozen=True)
class Phase:
    """One content of the policy file. `cured` are the names of the special tables whose cause is removed."""

    late: Window | None
    early: Window | None
    timed: Window | None
    is_frugal: bool = True
    is_paused: bool = True
    is_cured: bool = False
    hudi_mode: str = "observe"
    """The mode of the tables that jobs of Apache Hudi write."""


@dataclass(frozen=True)
class Rules:
    """Writes the policy file for the tables below some roots."""

    roots: Sequence[str]
    special: str
    hudi: str
    unmerged_log_age_s: float
    """The objective of the first phases about the age of log files."""
    phases: list[tuple[datetime, Phase]] = field(default_factory=list)

    def document(self, phase: Phase) -> dict[str, Any]:
        rules = [self._group(group, **given) for group, given in self._groups(phase)]
        rules += [
            {"name": f"special {name}", "match": {"tables": [f"{self.special}/{name}"]}, **given}
            for name, given in special(phase.is_cured).items()
        ]
        options = {HEARTBEAT: HUDI_HEARTBEAT_MS, **({"tideline.clustering.quiet": 0.0} if phase.is_cured else {})}
        rules += [{"name": "hudi", "match": {"paths": [f"{self.hudi}/*"]}, "mode": phase.hudi_mode, "options": options}]
        objectives = {"small_files": SMALL_FILES, "unmerged_log_age": f"{self.unmerged_log_age_s:g}s"}
        return {
            "version": 1,
            "fleet": {"pending_plans": PENDING_PLANS},
            "defaults": {"objectives": {"small_files": AT_REST_SMALL_FILES} if phase.is_cured else objectives},
            "rules": rules,
        }

    def write(self, path: Path, phase: Phase, now: datetime) -> None:
        """Replace the policy file; JSON is YAML, too."""
        self.phases.append((now, phase))
        replace(path, json.dumps(self.document(phase), indent=1))

    def _groups(self, phase: Phase) -> list[tuple[str, dict[str, Any]]]:
        found: list[tuple[str, dict[str, Any]]] = []
        for group, window in ((LATE, phase.late), (EARLY, phase.early), (TIMED, phase.timed)):
            found += [(group, {"windows": [window.document()]})] if window is not None else []
        found += [(FRUGAL, {"budget": {"bytes_per_day": BUDGET_BYTES}})] if phase.is_frugal else []
        found += [(PAUSED, {"pause": {"reason": "migration of the catalogue"}})] if phase.is_paused else []
        return found

    def _group(self, group: str, **given: Any) -> dict[str, Any]:
        return {"name": group, "match": {"paths": [f"{root}/{group}/*" for root in self.roots]}, **given}


HEARTBEAT, HUDI_HEARTBEAT_MS = "hoodie.client.heartbeat.interval_in_ms", 20_000
"""Of Apache Hudi's jobs and of what judges them. The 3 s of the other tables call a job dead whose write takes ten seconds."""


def special(is_cured: bool) -> dict[str, dict[str, Any]]:
    """Return what the policy says about the special tables, by name: causes of findings, then nothing that holds them back."""
    if is_cured:
        return {"cannot_plan": {"sort_columns": ["n"]}, "given_up": {"settings": {"launcher": {"max_attempts": 3}}}}
    return {
        "backlog": {"services": {"compaction": False, "clustering": False}, "options": {"tideline.write.backlog.log.files": 3}},
        "objective": {"services": {"clustering": False}, "objectives": {"small_files": 2}},
        "cannot_plan": {"sort_columns": ["no_such_column"]},
        "waiting_plan": {"pause": {"reason": "no launcher may run its plan"}, "options": {"tideline.plan.age": 1.0}},
        "dead_writer": {"services": {"rollback": False}, "options": {"hoodie.client.heartbeat.interval_in_ms": 1000}},
        "given_up": {"settings": {"launcher": {"max_attempts": 1}}},
    }


def replace(path: Path, content: str) -> None:
    """Replace a file by a rename, as an operator or Kubernetes does."""
    staged = path.with_name(f".{path.name}")
    staged.write_text(content)
    os.replace(staged, path)
