"""What-if: the past of tables under another policy, drawn beside what happened."""

from __future__ import annotations

import re

import pytest
from tests.unit.console.test_pages import Parsed
from tests.unit.services.fleet import write

from tideline_console.people import Person
from tideline_console.what_if import drawn

EAGER = "version: 1\ndefaults:\n  options: {hoodie.clustering.plan.strategy.small.file.limit: 1000000}\nrules: []\n"


@pytest.fixture
def client(consoles):
    table = consoles.create("trips")
    for first in range(0, 60, 10):
        write(table, first)
    write(consoles.create("bikes"), 0)
    return consoles.client()


def replayed(client, **given: str):
    page = client.get("/policies/what-if")
    csrf = re.search(r'name="csrf" value="([^"]+)"', page.text)[1]
    return client.post("/policies/what-if", data={"csrf": csrf, "policy": EAGER, "days": "7", "q": "", **given})


def test_the_past_of_chosen_tables_is_drawn_and_nothing_is_changed(consoles, client):
    before = consoles.open().state.sequence
    page = replayed(client, q="trips")
    assert page.status_code == 200, Parsed(page.text).text
    text = Parsed(page.text).text
    assert "under this policy" in text
    assert page.text.count('href="/tables/') == 1, "only the tables of the words"
    assert consoles.open().state.sequence == before


def test_a_policy_or_choice_that_cannot_be_replayed_is_refused_with_what_is_wrong(client):
    wrong = replayed(client, policy="version: 1\nrules: <b>")
    assert wrong.status_code == 409
    assert "rules" in Parsed(wrong.text).text
    assert "&lt;b&gt;" in wrong.text
    assert "<b>&lt" not in wrong.text.replace("<b>It was", "")
    assert replayed(client, q="nothing-has-this").status_code == 409
    assert replayed(client, days="10000").status_code == 409
    assert client.post("/policies/what-if", data={"policy": EAGER}).status_code == 403


def test_only_operators_replay(client, monkeypatch):
    monkeypatch.setattr("tideline_console.what_if.person_of", lambda _: Person("ada", is_operator=False))
    assert client.get("/policies/what-if").status_code == 403
    assert client.post("/policies/what-if", data={"policy": EAGER}).status_code == 403


def test_pairs_of_bars_are_what_happened_and_what_if():
    one = {"base_path": "/lake/a", "jobs": 1, "recorded_jobs": 4, "bytes_rewritten": 100, "recorded_bytes": 50}
    two = {"base_path": "/lake/b", "jobs": 0, "recorded_jobs": 2, "bytes_rewritten": 0, "recorded_bytes": 900}
    found = drawn({"tables": [one, two]}, {})
    assert [table["base_path"] for table in found["tables"]] == ["/lake/b", "/lake/a"]
    assert (found["recorded_jobs"], found["recorded_bytes"]) == (6, 950)
    bars = found["jobs_chart"].bars
    assert [bar.title for bar in bars if bar.title] == [
        "b: 2 happened",
        "b: 0 under this policy",
        "a: 4 happened",
        "a: 1 under this policy",
    ]
    assert bars[3].height == 4 * bars[4].height
