"""The port to a source of tables beside the patterns of the setting `tables`, such as the HudiTable resources of Kubernetes.

A source names base paths and, for each, whether this service works on the table and with which options. The service reports the
state of the tables back to the source.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol, cast

from tideline_events import PendingPlan
from tideline_runtime.contract import ServiceContext
from tideline_runtime.policy.resolution import Requested
from tideline_runtime.settings import ServiceSettings
from tideline_runtime.shards import Shards
from tideline_table.action import action_name
from tideline_table.extras import extra
from tideline_table.table import Table

_ADAPTER = "tideline_runtime.kubernetes"


@dataclass(frozen=True, slots=True)
class NamedTable:
    """The request of a source about one base path to one service.

    `options` override the engine options of the service's settings, `settings` those of its settings that are declared per table.
    """

    is_wanted: bool = True
    options: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TableFacts:
    """The state of a table as of the log entry `sequence`. `last_instant` is None for a table without a completed action."""

    sequence: int
    last_instant: str | None
    pending: tuple[PendingPlan, ...]

    @classmethod
    def of(cls, table: Table) -> TableFacts:
        """Return the facts of a table that was refreshed."""
        pending = (PendingPlan(a.instant, action_name(a.action, a.operation), a.state.value) for a in table.state.pending())
        return cls(table.state.sequence, table.state.last_instant or None, tuple(pending))


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why a service does not work on a table: `reason` is a word in CamelCase, `text` a sentence."""

    reason: str
    text: str


@dataclass(frozen=True, slots=True)
class JobFacts:
    """The last state of the application that ran or runs a plan of a table."""

    application: str
    service: str
    instant: str
    attempt: int
    state: str
    time: datetime
    reason: str = ""


class TableSource(Protocol):
    """A source of tables. One thread of the service calls it. Only the first call of `named` waits for a remote answer."""

    @property
    def revision(self) -> int:
        """A number that grows when `named` changes."""
        ...

    def named(self) -> Mapping[str, NamedTable]:
        """Return the tables by canonical base path. Raises `DependencyDown` until they are known for the first time.

        While the source does not answer, the result contains the last known tables.
        """
        ...

    def requested(self) -> Mapping[str, Requested]:
        """Return what is asked of all services, by canonical base path; the same object until it changes. Raises as `named`."""
        ...

    def show_tables(self, found: Mapping[str, TableFacts | Trouble]) -> None:
        """Show the state of the tables of this instance's shards. Does not wait: the state is written in the background."""
        ...

    def show_job(self, base_path: str, job: JobFacts) -> None:
        """Show the last application of a table. Does not wait, and does nothing for a table that the source does not name."""
        ...

    def close(self) -> None:
        """Stop. Changes that are not written yet are lost; the next process writes the state anew."""
        ...


def open_table_source(settings: ServiceSettings, context: ServiceContext, shards: Shards) -> TableSource | None:
    """Return the source that the settings switch on, None without one. No request is sent before the first call of `named`.

    Raises `MissingExtra` without the client of Kubernetes, `InvalidSetting` if it has no credentials.
    """
    if not settings.table_resources.enabled:
        return None
    with extra("kubernetes"):
        # Loaded by name: only a process that uses the resources needs the client of Kubernetes.
        adapter = importlib.import_module(_ADAPTER)
    return cast(TableSource, adapter.open_hudi_tables(settings, context, shards))
