"""The fleet API: all tables (`/api/v1/tables`), one table, why its services are due or not, and the OpenAPI document.

It only reads.

The bearer token of the service (`http_token`) protects these routes, as it protects `/metrics`. Paths name a table by its uid.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from anyio.to_thread import run_sync

from tideline_planner.watch import FleetWatch
from tideline_runtime.http import Call, Reply, Route
from tideline_table.action import TableService, verdict_document

PREFIX = "/api/v1"
_UID = "[0-9A-Za-z-]{1,64}"


def routes(watch: FleetWatch) -> list[Route]:
    """Return the routes for `ServiceContext.add_routes`."""

    async def tables(_call: Call) -> Reply:
        return Reply({"tables": watch.documents()})

    async def table(call: Call) -> Reply:
        found = watch.document(call.path_kwargs["uid"])
        return _missing(call) if found is None else Reply(found)

    async def why(call: Call) -> Reply:
        unknown = call.request.query_arguments.keys() - {"service"}
        named = call.get_query_argument("service", "")
        if unknown or named not in ("", *TableService):
            expected = f"query service={'|'.join(TableService)}, or none"
            return Reply(_error(f"query {call.request.query}", expected), 400)
        services = [TableService(named)] if named else list(TableService)
        # Judging reads heartbeats of pending actions.
        judged: Callable[[], Any] = lambda: watch.verdicts(call.path_kwargs["uid"], services)  # noqa: E731
        found = await run_sync(judged)
        if found is None:
            return _missing(call)
        document, verdicts = found
        about = {name: document[name] for name in ("table", "uid", "base_path", "sequence", "verdict", "findings")}
        return Reply({**about, "verdicts": [verdict_document(verdict) for verdict in verdicts]})

    async def openapi(_call: Call) -> Reply:
        return Reply(OPENAPI)

    return [
        Route("GET", f"{PREFIX}/tables", tables),
        Route("GET", f"{PREFIX}/tables/(?P<uid>{_UID})", table),
        Route("GET", f"{PREFIX}/tables/(?P<uid>{_UID})/why", why),
        Route("GET", f"{PREFIX}/openapi.json", openapi),
    ]


def _missing(call: Call) -> Reply:
    remedy = "list the tables: another shard of the planner may have it"
    return Reply({**_error(f"no table {call.path_kwargs['uid']}", "the uid of a table of this instance"), "remedy": remedy}, 404)


def _error(found: str, expected: str) -> dict[str, Any]:
    return {"error": "InvalidRequest", "found": found, "expected": expected, "remedy": ""}


_TEXT, _NUMBER, _WHOLE, _FLAG = ({"type": name} for name in ("string", "number", "integer", "boolean"))


def _object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties)}


def _or_null(schema: dict[str, Any]) -> dict[str, Any]:
    return {"anyOf": [schema, {"type": "null"}]}


def _list(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": schema}


def _named(name: str) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{name}"}


_VERDICT = {"type": "string", "enum": ["attention", "due", "working", "idle", "unmanaged", "cannot_open"]}
_SCHEMAS = {
    "Finding": _object(kind=_TEXT, text=_TEXT, age_s=_or_null(_NUMBER), ends_in_s=_or_null(_NUMBER)),
    "Verdict": _object(service=_TEXT, outcome=_TEXT, is_due=_FLAG, reason=_TEXT, until=_TEXT, instants=_list(_TEXT)),
    "LastRun": _object(instant=_TEXT, ended=_TEXT, age_s=_NUMBER),
    "Service": {"allOf": [_named("Verdict"), _object(last_run=_or_null(_named("LastRun")))]},
    "Job": _object(instant=_TEXT, service=_TEXT, state=_TEXT, age_s=_NUMBER, is_running=_FLAG, writer_id=_TEXT),
    "Backlog": _object(
        file_groups=_WHOLE,
        small_files=_WHOLE,
        log_files=_WHOLE,
        log_bytes=_WHOLE,
        base_bytes=_WHOLE,
        most_log_files=_WHOLE,
        oldest_log_s=_or_null(_NUMBER),
        log_ratio=_or_null(_NUMBER),
    ),
    "Gain": _object(files_saved=_WHOLE, log_files=_WHOLE, log_bytes=_WHOLE, rewrite_bytes=_WHOLE),
    "Table": _object(
        table=_TEXT,
        uid=_TEXT,
        base_path=_TEXT,
        type=_or_null(_TEXT),
        sequence=_or_null(_WHOLE),
        verdict=_VERDICT,
        state=_or_null(_TEXT),
        error=_or_null(_TEXT),
        services={"type": "object", "additionalProperties": _named("Service")},
        backlog=_or_null(_named("Backlog")),
        gain=_or_null(_named("Gain")),
        pending=_list(_named("Job")),
        findings=_list(_named("Finding")),
    ),
    "Tables": _object(tables=_list(_named("Table"))),
    "Why": _object(
        table=_TEXT,
        uid=_TEXT,
        base_path=_TEXT,
        sequence=_WHOLE,
        verdict=_VERDICT,
        findings=_list(_named("Finding")),
        verdicts=_list(_named("Verdict")),
    ),
    "Error": _object(error=_TEXT, found=_TEXT, expected=_TEXT, remedy=_TEXT),
}


def _get(summary: str, schema: str, *, parameters: tuple[dict[str, Any], ...] = ()) -> dict[str, Any]:
    def reply(description: str, name: str) -> dict[str, Any]:
        return {"description": description, "content": {"application/json": {"schema": _named(name)}}}

    replies = {"200": reply("The document.", schema), "401": {"description": "The bearer token is missing or wrong."}}
    if parameters:
        replies |= {"404": reply("This instance has no such table.", "Error")}
    return {"get": {"summary": summary, "parameters": list(parameters), "responses": replies}}


_BY_UID = {"name": "uid", "in": "path", "required": True, "schema": _TEXT}
_SERVICE = {
    "name": "service",
    "in": "query",
    "required": False,
    "schema": {"type": "string", "enum": [s.value for s in TableService]},
}
OPENAPI: dict[str, Any] = {
    "openapi": "3.1.0",
    "info": {"title": "Tideline fleet API", "version": "1"},
    "security": [{"token": []}],
    "paths": {
        f"{PREFIX}/tables": _get("List the tables of this instance, as tideline status --json.", "Tables"),
        f"{PREFIX}/tables/{{uid}}": _get("Return one table.", "Table", parameters=(_BY_UID,)),
        f"{PREFIX}/tables/{{uid}}/why": _get(
            "Say whether services are due and what would change it, as tideline why --json.", "Why", parameters=(_BY_UID, _SERVICE)
        ),
    },
    "components": {"schemas": _SCHEMAS, "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
}
