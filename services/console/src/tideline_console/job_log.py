"""The end of an application's log: of a local one from the state folder, of an attempt that failed from the folder of its table."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from starlette.exceptions import HTTPException

from tideline_console.model import ReadModel, Row
from tideline_launcher.log_files import log_end, read_job_log
from tideline_launcher.names import digest_in, place_digest
from tideline_runtime.redaction import redacted_text
from tideline_table.errors import TidelineError
from tideline_table.storage import open_storage

SHOWN_BYTES = 64 * 1024
_ABSENT = (
    "No log is here. An application on Kubernetes has that of its pod (kubectl logs NAME) until it ends; one that runs plans of "
    "several tables has its own in the state folder of the launcher; one that succeeded leaves none in its table."
)


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


def log_context(row: Row, name: str, state_folder: Path) -> dict[str, Any]:
    """Return what the page of a log shows. Raises `HTTPException` 404 for a name of no attempt at a plan of the table."""
    # The name becomes a part of a path: what is no name of an attempt has no digest.
    if digest_in(name) != place_digest(row["base_path"]):
        raise HTTPException(404, "There is no such application of this table.")
    text, where = log_end(state_folder, name, SHOWN_BYTES), "of the application on this machine"
    failure = ""
    if not text:
        where = "that the launcher kept of the failed attempt"
        try:
            text = read_job_log(open_storage(row["base_path"]), name) or b""
        except TidelineError as error:
            failure = str(error)
    shown = redacted_text(text[-SHOWN_BYTES:].decode(errors="replace"))
    return {"title": "Log", "row": row, "name": name, "log": shown, "where": where if text else "", "absent": failure or _ABSENT}
