"""The policy of one table: each value with the rule that gives it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from tideline_runtime.policy.errors import FeedingRefused
from tideline_runtime.policy.fields import OPTION, SETTING, nested
from tideline_runtime.policy.window import Window
from tideline_table.action import SERVICES, Objectives, TableService

PRIORITY = 50
"""Priority of a table without one."""


@dataclass(frozen=True, slots=True, order=True)
class Origin:
    """The origin of a value: the label of the rule, and the line of the value in the policy file (0: not from the file)."""

    rule: str
    line: int = 0

    def __str__(self) -> str:
        return f"{self.rule} (line {self.line})" if self.line else self.rule


BUILT_IN = Origin("built-in default")


@dataclass(frozen=True, slots=True)
class Given:
    """A value that a rule gives."""

    value: Any
    origin: Origin


@dataclass(frozen=True, slots=True)
class Pause:
    """Why services leave the table alone, and until when (UTC; None: until the rule is removed)."""

    reason: str
    until: datetime | None = None


@dataclass(frozen=True, slots=True)
class TablePolicy:
    """The policy of the table at `base_path`. `given` has every value that a rule gives, by dotted name, in order of name."""

    base_path: str
    uid: str = ""
    given: Mapping[str, Given] = field(default_factory=dict)

    def _value(self, name: str, default: Any) -> Any:
        found = self.given.get(name)
        return default if found is None or found.value is None else found.value

    @property
    def observes(self) -> bool:
        """Whether the services may write nothing to the table."""
        return bool(self._value("mode", "services") == "observe")

    def check_feeding(self, *, created_here: bool) -> None:
        """Raise `FeedingRefused` unless an ingestion may write the table, which Tideline created or Apache Hudi did."""
        mode = self._value("mode", None)
        if mode != "write" and (mode is not None or not created_here):
            raise FeedingRefused(self.base_path, f"mode: {mode} by {self.given['mode'].origin}" if mode else "")

    def is_on(self, service: TableService) -> bool:
        """Return whether the service is switched on. A pause does not change the result."""
        return not self.observes and bool(self._value(f"services.{service.value}", True))

    def why_off(self, service: TableService) -> str:
        """Return the rule that switches a service off, and the mode if that does."""
        return (
            f"mode: observe of {self.given['mode'].origin}"
            if self.observes
            else str(self.given[f"services.{service.value}"].origin)
        )

    def paused_at(self, now: datetime) -> Pause | None:
        """Return the pause that holds at `now`, None if there is none or it has ended."""
        pause = self.pause
        return None if pause is None or (pause.until is not None and pause.until <= now) else pause

    def wants(self, service: TableService, now: datetime) -> bool:
        """Return whether the service may change the table at `now`: it is on, and no pause stops it."""
        return self.is_on(service) and (SERVICES[service].mends or self.paused_at(now) is None)

    @property
    def options(self) -> dict[str, str]:
        """Engine options that rules give, by key. They override those of the settings of a service."""
        return {name.removeprefix(OPTION): own.value for name, own in self.given.items() if name.startswith(OPTION)}

    def settings(self, service: str) -> dict[str, Any]:
        """Return the settings of a service (`planner`, `lock-service`) that rules give, nested as the settings are."""
        prefix = f"{SETTING}{service}."
        return nested({name.removeprefix(prefix): own.value for name, own in self.given.items() if name.startswith(prefix)})

    @property
    def priority(self) -> int:
        """From 0 to 100. The table with the higher number is served first."""
        return int(self._value("priority", PRIORITY))

    @property
    def bytes_per_day(self) -> int | None:
        """Most bytes that clustering, compaction and log compaction may rewrite in any 24 hours; None: no limit."""
        found = self._value("budget.bytes_per_day", None)
        return None if found is None else int(found)

    @property
    def windows(self) -> tuple[Window, ...]:
        """The windows in which plans may be published; empty: always."""
        return tuple(self._value("windows", ()))

    @property
    def objectives(self) -> Objectives:
        """The bounds that services keep."""
        names = ("small_files", "log_to_base_ratio", "unmerged_log_age")
        return Objectives(*(self._value(f"objectives.{name}", None) for name in names))

    @property
    def pause(self) -> Pause | None:
        """The pause that a rule gives, whether it has ended or not."""
        found: Pause | None = self._value("pause", None)
        return found
