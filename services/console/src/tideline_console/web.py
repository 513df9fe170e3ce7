"""The pages: routes, what each template gets, and the headers that browsers enforce."""

from __future__ import annotations

import asyncio
import csv
import io
import json
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from tideline_cli.costs import Counted, ask_services, table_cost
from tideline_console import charts, queries, text
from tideline_console.action_pages import ActionPages
from tideline_console.actions import Actions
from tideline_console.api import api_routes
from tideline_console.budgets import Budgets
from tideline_console.follower import Follower
from tideline_console.forms import csrf_of
from tideline_console.headers import SecurityHeaders
from tideline_console.health import PATIENCE_S, HealthWatch, health_context, table_requests
from tideline_console.instants import KeptInstants
from tideline_console.job_log import PodLogs, applications, log_context
from tideline_console.many import ManyTables
from tideline_console.model import ReadModel, Row
from tideline_console.one_table import table_context
from tideline_console.people import person_of
from tideline_console.policies import Matches, policies_context
from tideline_console.repairs import REPAIRS
from tideline_console.running import RunningPlans
from tideline_console.settings import ConsoleSettings
from tideline_console.shared import LEVEL, Recent, SharedAnswers, Watch
from tideline_console.sign_in import SignIn
from tideline_console.table_page import KeptFiles
from tideline_console.what_if import WhatIfPages
from tideline_console.writers import writers_context
from tideline_runtime.logging import get_logger
from tideline_table.clock import Clock

_log = get_logger(__name__)
_HERE = Path(__file__).parent
SERIES_S = 5.0
"""Age that the series of the overview, and the tables of each rule, may have."""
MOVERS_S = 60.0
"""Age that the list of the week's most written tables may have."""
COUNTS_S = 60.0
"""Age that the requests by table may have: the answer of a service names all its tables."""
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
_CSV = [
    "base_path", "name", "uid", "type", "version", "mode", "verdict", "size_bytes", "file_groups", "small_files", "log_files",
    "log_bytes", "pending", "findings", "last_write", "lag_s", "tags",
]  # fmt: skip
Context = dict[str, Any]


