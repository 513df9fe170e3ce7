"""Sign-in with a provider of OpenID Connect that answers over HTTP: roles from a claim, and every lie refused."""

from __future__ import annotations

import html
import re
import time
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from tests.unit.console.provider import CLIENT, SECRET, running_provider
from tests.unit.console.test_pages import Parsed
from tests.unit.console.test_sign_in import HOST, client_of, csrf_in
from tests.unit.services.fleet import write

from tideline_console.identity import person_of_claims
from tideline_console.people import SignInRefused
from tideline_console.settings import ConsoleSettings, SignInSettings
from tideline_console.web import console_app


@pytest.fixture(scope="module")
def shared():
    with running_provider() as provider:
        yield provider


@pytest.fixture
def provider(shared):
    kept = dict(vars(shared))
    yield shared
    vars(shared).update(kept)


def settings_of(provider, **explicit):
    own = {"issuer": provider.issuer, "client_id": CLIENT, "client_secret": SECRET, "operators": ("lake-operators",), **explicit}
    return {"host_names": ("console.example",), "sign_in": own}


@pytest.fixture
def app(consoles, provider):
    write(consoles.create("trips"), 0)
    follower, model, settings = consoles.follower(**settings_of(provider, viewers=("lake-viewers",)))
    follower.turn()
    return console_app(settings, model, follower, consoles.clock)


def begin(client, wanted="/tables"):
    """Go to the provider, which sends the browser back. Returns the address of the callback."""
    begun = client.get("/sign-in/provider", params={"next": wanted})
    assert begun.status_code == 302, begun.text
    back = httpx.get(begun.headers["location"], follow_redirects=False)
    assert back.headers["location"].startswith(f"{HOST}/sign-in/callback?")
    return back.headers["location"].removeprefix(HOST)


def test_an_operator_signs_in(app):
    client = client_of(app)
    page = client.get("/sign-in?next=/tables").text
    assert 'href="/sign-in/provider?next=/tables"' in page
    assert 'name="token"' not in page
    callback = begin(client)
    answer = client.get(callback)
    assert (answer.status_code, answer.headers["location"]) == (303, "/tables")
    assert client_of(app).get(callback).status_code == 400
    assert "ada, operator" in Parsed(client.get("/tables").text).text
    assert client.get("/api/v1/tables").status_code == 200


def test_the_claim_gives_the_role(app, provider):
    provider.claims = {"sub": "9", "preferred_username": "<b>bob</b>", "groups": ["x", "lake-viewers"]}
    client = client_of(app)
    client.get(begin(client))
    page = client.get("/tables").text
    assert "<b>bob</b>, viewer" in Parsed(page).text
    assert "<b>bob" not in page


def test_who_has_no_role_has_no_session(app, provider):
    provider.claims = {"sub": "9", "groups": ["lake-operators-of-another-house"]}
    client = client_of(app)
    answer = client.get(begin(client))
    assert answer.status_code == 403
    assert "no role" in answer.text
    assert client.get("/tables").status_code == 303


LIES = {
    "signature of another key": {"signature": "other"},
    "no signature": {"signature": "none"},
    "signature by the secret": {"signature": "of the secret"},
    "signature by the public key": {"signature": "of the public key"},
    "another audience": {"changed": {"aud": "another"}},
    "several audiences": {"changed": {"aud": ["another"], "azp": CLIENT}},
    "another issuer": {"changed": {"iss": "https://evil.example"}},
    "another nonce": {"changed": {"nonce": "replayed"}},
    "no nonce": {"changed": {"nonce": None}},
    "expired": {"changed": {"exp": int(time.time()) - 3600}},
    "no end": {"changed": {"exp": None}},
    "no subject": {"changed": {"sub": None}},
    "of the future": {"changed": {"iat": int(time.time()) + 7200}},
    "no ID token": {"has_id_token": False},
}


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_of_the_token_lets_nobody_in(app, provider, lie):
    client = client_of(app)
    for name, value in LIES[lie].items():
        setattr(provider, name, value)
    answer = client.get(begin(client))
    assert answer.status_code == 400, lie
    assert client.get("/tables").status_code == 303


def test_a_callback_that_this_browser_did_not_begin_lets_nobody_in(app):
    client, victim = client_of(app), client_of(app)
    callback = begin(client)
    assert victim.get(callback).status_code == 400
    assert victim.get("/tables").status_code == 303
    victim_callback = begin(victim)
    code = parse_qs(urlsplit(callback).query)["code"][0]
    own = parse_qs(urlsplit(victim_callback).query)
    assert victim.get("/sign-in/callback", params={"code": code, "state": own["state"][0]}).status_code == 400


