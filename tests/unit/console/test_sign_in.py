"""Sign-in with tokens: who gets in, with which role, what a session is worth, and what strangers learn."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from starlette.testclient import TestClient
from tests.unit.console.test_actions import Acting
from tests.unit.console.test_pages import PAGES, Parsed
from tests.unit.services.fleet import write

import tideline_console
from tideline_console.actions import Actions
from tideline_console.headers import HEADERS
from tideline_console.people import TRIES, TRIES_S, Attempts, named
from tideline_console.service import ConsoleService
from tideline_console.settings import ConsoleSettings
from tideline_console.web import console_app
from tideline_launcher.job_logs import keep_job_log
from tideline_launcher.names import application_name
from tideline_runtime.errors import InvalidSetting

OPERATOR, VIEWER = "operator-0123456789-abcdef", "viewer-0123456789-abcdefgh"
TOKENS = {"operator_token": OPERATOR, "viewer_token": VIEWER}
HOST = "https://console.example"
NAMED = {"host_names": ("console.example",), "sign_in": TOKENS}


@pytest.fixture
def app(consoles):
    write(consoles.create("trips"), 0)
    follower, model, settings = consoles.follower(**NAMED)
    follower.turn()
    return console_app(settings, model, follower, consoles.clock)


def client_of(app, base_url: str = HOST, address: str = "192.0.2.7") -> TestClient:
    return TestClient(app, base_url=base_url, follow_redirects=False, client=(address, 5))


def csrf_in(text: str) -> str:
    found = re.search(r'name="csrf" value="([^"]+)"', text)
    assert found
    return found[1]


def sign_in(client: TestClient, token: str = OPERATOR, prefix: str = "", wanted: str = ""):
    form = client.get(f"{prefix}/sign-in", params={"next": wanted})
    return client.post(f"{prefix}/sign-in", data={"csrf": csrf_in(form.text), "token": token, "next": wanted})


def routes_of(app):
    while not hasattr(app, "routes"):
        app = app._app if hasattr(app, "_app") else app.app
    return app.routes


def test_without_a_session_nothing_but_sign_in_is_shown(app):
    client = client_of(app)
    (row,) = client_of(app).get("/api/v1/tables", headers={"authorization": f"Bearer {VIEWER}"}).json()["tables"]
    for address in (*PAGES, f"/tables/{row['key']}", "/tables.csv", "/actions", "/nothing", "/sign-in/", "/static"):
        answer = client.get(address)
        assert answer.status_code == 303, address
        assert answer.headers["location"].startswith("/sign-in?next=/"), address
        assert "trips" not in answer.text
    answer = client.get("/tables?type=cow&q=a b")
    assert answer.headers["location"] == "/sign-in?next=/tables%3Ftype%3Dcow%26q%3Da%2520b"
    for path in (
        "overview",
        "tables",
        "work",
        "events",
        "openapi.json",
        f"tables/{row['key']}",
        f"tables/{row['key']}/why",
        "none",
    ):
        answer = client.get(f"/api/v1/{path}")
        assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
        assert answer.json()["error"] == "SignInRequired"
    live = client.get("/", headers={"hx-request": "true"})
    assert (live.status_code, live.headers["hx-redirect"]) == (401, "/sign-in?next=/")
    for address in ("/static/none.css", "/sign-in"):
        assert "trips" not in client.get(address).text
        assert 'class="nav"' not in client.get(address).text


def test_every_route_asks_for_a_session(app):
    """Also routes that are added later: no list of this test names them."""
    open_routes = {"/sign-in", "/sign-in/provider", "/sign-in/callback", "/static"}
    paths = {route.path for route in routes_of(app)} - open_routes
    assert len(paths) > 15
    for path in paths:
        address = re.sub(r"\{[^}]+\}", "x", path)
        for method in ("GET", "POST", "PUT", "DELETE", "OPTIONS", "HEAD"):
            assert client_of(app).request(method, address).status_code in (303, 401), (method, address)


def test_a_token_opens_a_session_with_a_safe_cookie(app):
    client = client_of(app)
    answer = sign_in(client, wanted="/tables?type=cow")
    assert (answer.status_code, answer.headers["location"]) == (303, "/tables?type=cow")
    cookie = answer.headers["set-cookie"].lower()
    assert all(part in cookie for part in ("httponly", "secure", "samesite=lax", "path=/"))
    assert OPERATOR not in answer.headers["set-cookie"]
    page = client.get("/tables")
    assert page.status_code == 200
    assert {name: page.headers[name] for name in HEADERS} == HEADERS
    assert page.headers["cache-control"] == "no-store"
    assert "holder of the operator token" in Parsed(page.text).text
    assert client.get("/api/v1/tables").status_code == 200
    assert client.get("/sign-in").status_code == 303
    # Over plain HTTP, a browser does not send the cookie: no session travels unprotected.
    assert "cookie" not in client.get("http://console.example/tables").request.headers


def test_a_session_ends_by_sign_out_and_by_time(consoles, app):
    client = client_of(app)
    sign_in(client)
    kept = dict(client.cookies)
    page = client.get("/tables")
    assert client.post("/sign-out", data={"csrf": "guessed"}).status_code == 403
    assert client.get("/tables").status_code == 200
    assert client.post("/sign-out", data={"csrf": csrf_in(page.text)}).status_code == 303
    assert client.get("/tables").status_code == 303
    stolen = client_of(app)
    stolen.cookies.update(kept)
    assert stolen.get("/tables").status_code == 303, "the cookie of a session that ended opens nothing"
    sign_in(client)
    consoles.clock.advance(8 * 3600 - 1)
    assert client.get("/tables").status_code == 200
    consoles.clock.advance(2)
    assert client.get("/tables").status_code == 303


def test_a_session_of_another_key_or_before_sign_in_is_worth_nothing(consoles, app):
    client = client_of(app)
    client.get("/sign-in")
    before = dict(client.cookies)
    sign_in(client)
    fixed = client_of(app)
    fixed.cookies.update(before)
    assert fixed.get("/tables").status_code == 303
    follower, model, settings = consoles.follower(**NAMED)
    other = client_of(console_app(settings, model, follower, consoles.clock))
    other.cookies.update(dict(client.cookies))
    assert other.get("/tables").status_code == 303


@pytest.mark.parametrize("given", ["", "wrong", OPERATOR[:-1], OPERATOR + "x", OPERATOR.upper(), "\u05e9\ud83d\ude80", "\ud800"])
def test_another_token_opens_nothing(app, given):
    client = client_of(app)
    form = client.get("/sign-in")
    answer = client.post("/sign-in", data={"csrf": csrf_in(form.text), "token": given.encode("utf-8", "replace").decode()})
    assert answer.status_code == 401
    assert "not one of this console" in answer.text
    assert client.get("/tables").status_code == 303
    assert OPERATOR not in answer.text
    header = {"authorization": f"Bearer {given}".encode("utf-8", "replace")}
    assert client.get("/api/v1/tables", headers=header).status_code == 401


def test_attempts_are_limited_by_address(consoles, app):
    client = client_of(app)
    form = {"csrf": csrf_in(client.get("/sign-in").text), "token": "wrong"}
    assert {client.post("/sign-in", data=form).status_code for _ in range(TRIES - 1)} == {401}
    assert client.get("/api/v1/tables", headers={"authorization": "Bearer wrong"}).status_code == 401
    late = client.post("/sign-in", data={**form, "token": OPERATOR})
    assert late.status_code == 429, "the right token does not help either: otherwise the limit would tell it"
    assert 0 < int(late.headers["retry-after"]) <= TRIES_S
    assert client.get("/api/v1/tables", headers={"authorization": f"Bearer {VIEWER}"}).status_code == 429
    assert sign_in(client_of(app, address="192.0.2.8")).status_code == 303
    consoles.clock.advance(TRIES_S + 1)
    assert client.post("/sign-in", data={**form, "token": OPERATOR}).status_code == 303


def test_who_has_one_token_cannot_guess_the_other_for_ever(app):
    def ask(token: str) -> int:
        return client_of(app).get("/api/v1/tables", headers={"authorization": f"Bearer {token}"}).status_code

    assert {ask(VIEWER) for _ in range(3 * TRIES)} == {200}, "who signs in well is not counted"
    assert [code for _ in range(TRIES) for code in (ask("guessed"), ask(VIEWER))][:-2].count(401) == TRIES - 1
    assert ask("guessed") == ask(VIEWER) == 429


def test_attempts_of_one_network_count_together_and_few_addresses_are_kept(consoles):
    attempts = Attempts(consoles.clock)
    waits = [attempts.begin(f"2001:db8::{number:x}") for number in range(TRIES + 1)]
    assert waits[:-1] == [0.0] * TRIES
    assert 0.0 < waits[-1] <= TRIES_S
    assert attempts.begin("2001:db8:0:1::1") == 0.0
    assert attempts.begin("192.0.2.1") == 0.0
    for number in range(20_000):
        attempts.begin(f"x{number}")
    assert len(attempts._by_address) == 10_000


@pytest.mark.parametrize(
    "wanted",
    ["https://evil.example/", "//evil.example", "/\\evil.example", "/a\nb", "javascript:alert(1)", "evil", "/sign-out", ""],
)
def test_sign_in_leads_to_pages_of_this_console_only(app, wanted):
    assert sign_in(client_of(app), wanted=wanted).headers["location"] == "/"


def test_a_form_of_another_site_signs_nobody_in(app):
    client = client_of(app)
    csrf = csrf_in(client.get("/sign-in").text)
    cross = {"sec-fetch-site": "cross-site"}
    assert client.post("/sign-in", data={"csrf": csrf, "token": VIEWER}, headers=cross).status_code == 403
    assert client.post("/sign-in", data={"token": VIEWER}).status_code == 403
    assert client_of(app).post("/sign-in", data={"csrf": csrf, "token": VIEWER}).status_code == 403
    assert client.get("/tables").status_code == 303


def test_it_works_under_a_prefix_of_a_proxy(consoles):
    write(consoles.create("trips"), 0)
    follower, model, settings = consoles.follower(**NAMED, path_prefix="/lake/house")
    follower.turn()
    client = client_of(console_app(settings, model, follower, consoles.clock))
    assert client.get("/lake/house/tables").headers["location"] == "/lake/house/sign-in?next=/lake/house/tables"
    answer = sign_in(client, prefix="/lake/house", wanted="/lake/house/tables")
    assert answer.headers["location"] == "/lake/house/tables"
    assert "path=/lake/house;" in answer.headers["set-cookie"].lower()
    page = client.get("/lake/house/tables")
    assert page.status_code == 200
    out = client.post("/lake/house/sign-out", data={"csrf": csrf_in(page.text)})
    assert out.headers["location"] == "/lake/house/sign-in"
    assert sign_in(client, prefix="/lake/house", wanted="/elsewhere").headers["location"] == "/lake/house/"


class Signed(Acting):
    """A console with actions and sign-in, and a person of a role."""

    def __init__(self, consoles, token: str) -> None:
        super().__init__(consoles, **NAMED)
        self.client = client_of(self.app)
        sign_in(self.client, token)


def test_a_viewer_sees_no_log_of_an_application(consoles):
    """It may hold secrets that the patterns of redaction do not know."""
    table = consoles.create("trips")
    write(table, 0)
    name = application_name("trips", table.storage.root, "20260101120000000", 1)
    keep_job_log(table.storage, name, b"the last lines", 3)
    follower, model, settings = consoles.follower(**NAMED)
    follower.turn()
    app = console_app(settings, model, follower, consoles.clock)
    (row,) = client_of(app).get("/api/v1/tables", headers={"authorization": f"Bearer {VIEWER}"}).json()["tables"]
    for token, status in ((VIEWER, 403), (OPERATOR, 200)):
        client = client_of(app)
        sign_in(client, token)
        for headers in ({}, {"hx-request": "true"}):
            shown = client.get(f"/tables/{row['key']}/log/{name}", headers=headers)
            assert (shown.status_code, "the last lines" in shown.text) == (status, status == 200)


def test_a_viewer_cannot_act_whatever_address_or_form_is_sent(consoles):
    acting = Signed(consoles, OPERATOR)
    instant = acting.plan()
    _, token = acting.preview("cancel", instant=instant)
    viewer = client_of(acting.app)
    sign_in(viewer, VIEWER)
    page = viewer.get(f"/tables/{acting.row['key']}")
    assert page.status_code == 200
    assert "/act?" not in page.text
    assert "/act?" not in viewer.get("/work").text
    assert viewer.get(f"/tables/{acting.row['key']}/log/x").status_code == 403
    assert viewer.get(acting.address, params={"kind": "cancel", "instant": instant}).status_code == 403
    form = {"csrf": csrf_in(page.text), "token": token, "reason": "mine", "hours": ""}
    assert viewer.post(acting.address, params={"kind": "cancel", "instant": instant}, data=form).status_code == 403
    assert acting.is_pending(instant)
    assert acting.recorded == []
    assert viewer.get("/actions").status_code == 200


def test_an_operator_acts_under_the_name_of_the_session(consoles):
    acting = Signed(consoles, OPERATOR)
    instant = acting.plan()
    _, token = acting.preview("cancel", instant=instant)
    assert acting.confirm("cancel", token, instant=instant, csrf="guessed").status_code == 403
    assert acting.is_pending(instant)
    assert acting.confirm("cancel", token, instant=instant).status_code == 200
    assert not acting.is_pending(instant)
    assert {one.by for one in acting.recorded} == {"holder of the operator token"}


def test_a_session_that_ends_before_the_confirmation_leaves_nothing_half_done(consoles):
    acting = Signed(consoles, OPERATOR)
    instant = acting.plan()
    _, token = acting.preview("cancel", instant=instant)
    csrf = acting.csrf
    consoles.clock.advance(8 * 3600 + 1)
    answer = acting.confirm("cancel", token, instant=instant, csrf=csrf)
    assert answer.status_code == 303
    assert answer.headers["location"].startswith(f"/sign-in?next=/tables/{acting.row['key']}/act%3Fkind%3Dcancel")
    assert acting.is_pending(instant)
    assert acting.recorded == []


REFUSED = {
    "no sign-in": ({"listen_host": "0.0.0.0"}, "listen_host"),
    "no client": ({"sign_in": {"issuer": "https://id.example", "operators": ("a",)}}, "client_id"),
    "no roles": ({"sign_in": {"issuer": "https://id.example", "client_id": "c"}}, "operators"),
    "no TLS": ({"sign_in": {"issuer": "http://id.example", "client_id": "c", "viewers": ("*",)}}, "issuer"),
    "actions of strangers": ({"actions": True, "host_names": ("console.example",)}, "actions"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_console_that_would_let_strangers_in_does_not_start(consoles, name):
    given, setting = REFUSED[name]
    with pytest.raises(InvalidSetting, match=setting):
        ConsoleService(consoles.settings(ConsoleSettings, **given), consoles.context("console"))


def test_with_sign_in_other_machines_and_actions_are_allowed(consoles):
    given = {"listen_host": "0.0.0.0", "actions": True, **NAMED}
    ConsoleService(consoles.settings(ConsoleSettings, **given), consoles.context("console"))


def test_a_short_token_is_refused_and_no_secret_is_printed(consoles):
    with pytest.raises(InvalidSetting, match="operator_token") as refused:
        consoles.settings(ConsoleSettings, sign_in={"operator_token": "hunter2"})
    assert "hunter2" not in str(refused.value)
    settings = consoles.settings(ConsoleSettings, sign_in=TOKENS)
    assert OPERATOR not in repr(settings)
    assert {OPERATOR, VIEWER} <= set(settings.secret_values())


def test_names_are_one_short_line():
    assert named("a\n b\x00\u202ec" + "x" * 500, is_operator=False).name == ("a b c" + "x" * 500)[:200]
    assert named(" \n", is_operator=False).name == "unknown"


def test_templates_have_no_form_without_the_token_of_the_session():
    folder = Path(tideline_console.__file__).parent / "templates"
    for file in folder.glob("*.html"):
        forms = re.findall(r"<form[^>]*method=\"post\".*?</form>", file.read_text(), re.DOTALL)
        assert all('name="csrf" value="{{ csrf }}"' in form for form in forms), file.name


def test_a_shared_answer_holds_nothing_of_a_person_and_is_for_one_role(consoles):
    write(consoles.create("trips"), 0)
    follower, model, settings = consoles.follower(**NAMED, actions=True, policy_file=None)
    follower.turn()
    actions = Actions(settings, follower, consoles.clock, lambda _: None)
    app = console_app(settings, model, follower, consoles.clock, actions)
    (row,) = model.query("SELECT key FROM tables")
    operator, viewer, refresh = client_of(app), client_of(app), {"hx-request": "true"}
    sign_in(operator)
    sign_in(viewer, VIEWER)
    address = f"/tables/{row['key']}"
    secret = csrf_in(operator.get(address).text)
    seen = operator.get(address, headers=refresh).text
    assert "Plan clustering" in seen
    assert secret not in seen
    assert "holder of the operator token" not in seen
    assert "Plan clustering" not in viewer.get(address, headers=refresh).text
    stranger = client_of(app).get(address, headers=refresh)
    assert (stranger.status_code, "trips" in stranger.text) == (401, False)