class Pages:
    """Renders the pages from the read model and the tables."""

    def __init__(
        self,
        settings: ConsoleSettings,
        model: ReadModel,
        follower: Follower,
        clock: Clock,
        instants: KeptInstants,
        files: KeptFiles,
        running: RunningPlans,
    ) -> None:
        self._settings, self._model, self._follower, self._clock = settings, model, follower, clock
        self._instants, self._files, self._running = instants, files, running
        self._health, self._pods = HealthWatch(settings), PodLogs(settings.pod_logs)
        addresses = [*settings.service_addresses]
        self._counts: Watch[Sequence[Counted]] = Watch(lambda: ask_services(settings, addresses), (), COUNTS_S)
        self._shared = SharedAnswers(clock.monotonic_s)
        self._matches = Matches()
        self._budgets = Budgets(model, self._matches)
        self._recent = Recent[Any](8)
        self._templates = Environment(
            loader=FileSystemLoader(_HERE / "templates"),
            autoescape=True,
            auto_reload=False,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._templates.filters |= {
            "count": text.count_text,
            "bytes": text.bytes_text,
            "duration": text.duration_text,
            "short": text.short_text,
            "when": text.time_text,
            "iso": text.time_iso,
        }
        self._templates.globals |= {"base": settings.path_prefix, "repairs": REPAIRS}
        for name in self._templates.list_templates():
            self._templates.get_template(name)  # Compiled now: the first viewer does not wait for it.

    def routes(self) -> list[Route]:
        """Return the routes of the pages."""
        pages = {
            "/": ("overview.html", self.overview),
            "/tables": ("tables.html", self.tables),
            "/tables/{key}": ("table.html", self.table),
            "/tables/{key}/log/{name}": ("log.html", self.log),
            "/work": ("work.html", self.work),
            "/writers": ("writers.html", lambda _: writers_context(self._model, self.now_s())),
            "/policies": ("policies.html", self.policies),
            "/health": ("health.html", self.health),
            "/events": ("events.html", self.events),
            "/events/{id:path}": ("event.html", self.event),
        }
        return [
            *(Route(path, self._page(template, of), methods=["GET"]) for path, (template, of) in pages.items()),
            Route("/tables.csv", self._csv, methods=["GET"]),
        ]

    def _page(self, template: str, of: Callable[[Request], Context]) -> Callable[[Request], Awaitable[Response]]:
        async def page(request: Request) -> Response:
            if request.headers.get("hx-request") and "gzip" in request.headers.get("accept-encoding", ""):
                return await self._refreshed(template, of, request)
            return _html(await run_in_threadpool(lambda: self.render(template, request, of(request))))

        return page

    async def _refreshed(self, template: str, of: Callable[[Request], Context], request: Request) -> Response:
        """Return the parts that a live page asks for again. They hold nothing of the person but what the role may see."""
        person = person_of(request)
        asked = (request.url.path, request.url.query, person is not None and person.is_operator)
        found = self._shared.of(asked, lambda: _encoded(self.render(template, request, of(request), is_refresh=True)))
        # Shielded: a viewer who leaves must not end the rendering for which others wait.
        body = found if isinstance(found, bytes) else await asyncio.shield(asyncio.wrap_future(found))
        return HTMLResponse(body, headers={"content-encoding": "gzip", "vary": "Accept-Encoding"})

    def render(self, template: str, request: Request, context: Context, *, is_refresh: bool = False) -> str:
        """Return a page; one for a refresh names no person and has no form of a session."""
        # A person without a session learns nothing of the fleet, also from pages of errors.
        shell = {} if person_of(request) is None else self._shell(request)
        return self._templates.get_template(template).render({**self._frame(request, is_refresh=is_refresh), **shell, **context})

    def _frame(self, request: Request, *, is_refresh: bool) -> Context:
        return {
            "path": request.url.path.removeprefix(self._settings.path_prefix),
            "person": None if is_refresh else person_of(request),
            "has_session": self._settings.sign_in.is_set and not is_refresh,
            "csrf": "" if is_refresh else csrf_of(request),
            "asset": lambda name: f"{self._settings.path_prefix}/static/{name}",
        }

    def _shell(self, request: Request) -> Context:
        person = person_of(request)
        verdicts, now_s = queries.verdicts(self._model), self.now_s()
        follower = self._follower
        return {
            "verdicts": verdicts,
            "table_total": sum(verdicts.values()),
            "found_total": follower.tables,
            "attention": verdicts["attention"] + verdicts["cannot_open"],
            "pending_total": queries.total(self._model, "pending"),
            "now_s": now_s,
            "lag_s": max(0.0, now_s - follower.checked_s),
            "is_complete": follower.is_complete,
            "events_failure": follower.events_failure,
            "policy_refusal": follower.policy_refusal,
            "source": self._settings.source,
            "patterns": self._settings.tables,
            "is_operator": person is not None and person.is_operator,
            "can_act": self._settings.actions and person is not None and person.is_operator,
            "q": request.query_params.get("q", "") if request.url.path.endswith("/tables") else "",
        }

    def now_s(self) -> float:
        """Return the time in seconds since the epoch."""
        return self._clock.now().timestamp()

    def overview(self, _request: Request) -> Context:
        """Return what the overview shows."""
        model, now_s = self._model, self.now_s()
        recent = self._recent.of  # Many viewers ask every two seconds.
        series, hours = recent("series", lambda: queries.hourly(model, now_s), None, now_s, SERIES_S), 24
        titles = [text.time_text((now_s // 3600 - hours + 1 + at) * 3600)[:16] + " UTC" for at in range(hours)]

        def chart(name: str, *, sizes: bool = False) -> charts.BarChart:
            shown = text.bytes_text if sizes else text.count_text
            named = [f"{at}: {shown(value)}" for at, value in zip(titles, series[name], strict=True)]
            return charts.bars(series[name], named, height=96, sizes=sizes, labels=_hour_labels(now_s))

        return {
            **health_context(self._health, model, now_s, PATIENCE_S),
            "title": "Overview",
            "budgets": self._budgets.of(self._follower.policies(), now_s),
            "blocks": queries.fleet_map(model),
            "findings": queries.findings(model, now_s),
            "finding_total": queries.total(model, "findings"),
            "jobs": queries.work(model, now_s),
            "due": queries.due(model, 5),
            "done": queries.done(model, now_s - 86_400, 5),
            "series": series,
            "movers": recent("movers", lambda: queries.movers(model, now_s), None, now_s, MOVERS_S),
            "commits_chart": chart("commits"),
            "bytes_chart": chart("bytes", sizes=True),
            "rows_chart": chart("rows"),
            "failures": self._follower.failures,
        }

    def tables(self, request: Request) -> Context:
        """Return what the list of tables shows."""
        asked = queries.Asked.of(request.query_params)
        rows, total = queries.tables(self._model, asked, queries.PAGE)
        largest = max([row["size_bytes"] or 0 for row in rows], default=0)
        return {
            "title": "Tables",
            "asked": asked,
            "rows": rows,
            "total": total,
            "largest": largest,
            "commits": queries.commits_per_hour(self._model, [row["uid"] for row in rows], self.now_s()),
            "choices": {name: queries.counts(self._model, name) for name in ("state", "type", "version", "mode", "folder")},
            "first": (asked.page - 1) * queries.PAGE + 1,
            "has_next": asked.page * queries.PAGE < total,
            "csv": f"{self._settings.path_prefix}/tables.csv{asked.address()}",
        }

    def table(self, request: Request) -> Context:
        """Return what the page of one table shows. Raises `HTTPException` 404 for a table that is not known."""
        row = self._row(request)
        found = table_context(row, self._instants, self._files, self._follower, request.query_params, self.now_s())
        pending = [{"uid": row["uid"], "instant": one["instant"]} for one in found["document"]["pending"]]
        named, counts = {"base_path": row["base_path"], "usage": found["usage"]}, self._counts.of(self.now_s(), PATIENCE_S)
        cost = table_cost(named, counts, self._settings.prices)
        progress = self._running.of(self.now_s()) if any(one["is_running"] for one in found["document"]["pending"]) else {}
        return {**found, "logs": applications(self._model, pending), "cost": cost, "progress": progress}

    def log(self, request: Request) -> Context:
        """Return the log of an attempt. Raises `HTTPException` 403 for a viewer, because it may hold secrets, and 404."""
        person = person_of(request)
        if person is None or not person.is_operator:
            raise HTTPException(403, "Only operators see logs.")
        return log_context(self._row(request), request.path_params["name"], self._settings.state_folder, self._pods)

    def _row(self, request: Request) -> Row:
        row = queries.table_by_key(self._model, request.path_params["key"])
        if row is None:
            raise HTTPException(404, "There is no such table among those that this console shows.")
        return row

    def work(self, _request: Request) -> Context:
        """Return what the page of work shows."""
        now_s = self.now_s()
        jobs, job_events = queries.work(self._model, now_s), queries.events(self._model, {"kind": "job"}, 50)
        return {
            "title": "Work",
            "jobs": jobs,
            "progress": self._running.of(now_s) if any(job["is_running"] for job in jobs) else {},
            "logs": applications(self._model, (*jobs, *job_events)),
            "due": queries.due(self._model),
            "due_total": queries.total(self._model, "due"),
            "done": queries.done(self._model, now_s - 7 * 86_400),
            "most_counted": queries.MOST_COUNTED,
            "done_total": queries.done_total(self._model, now_s - 7 * 86_400),
            "job_events": job_events,
        }

    def policies(self, _request: Request) -> Context:
        """Return what the page of policies shows."""
        follower, policies = self._follower, self._follower.policies()
        made = partial(policies_context, self._model, policies, follower.policy_refusal, self._clock, self._matches)
        # With the policies, so that no others get their id.
        stamp, now_s = (id(policies), follower.policy_refusal), self.now_s()
        found: tuple[object, Context] = self._recent.of("policies", lambda: (policies, made()), stamp, now_s, SERIES_S)
        return found[1]

    def health(self, _request: Request) -> Context:
        """Return what the page of health shows."""
        now_s = self.now_s()
        counts = self._counts.of(now_s, PATIENCE_S)
        made = partial(table_requests, self._model, counts, self._settings.prices)
        # With the counts, so that no others get their id.
        found: tuple[object, Context] = self._recent.of("requests", lambda: (counts, made()), id(counts), now_s, COUNTS_S)
        return {**health_context(self._health, self._model, now_s), "requests": found[1]}

    def events(self, request: Request) -> Context:
        """Return what the page of events shows."""
        given = dict(request.query_params)
        rows = queries.events(self._model, given)
        key = given.get("table", "")
        return {
            "title": "Events",
            "rows": rows,
            "given": {name: given.get(name, "") for name in ("kind", "table", "q", "before")},
            "kinds": queries.EVENT_KINDS,
            "of_table": queries.table_by_key(self._model, key) if key else None,
            "is_full": len(rows) == 100,
        }

    def event(self, request: Request) -> Context:
        """Return one event as JSON text. Raises `HTTPException` 404."""
        found = queries.event(self._model, request.path_params["id"])
        if found is None:
            raise HTTPException(404, "There is no such event in the read model; old ones are forgotten.")
        return {"title": "Event", "json_text": json.dumps(found, indent=2, ensure_ascii=False), "id": request.path_params["id"]}

    async def _csv(self, request: Request) -> Response:
        # In a thread: the loop that answers all viewers would wait for ten thousand rows.
        body = await run_in_threadpool(self._csv_of, queries.Asked.of(request.query_params))
        return Response(
            body, media_type="text/csv; charset=utf-8", headers={"Content-Disposition": 'attachment; filename="tables.csv"'}
        )

    def _csv_of(self, asked: queries.Asked) -> bytes:
        out = io.StringIO()
        writer = csv.writer(out)
        writer.writerow(_CSV)
        for row in queries.tables(self._model, asked, None)[0]:
            row["last_write"] = text.time_iso(row["last_write_s"])
            writer.writerow([_cell(row[name]) for name in _CSV])
        return out.getvalue().encode(errors="replace")


def _html(page: str, status: int = 200) -> HTMLResponse:
    """Return a page. Halves of characters, which JSON and properties of others may hold, become marks: no encoding has them."""
    return HTMLResponse(_encoded(page), status)


def _encoded(page: str) -> bytes:
    return page.encode(errors="replace")


def _cell(value: Any) -> Any:
    """Return a cell that a spreadsheet does not run: names of tables are hostile input."""
    return f"'{value}" if isinstance(value, str) and value[:1] in "=+-@\t\r\n" and value else value


def _hour_labels(now_s: float) -> list[tuple[float, str]]:
    first = int(now_s // 3600) - 23
    return [(at * 100 / 24, f"{(first + at) % 24:02d}:00") for at in range(24) if (first + at) % 8 == 0 and 0 < at < 22]


def console_app(
    settings: ConsoleSettings, model: ReadModel, follower: Follower, clock: Clock, actions: Actions | None = None
) -> ASGIApp:
    """Return the ASGI application of the pages and the API; without `actions` it only reads."""
    instants, files, running = KeptInstants(model), KeptFiles(), RunningPlans(model, follower)
    pages = Pages(settings, model, follower, clock, instants, files, running)
    sign_in = SignIn(settings, clock)
    many = ManyTables(actions, settings, follower, clock) if actions is not None else None

    def respond(template: str, request: Request, context: Context, status: int = 200) -> Response:
        return _html(pages.render(template, request, context), status)

    async def refused(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException), "registered for it"
        if request.url.path.startswith(f"{settings.path_prefix}/api/"):
            return JSONResponse({"error": "InvalidRequest", "found": str(error.detail)}, error.status_code)
        context = {"title": f"{error.status_code}", "status": error.status_code, "text": error.detail}
        return _html(pages.render("error.html", request, context), error.status_code)

    async def failed(request: Request, error: Exception) -> Response:
        _log.error("a page failed", path=request.url.path, exc_info=error)
        if request.url.path.startswith(f"{settings.path_prefix}/api/"):
            return JSONResponse({"error": "InternalError", "found": f"the console failed: {type(error).__name__}"}, 500)
        context = {
            "title": "Error",
            "status": 500,
            "text": f"The console failed on this page: {type(error).__name__}. Its log has more.",
        }
        return _html(pages.render("error.html", request, context), 500)

    routes = [
        *pages.routes(),
        *ActionPages(actions, many, model, respond, settings.path_prefix).routes(),
        *WhatIfPages(settings, model, clock, respond).routes(),
        *sign_in.routes(respond),
        *api_routes(model, follower, clock, instants, files, running),
        Mount("/static", StaticFiles(directory=_HERE / "static")),
    ]
    inner: list[Any] = [Mount(settings.path_prefix, routes=routes)] if settings.path_prefix else routes
    own = f"[{settings.listen_host}]" if ":" in settings.listen_host else settings.listen_host
    app = Starlette(
        routes=inner,
        middleware=[
            Middleware(TrustedHostMiddleware, allowed_hosts=[*LOOPBACK, own, *settings.host_names], www_redirect=False),
            *sign_in.middleware(),
            Middleware(GZipMiddleware, compresslevel=LEVEL),
        ],
        exception_handlers={HTTPException: refused, 500: failed},
    )
    # Around all of it: Starlette answers a failure outside of its middleware.
    return SecurityHeaders(app)
