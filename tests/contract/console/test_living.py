"""The console over a living fleet: nothing is cut off, moves or is lost under the hands of who reads; all of it by keyboard."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, Page, Route, expect
from tests.contract.console.conftest import watched
from tests.contract.console.fleet import DAMAGED, HAMMERED, HOSTILE, PAUSED, STUCK, living_fleet

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]
REFRESHES = """number => new Promise(resolve => {
    let left = number;
    document.body.addEventListener("htmx:afterSettle", event => {
        if (event.detail.target.id === "live" && --left === 0) resolve();
    });
})"""


@pytest.fixture(scope="module")
def fleet(tmp_path_factory) -> Iterator[str]:
    with living_fleet(tmp_path_factory.mktemp("fleet"), CONSOLE__EXAMINE_INTERVAL_S="1") as address:
        yield address


def keys(address: str) -> dict[str, str]:
    return {row["name"]: row["key"] for row in httpx.get(f"{address}/api/v1/tables", verify=False).json()["tables"]}


def key(address: str, place: str) -> str:
    return keys(address)[Path(place).name]


def refreshed(page: Page, times: int = 2) -> None:
    page.evaluate(REFRESHES, times)


def focused(page: Page) -> str:
    return page.evaluate("document.activeElement.id || document.activeElement.textContent.trim() || document.activeElement.name")


def test_no_page_is_wider_than_the_window(fleet, browser: Browser):
    tables = [f"/tables/{key(fleet, place)}" for place in (STUCK, DAMAGED, HAMMERED, PAUSED, HOSTILE)]
    acts = [f"{tables[0]}/act?kind={kind}&service=clustering" for kind in ("plan", "pause", "cancel")]
    wide = {}
    with watched(browser, fleet) as watch:
        for width in (390, 2560):
            watch.page.set_viewport_size({"width": width, "height": 900})
            for path in ["/", "/tables", "/work", "/writers", "/policies", "/events", "/health", "/actions", *tables, *acts]:
                watch.page.goto(f"{fleet}{path}")
                found = watch.page.evaluate("Math.max(document.documentElement.scrollWidth, document.body.scrollWidth)")
                wide |= {f"{path} at {width}": found} if found > width else {}
    assert wide == {}


def test_nothing_moves_when_live_data_arrive(fleet, browser: Browser):
    moved = """() => new Promise(resolve => {
        let sum = 0;
        new PerformanceObserver(list => { for (const each of list.getEntries()) sum += each.value; })
            .observe({type: "layout-shift", buffered: false});
        let left = 3;
        document.body.addEventListener("htmx:afterSettle", event => {
            if (event.detail.target.id === "live" && --left === 0) setTimeout(() => resolve(sum), 200);
        });
    })"""
    with watched(browser, fleet, viewport={"width": 1440, "height": 900}) as watch:
        found = {}
        for path in ("/", "/tables", "/work", f"/tables/{key(fleet, HAMMERED)}"):
            watch.page.goto(f"{fleet}{path}")
            found[path] = watch.page.evaluate(moved)
        assert {path: shift for path, shift in found.items() if shift > 0.02} == {}
        assert watch.wrong == []


def test_the_heading_is_as_live_as_the_page(fleet, browser: Browser):
    with watched(browser, fleet) as watch:
        page = watch.page
        page.goto(f"{fleet}/tables")
        page.evaluate("document.querySelector('#head p').textContent = 'old'")
        expect(page.locator("#head p")).to_contain_text("tables")


def test_a_refresh_takes_neither_focus_nor_place(fleet, browser: Browser):
    with watched(browser, fleet, viewport={"width": 390, "height": 844}) as watch:
        page = watch.page
        page.goto(f"{fleet}/work")
        for name in ("nav-work", "nav-health"):
            page.locator(f"#{name}").focus()
            refreshed(page)
            assert focused(page) == name
        page.locator("#live .scroll").first.evaluate("each => { each.scrollLeft = 120 }")
        refreshed(page)
        assert page.locator("#live .scroll").first.evaluate("each => each.scrollLeft") == 120
        page.goto(f"{fleet}/tables")
        page.locator("#export").focus()
        refreshed(page)
        assert focused(page) == "export"
        assert watch.wrong == []


def test_a_page_in_use_says_that_it_is_held(fleet, browser: Browser):
    with watched(browser, fleet) as watch:
        page = watch.page
        page.goto(f"{fleet}/tables")
        page.locator("summary.chip").first.focus()
        page.keyboard.press("Enter")
        expect(page.locator(".menu[open]")).to_have_count(1)
        expect(page.locator("#lag")).to_contain_text("held while used")
        page.keyboard.press("Tab")
        page.keyboard.press("Escape")
        expect(page.locator(".menu[open]")).to_have_count(0)
        assert focused(page) == "State"
        page.evaluate("document.activeElement.blur()")
        expect(page.locator("#lag")).to_contain_text("read")


def test_an_answer_under_way_takes_no_focus(fleet, browser: Browser):
    with watched(browser, fleet) as watch:
        page = watch.page
        page.goto(f"{fleet}/tables/{key(fleet, STUCK)}")
        held: list[Route] = []
        with page.expect_request("**/tables/*") as asked:
            page.route("**/tables/*", lambda route, request: held.append(route))
        assert asked.value.headers["hx-request"] == "true"
        link = page.get_by_role("link", name="Pause the services")
        link.focus()
        with page.expect_response("**/tables/*"):
            held.pop().continue_()
        expect(page.locator("#lag")).to_contain_text("held while used")
        assert link.evaluate("each => each === document.activeElement")
        assert watch.wrong == []


def test_each_action_is_reached_and_done_by_keyboard(fleet, browser: Browser):
    with watched(browser, fleet) as watch:
        page = watch.page
        page.goto(f"{fleet}/tables/{key(fleet, STUCK)}")
        wanted = set(page.locator("#actions a").all_inner_texts())
        assert {"Pause the services", "Plan clustering"} < wanted
        assert any(text.startswith("Retry") for text in wanted)
        page.keyboard.press("Tab")
        assert focused(page) == "Skip to content"
        found = set()
        for _ in range(60):
            page.keyboard.press("Tab")
            found.add(focused(page))
            # The frame of the search and the mark of an instant show the focus themselves.
            shows_it = page.evaluate("document.activeElement.matches('.find input, .lanes a')")
            assert shows_it or page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none", found
            if wanted <= found:
                break
        assert wanted <= found
        page.get_by_role("link", name="Pause the services").focus()
        page.keyboard.press("Enter")
        expect(page.locator("#reason")).to_be_visible()
        page.locator("#reason").focus()
        page.keyboard.type("the keyboard alone")
        page.keyboard.press("Enter")
        expect(page.locator("h2", has_text="Done")).to_be_visible()
        assert watch.wrong == []


def test_a_damaged_table_says_once_what_is_wrong(fleet, browser: Browser):
    with watched(browser, fleet) as watch:
        watch.page.goto(f"{fleet}/tables/{key(fleet, DAMAGED)}")
        expect(watch.page.locator(".banner")).to_have_count(1)
        expect(watch.page.locator("#timeline")).to_contain_text("The table cannot be read")
