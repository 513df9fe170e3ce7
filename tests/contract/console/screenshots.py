"""The pictures of docs/console.md: `make screenshots` makes a fleet, lets it live for a while, and takes each of its pages."""

from __future__ import annotations

import argparse
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import httpx
from playwright.sync_api import Page, sync_playwright
from tests.contract.console.fleet import HAMMERED, STUCK, living_fleet
from tests.real.debian import found_or_installed

WIDTH, HEIGHT = 1280, 800
NARROW = (390, 844)
LIVED_S = 45.0
"""How long services and the writer work before the pictures: timelines and series have something to show."""


def take(page: Page, address: str, path: str, file: Path, *, full: bool = False) -> None:
    """Take one page, without colours that no reader tells apart: PNG with a palette is a third as large."""
    page.goto(f"{address}{path}")
    page.wait_for_load_state("networkidle")
    page.screenshot(path=file, full_page=full)
    subprocess.run(["pngquant", "--force", "--skip-if-larger", "--ext", ".png", "--", str(file)], check=False)


def main() -> None:
    """Take the pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=Path("docs/console"))
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    program = found_or_installed(lambda: shutil.which("chromium"), "chromium")
    found_or_installed(lambda: shutil.which("pngquant"), "pngquant")
    # The design's font: that of Debian without it is wider, and lines break elsewhere.
    found_or_installed(lambda: next(map(str, Path("/usr/share/fonts").glob("**/Inter-Regular.otf")), None), "fonts-inter")
    # The folder is on the pictures: the same one each time, and none of a person.
    home = Path(tempfile.gettempdir()) / "console"
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir()
    with living_fleet(home) as address, sync_playwright() as playwright:
        time.sleep(LIVED_S)
        found = httpx.get(f"{address}/api/v1/tables", verify=False).json()["tables"]
        keys = {f"{row['folder']}/{row['name']}": row["key"] for row in found}
        rides, customers = f"/tables/{keys[HAMMERED]}", f"/tables/{keys[STUCK]}"
        chromium = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        page = chromium.new_page(viewport={"width": WIDTH, "height": HEIGHT}, locale="en-GB", timezone_id="Europe/Berlin")
        pages = {"overview": "/", "tables": "/tables", "work": "/work", "writers": "/writers", "policies": "/policies"}
        pages |= {"events": "/events", "health": "/health", "action": f"{customers}/act?kind=pause"}
        for name, path in pages.items():
            take(page, address, path, folder / f"{name}.png")
        take(page, address, rides, folder / "table.png", full=True)
        dark = chromium.new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="dark", timezone_id="Europe/Berlin")
        take(dark, address, rides, folder / "table-dark.png")
        narrow = chromium.new_page(viewport={"width": NARROW[0], "height": NARROW[1]}, timezone_id="Europe/Berlin")
        take(narrow, address, "/", folder / "overview-390.png")
        chromium.close()
    shutil.rmtree(home)


if __name__ == "__main__":
    main()
