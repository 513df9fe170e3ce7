"""The JSON API: what the pages show, for machines, and the OpenAPI document that describes it."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tideline_console import queries
from tideline_console.follower import Follower
from tideline_console.instants import MOST_INSTANTS, KeptInstants
from tideline_console.model import ReadModel, Row
from tideline_console.one_table import all_instants, opened
from tideline_console.openapi import OPENAPI, PREFIX
from tideline_console.running import RunningPlans
from tideline_console.table_page import KeptFiles, facts_document, facts_of
from tideline_table.action import verdict_document
from tideline_table.clock import Clock
from tideline_table.errors import TidelineError

_COLUMNS = [
    "key", "base_path", "uid", "name", "folder", "type", "version", "mode", "verdict", "state", "sequence", "size_bytes",
    "file_groups", "small_files", "log_files", "log_bytes", "pending", "findings", "last_write_s", "lag_s", "tags", "examined_s",
]  # fmt: skip


class Api:
    """Answers the requests of the API."""

    def __init__(
        self, model: ReadModel, follower: Follower, clock: Clock, instants: KeptInstants, files: KeptFiles, running: RunningPlans
    ) -> None:
        self._instants, self._files, self._running = instants, files, running
        self._model, self._follower, self._clock = model, follower, clock

    def overview(self, _request: Request) -> Any:
        """Return verdicts, findings, pending plans and the last day by the hour."""
        model, now_s = self._model, self._now_s()
        return {
            "verdicts": queries.verdicts(model),
            "findings": [_without_document(one) for one in queries.findings(model, now_s)],
            "work": [_without_document({**one, "findings": sorted(one["findings"])}) for one in queries.work(model, now_s)],
            "hours": queries.hourly(model, now_s),
            "is_complete": self._follower.is_complete,
            "events_failure": self._follower.events_failure,
        }

    def tables(self, request: Request) -> Any:
        """Return the tables of a view."""
        asked = queries.Asked.of(request.query_params)
        rows, total = queries.tables(self._model, asked, queries.PAGE)
        shown = [{name: row[name] for name in _COLUMNS} for row in rows]
        return {"tables": shown, "total": total, "page": asked.page, "page_size": queries.PAGE}

    def table(self, request: Request) -> Any:
        """Return the status of one table, as `tideline status --json`, and the facts of its page."""
        row = self._row(request)
        table, failure = opened(row, self._follower)
        facts = None
        if table is not None:
            try:
                facts = facts_document(facts_of(table, self._follower.fleet(), self._files))
            except TidelineError as error:
                failure = str(error)
        return {"key": row["key"], "status": row["document"], "facts": facts, "failure": failure or None}

    def why(self, request: Request) -> Any:
        """Return the verdicts about the services of a table, decided now."""
        row = self._row(request)
        table, failure = opened(row, self._follower)
        if table is None:
            raise HTTPException(409, failure)
        status = self._follower.fleet().examine_table(table)
        return {
            "key": row["key"],
            "verdict": status.verdict,
            "verdicts": [verdict_document(verdict) for verdict in status.verdicts],
        }

    def timeline(self, request: Request) -> Any:
        """Return the instants of a table, the newest first."""
        row = self._row(request)
        table, _ = opened(row, self._follower)
        limit = _whole(request.query_params, "limit", 100, MOST_INSTANTS)
        found = all_instants(row, table, self._instants)
        return {"key": row["key"], "total": len(found), "instants": [one.to_json() for one in reversed(found[-limit:])]}

    def work(self, _request: Request) -> Any:
        """Return pending plans, what is due or held, and what services did in the last seven days."""
        now_s = self._now_s()
        far = {plan: asdict(found) for plan, found in self._running.of(now_s).items()}
        jobs = queries.work(self._model, now_s)
        return {
            "pending": [{**j, "findings": sorted(j["findings"]), "progress": far.get((j["key"], j["instant"]))} for j in jobs],
            "due": queries.due(self._model),
            "done": queries.done(self._model, now_s - 7 * 86_400),
        }

    def events(self, request: Request) -> Any:
        """Return steps and events, the newest first."""
        return {"events": queries.events(self._model, request.query_params, _whole(request.query_params, "limit", 100, 1000))}

    def event(self, request: Request) -> Any:
        """Return one event."""
        found = queries.event(self._model, request.path_params["id"])
        if found is None:
            raise HTTPException(404, "no such event")
        return found

    def openapi(self, _request: Request) -> Any:
        """Return the description of the API."""
        return OPENAPI

    def _now_s(self) -> float:
        return self._clock.now().timestamp()

    def _row(self, request: Request) -> Row:
        row = queries.table_by_key(self._model, request.path_params["key"])
        if row is None:
            raise HTTPException(404, "no such table")
        return row


def api_routes(
    model: ReadModel, follower: Follower, clock: Clock, instants: KeptInstants, files: KeptFiles, running: RunningPlans
) -> list[Route]:
    """Return the routes of the API."""
    api = Api(model, follower, clock, instants, files, running)
    by_path: Mapping[str, Callable[[Request], Any]] = {
        "/overview": api.overview,
        "/tables": api.tables,
        "/tables/{key}": api.table,
        "/tables/{key}/why": api.why,
        "/tables/{key}/timeline": api.timeline,
        "/work": api.work,
        "/events": api.events,
        "/events/{id:path}": api.event,
        "/openapi.json": api.openapi,
    }
    return [Route(f"{PREFIX}{path}", _json(of), methods=["GET"]) for path, of in by_path.items()]


class _Json(JSONResponse):
    """JSON in ASCII: halves of characters, which JSON of others may hold, have no other encoding."""

    def render(self, content: Any) -> bytes:
        """Return the body."""
        return json.dumps(content, allow_nan=False, separators=(",", ":")).encode()


def _json(of: Callable[[Request], Any]) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        return _Json(await run_in_threadpool(of, request))

    return answer


def _whole(given: Mapping[str, str], name: str, default: int, most: int) -> int:
    value = queries.whole(given.get(name, ""))
    return default if value is None else max(1, min(most, value))


def _without_document(row: Mapping[str, Any]) -> Row:
    return {name: value for name, value in row.items() if name != "document"}
