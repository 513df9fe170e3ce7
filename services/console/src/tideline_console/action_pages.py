"""The pages of actions: preview, confirmation, and the record of who did what and why."""

from __future__ import annotations

import getpass
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import parse_qs, urlsplit

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tideline_console import queries
from tideline_console.actions import Actions, preview_document
from tideline_console.model import ReadModel, Row
from tideline_table.errors import Conflict, InvalidInput, TidelineError

MOST_BYTES = 16_384
"""Bytes of a form."""
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
        actions, row = self._allowed(), self._row(request)
        given = request.query_params
        context: dict[str, Any] = {"title": "Action", "row": row, "failure": failure, "kind": given.get("kind", ""), "hours": HOURS}
        try:
            found = actions.preview(row, given.get("kind", ""), given.get("instant", ""), given.get("service", ""), self.who())
        except TidelineError as error:
            context |= {"preview": None, "token": "", "failure": failure or str(error)}
            return self._respond("act.html", request, context, max(status, 409))
        return self._respond("act.html", request, {**context, "preview": preview_document(found), "token": found.token}, status)

    async def _confirm(self, request: Request) -> Response:
        if not is_own(request):
            raise HTTPException(403, "The request does not come from a page of this console.")
        form = await form_of(request)
        return await run_in_threadpool(self._confirmed, request, form)

    def _confirmed(self, request: Request, form: Mapping[str, str]) -> Response:
        actions, row = self._allowed(), self._row(request)
        hours = form.get("hours", "")
        if hours not in HOURS:
            raise HTTPException(400, "A pause lasts one of the times of the form.")
        try:
            found = actions.confirm(form.get("token", ""), row, form.get("reason", ""), HOURS[hours], self.who())
        except (InvalidInput, Conflict) as error:
            return self._previewed(request, str(error), 409)
        except TidelineError as error:
            return self._previewed(request, f"Nothing was done, because it cannot be recorded: {error}", 503)
        context = {"title": "Action", "row": row, "preview": preview_document(found), "kind": found.kind}
        return self._respond("acted.html", request, context, 200 if found.state == "done" else 409)

    def who(self) -> str:
        """Return who acts: on a loopback address the user of the console."""
        try:
            return getpass.getuser()
        except (KeyError, OSError):
            return "unknown"

    def _allowed(self) -> Actions:
        if self._actions is None:
            raise HTTPException(403, "This console only reads: its setting actions is off.")
        return self._actions

    def _row(self, request: Request) -> Row:
        row = queries.table_by_key(self._model, request.path_params["key"])
        if row is None:
            raise HTTPException(404, "There is no such table among those that this console shows.")
        return row


def is_own(request: Request) -> bool:
    """Return whether a request comes from a page of this console, as browsers say: another site cannot change these headers."""
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    if site is not None:
        return site == "same-origin"  # Then the origin is "null", because pages of the console tell no referrer.
    return origin is None or urlsplit(origin).netloc == request.headers.get("host", "")


async def form_of(request: Request) -> dict[str, str]:
    """Return the fields of a form, each once. Raises `HTTPException` 400 and 413."""
    if request.headers.get("content-type", "").partition(";")[0] != "application/x-www-form-urlencoded":
        raise HTTPException(400, "A form is expected.")
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > MOST_BYTES:
            raise HTTPException(413, "The form is too large.")
    try:
        fields = parse_qs(body.decode(), keep_blank_values=True, max_num_fields=10)
    except ValueError as error:
        raise HTTPException(400, "The form cannot be read.") from error
    return {name: values[-1] for name, values in fields.items()}
