"""Debian's Chromium, and pages of it that record what goes wrong."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright
from tests.real.debian import found_or_installed
from tests.real.npm import npm_package

SOON_MS = 120_000
"""What happens within a second on an idle machine."""
expect.set_options(timeout=SOON_MS)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    program = found_or_installed(lambda: shutil.which("chromium"), "chromium")
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield chromium
        chromium.close()


class Watched:
    """A page of the browser, and what went wrong on it: messages of errors, failed answers, requests to other hosts, alerts."""

    def __init__(self, page: Page, address: str) -> None:
        self.page = page
        self.wrong: list[str] = []
        page.on("console", lambda message: message.type in ("error", "warning") and self.wrong.append(message.text))
        page.on("pageerror", lambda error: self.wrong.append(str(error)))
        page.on("dialog", lambda dialog: (self.wrong.append(f"dialog {dialog.message}"), dialog.dismiss()))
        page.on("response", lambda answer: answer.status >= 400 and self.wrong.append(f"{answer.status} {answer.url}"))
        host = urlsplit(address).netloc
        page.on("request", lambda asked: urlsplit(asked.url).netloc != host and self.wrong.append(f"request to {asked.url}"))


@contextmanager
def watched(browser: Browser, address: str, **look) -> Iterator[Watched]:
    context = browser.new_context(locale="en-GB", timezone_id="Europe/Berlin", **look)
    context.set_default_timeout(SOON_MS)
    try:
        yield Watched(context.new_page(), address)
    finally:
        context.close()


@pytest.fixture(scope="session")
def axe() -> str:
    """The script of axe-core."""
    return (npm_package("axe-core") / "axe.min.js").read_text()


def barriers(page: Page, axe: str) -> list[str]:
    """What keeps people from the page as it is shown: each serious or critical finding of axe with the first element."""
    page.evaluate(f"{axe};0")
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")["violations"]
    return [
        f"{one['id']}: {one['help']}: {one['nodes'][0]['html'][:200]} {one['nodes'][0].get('failureSummary', '')[:300]}"
        for one in found
        if one["impact"] in ("serious", "critical")
    ]