@pytest.mark.parametrize("query", ["", "?code=x", "?state=x", "?error=access_denied&error_description=<script>", "?code=x&state=y"])
def test_a_callback_with_nothing_in_it_is_told_plainly(app, query):
    client = client_of(app)
    answer = client.get(f"/sign-in/callback{query}")
    assert answer.status_code == 400
    assert "<script>" not in answer.text
    assert "Begin again" in answer.text


def test_a_provider_that_is_away_or_another_is_told_plainly(app, provider):
    client = client_of(app)
    provider.is_away = True
    assert client.get("/sign-in/provider").status_code == 503
    provider.is_away, provider.metadata = False, {"issuer": "https://evil.example"}
    assert client.get("/sign-in/provider").status_code == 503
    provider.metadata = {}
    assert client.get("/sign-in/provider").status_code == 302


def test_a_provider_that_offers_weak_signatures_only_is_not_believed(app, provider):
    provider.metadata, provider.signature = {"id_token_signing_alg_values_supported": ["none", "HS256"]}, "none"
    client = client_of(app)
    assert client.get(begin(client)).status_code == 400


HOSTILE_PLACE = 'https://id.example/"><script>'


def sign_out(client, page):
    return client.post("/sign-out", data={"csrf": csrf_in(page.text)})


def test_sign_out_ends_the_session_at_the_provider_too(app, provider):
    client = client_of(app)
    client.get(begin(client))
    answer = sign_out(client, client.get("/tables"))
    assert client.get("/tables").status_code == 303
    (place,) = set(re.findall(r'(?:href="|content="0;url=)(http[^"]+)"', answer.text))
    back = httpx.get(html.unescape(place), follow_redirects=False).headers["location"]
    assert provider.ended == ["7"]
    assert back.startswith(f"{HOST}/sign-in?state=")
    assert client.get(back.removeprefix(HOST)).status_code == 200
    # The ID token was in the memory of the console alone, and is gone from it.
    client.get(begin(client))
    assert not {name: value for name, value in client.cookies.items() if len(value) > 1000}


@pytest.mark.parametrize("place", [None, "", "javascript:alert(1)", "http://evil.example/end", 7, HOSTILE_PLACE])
def test_sign_out_ends_the_own_session_whatever_the_provider_offers(app, provider, place):
    provider.metadata = {"end_session_endpoint": place}
    client = client_of(app)
    client.get(begin(client))
    answer = sign_out(client, client.get("/tables"))
    assert client.get("/tables").status_code == 303
    if place == HOSTILE_PLACE:
        assert "<script>" not in answer.text
    else:
        assert (answer.status_code, answer.headers["location"]) == (303, "/sign-in")


def test_under_a_prefix_and_on_loopback_the_provider_is_told_the_own_address(consoles, provider):
    follower, model, settings = consoles.follower(**settings_of(provider), path_prefix="/lake")
    app = console_app(settings, model, follower, consoles.clock)
    for base, expected in ((HOST, HOST), ("http://127.0.0.1:8380", "http://127.0.0.1:8380")):
        begun = client_of(app, base).get("/lake/sign-in/provider")
        assert parse_qs(urlsplit(begun.headers["location"]).query)["redirect_uri"] == [f"{expected}/lake/sign-in/callback"]


@pytest.mark.parametrize(
    ("claim", "claims", "is_operator"),
    [
        ("groups", {"groups": "a"}, True),
        ("groups", {"groups": ["b", 7, None, "a"]}, True),
        ("realm_access.roles", {"realm_access": {"roles": ["a"]}}, True),
        ("https://lake.example/roles", {"https://lake.example/roles": ["a"]}, True),
        ("groups", {"groups": {"a": True}}, None),
        ("groups", {"groups": 7}, None),
        ("groups", {}, None),
        ("groups", {"groups": ["A", "a "]}, None),
    ],
)
def test_roles_of_claims(claim, claims, is_operator):
    settings = SignInSettings(issuer="https://id.example", client_id="c", operators=("a",), role_claim=claim)
    if is_operator is None:
        with pytest.raises(SignInRefused):
            person_of_claims({"sub": "7", **claims}, settings)
        everybody = settings.model_copy(update={"viewers": ("*",)})
        assert not person_of_claims({"sub": "7", **claims}, everybody).is_operator
    else:
        found = person_of_claims({"sub": "7", **claims}, settings)
        assert (found.name, found.is_operator) == ("7", is_operator)


def test_the_secret_of_the_client_is_not_printed(consoles, provider):
    settings = consoles.settings(ConsoleSettings, **settings_of(provider))
    assert SECRET not in repr(settings)
    assert SECRET in settings.secret_values()
