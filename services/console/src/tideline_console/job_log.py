"""The end of an application's log: of a local one from the state folder, of a pod, of an attempt that failed from its table."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from starlette.exceptions import HTTPException

from tideline_console.model import ReadModel, Row
from tideline_console.settings import PodLogSettings
from tideline_launcher.log_files import log_end, read_job_log
from tideline_launcher.names import digest_in, place_digest
from tideline_runtime.redaction import redacted_text
from tideline_table.errors import TidelineError
from tideline_table.extras import extra
from tideline_table.storage import open_storage

if TYPE_CHECKING:
    from tideline_runtime.api_server import ApiServer

SHOWN_BYTES = 64 * 1024
_ABSENT = (
    "No log is here. An application on Kubernetes has that of its pod until it ends, which the console shows with the setting "
    "pod_logs; one that runs plans of several tables has its own in the state folder of the launcher; one that succeeded leaves "
    "none in its table."
)


class PodLogs:
    """Logs of the pods of the setting `pod_logs`. Thread-safe."""

    def __init__(self, settings: PodLogSettings) -> None:
        self._settings = settings
        self._server: ApiServer | None = None

    def tail(self, pod: str) -> bytes:
        """Return the end of the log of a pod; empty without one. Raises `TidelineError`, also for a right that is missing."""
        if not self._settings.namespace:
            return b""
        with extra("kubernetes"):
            # It brings the client of Kubernetes, which a console elsewhere does without.
            from tideline_runtime.api_server import NOT_FOUND, ApiServer, ApiServerRefused, api_client  # noqa: PLC0415
        if self._server is None:
            client = api_client(self._settings.kubeconfig, "console.pod_logs")
            self._server = ApiServer(client, self._settings.request_timeout_s)
        try:
            return self._server.log_tail(self._settings.namespace, pod, SHOWN_BYTES)
        except ApiServerRefused as error:
            if error.status == NOT_FOUND:
                return b""
            raise


def applications(model: ReadModel, jobs: Iterable[Row]) -> dict[tuple[str, str], str]:
    """Return the name of the last attempt at plans by uid and instant, as far as events tell it."""
    asked = json.dumps([[job["uid"], job["instant"]] for job in jobs])
    rows = model.query(
        "SELECT e.uid, e.instant, json_extract(document, '$.data.application_id') AS name, max(time_s) FROM json_each(?) j "
        "CROSS JOIN events e INDEXED BY events_of_jobs "
        "ON kind = 'job' AND instant = json_extract(j.value, '$[1]') AND uid = json_extract(j.value, '$[0]') "
        "GROUP BY e.uid, e.instant",
        asked,
    )
    return {(row["uid"], row["instant"]): row["name"] for row in rows if row["name"]}


def log_context(row: Row, name: str, state_folder: Path, pods: PodLogs) -> dict[str, Any]:
    """Return what the page of a log shows. Raises `HTTPException` 404 for a name of no attempt at a plan of the table."""
    # The name becomes a part of a path: what is no name of an attempt has no digest.
    if digest_in(name) != place_digest(row["base_path"]):
        raise HTTPException(404, "There is no such application of this table.")
    sources: dict[str, Callable[[], bytes]] = {
        "of the application on this machine": lambda: log_end(state_folder, name, SHOWN_BYTES),
        "of its pod": lambda: pods.tail(name),
        "that the launcher kept of the failed attempt": lambda: read_job_log(open_storage(row["base_path"]), name) or b"",
    }
    text, where, failures = b"", "", []
    for shown, read in sources.items():
        try:
            text = text or read()
        except TidelineError as error:
            failures.append(str(error))
        where = where or (shown if text else "")
    log = redacted_text(text[-SHOWN_BYTES:].decode(errors="replace"))
    return {"title": "Log", "row": row, "name": name, "log": log, "where": where, "absent": "; ".join(failures) or _ABSENT}
