"""A small provider of OpenID Connect on a loopback port: discovery, authorize, token with PKCE, keys. It may be told to lie."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qsl, urlencode

import uvicorn
from joserfc import jwt
from joserfc.jwk import OctKey, RSAKey
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

CLIENT, SECRET = "tideline", "secret-of-the-console"


class Provider:
    """Signs in, without asking, whoever comes: `claims` say who. The fields after it make it lie or fail."""

    def __init__(self) -> None:
        self.issuer = ""
        self.key, self.other_key = RSAKey.generate_key(2048, auto_kid=True), RSAKey.generate_key(2048, auto_kid=True)
        self.claims: dict[str, Any] = {"sub": "7", "preferred_username": "ada", "groups": ["lake-operators"]}
        self.changed: dict[str, Any] = {}
        self.signature = "own"
        self.metadata: dict[str, Any] = {}
        self.is_away = False
        self.has_id_token = True
        self.ended: list[str] = []
        self._codes: dict[str, dict[str, str]] = {}

    def routes(self) -> list[Route]:
        return [
            Route("/.well-known/openid-configuration", self.discovery),
            Route("/authorize", self.authorize),
            Route("/token", self.token, methods=["POST"]),
            Route("/end", self.end),
            Route("/keys", lambda _: JSONResponse({"keys": [self.key.as_dict(private=False)]})),
        ]

    def discovery(self, _: Request) -> Response:
        if self.is_away:
            return Response(status_code=502)
        found = {
            "issuer": self.issuer,
            "authorization_endpoint": f"{self.issuer}/authorize",
            "token_endpoint": f"{self.issuer}/token",
            "end_session_endpoint": f"{self.issuer}/end?of=the+house",
            "jwks_uri": f"{self.issuer}/keys",
            "id_token_signing_alg_values_supported": ["RS256", "HS256", "none"],
        }
        return JSONResponse({name: value for name, value in {**found, **self.metadata}.items() if value is not None})

    def end(self, request: Request) -> Response:
        """End the session at the provider, if the ID token is one of its own, for this client; whoever comes back is told so."""
        asked = dict(request.query_params)
        claims = jwt.decode(asked["id_token_hint"], self.key).claims
        assert (claims["aud"], asked["client_id"], asked["of"]) == (CLIENT, CLIENT, "the house")
        self.ended.append(claims["sub"])
        return RedirectResponse(f"{asked['post_logout_redirect_uri']}?{urlencode({'state': asked['state']})}")

    def authorize(self, request: Request) -> Response:
        asked = dict(request.query_params)
        assert (asked["client_id"], asked["response_type"], asked["code_challenge_method"]) == (CLIENT, "code", "S256")
        assert "openid" in asked["scope"].split()
        code = secrets.token_urlsafe(8)
        self._codes[code] = asked
        return RedirectResponse(f"{asked['redirect_uri']}?{urlencode({'code': code, 'state': asked['state']})}")

    async def token(self, request: Request) -> Response:
        given = dict(parse_qsl((await request.body()).decode())) | _basic(request)
        asked = self._codes.pop(given["code"], None)
        if asked is None or given.get("client_secret") != SECRET or given["redirect_uri"] != asked["redirect_uri"]:
            return JSONResponse({"error": "invalid_grant"}, 400)
        digest = hashlib.sha256(given["code_verifier"].encode()).digest()
        if _encoded(digest) != asked["code_challenge"]:
            return JSONResponse({"error": "invalid_grant"}, 400)
        answer = {"access_token": "a", "token_type": "Bearer", "expires_in": 60}
        return JSONResponse(answer | ({"id_token": self.id_token(asked)} if self.has_id_token else {}))

    def id_token(self, asked: dict[str, str]) -> str:
        now_s = int(time.time())
        own = {"iss": self.issuer, "aud": CLIENT, "iat": now_s, "exp": now_s + 300, "nonce": asked["nonce"]}
        claims = {name: value for name, value in {**own, **self.claims, **self.changed}.items() if value is not None}
        if self.signature in ("none", "of the public key"):  # The library makes neither.
            alg = {"none": "none"}.get(self.signature, "HS256")
            head = ".".join(_encoded(json.dumps(part).encode()) for part in ({"alg": alg, "kid": self.key.kid}, claims))
            key = self.key.as_pem(private=False)
            return f"{head}.{_encoded(hmac.digest(key, head.encode(), 'sha256')) if alg == 'HS256' else ''}"
        if self.signature == "of the secret":
            return jwt.encode({"alg": "HS256"}, claims, OctKey.import_key(SECRET))
        key = self.key if self.signature == "own" else self.other_key
        return jwt.encode({"alg": "RS256", "kid": self.key.kid}, claims, key)


def _encoded(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


def _basic(request: Request) -> dict[str, str]:
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "basic":
        return {}
    name, _, secret = base64.b64decode(given).decode().partition(":")
    return {"client_id": name, "client_secret": secret}


@contextmanager
def running_provider() -> Iterator[Provider]:
    """A provider that answers on a free loopback port."""
    provider = Provider()
    bound = socket.create_server(("127.0.0.1", 0))
    provider.issuer = f"http://127.0.0.1:{bound.getsockname()[1]}"
    server = uvicorn.Server(uvicorn.Config(Starlette(routes=provider.routes()), log_config=None, access_log=False, lifespan="off"))
    thread = threading.Thread(target=server.run, args=([bound],), daemon=True)
    thread.start()
    try:
        yield provider
    finally:
        server.should_exit = True
        thread.join()
        bound.close()
