"""Forms that pages of the console send: they come from such a page, and hold the token of its session."""

from __future__ import annotations

import hmac
import secrets
from urllib.parse import parse_qs, urlsplit

from starlette.exceptions import HTTPException
from starlette.requests import Request

MOST_BYTES = 16_384
"""Bytes of a form."""
CSRF = "csrf"
"""Field of each form, and name in the session."""
_OF_PROCESS = secrets.token_urlsafe(24)
"""The token of a console without sign-in. A page of another site cannot read it."""


def csrf_of(request: Request) -> str:
    """Return the token that forms of this session hold; a new one in a new session."""
    if "session" not in request.scope:
        return _OF_PROCESS
    return str(request.session.get(CSRF) or request.session.setdefault(CSRF, secrets.token_urlsafe(24)))


def is_own(request: Request) -> bool:
    """Return whether a request comes from a page of this console, as browsers say: another site cannot change these headers."""
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    if site is not None:
        return site == "same-origin"  # Then the origin is "null", because pages of the console tell no referrer.
    return origin is None or urlsplit(origin).netloc == request.headers.get("host", "")


async def form_of(request: Request, most_bytes: int = MOST_BYTES) -> dict[str, str]:
    """Return the fields of a form, each once. Raises `HTTPException` 400, 413, and 403 for one that is no form of this session."""
    if not is_own(request):
        raise HTTPException(403, "The request does not come from a page of this console.")
    if request.headers.get("content-type", "").partition(";")[0] != "application/x-www-form-urlencoded":
        raise HTTPException(400, "A form is expected.")
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > most_bytes:
            raise HTTPException(413, "The form is too large.")
    try:
        fields = parse_qs(body.decode(), keep_blank_values=True, max_num_fields=10)
    except ValueError as error:
        raise HTTPException(400, "The form cannot be read.") from error
    given = {name: values[-1] for name, values in fields.items()}
    if not hmac.compare_digest(given.get(CSRF, "").encode(errors="replace"), csrf_of(request).encode()):
        raise HTTPException(403, "The form is not of this session, or the session is a new one. Open the page again.")
    return given
