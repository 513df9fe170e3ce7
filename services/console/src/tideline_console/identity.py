"""Sign-in with a provider of OpenID Connect: authorization code with PKCE; who and which role from the claims of the ID token."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from tideline_console.people import Person, SignInRefused, is_safe, named
from tideline_console.settings import SignInSettings
from tideline_runtime.logging import get_logger
from tideline_table.extras import extra

with extra("console"):
    import httpx2
    from authlib.integrations.starlette_client import OAuth, OAuthError
    from joserfc.errors import JoseError

_log = get_logger(__name__)
_ALGORITHMS = frozenset(("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA", "Ed25519"))
"""Signatures of ID tokens that are accepted: those of the provider's key alone, so neither none nor one by the client's secret."""
DEADLINE_S = 10.0
EVERYBODY = "*"


class Provider:
    """One provider of OpenID Connect."""

    def __init__(self, settings: SignInSettings) -> None:
        self._settings = settings
        secret = settings.client_secret
        self._client = OAuth().register(
            "console",
            client_id=settings.client_id,
            client_secret=None if secret is None else secret.get_secret_value(),
            server_metadata_url=f"{settings.issuer.rstrip('/')}/.well-known/openid-configuration",
            client_kwargs={
                "scope": " ".join(settings.scopes),
                "code_challenge_method": "S256",
                "timeout": DEADLINE_S,
                **({} if secret is not None else {"token_endpoint_auth_method": "none"}),
            },
        )

    async def begin(self, request: Request, callback: str) -> Response:
        """Return the redirect to the provider, which sends the person back to `callback`. Raises `SignInRefused`."""
        try:
            await self._metadata()
            answer: Response = await self._client.authorize_redirect(request, callback)
        except (httpx2.HTTPError, OAuthError, RuntimeError, ValueError) as error:
            raise _unreachable(error) from error
        return answer

    async def person(self, request: Request) -> tuple[Person, str]:
        """Return the person that the provider signed in, with the role of the claims, and the ID token. Raises `SignInRefused`."""
        settings = self._settings
        try:
            await self._metadata()
            expected = {
                "iss": {"essential": True, "values": [settings.issuer]},
                "aud": {"essential": True, "values": [settings.client_id]},
            }
            answer = await self._client.authorize_access_token(request, claims_options=expected)
        except (httpx2.HTTPError, RuntimeError) as error:
            raise _unreachable(error) from error
        except (OAuthError, JoseError, ValueError, KeyError, TypeError) as error:
            # Another site may have made this address, so the log has the reason, and no page shows it.
            _log.warning("sign-in refused", error=type(error).__name__, reason=str(error)[:500])
            raise SignInRefused("The identity provider's answer was not accepted. Begin again.", 400) from error
        claims = answer.get("userinfo")
        if not claims:
            raise SignInRefused("The identity provider sent no ID token.", 400)
        return person_of_claims(claims, settings), str(answer["id_token"])

    async def end_address(self, id_token: str, back: str) -> str:
        """Return where a browser ends the session at the provider, which sends it `back`; empty if there is no such place.

        Raises `SignInRefused` if the provider does not answer.
        """
        try:
            place = str((await self._metadata()).get("end_session_endpoint") or "")
            if not place or not is_safe(place):
                _log.info("the identity provider names no place where sessions end", place=place[:500])
                return ""
            found = await self._client.create_logout_url(back, id_token, client_id=self._settings.client_id)
        except (httpx2.HTTPError, RuntimeError, ValueError) as error:
            raise _unreachable(error) from error
        return str(found["url"])

    async def _metadata(self) -> Mapping[str, Any]:
        found: dict[str, Any] = await self._client.load_server_metadata()
        if found.get("issuer") != self._settings.issuer:
            found.pop("_loaded_at", None)  # Asked again at the next attempt.
            raise ValueError(f"the provider names itself {found.get('issuer')!r}, not {self._settings.issuer!r}")
        offered = found.get("id_token_signing_alg_values_supported") or ["RS256"]
        found["id_token_signing_alg_values_supported"] = [name for name in offered if name in _ALGORITHMS] or ["RS256"]
        return found


def person_of_claims(claims: Mapping[str, Any], settings: SignInSettings) -> Person:
    """Return the person of the claims of an ID token. Raises `SignInRefused` for one without a role."""
    name = str(claims.get(settings.name_claim) or claims["sub"])
    found: Any = claims.get(settings.role_claim)
    if found is None:
        found = claims
        for part in settings.role_claim.split("."):
            found = found.get(part) if isinstance(found, Mapping) else None
    given = [found] if isinstance(found, str) else found if isinstance(found, list) else []
    values = {one for one in given if isinstance(one, str)}
    if values & set(settings.operators):
        return named(name, is_operator=True)
    if values & set(settings.viewers) or EVERYBODY in settings.viewers:
        return named(name, is_operator=False)
    _log.warning("sign-in without a role", name=name[:200])
    raise SignInRefused("You are known to the identity provider, and have no role in this console.")


def _unreachable(error: Exception) -> SignInRefused:
    _log.warning("the identity provider cannot be used", error=type(error).__name__, reason=str(error)[:500])
    return SignInRefused("The identity provider does not answer as it should. The console's log says more. Try again later.", 503)
