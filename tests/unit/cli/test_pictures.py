"""`tideline show --html`: one page without links, that shows what the table holds and escapes what others named."""

import re
from dataclasses import replace
from html.parser import HTMLParser

from tests.unit.cli.conftest import json_line

from tideline_cli.picture_facts import picture_facts
from tideline_cli.pictures import page_of
from tideline_table.table import Table

UPDATE = json_line(id="b", city="Paris", n=200)


class Page(HTMLParser):
    """Collects tags and attributes, and fails on a tag that is not closed."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.attributes = [], [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_a_page_of_a_table(done, filled, tmp_path):
    done("write", filled, "--from", "-", stdin=UPDATE)
    file = tmp_path / "page.html"
    document = done("show", filled, "--html", file, "--columns", "n,id", "--json").document
    text = file.read_text()
    assert document == {"html": str(file), "size_bytes": len(text.encode())}
    page = Page(text)
    facts = picture_facts(Table.open(str(filled)), ["n", "id"])
    assert page.tags.count("circle") == len(facts.instants) >= 3
    assert len(re.findall('<rect class="base"', text)) == facts.file_groups
    assert "script" not in page.tags
    assert "link" not in page.tags
    assert not [value for name, value in page.attributes if name in ("src", "href")]


def test_names_are_escaped_and_a_table_without_files_has_a_page(done, tmp_path):
    table = Table.open(str(_created(done, tmp_path)))
    facts = replace(picture_facts(table), name='<script>alert("x")</script>', instants=(("1", "<i>", "requested", "&"),))
    text = page_of(facts)
    assert "script" not in Page(text).tags
    assert "&lt;script&gt;" in text


def _created(done, tmp_path):
    rows = tmp_path / "rows.csv"
    rows.write_text("id,n\na,1\nb,2\n")
    done("create", tmp_path / "t", "--schema-from", rows, "--key", "id")
    return tmp_path / "t"


def test_ranges_and_overlap(done, cli, tmp_path):
    path, rows = _created(done, tmp_path), tmp_path / "rows.csv"
    small = ("--operation", "bulk_insert")
    for low in (0, 10, 5):
        rows.write_text("id,n\n" + "".join(f"k{low + i:03d},{low + i}\n" for i in range(8)))
        done("write", path, "--from", rows, *small)
    (found,) = picture_facts(Table.open(str(path)), ["n"]).ranges
    # 0 to 7, 5 to 12 and 10 to 17: the middle one overlaps both others.
    assert [text for _, text, *_ in found.ranges] == ["0 to 7", "5 to 12", "10 to 17"]
    assert found.overlap == 4 / 3
    refused = cli("show", path, "--columns", "n")
    assert (refused.code, "--html" in refused.stderr) == (2, True)
