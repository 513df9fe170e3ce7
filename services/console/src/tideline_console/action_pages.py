"""The pages of actions: preview, confirmation, and the record of who did what and why."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from tideline_console import queries
from tideline_console.actions import Actions, Preview, action_id_of, preview_document
from tideline_console.forms import form_of
from tideline_console.many import MOST_TABLES, Batch, ManyTables
from tideline_console.model import ReadModel, Row
from tideline_console.people import person_of
from tideline_table.errors import Conflict, InvalidInput, TidelineError

HOURS = {"1": 1.0, "4": 4.0, "24": 24.0, "168": 168.0, "": None}
"""How long a pause may last, as forms say it; empty: until it is ended."""


class ActionPages:
    """Answers requests that lead to an action. `actions` is None where the console only reads."""

    def __init__(
        self, actions: Actions | None, many: ManyTables | None, model: ReadModel, respond: Callable[..., Response], base: str
    ) -> None:
        self._actions, self._many, self._model, self._respond, self._base = actions, many, model, respond, base

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            Route("/actions", self._audit, methods=["GET"]),
            Route("/actions/{id}", self._one, methods=["GET"]),
            Route("/act", self._preview_many, methods=["GET"]),
            Route("/act", self._confirm_many, methods=["POST"]),
            Route("/act/{id}", self._one_of_many, methods=["GET"]),
            Route("/tables/{key}/act", self._preview, methods=["GET"]),
            Route("/tables/{key}/act", self._confirm, methods=["POST"]),
        ]

    async def _audit(self, request: Request) -> Response:
        return await run_in_threadpool(self._audited, request, {"kind": "action"}, "Actions")

    async def _one(self, request: Request) -> Response:
        return await run_in_threadpool(self._audited, request, {"kind": "action", "q": request.path_params["id"]}, "Action")

    def _audited(self, request: Request, given: Mapping[str, str], title: str) -> Response:
        rows = queries.events(self._model, given, 200)
        return self._respond("actions.html", request, {"title": title, "rows": rows, "id": given.get("q", "")})

    async def _preview(self, request: Request) -> Response:
        return await run_in_threadpool(self._previewed, request, "")

    def _previewed(self, request: Request, failure: str, status: int = 200) -> Response:
        (actions, who), row = self._allowed(request), self._row(request)
        given = request.query_params
        context: dict[str, Any] = {"title": "Action", "row": row, "failure": failure, "kind": given.get("kind", ""), "hours": HOURS}
        try:
            found = actions.preview(row, given.get("kind", ""), given.get("instant", ""), given.get("service", ""), who)
        except TidelineError as error:
            context |= {"preview": None, "token": "", "failure": " ".join(filter(None, (failure, str(error))))}
            return self._respond("act.html", request, context, max(status, 409))
        return self._respond("act.html", request, {**context, "preview": preview_document(found), "token": found.token}, status)

    async def _confirm(self, request: Request) -> Response:
        form = await form_of(request)
        return await run_in_threadpool(self._confirmed, request, form)

    def _confirmed(self, request: Request, form: Mapping[str, str]) -> Response:
        (actions, who), row = self._allowed(request), self._row(request)
        hours = _hours(form)
        try:
            found = actions.confirm(form.get("token", ""), row, form.get("reason", ""), hours, who)
        except (InvalidInput, Conflict) as error:
            return self._previewed(request, str(error), 409)
        except TidelineError as error:
            return self._previewed(request, f"Nothing was done, because it cannot be recorded: {error}", 503)
        context = {"title": "Action", "row": row, "preview": preview_document(found), "kind": found.kind}
        return self._respond("acted.html", request, context, 200 if found.state == "done" else 409)

    async def _preview_many(self, request: Request) -> Response:
        return await run_in_threadpool(self._previewed_many, request, "")

    def _previewed_many(self, request: Request, failure: str, status: int = 200) -> Response:
        _, who = self._allowed(request)
        assert self._many is not None, "made with the actions"
        given = request.query_params
        kind, _, service = given.get("what", "").partition(" ")
        batch: Batch | None = None
        try:
            batch = self._many.preview(self._chosen(request), kind, service, who)
        except TidelineError as error:
            failure, status = failure or str(error), max(status, 409)
        return self._respond("many.html", request, self._many_context(batch, kind, failure), status)

    def _many_context(self, batch: Batch | None, kind: str, failure: str = "") -> dict[str, Any]:
        return {"title": "Action", "batch": batch, "kind": kind, "failure": failure, "hours": HOURS, "record_of": _record_of}

    def _chosen(self, request: Request) -> list[Row]:
        """Return the tables that a form chooses: a whole view, or those with a check mark; one too many at most."""
        given = request.query_params
        if given.get("all"):
            return queries.tables(self._model, replace(queries.Asked.of(given), page=1), MOST_TABLES + 1)[0]
        keys = list(dict.fromkeys(given.getlist("key")))[: MOST_TABLES + 1]
        marks = ", ".join("?" for _ in keys)
        return self._model.query(f"SELECT * FROM tables WHERE key IN ({marks}) ORDER BY name, base_path", *keys)  # noqa: S608

    async def _confirm_many(self, request: Request) -> Response:
        form = await form_of(request)
        return await run_in_threadpool(self._confirmed_many, request, form)

    def _confirmed_many(self, request: Request, form: Mapping[str, str]) -> Response:
        _, who = self._allowed(request)
        assert self._many is not None, "made with the actions"
        hours = _hours(form)
        try:
            batch = self._many.confirm(form.get("token", ""), form.get("reason", ""), hours, who)
        except (InvalidInput, Conflict) as error:
            return self._previewed_many(request, str(error), 409)
        except TidelineError as error:
            return self._previewed_many(request, f"Nothing was done, because it cannot be recorded: {error}", 503)
        return RedirectResponse(f"{self._base}/act/{batch.id}", 303)

    async def _one_of_many(self, request: Request) -> Response:
        self._allowed(request)
        assert self._many is not None, "made with the actions"
        batch = self._many.known(request.path_params["id"])
        if batch is None or batch.state == "previewed":
            raise HTTPException(404, "The console does not know this action any more; the page Actions has its record.")
        return await run_in_threadpool(self._respond, "many.html", request, self._many_context(batch, batch.kind))

    def _allowed(self, request: Request) -> tuple[Actions, str]:
        """Return the actions and who acts. Raises `HTTPException` 403 for viewers, and where pages only read."""
        person = person_of(request)
        if self._actions is None:
            raise HTTPException(403, "This console only reads: its setting actions is off.")
        if person is None or not person.is_operator:
            raise HTTPException(403, "Only operators can act. You are signed in as a viewer.")
        return self._actions, person.name

    def _row(self, request: Request) -> Row:
        row = queries.table_by_key(self._model, request.path_params["key"])
        if row is None:
            raise HTTPException(404, "There is no such table among those that this console shows.")
        return row


def _record_of(part: Preview) -> str:
    return action_id_of(part.token)


def _hours(form: Mapping[str, str]) -> float | None:
    """Return how long a pause lasts. Raises `HTTPException` 400."""
    hours = form.get("hours", "")
    if hours not in HOURS:
        raise HTTPException(400, "A pause lasts one of the times of the form.")
    return HOURS[hours]
