"""Sign-in: which settings ask for it, what is open without it, and the pages on which people sign in and out."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.middleware.sessions import SessionMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from tideline_console.forms import form_of
from tideline_console.people import Attempts, Person, Sessions, SignInRefused, holder_of, is_safe, local_user, named
from tideline_console.settings import ConsoleSettings, SignInSettings
from tideline_runtime.errors import InvalidSetting
from tideline_runtime.http import is_loopback
from tideline_runtime.logging import get_logger
from tideline_table.clock import Clock

if TYPE_CHECKING:
    from tideline_console.identity import Provider

_log = get_logger(__name__)
COOKIE = "tideline_console"
_SESSION, _NEXT = "session", "next"
SIGN_IN = "/sign-in"


class SignIn:
    """How people sign in to one console. Without settings of it everybody is the user of the process."""

    def __init__(self, settings: ConsoleSettings, clock: Clock) -> None:
        own = settings.sign_in
        self._settings, self._prefix = own, settings.path_prefix
        self.sessions, self.attempts = Sessions(clock, own.session_s), Attempts(clock)
        self._tokens = {"operator": own.operator_token, "viewer": own.viewer_token}
        self.provider = _provider(own) if own.issuer else None
        self.is_needed = own.is_set

    @property
    def has_token(self) -> bool:
        """Whether there is a token to sign in with."""
        return any(token is not None for token in self._tokens.values())

    def middleware(self) -> list[Middleware]:
        """Return what stands before the pages."""
        gate = Middleware(Gate, sign_in=self, prefix=self._prefix)
        if not self.is_needed:
            return [gate]
        session = Middleware(
            SessionMiddleware,
            secret_key=secrets.token_urlsafe(32),
            session_cookie=COOKIE,
            max_age=int(self._settings.session_s),
            path=self._prefix or "/",
            same_site="lax",  # A strict cookie would be missing when the provider sends the person back.
            https_only=True,
        )
        return [session, gate]

    def routes(self, respond: Callable[..., Response]) -> list[Route]:
        """Return the routes of signing in and out; none without it."""
        if not self.is_needed:
            return []
        pages = SignInPages(self, self._prefix, respond)
        return [
            Route(SIGN_IN, pages.form, methods=["GET"]),
            Route(SIGN_IN, pages.by_token, methods=["POST"]),
            Route(f"{SIGN_IN}/provider", pages.to_provider, methods=["GET"]),
            Route(f"{SIGN_IN}/callback", pages.from_provider, methods=["GET"]),
            Route("/sign-out", pages.out, methods=["POST"]),
        ]

    def person(self, request: Request) -> Person | None:
        """Return who has the session of a request."""
        return self.sessions.person(request.session.get(_SESSION)) if self.is_needed else local_user()

    def by_token(self, given: str, address: str) -> tuple[Person | None, float]:
        """Return whose token it is, or None and the seconds until the address may try again (0: at once)."""
        wait_s = self.attempts.begin(address)
        role = "" if wait_s else holder_of(given, self._tokens)
        if not role:
            return None, wait_s
        self.attempts.succeeded(address)
        return named(f"holder of the {role} token", is_operator=role == "operator"), 0.0

    def enter(self, request: Request, person: Person, id_token: str = "") -> None:
        """Begin a session, with a new id and new tokens of forms; the provider's `id_token` is kept for its end."""
        self.sessions.end(request.session.get(_SESSION))
        request.session.clear()
        request.session[_SESSION] = self.sessions.begin(person, id_token)
        _log.info("signed in", name=person.name, role=person.role, address=address_of(request))

    def leave(self, request: Request) -> str:
        """End the session, and return the ID token with which it began; empty for another way of sign-in."""
        id_token = self.sessions.end(request.session.get(_SESSION))
        request.session.clear()
        return id_token


