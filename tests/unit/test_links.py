"""Links between pages, and pages that code names: each names a file that exists, and a heading in it.

Rows of tables: each is whole.
"""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.artifacts import REPOSITORY_ROOT

FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`[^`\n]*`")
LINK = re.compile(r"\]\(([^)\s]+)\)|^\[[^\]]+\]: (\S+)", re.MULTILINE)
HEADING = re.compile(r"^#{1,6} (.+?) *$", re.MULTILINE)
TABLE = re.compile(r"^(\|.*\n)\|[ :|-]+\n((?:\|.*(?:\n|\Z))*)", re.MULTILINE)
BAR = re.compile(r"(?<!\\)\|")
PAGE = re.compile(r"\bdocs/[\w/-]+\.md\b")
NAMES_PAGES = {".md", ".py", ".toml", ".yaml", ".yml", ""}


def tracked() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=REPOSITORY_ROOT,
        capture_output=True,
        check=True,
    )
    paths = [REPOSITORY_ROOT / name for name in listed.stdout.decode().split("\0") if name]
    return [path for path in paths if path.is_file() and "fixtures" not in path.parts]


def anchors(page: str) -> set[str]:
    """Return the anchors that code hosts give the headings of a page."""
    found: Counter[str] = Counter()
    made = set()
    for heading in HEADING.findall(FENCED.sub("", page)):
        slug = re.sub(r"[^\w\- ]", "", re.sub(r"\]\([^)]*\)", "]", heading).lower()).replace(" ", "-")
        made.add(f"{slug}-{found[slug]}" if found[slug] else slug)
        found[slug] += 1
    return made


def broken_links(path: Path) -> Iterator[str]:
    page = path.read_text()
    for inline, reference in LINK.findall(CODE.sub("", FENCED.sub("", page))):
        link = inline or reference
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = (path.parent / name).resolve() if name else path
        if not target.exists():
            yield f"{path.name}: {link} names no file"
        elif anchor and anchor not in anchors(target.read_text()):
            yield f"{path.name}: {link} names no heading of {target.name}"


def broken_rows(path: Path) -> Iterator[str]:
    """Yield the rows with more or fewer cells than the header of their table. Code hosts drop the cells that are too many."""
    for header, body in TABLE.findall(FENCED.sub("", path.read_text())):
        bars = len(BAR.findall(header))
        yield from (f"{path.name}: {row}" for row in body.splitlines() if len(BAR.findall(row)) != bars)


def test_links_of_pages_name_files_and_headings() -> None:
    pages = [path for path in tracked() if path.suffix == ".md"]
    assert len(pages) > 50
    assert [found for page in pages for found in broken_links(page)] == []


def test_rows_of_tables_have_the_cells_of_their_header() -> None:
    pages = [path for path in tracked() if path.suffix == ".md"]
    assert sum(len(TABLE.findall(page.read_text())) for page in pages) > 100
    assert [found for page in pages for found in broken_rows(page)] == []


@pytest.mark.parametrize(
    ("row", "is_broken"),
    [("| a | b |", False), (r"| a \| c | b |", False), ("| a | b | b |", True), ("| a | b| a | b |", True), ("| a |", True)],
)
def test_broken_rows_are_found(tmp_path: Path, row: str, is_broken: bool) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"```\n| x |\n|---|\n| y | z |\n```\n\n| one | two |\n|---|---|\n| 1 | 2 |\n{row}\n\n| x |\n")
    assert list(broken_rows(page)) == ([f"page.md: {row}"] if is_broken else [])


def test_pages_that_code_names_exist() -> None:
    named = {
        (path.relative_to(REPOSITORY_ROOT).as_posix(), page)
        for path in tracked()
        if path.suffix in NAMES_PAGES and path != Path(__file__) and not path.is_symlink()
        for page in PAGE.findall(path.read_text(errors="replace"))
    }
    assert len(named) > 20
    assert sorted((path, page) for path, page in named if not (REPOSITORY_ROOT / page).is_file()) == []


@pytest.mark.parametrize(
    ("link", "problem"),
    [
        ("[a](other.md#the-partition-column_stats)", ""),
        ("[a](other.md#two-words-1)", ""),
        ("[a](#here)", ""),
        ("[a](http://localhost/x)", ""),
        ("`[a](none.md)`", ""),
        ("[a](none.md)", "none.md names no file"),
        ("[a][b]\n\n[b]: none.md", "none.md names no file"),
        ("[a](other.md#not-a-heading)", "other.md#not-a-heading names no heading of other.md"),
        ("[a](other.md#two-words-2)", "other.md#two-words-2 names no heading of other.md"),
    ],
)
def test_broken_links_are_found(tmp_path: Path, link: str, problem: str) -> None:
    (tmp_path / "other.md").write_text(
        "# Title\n\n## The partition `column_stats`\n\n## Two words\n\n## Two, words\n\n```\n## Not a heading\n```\n"
    )
    page = tmp_path / "page.md"
    page.write_text(f"## Here\n\n{link}\n")
    assert list(broken_links(page)) == ([f"page.md: {problem}"] if problem else [])
