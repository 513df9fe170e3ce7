"""The OpenAPI document of the console's API."""

from __future__ import annotations

from typing import Any

from tideline_runtime.json_schema import ANY, FLAG, NUMBER, TEXT, WHOLE, array, named, nullable, record

PREFIX = "/api/v1"


_VERDICT = record(service=TEXT, outcome=TEXT, is_due=FLAG, reason=TEXT, until=TEXT, instants=array(TEXT))
_VERDICT["properties"] |= {"score": NUMBER, "input_bytes": WHOLE}  # Of a plan that is due.
_PROGRESS = record(planned=WHOLE, begun=WHOLE, written=WHOLE, written_bytes=WHOLE)
_PENDING = record(key=TEXT, service=TEXT, instant=TEXT, state=TEXT, is_running=FLAG, age_s=NUMBER, progress=nullable(_PROGRESS))
_SERIES = array(NUMBER)
_SCHEMAS = {
    "Overview": record(
        verdicts={"type": "object", "additionalProperties": WHOLE},
        findings=array(record(key=TEXT, kind=TEXT, text=TEXT, age_s=nullable(NUMBER), ends_in_s=nullable(NUMBER))),
        work=array(ANY),
        hours=record(commits=_SERIES, bytes=_SERIES, rows=_SERIES, services=_SERIES, rewritten=_SERIES),
        is_complete=FLAG,
        events_failure=TEXT,
    ),
    "TableRow": record(
        **dict.fromkeys(("key", "base_path", "uid", "name", "folder", "mode", "tags"), TEXT),
        **dict.fromkeys(("type", "state"), nullable(TEXT)),
        **dict.fromkeys(
            ("version", "sequence", "size_bytes", "file_groups", "small_files", "log_files", "log_bytes"), nullable(WHOLE)
        ),
        **dict.fromkeys(("pending", "findings"), WHOLE),
        verdict={"type": "string", "enum": ["attention", "due", "working", "idle", "unmanaged", "cannot_open"]},
        last_write_s=nullable(NUMBER),
        lag_s=nullable(NUMBER),
        examined_s=NUMBER,
    ),
    "Tables": record(tables=array(named("TableRow")), total=WHOLE, page=WHOLE, page_size=WHOLE),
    "Table": record(key=TEXT, status=ANY, facts=nullable(ANY), failure=nullable(TEXT)),
    "Why": record(key=TEXT, verdict=TEXT, verdicts=array(_VERDICT)),
    "Instant": record(
        **dict.fromkeys(("instant", "action", "operation", "writer", "undone", "timeline_file"), TEXT),
        **dict.fromkeys(("sequence", "rows_inserted", "rows_updated", "rows_deleted"), nullable(WHOLE)),
        **dict.fromkeys(("files_added", "files_deleted", "bytes_added"), WHOLE),
        outcome={"type": "string", "enum": ["completed", "running", "planned", "rolled back"]},
        begun_s=NUMBER,
        ended_s=nullable(NUMBER),
        partitions=array(TEXT),
    ),
    "Timeline": record(key=TEXT, total=WHOLE, instants=array(named("Instant"))),
    "Work": record(pending=array(_PENDING), due=array(ANY), done=array(ANY)),
    "Events": record(
        events=array(record(kind=TEXT, uid=TEXT, base_path=TEXT, what=TEXT, instant=TEXT, text=TEXT, time_s=NUMBER, id=TEXT))
    ),
    "Event": ANY,
    "Error": record(error=TEXT, found=TEXT),
}


def _parameter(name: str, place: str, description: str) -> dict[str, Any]:
    return {"name": name, "in": place, "required": place == "path", "description": description, "schema": TEXT}


_KEY = _parameter("key", "path", "Key of the table in addresses of the console, or its uid.")
_LIMIT = _parameter("limit", "query", "Most entries.")


def _get(summary: str, schema: str, *parameters: dict[str, Any]) -> dict[str, Any]:
    def reply(description: str, name: str) -> dict[str, Any]:
        return {"description": description, "content": {"application/json": {"schema": named(name)}}}

    replies = {"200": reply("The document.", schema)}
    if any(one["in"] == "path" for one in parameters):
        replies["404"] = reply("The console does not know it.", "Error")
    return {"get": {"summary": summary, "parameters": list(parameters), "responses": replies}}


_QUERIES = (
    ("q", "Words in name, path, tags or uid."), ("state", "A verdict."), ("type", "cow or mor."),
    ("version", "Version of the table."), ("mode", "exclusive, shared or foreign."), ("folder", "Folder of the table."),
    ("writer", "A writer that committed to it."),
    ("size_min", "Least size in bytes."), ("small_min", "Least number of small files."), ("logs_min", "Least bytes of log files."),
    ("lag_min", "Least seconds from the last step in the table's log to its event at this console."),
    ("sort", "state, table, type, version, mode, size, groups, small, logs, pending, last or lag."),
    ("order", "asc or desc."), ("page", "Number of the page, from 1."),
)  # fmt: skip
_VIEW = tuple(_parameter(name, "query", description) for name, description in _QUERIES)
OPENAPI: dict[str, Any] = {
    "openapi": "3.1.0",
    "info": {"title": "Tideline console API", "version": "1"},
    "paths": {
        f"{PREFIX}/overview": _get("Return verdicts, findings, pending plans and the last 24 hours.", "Overview"),
        f"{PREFIX}/tables": _get("List tables, a page at a time.", "Tables", *_VIEW),
        f"{PREFIX}/tables/{{key}}": _get("Return a table: its status as tideline status --json, and its facts.", "Table", _KEY),
        f"{PREFIX}/tables/{{key}}/why": _get("Say whether services are due, decided now.", "Why", _KEY),
        f"{PREFIX}/tables/{{key}}/timeline": _get("List the instants of a table, newest first.", "Timeline", _KEY, _LIMIT),
        f"{PREFIX}/work": _get("Return what is planned, due and done.", "Work"),
        f"{PREFIX}/events": _get(
            "List steps and events, newest first.",
            "Events",
            _parameter("kind", "query", "step, job, decision, finding, lock or table."),
            _parameter("table", "query", "Key of a table."),
            _parameter("q", "query", "A text in it."),
            _parameter("before", "query", "Only before this time, in seconds since the epoch."),
            _LIMIT,
        ),
        f"{PREFIX}/events/{{id}}": _get("Return one event.", "Event", _parameter("id", "path", "Id of the event.")),
    },
    "components": {"schemas": _SCHEMAS},
}