class Gate:
    """Lets requests through that have a session, and to the API those with a token; others are sent to the page of sign-in."""

    def __init__(self, app: ASGIApp, sign_in: SignIn, prefix: str) -> None:
        self._app, self._sign_in, self._prefix = app, sign_in, prefix
        self._open = {f"{prefix}{SIGN_IN}", f"{prefix}{SIGN_IN}/provider", f"{prefix}{SIGN_IN}/callback"}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        path, answer = scope["path"], None
        request.state.person = self._sign_in.person(request)
        if request.state.person is None and path not in self._open and not path.startswith(f"{self._prefix}/static/"):
            is_api = path.startswith(f"{self._prefix}/api/")
            answer = self._by_bearer(request) if is_api else self._refused(request)
        await (answer or self._app)(scope, receive, send)

    def _by_bearer(self, request: Request) -> Response | None:
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        wait_s = 0.0
        if scheme.lower() == "bearer" and self._sign_in.has_token:
            request.state.person, wait_s = self._sign_in.by_token(given.strip(), address_of(request))
            if request.state.person is not None:
                return None
        if wait_s:
            found = {"error": "TooManyRequests", "found": "too many attempts to sign in"}
            return JSONResponse(found, 429, {"retry-after": f"{wait_s:.0f}"})
        found = {"error": "SignInRequired", "found": "neither a session nor a bearer token that is known"}
        return JSONResponse(found, 401, {"www-authenticate": "Bearer"})

    def _refused(self, request: Request) -> Response | None:
        asked = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        address = f"{self._prefix}{SIGN_IN}?next={quote(asked)}"
        if request.headers.get("hx-request"):
            return Response(status_code=401, headers={"hx-redirect": address})
        # What was asked by POST is not done later; the page from which it came is shown again after sign-in.
        return RedirectResponse(address if request.method in ("GET", "POST") else f"{self._prefix}{SIGN_IN}", 303)


