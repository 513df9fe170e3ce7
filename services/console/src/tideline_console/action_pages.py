"""The pages of actions: preview, confirmation, and the record of who did what and why."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tideline_console import queries
from tideline_console.actions import Actions, preview_document
from tideline_console.forms import form_of
from tideline_console.model import ReadModel, Row
from tideline_console.people import person_of
from tideline_table.errors import Conflict, InvalidInput, TidelineError

HOURS = {"1": 1.0, "4": 4.0, "24": 24.0, "168": 168.0, "": None}
"""How long a pause may last, as forms say it; empty: until it is ended."""


class ActionPages:
    """Answers requests that lead to an action. `actions` is None where the console only reads."""

    def __init__(self, actions: Actions | None, model: ReadModel, respond: Callable[..., Response]) -> None:
        self._actions, self._model, self._respond = actions, model, respond

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            Route("/actions", self._audit, methods=["GET"]),
            Route("/actions/{id}", self._one, methods=["GET"]),
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
            context |= {"preview": None, "token": "", "failure": failure or str(error)}
            return self._respond("act.html", request, context, max(status, 409))
        return self._respond("act.html", request, {**context, "preview": preview_document(found), "token": found.token}, status)

    async def _confirm(self, request: Request) -> Response:
        form = await form_of(request)
        return await run_in_threadpool(self._confirmed, request, form)

    def _confirmed(self, request: Request, form: Mapping[str, str]) -> Response:
        (actions, who), row = self._allowed(request), self._row(request)
        hours = form.get("hours", "")
        if hours not in HOURS:
            raise HTTPException(400, "A pause lasts one of the times of the form.")
        try:
            found = actions.confirm(form.get("token", ""), row, form.get("reason", ""), HOURS[hours], who)
        except (InvalidInput, Conflict) as error:
            return self._previewed(request, str(error), 409)
        except TidelineError as error:
            return self._previewed(request, f"Nothing was done, because it cannot be recorded: {error}", 503)
        context = {"title": "Action", "row": row, "preview": preview_document(found), "kind": found.kind}
        return self._respond("acted.html", request, context, 200 if found.state == "done" else 409)

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
