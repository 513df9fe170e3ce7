"""Sign-in and each action in a real browser, with the effect read from the table and the policy file, and axe on every page."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
import yaml
from playwright.sync_api import Browser, Page, expect
from tests.contract.console.conftest import barriers, watched
from tests.contract.console.fleet import awaited, running
from tests.contract.console.test_browser import HOSTILE, make_tables, rows
from tests.simulation.faults import covering
from tests.unit.console.provider import CLIENT, SECRET, running_provider

import tideline
from tideline_console.people import TRIES
from tideline_table.action import check_table, create_metadata
from tideline_table.metadata_table.layout import FILES_FOLDER
from tideline_table.table import GivenUp, given_up_plans, keep_given_up

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]
OPERATOR, VIEWER = "operator-0123456789-abcdef", "viewer-0123456789-abcdefgh"


@dataclass
class House:
    """Tables, a mirror, and a console on which people sign in and act."""

    folder: Path
    address: str
    issuer: str

    @property
    def policy_file(self) -> Path:
        return self.folder / "policy.yaml"

    def table(self, name: str) -> tideline.Table:
        return tideline.open(str(self.folder / "lake" / name))

    def api(self, path: str) -> dict:
        answer = httpx.get(f"{self.address}/api/v1/{path}", headers={"authorization": f"Bearer {VIEWER}"}, verify=False)
        return answer.raise_for_status().json()

    def keys(self) -> dict[str, str]:
        return {row["name"]: row["key"] for row in self.api("tables")["tables"]}

    def pending(self, name: str) -> list[str]:
        return [action.instant for action in self.table(name)._table.state.pending()]


@pytest.fixture(scope="module")
def house(tmp_path_factory) -> Iterator[House]:
    folder = tmp_path_factory.mktemp("house")
    make_tables(folder / "lake")
    returns = tideline.open(str(folder / "lake/shop/returns"))
    for number in range(7, 10):
        returns.upsert(rows(100 * number), options={"hoodie.parquet.small.file.limit": 0})
    (folder / "policy.yaml").write_text("version: 1\nrules: []\n")
    with ExitStack() as held:
        provider = held.enter_context(running_provider())
        provider.claims = {"sub": "7", "preferred_username": "Ada <b>L</b>", "groups": ["readers"]}
        sign_in = {"OPERATOR_TOKEN": OPERATOR, "VIEWER_TOKEN": VIEWER, "ISSUER": provider.issuer, "CLIENT_ID": CLIENT}
        sign_in |= {"CLIENT_SECRET": SECRET, "VIEWERS": '["readers"]'}
        shared = {
            "STATE_FOLDER": str(folder / "state"),
            "TABLES": f'["{folder}/lake/*/*"]',
            "POLICY_FILE": str(folder / "policy.yaml"),
            "LOG_LEVEL": "warning",
            "CONSOLE__ACTIONS": "true",
            "CONSOLE__LISTEN_PORT": "0",
            "CONSOLE__EXAMINE_INTERVAL_S": "1",
            **{f"CONSOLE__SIGN_IN__{name}": value for name, value in sign_in.items()},
        }
        environment = {f"TIDELINE_{name}": value for name, value in shared.items()}
        held.enter_context(running("mirror", environment))
        held.enter_context(running("console", environment))
        file = folder / "state" / "console.url"
        port = awaited(lambda: file.exists() and file.read_text().strip().rpartition(":")[2].rstrip("/"))
        house = House(folder, f"http://127.0.0.1:{port}", provider.issuer)
        awaited(lambda: len(house.api("tables")["tables"]) == 5)
        awaited(lambda: house.api("events?kind=step")["events"])
        yield house


def sign_in(page: Page, address: str, token: str = OPERATOR) -> None:
    page.goto(address)
    page.get_by_label("token").fill(token)
    page.get_by_role("button", name="Sign in").click()
    expect(page.locator(".me")).to_be_visible()


def act(page: Page, house: House, name: str, button: str, confirm: str, reason: str, hours: str = "") -> None:
    """Go to the page of a table, and do as a person does."""
    page.goto(f"{house.address}/tables/{house.keys()[name]}")
    page.locator("#actions").get_by_role("link", name=re.compile(button)).first.click()
    expect(page.get_by_text("What it touches")).to_be_visible()
    page.get_by_label("Why?").fill(reason)
    if hours:
        page.get_by_label("For how long?").select_option(hours)
    page.get_by_role("button", name=confirm).click()
    expect(page.locator("h2", has_text="Done")).to_be_visible()


def recorded(page: Page, house: House, reason: str) -> list[str]:
    """What the page of actions says of a reason; the end of an action shows when the console has read its event."""
    page.goto(f"{house.address}/actions")
    rows = page.locator("tbody tr", has_text=reason)
    expect(rows).to_have_count(2)
    return rows.all_inner_texts()


def test_plan_retry_and_cancel_change_the_table(house, browser: Browser):
    with watched(browser, house.address) as watch:
        page = watch.page
        sign_in(page, house.address)
        assert house.pending("shop/returns") == []
        act(page, house, "returns", "Plan clustering", "Plan it now", "many small files")
        (instant,) = house.pending("shop/returns")
        assert len(recorded(page, house, "many small files")) == 2
        storage = house.table("shop/returns")._table.storage
        keep_given_up(storage, GivenUp(instant, "clustering", 3, "out of memory", "2026-11-28T12:00:00+00:00"))
        awaited(lambda: "given_up" in str(house.api(f"tables/{house.keys()['returns']}")["status"]["findings"]))
        act(page, house, "returns", "Retry clustering", "Run the plan again", "more memory now")
        assert given_up_plans(storage) == {}
        assert house.pending("shop/returns") == [instant]
        act(page, house, "returns", "Cancel clustering", "Cancel the plan", "not today")
        assert house.pending("shop/returns") == []
        assert house.table("shop/returns").read().num_rows == 1100
        assert all("holder of the operator token" in row for row in recorded(page, house, "not today"))
        assert watch.wrong == []


def test_pause_and_resume_change_the_policy_file(house, browser: Browser):
    before = house.policy_file.read_text()
    with watched(browser, house.address) as watch:
        page = watch.page
        sign_in(page, house.address)
        act(page, house, "orders", "Pause the services", "Pause the services", 'the "move" \U0001f680', "4")
        (rule,) = yaml.safe_load(house.policy_file.read_text())["rules"]
        assert rule["match"]["tables"] == [f"file:{house.folder}/lake/shop/orders"]
        assert rule["pause"]["reason"] == 'the "move" \U0001f680'
        page.get_by_role("link", name="Undo: end the pause").click()
        expect(page.get_by_text("What it touches")).to_be_visible()
        page.goto(f"{house.address}/policies")
        expect(page.locator("main")).to_contain_text('the "move"')
        act(page, house, "orders", "End the pause", "End the pause", "moved")
        assert house.policy_file.read_text() == before
        assert watch.wrong == []


def test_chosen_tables_are_paused_and_planned_together(house, browser: Browser):
    before = house.policy_file.read_text()
    with watched(browser, house.address) as watch:
        page = watch.page
        sign_in(page, f"{house.address}/tables")
        for name in ("orders", "returns"):
            page.get_by_label(f"Choose shop/{name}").check()
        page.locator("h1").click()  # The check marks alone hold the page.
        expect(page.locator("#lag")).to_contain_text("held while used")
        expect(page.locator("tbody :checked")).to_have_count(2)
        page.get_by_role("button", name="Pause the services").click()
        expect(page.locator("#count")).to_have_text("2")
        assert house.policy_file.read_text() == before
        page.get_by_label("Why?").fill("upgrade of the shop")
        page.get_by_role("button", name="Pause the services: 2 tables").click()
        expect(page.locator("#done")).to_have_text("2")
        paused = {rule["match"]["tables"][0].rpartition("/")[2] for rule in yaml.safe_load(house.policy_file.read_text())["rules"]}
        assert paused == {"orders", "returns"}
        page.goto(f"{house.address}/tables?folder=shop")
        page.get_by_label(re.compile("of this view")).check()
        page.get_by_role("button", name="End the pause").click()
        expect(page.locator("#count")).to_have_text("2")
        page.get_by_label("Why?").fill("shop upgraded")
        page.get_by_role("button", name="End the pause: 2 tables").click()
        expect(page.locator("#done")).to_have_text("2")
        assert house.policy_file.read_text() == before
        page.goto(f"{house.address}/tables?q=returns")
        page.get_by_label("Choose shop/returns").check()
        page.get_by_role("button", name="Plan clustering").click()
        page.get_by_label("Why?").fill("small files of the shop")
        page.get_by_role("button", name="Plan it now: 1 table").click()
        expect(page.locator("#done")).to_have_text("1")
        assert len(house.pending("shop/returns")) == 1
        assert watch.wrong == []
        page.goto(f"{house.address}/actions")
        expect(page.locator("tbody tr", has_text="upgrade of the shop")).to_have_count(4)


def test_the_past_is_replayed_under_another_policy(house, browser: Browser):
    before = house.policy_file.read_text()
    with watched(browser, house.address) as watch:
        page = watch.page
        sign_in(page, f"{house.address}/policies")
        page.get_by_role("link", name="What-if").click()
        page.get_by_label("Policy file").fill("version: 1\ndefaults: {services: {clustering: false}}\n")
        page.get_by_label(re.compile("Tables: words")).fill("orders")
        page.get_by_role("button", name="Replay the past").click()
        expect(page.locator("h2", has_text="Bytes rewritten")).to_be_visible()
        assert page.locator("tbody .tn").all_inner_texts() == ["shop/orders"]
        assert page.locator("svg rect.f-ink").count() >= 1, "the compaction that happened"
        assert watch.wrong == []
    assert house.policy_file.read_text() == before


def test_a_repair_makes_the_metadata_table_anew(house, browser: Browser):
    place = f"iot/{HOSTILE}"
    create_metadata(house.table(place)._table)
    house.table(place).upsert(rows(900))
    folder = house.folder / "lake" / place / FILES_FOLDER
    (lost,) = [file for file in folder.iterdir() if ".log." in file.name and ".log.1_" not in file.name]
    lost.unlink()
    assert check_table(house.table(place)._table)
    with watched(browser, house.address) as watch:
        sign_in(watch.page, house.address)
        act(watch.page, house, HOSTILE, "Check and repair", "Repair it", "its log file was lost")
        assert watch.wrong == []
    assert check_table(house.table(place)._table) == []


def test_a_viewer_sees_no_action_and_an_operators_address_is_refused(house, browser: Browser):
    with watched(browser, house.address) as watch:
        page, key = watch.page, house.keys()["orders"]
        sign_in(page, f"{house.address}/tables/{key}", VIEWER)
        expect(page.locator("h1")).to_contain_text("orders")
        expect(page.locator("#actions")).to_have_count(0)
        for path in ("/act?what=pause&all=1", f"/tables/{key}/act?kind=pause"):
            answer = page.goto(f"{house.address}{path}")
            assert answer is not None
            assert answer.status == 403
        expect(page.locator("main")).to_contain_text("Only operators can act")
        page.goto(house.address)
        page.get_by_role("button", name="Sign out").click()
        expect(page).to_have_url(f"{house.address}/sign-in")
        page.goto(f"{house.address}/tables")
        expect(page).to_have_url(re.compile("/sign-in"))


def test_attempts_are_counted_by_the_address_that_the_proxy_tells(house):
    def ask(client: str) -> int:
        headers = {"authorization": "Bearer guessed", "x-forwarded-for": client}
        return httpx.get(f"{house.address}/api/v1/tables", headers=headers, verify=False).status_code

    assert [ask("203.0.113.9") for _ in range(TRIES + 1)] == [401] * TRIES + [429]
    assert ask("203.0.113.10") == 401
    assert ask("198.51.100.1, 203.0.113.9") == 429, "what the client itself sent before the proxy is not believed"


def test_a_live_page_leads_to_sign_in_when_its_session_ends(house, browser: Browser):
    with watched(browser, house.address) as watch:
        page = watch.page
        sign_in(page, f"{house.address}/tables?type=mor")
        page.context.clear_cookies()
        expect(page).to_have_url(f"{house.address}/sign-in?next=/tables%3Ftype%3Dmor")
        page.get_by_label("token").fill(VIEWER)
        page.get_by_role("button", name="Sign in").click()
        expect(page).to_have_url(f"{house.address}/tables?type=mor")


def test_sign_in_with_a_provider_of_another_site(house, browser: Browser):
    address = house.address.replace("127.0.0.1", "localhost")  # For browsers another site than the provider's.
    context = browser.new_context()
    page = context.new_page()
    page.goto(f"{address}/tables?type=mor")
    page.get_by_role("link", name="Sign in with your organisation").click()
    expect(page).to_have_url(f"{address}/tables?type=mor")
    expect(page.locator(".me")).to_contain_text("Ada <b>L</b>, viewer")
    (cookie,) = context.cookies(address)
    assert (cookie["httpOnly"], cookie["secure"], cookie["sameSite"]) == (True, True, "Lax")
    context.close()


@pytest.mark.parametrize(("scheme", "width"), covering(1, ["light", "dark"], [390, 1440]))
def test_axe_finds_nothing_serious_on_any_page(house, browser: Browser, axe, scheme, width):
    keys = house.keys()
    event = house.api("events")["events"][0]["id"]
    pages = ["/", "/tables", "/tables?type=none", "/work", "/writers", "/policies", "/events", "/health", "/actions"]
    pages.append(f"/events/{event}")
    pages += [f"/tables/{keys[name]}" for name in ("orders", "damaged", "empty", HOSTILE)]
    pages += [f"/tables/{keys['orders']}/act?kind=pause", f"/tables/{keys['orders']}/act?kind=nothing", "/nothing"]
    pages += ["/act?what=pause&all=1", "/act?what=pause", "/policies/what-if"]
    found: list[str] = []
    with watched(browser, house.address, color_scheme=scheme) as watch:
        page = watch.page
        page.goto(f"{house.address}/sign-in")
        found += [f"/sign-in: {one}" for one in barriers(page, axe)]
        sign_in(page, house.address)
        page.set_viewport_size({"width": width, "height": 900})
        for path in pages:
            page.goto(f"{house.address}{path}")
            overflow = page.evaluate("document.documentElement.scrollWidth") - width
            found += [f"{path}: {overflow} pixels too wide"] if overflow > 0 else []
            found += [f"{path}: {one}" for one in barriers(page, axe)]
    assert not found, "\n".join(found)
