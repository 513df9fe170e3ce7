"""The OpenAPI document of the console's API."""

from __future__ import annotations

from typing import Any

PREFIX = "/api/v1"
_TEXT, _NUMBER, _WHOLE, _FLAG, _ANY = ({"type": name} for name in ("string", "number", "integer", "boolean", "object"))


def _null(schema: dict[str, Any]) -> dict[str, Any]:
    return {"anyOf": [schema, {"type": "null"}]}


def _list(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": schema}


def _object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties)}


def _named(name: str) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{name}"}


_VERDICT = _object(service=_TEXT, outcome=_TEXT, is_due=_FLAG, reason=_TEXT, until=_TEXT, instants=_list(_TEXT))
_SERIES = _list(_NUMBER)
_SCHEMAS = {
    "Overview": _object(
        verdicts={"type": "object", "additionalProperties": _WHOLE},
        findings=_list(_object(key=_TEXT, kind=_TEXT, text=_TEXT, age_s=_null(_NUMBER), ends_in_s=_null(_NUMBER))),
        work=_list(_ANY),
        hours=_object(commits=_SERIES, bytes=_SERIES, rows=_SERIES, services=_SERIES, rewritten=_SERIES),
        is_complete=_FLAG,
        events_failure=_TEXT,
    ),
    "TableRow": _object(
        key=_TEXT,
        base_path=_TEXT,
        uid=_TEXT,
        name=_TEXT,
        folder=_TEXT,
        type=_null(_TEXT),
        version=_null(_WHOLE),
        mode=_TEXT,
        verdict={"type": "string", "enum": ["attention", "due", "working", "idle", "unmanaged", "cannot_open"]},
        state=_null(_TEXT),
        sequence=_null(_WHOLE),
        size_bytes=_null(_WHOLE),
        file_groups=_null(_WHOLE),
        small_files=_null(_WHOLE),
        log_files=_null(_WHOLE),
        log_bytes=_null(_WHOLE),
        pending=_WHOLE,
        findings=_WHOLE,
        last_write_s=_null(_NUMBER),
        tags=_TEXT,
        examined_s=_NUMBER,
    ),
    "Tables": _object(tables=_list(_named("TableRow")), total=_WHOLE, page=_WHOLE, page_size=_WHOLE),
    "Table": _object(key=_TEXT, status=_ANY, facts=_null(_ANY), failure=_null(_TEXT)),
    "Why": _object(key=_TEXT, verdict=_TEXT, verdicts=_list(_VERDICT)),
    "Instant": _object(
        instant=_TEXT,
        action=_TEXT,
        operation=_TEXT,
        outcome={"type": "string", "enum": ["completed", "running", "planned", "rolled back"]},
        begun_s=_NUMBER,
        ended_s=_null(_NUMBER),
        writer=_TEXT,
        sequence=_null(_WHOLE),
        undone=_TEXT,
        rows_inserted=_null(_WHOLE),
        rows_updated=_null(_WHOLE),
        rows_deleted=_null(_WHOLE),
        files_added=_WHOLE,
        files_deleted=_WHOLE,
        bytes_added=_WHOLE,
        partitions=_list(_TEXT),
        timeline_file=_TEXT,
    ),
    "Timeline": _object(key=_TEXT, total=_WHOLE, instants=_list(_named("Instant"))),
    "Work": _object(pending=_list(_ANY), due=_list(_ANY), done=_list(_ANY)),
    "Events": _object(
        events=_list(
            _object(kind=_TEXT, uid=_TEXT, base_path=_TEXT, what=_TEXT, instant=_TEXT, text=_TEXT, time_s=_NUMBER, id=_TEXT)
        )
    ),
    "Event": _ANY,
    "Error": _object(error=_TEXT, found=_TEXT),
}


def _parameter(name: str, place: str, description: str) -> dict[str, Any]:
    return {"name": name, "in": place, "required": place == "path", "description": description, "schema": _TEXT}


_KEY = _parameter("key", "path", "Key of the table in addresses of the console, or its uid.")
_LIMIT = _parameter("limit", "query", "Most entries.")


def _get(summary: str, schema: str, *parameters: dict[str, Any]) -> dict[str, Any]:
    def reply(description: str, name: str) -> dict[str, Any]:
        return {"description": description, "content": {"application/json": {"schema": _named(name)}}}

    replies = {"200": reply("The document.", schema)}
    if any(one["in"] == "path" for one in parameters):
        replies["404"] = reply("The console does not know it.", "Error")
    return {"get": {"summary": summary, "parameters": list(parameters), "responses": replies}}


_VIEW = tuple(
    _parameter(name, "query", description)
    for name, description in (
        ("q", "Words in name, path, tags or uid."),
        ("state", "A verdict."),
        ("type", "cow or mor."),
        ("version", "Version of the table."),
        ("mode", "exclusive, shared or foreign."),
        ("folder", "Folder of the table."),
        ("size_min", "Least size in bytes."),
        ("small_min", "Least number of small files."),
        ("logs_min", "Least bytes of log files."),
        ("sort", "state, table, type, version, mode, size, groups, small, logs, pending or last."),
        ("order", "asc or desc."),
        ("page", "Number of the page, from 1."),
    )
)
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