class SignInPages:
    """Answers the requests of signing in and out."""

    def __init__(self, sign_in: SignIn, prefix: str, respond: Callable[..., Response]) -> None:
        self._sign_in, self._prefix, self._respond = sign_in, prefix, respond

    async def form(self, request: Request) -> Response:
        """Return the page of sign-in; who is signed in is sent on."""
        return await self._form(request, request.query_params.get(_NEXT, ""))

    async def _form(self, request: Request, wanted: str, failure: str = "", status: int = 200) -> Response:
        if request.state.person is not None and not failure:
            return RedirectResponse(self._next(wanted), 303)
        own = self._sign_in
        context: dict[str, Any] = {"title": "Sign in", "failure": failure, "next": self._next(wanted)}
        context |= {"has_token": own.has_token, "has_provider": own.provider is not None}
        return await run_in_threadpool(self._respond, "sign_in.html", request, context, status)

    async def by_token(self, request: Request) -> Response:
        """Sign in with a token."""
        form = await form_of(request)
        wanted = form.get(_NEXT, "")
        person, wait_s = self._sign_in.by_token(form.get("token", "").strip(), address_of(request))
        if person is None:
            _log.warning("sign-in refused", address=address_of(request), wait_s=round(wait_s))
            if wait_s:
                text = f"Too many attempts. Try again in {wait_s:.0f} seconds."
                answer = await self._form(request, wanted, text, 429)
                answer.headers["retry-after"] = f"{wait_s:.0f}"
                return answer
            return await self._form(request, wanted, "The token is not one of this console.", 401)
        self._sign_in.enter(request, person)
        return RedirectResponse(self._next(wanted), 303)

    async def to_provider(self, request: Request) -> Response:
        """Send the person to the identity provider."""
        wanted = self._next(request.query_params.get(_NEXT, ""))
        provider = self._sign_in.provider
        if provider is None:
            return RedirectResponse(f"{self._prefix}{SIGN_IN}", 303)
        try:
            answer = await provider.begin(request, self._callback(request))
        except SignInRefused as refused:
            return await self._form(request, wanted, str(refused), refused.status)
        request.session[_NEXT] = wanted
        return answer

    async def from_provider(self, request: Request) -> Response:
        """Let the person in who comes back from the identity provider."""
        provider, address = self._sign_in.provider, address_of(request)
        wanted = self._next(request.session.get(_NEXT, ""))
        if provider is None:
            return RedirectResponse(f"{self._prefix}{SIGN_IN}", 303)
        if wait_s := self._sign_in.attempts.begin(address):
            return await self._form(request, wanted, f"Too many attempts. Try again in {wait_s:.0f} seconds.", 429)
        try:
            person, id_token = await provider.person(request)
        except SignInRefused as refused:
            return await self._form(request, wanted, str(refused), refused.status)
        self._sign_in.attempts.succeeded(address)
        self._sign_in.enter(request, person, id_token)
        return RedirectResponse(wanted, 303)

    async def out(self, request: Request) -> Response:
        """End the session, and that at the provider, if people can end it there."""
        await form_of(request)
        id_token, provider = self._sign_in.leave(request), self._sign_in.provider
        if id_token and provider is not None:
            try:
                place = await provider.end_address(id_token, self._own(request, SIGN_IN))
            except SignInRefused:
                text = "You are signed out of the console, and perhaps not at the identity provider, which does not answer."
                return await self._form(request, "", text, 200)
            if place:
                # No redirect: the policy of pages lets no form lead to another host, not even by one.
                return await run_in_threadpool(self._respond, "signed_out.html", request, {"title": "Sign out", "place": place})
        return RedirectResponse(f"{self._prefix}{SIGN_IN}", 303)

    def _callback(self, request: Request) -> str:
        return self._own(request, f"{SIGN_IN}/callback")

    def _own(self, request: Request, path: str) -> str:
        # The host is one of host_names or a loopback name, as was checked. Only on the latter is there no TLS.
        host = request.headers["host"]
        scheme = "http" if is_loopback(urlsplit(f"//{host}").hostname or "") else "https"
        return f"{scheme}://{host}{self._prefix}{path}"

    def _next(self, wanted: str) -> str:
        """Return the page to show after sign-in: one of this console, whatever the address of the sign-in page said."""
        root = f"{self._prefix}/"
        is_own = wanted.startswith(root) and not wanted.startswith("//") and "\\" not in wanted and wanted.isprintable()
        return wanted if is_own and not wanted.startswith(f"{root}sign-") else root


def _provider(settings: SignInSettings) -> Provider:
    from tideline_console.identity import Provider  # The libraries behind it are loaded only where there is a provider.

    return Provider(settings)


def address_of(request: Request) -> str:
    """Return the address of a client, as the proxy tells it, if it is one of the setting `proxies`."""
    return request.client.host if request.client else "unknown"


def check_sign_in(settings: ConsoleSettings) -> None:
    """Raise `InvalidSetting` where other machines could reach pages without sign-in, or no person could sign in."""

    def refuse(name: str, found: str, expected: str, remedy: str) -> None:
        raise InvalidSetting(found, name=name, origin=settings.origin(name), expected=expected, remedy=remedy)

    own = settings.sign_in
    if not is_loopback(settings.listen_host) and not own.is_set:
        refuse(
            "listen_host",
            f"setting 'listen_host' is {settings.listen_host!r} without sign-in",
            "a loopback address, or sign_in.operator_token, sign_in.viewer_token or sign_in.issuer",
            "leave listen_host out, or say how people sign in (docs/console.md)",
        )
    if own.issuer and not own.client_id:
        refuse(
            "sign_in.client_id", "setting 'sign_in.issuer' without sign_in.client_id", "the id of the client", "register the client"
        )
    if own.issuer and not (own.operators or own.viewers):
        expected = "values of the claim in sign_in.operators or sign_in.viewers"
        refuse("sign_in.operators", "setting 'sign_in.issuer' without roles: no person could sign in", expected, "name groups")
    if own.issuer and not is_safe(own.issuer):
        refuse("sign_in.issuer", f"setting 'sign_in.issuer' is {own.issuer!r}", "an https URL", "give the provider's issuer")
