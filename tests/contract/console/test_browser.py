"""The console in a real browser, Debian's Chromium: each page over tables of all kinds, narrow and wide, light and dark, live."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pyarrow as pa
import pytest
from playwright.sync_api import expect
from tests.contract.console.conftest import Watched, watched
from tests.simulation.faults import covering

import tideline

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]
WIDTHS = ((390, 844), (1280, 900), (2560, 1440))
HOSTILE = "<img src=x onerror=alert(1)> עברית 🚀"


def rows(first: int, count: int = 200) -> pa.Table:
    ids = list(range(first, first + count))
    days = [f"2026-11-{20 + each % 5}" for each in ids]
    return pa.table({"id": ids, "day": days, "fare": [each * 1.5 for each in ids], "at": [first] * count})


def make_tables(lake: Path) -> tideline.Table:
    """Tables of both types, one empty, one damaged, one with a hostile name. Returns the one that the test writes to."""
    kinds = {"shop/orders": "mor", "shop/returns": "cow", f"iot/{HOSTILE}": "cow", "shop/damaged": "cow", "iot/empty": "cow"}
    for place, kind in kinds.items():
        table = tideline.create(str(lake / place), schema=rows(0).schema, key="id", partition="day", ordering="at", type=kind)
        for number in range(0 if place == "iot/empty" else 6):
            table.upsert(rows(100 * number))
        if place == "shop/orders":
            table.maintenance.create_savepoint(comment="before the import")
            table.upsert(rows(600, 50))
            table.upsert(rows(600, 50))  # updates alone: rows in log files
            assert table.maintenance.compact().instant
    (lake / "shop/damaged/.hoodie/hoodie.properties").write_bytes(b"\xff nothing")
    return tideline.open(str(lake / "shop/orders"))


@contextmanager
def running_console(lake: Path) -> Iterator[str]:
    """The address of `tideline console`, as a person starts it."""
    command = [sys.executable, "-m", "tideline_cli.main", "console", "--tables", f"{lake}/*/*", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.startswith("console: http://127.0.0.1:"), line
            yield line.split()[1].rstrip("/")
        finally:
            process.terminate()
    assert process.returncode == 0


@pytest.fixture(scope="module")
def lake(tmp_path_factory) -> Iterator[tuple[str, tideline.Table]]:
    folder = tmp_path_factory.mktemp("lake")
    orders = make_tables(folder)
    with running_console(folder) as address:
        yield address, orders
    shutil.rmtree(folder)


def keys(address: str) -> dict[str, str]:
    found = httpx.get(f"{address}/api/v1/tables", verify=False).json()["tables"]
    return {row["name"]: row["key"] for row in found}


def await_tables(watch: Watched, address: str, number: int) -> None:
    watch.page.goto(address)
    expect(watch.page.locator(".nav a", has_text="Tables").locator(".count")).to_have_text(str(number))


@pytest.mark.parametrize(("scheme", "size"), covering(1, ["light", "dark"], WIDTHS))
def test_each_page_is_sound_at_each_width(lake, browser, scheme, size):
    (address, _), (width, height) = lake, size
    with watched(browser, address, color_scheme=scheme) as watch:
        await_tables(watch, address, 5)
        by_name = keys(address)
        assert HOSTILE in by_name
        pages = [
            "/",
            "/tables",
            "/work",
            "/writers",
            "/policies",
            "/events",
            "/health",
            *(f"/tables/{key}" for key in by_name.values()),
        ]
        watch.page.set_viewport_size({"width": width, "height": height})
        for path in pages:
            watch.page.goto(f"{address}{path}")
            expect(watch.page.locator("h1")).to_be_visible()
            assert watch.page.evaluate("document.documentElement.scrollWidth") <= width, path
        assert watch.wrong == []


def test_a_commit_appears_without_a_reload(lake, browser):
    address, orders = lake
    with watched(browser, address) as watch:
        await_tables(watch, address, 5)
        watch.page.goto(f"{address}/tables/{keys(address)['orders']}")
        sequence = watch.page.locator(".kpis > div", has_text="Sequence").locator(".big")
        before = sequence.inner_text()
        orders.upsert(rows(5000))
        expect(sequence).not_to_have_text(before)
        assert watch.wrong == []


def test_the_timeline_leads_to_an_instant(lake, browser):
    address, _ = lake
    with watched(browser, address) as watch:
        await_tables(watch, address, 5)
        watch.page.goto(f"{address}/tables/{keys(address)['orders']}")
        watch.page.locator(".lanes a:has(.m-service)").first.click()
        expect(watch.page.locator("#instant h3")).to_contain_text("compaction")
        expect(watch.page.locator(".lanes")).to_contain_text("before the import")
        assert watch.wrong == []


def test_the_pointer_zooms_the_timeline(lake, browser):
    address, _ = lake

    def span(page) -> tuple[float, float]:
        drawing = page.locator("#drawing")
        return float(drawing.get_attribute("data-begin")), float(drawing.get_attribute("data-end"))

    with watched(browser, address) as watch:
        page = watch.page
        await_tables(watch, address, 5)
        page.goto(f"{address}/tables/{keys(address)['orders']}?window=1h")
        page.locator("#drawing").scroll_into_view_if_needed()
        begin, end = span(page)
        box = page.locator("#drawing").bounding_box()
        y = box["y"] + box["height"] - 40
        page.mouse.move(box["x"] + box["width"] * 0.5, y)
        page.mouse.down()
        page.mouse.move(box["x"] + box["width"] * 0.75, y, steps=4)
        page.mouse.up()
        page.wait_for_url("**window=9**")
        expect(page.locator("#drawing")).not_to_have_attribute("data-begin", str(begin))
        near, far = span(page)
        assert abs(near - (begin + (end - begin) * 0.5)) < 30
        assert abs(far - (begin + (end - begin) * 0.75)) < 30
        page.keyboard.down("Control")
        page.mouse.wheel(0, -200)
        page.keyboard.up("Control")
        page.wait_for_url(lambda url: "window=9" not in url)
        expect(page.locator("#drawing")).not_to_have_attribute("data-begin", str(near))
        nearer, less_far = span(page)
        assert near < nearer < less_far < far
        page.mouse.dblclick(box["x"] + box["width"] * 0.5, y)
        expect(page.locator("#drawing")).not_to_have_attribute("data-begin", str(nearer))
        assert span(page)[1] - span(page)[0] > 3 * (less_far - nearer)
        assert watch.wrong == []


def test_times_are_those_of_the_viewer(lake, browser):
    address, _ = lake
    with watched(browser, address) as watch:
        await_tables(watch, address, 5)
        watch.page.goto(f"{address}/events")
        shown = watch.page.locator("time[data-shown]").first
        hour_utc, hour = int(shown.get_attribute("title").split()[1][:2]), int(shown.inner_text().split(", ")[-1][:2])
        assert (hour - hour_utc) % 24 in (1, 2)


def test_a_time_of_another_year_has_its_year(lake, browser):
    address, _ = lake
    with watched(browser, address) as watch:
        watch.page.clock.set_fixed_time("2031-11-28T12:00:00Z")  # the same day and month as steps may have
        watch.page.goto(f"{address}/events")
        assert re.search(r"\b20\d\d, ", watch.page.locator("time[data-shown]").first.inner_text())


def test_a_page_says_that_the_console_is_gone(lake, browser, tmp_path):
    with running_console(tmp_path) as address, watched(browser, address) as watch:
        watch.page.goto(address)
        expect(watch.page.locator("#lag")).to_contain_text("read")
        watch.page.route("**/*", lambda route: route.abort())
        expect(watch.page.locator("#lag")).to_contain_text("no answer")
        watch.page.unroute("**/*")
        expect(watch.page.locator("#lag")).to_contain_text("read")


def test_search_by_keyboard_and_filters(lake, browser):
    address, _ = lake
    with watched(browser, address) as watch:
        await_tables(watch, address, 5)
        watch.page.keyboard.press("/")
        watch.page.keyboard.type("returns")
        watch.page.keyboard.press("Enter")
        expect(watch.page.locator("tbody tr")).to_have_count(1)
        watch.page.locator(".chip.on", has_text="returns").click()
        watch.page.locator("summary.chip", has_text="Type").click()
        watch.page.locator(".menu[open] a", has_text="mor").click()
        expect(watch.page.locator("tbody tr")).to_have_count(1)
        expect(watch.page.locator("tbody .name")).to_have_text("orders")
        assert watch.wrong == []
