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
from tideline_runtime.json_schema import FLAG, NUMBER, TEXT, WHOLE, array, named, nullable, record
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


_VERDICT = {"type": "string", "enum": ["attention", "due", "working", "idle", "unmanaged", "cannot_open"]}
_SCHEMAS = {
    "Finding": record(kind=TEXT, text=TEXT, age_s=nullable(NUMBER), ends_in_s=nullable(NUMBER)),
    "Verdict": record(service=TEXT, outcome=TEXT, is_due=FLAG, reason=TEXT, until=TEXT, instants=array(TEXT)),
    "LastRun": record(instant=TEXT, ended=TEXT, age_s=NUMBER),
    "Service": {"allOf": [named("Verdict"), record(last_run=nullable(named("LastRun")))]},
    "Job": record(instant=TEXT, service=TEXT, state=TEXT, age_s=NUMBER, is_running=FLAG, writer_id=TEXT),
    "Backlog": record(
        file_groups=WHOLE,
        small_files=WHOLE,
        log_files=WHOLE,
        log_bytes=WHOLE,
        base_bytes=WHOLE,
        most_log_files=WHOLE,
        oldest_log_s=nullable(NUMBER),
        log_ratio=nullable(NUMBER),
    ),
    "Gain": record(files_saved=WHOLE, log_files=WHOLE, log_bytes=WHOLE, rewrite_bytes=WHOLE),
    "Table": record(
        table=TEXT,
        uid=TEXT,
        base_path=TEXT,
        type=nullable(TEXT),
        sequence=nullable(WHOLE),
        verdict=_VERDICT,
        state=nullable(TEXT),
        state_since=nullable(TEXT),
        remedy=nullable(TEXT),
        error=nullable(TEXT),
        services={"type": "object", "additionalProperties": named("Service")},
        backlog=nullable(named("Backlog")),
        gain=nullable(named("Gain")),
        pending=array(named("Job")),
        findings=array(named("Finding")),
    ),
    "Tables": record(tables=array(named("Table"))),
    "Why": record(
        table=TEXT,
        uid=TEXT,
        base_path=TEXT,
        sequence=WHOLE,
        verdict=_VERDICT,
        findings=array(named("Finding")),
        verdicts=array(named("Verdict")),
    ),
    "Error": record(error=TEXT, found=TEXT, expected=TEXT, remedy=TEXT),
}
_SCHEMAS["Verdict"]["properties"] |= {"score": NUMBER, "input_bytes": WHOLE}  # Of a plan that is due.


def _get(summary: str, schema: str, *, parameters: tuple[dict[str, Any], ...] = ()) -> dict[str, Any]:
    def reply(description: str, name: str) -> dict[str, Any]:
        return {"description": description, "content": {"application/json": {"schema": named(name)}}}

    replies = {"200": reply("The document.", schema), "401": {"description": "The bearer token is missing or wrong."}}
    if parameters:
        replies |= {"404": reply("This instance has no such table.", "Error")}
    return {"get": {"summary": summary, "parameters": list(parameters), "responses": replies}}


_BY_UID = {"name": "uid", "in": "path", "required": True, "schema": TEXT}
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
