"""The adapter of `TableSource` for HudiTable resources."""

# ruff: noqa: D102 - the port documents these methods

from __future__ import annotations

from collections.abc import Mapping

from tideline_runtime.api_server import ApiServer, api_client, own_namespace
from tideline_runtime.contract import ServiceContext
from tideline_runtime.kubernetes.api import HudiTableApi
from tideline_runtime.kubernetes.resource import Selection
from tideline_runtime.kubernetes.resource_watch import ResourceWatch
from tideline_runtime.kubernetes.status import JOB_FIELDS, TABLE_FIELDS, job_status, table_status
from tideline_runtime.kubernetes.status_writer import StatusWriter
from tideline_runtime.metrics import TABLE_SCAN_FAILURES
from tideline_runtime.policy.resolution import Requested
from tideline_runtime.settings import ServiceSettings
from tideline_runtime.shards import Shards, holds
from tideline_runtime.table_source import JobFacts, NamedTable, TableFacts, Trouble

_SECTION = "table_resources"
TABLE_MANAGER, JOB_MANAGER = "tideline-mirror", "tideline-launcher"
"""Field managers. The mirror shows the state of tables, the launcher their last application; no other service writes a status."""


def open_hudi_tables(settings: ServiceSettings, context: ServiceContext, shards: Shards) -> HudiTables:
    """Return the resources that the settings name.

    Sends no request yet. Raises `InvalidSetting` for a client without credentials.
    """
    own = settings.table_resources
    server = ApiServer(api_client(own.kubeconfig, _SECTION), own.request_timeout_s)
    api = HudiTableApi(server, own.namespace or own_namespace(_SECTION))
    return HudiTables(settings, context, shards, api)


class HudiTables:
    """Implements `TableSource` with the HudiTable resources of one namespace."""

    def __init__(self, settings: ServiceSettings, context: ServiceContext, shards: Shards, api: HudiTableApi) -> None:
        own = settings.table_resources
        self._service = context.name.replace("_", "-")
        self._timeout_s = own.request_timeout_s
        self._shards = shards
        self._watch = ResourceWatch(
            api,
            own.watch_timeout_s,
            context.clock,
            changed=context.wake,
            failed=lambda: context.metrics.increment(TABLE_SCAN_FAILURES),
        )
        clock, interval_s = context.clock, own.status_interval_s
        self._requested: tuple[Selection, Mapping[str, Requested]] | None = None
        self._named: tuple[Selection, Mapping[str, NamedTable]] | None = None
        self._tables = StatusWriter(api, self._watch, TABLE_MANAGER, TABLE_FIELDS, clock, interval_s)
        self._jobs = StatusWriter(api, self._watch, JOB_MANAGER, JOB_FIELDS, clock, interval_s)

    @property
    def revision(self) -> int:
        return self._watch.revision

    def named(self) -> Mapping[str, NamedTable]:
        selection = self._selection()
        if self._named is None or self._named[0] is not selection:
            self._named = (selection, selection.named(self._service))
        return self._named[1]

    def requested(self) -> Mapping[str, Requested]:
        selection = self._selection()
        if self._requested is None or self._requested[0] is not selection:
            self._requested = (selection, selection.requested())
        return self._requested[1]

    def show_tables(self, found: Mapping[str, TableFacts | Trouble]) -> None:
        """See `TableSource.show_tables`. Also shows why the other resources of this instance's shards are not accepted."""
        selection = self._selection()
        for resource in self._watch.resources():
            if holds(self._shards, resource.base_path):
                refusal = selection.refused.get(resource.name)
                self._tables.put(resource.name, table_status(resource, refusal, found.get(resource.base_path)))

    def show_job(self, base_path: str, job: JobFacts) -> None:
        deciding = self._selection().deciding.get(base_path)
        if deciding is not None:
            self._jobs.put(deciding.name, job_status(job))

    def close(self) -> None:
        for part in (self._tables, self._jobs, self._watch):
            part.stop()

    def _selection(self) -> Selection:
        return self._watch.selection(self._timeout_s)
