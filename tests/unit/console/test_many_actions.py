"""Actions on many tables and repairs: the count and the preview, one confirmation, the effect on each table, the record."""

from __future__ import annotations

import re
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.console.test_actions import Acting
from tests.unit.console.test_pages import Parsed
from tests.unit.services.fleet import write

from tideline_console import many, pauses
from tideline_console.actions import ran
from tideline_console.repairs import REPAIRS, repair_of
from tideline_events import DECISIONS, ActionEvent, EventLogUnavailable
from tideline_table.action import check_table, create_metadata
from tideline_table.errors import InvalidOption
from tideline_table.metadata_table.layout import FILES_FOLDER
from tideline_table.table import Finding, FindingKind

EMPTY = "version: 1\nrules: []\n"


class Many:
    """A console with actions over the tables trips, bikes and a damaged one, and what a person does on the page of tables."""

    def __init__(self, consoles) -> None:
        self.consoles, self.file = consoles, consoles.folder / "policy.yaml"
        self.file.write_text(EMPTY)
        self.acting = Acting(consoles, policy_file=self.file)
        for name in ("bikes", "broken"):
            write(consoles.create(name), 0)
        (Path(consoles.path("broken")) / ".hoodie/hoodie.properties").write_bytes(b"\xff nothing")
        self.acting.follower.turn()
        self.client = self.acting.client
        self.keys = {row["name"]: row["key"] for row in self.acting.model.query("SELECT * FROM tables")}

    def preview(self, what: str, *names: str, **given: str):
        page = self.client.get("/act", params={"what": what, "key": [self.keys[name] for name in names], **given})
        found, csrf = (re.search(rf'name="{name}" value="([^"]+)"', page.text) for name in ("token", "csrf"))
        return page, {"token": found[1] if found else "", "csrf": csrf[1] if csrf else "", "reason": "upgrade", "hours": ""}

    def confirm(self, form, **changes):
        """The answer, and the page of the action when it has ended."""
        answer = self.client.post("/act", data={**form, **changes}, follow_redirects=False)
        for thread in threading.enumerate():
            if thread.name == "act":
                thread.join(120)
        return answer, self.client.get(answer.headers["location"]) if answer.status_code == 303 else None

    def paused(self) -> set[str]:
        for _ in range(3):
            self.acting.follower.turn()
            self.consoles.clock.advance(5)
        policies, now = self.acting.follower.policies(), self.consoles.clock.now()
        rows = self.acting.model.query("SELECT * FROM tables WHERE uid != ''")
        return {row["name"] for row in rows if policies.of(row["base_path"], row["uid"]).paused_at(now)}


@pytest.fixture
def house(consoles):
    return Many(consoles)


def big(page, name: str) -> str:
    return re.search(rf'id="{name}">([^<]*)<', page.text)[1]


def test_chosen_tables_are_counted_paused_at_once_and_resumed(house, monkeypatch):
    changes = []
    monkeypatch.setattr(pauses, "paused", lambda *given, edit=pauses.paused: changes.append(given[1]) or edit(*given))
    page, form = house.preview("pause", "trips", "bikes", "broken")
    assert [len(paths) for paths in changes] == [2], "a policy file takes long to read"
    assert big(page, "count") == "2"
    assert "it cannot be opened" in Parsed(page.text).text
    assert house.file.read_text() == EMPTY
    answer, shown = house.confirm(form, hours="4")
    assert answer.status_code == 303
    assert big(shown, "done") == "2"
    assert house.paused() == {"trips", "bikes"}
    events = [e for e in house.consoles.events(DECISIONS.name) if isinstance(e, ActionEvent)]
    assert [e.state for e in events] == ["asked", "asked", "done", "done"]
    assert {e.reason for e in events} == {"upgrade"}
    assert len({e.table_uid for e in events}) == 2
    again, _ = house.preview("pause", "trips", "bikes")
    assert "paused by a page already" in Parsed(again.text).text
    _, form = house.preview("resume", "trips", "bikes")
    assert big(house.confirm(form)[1], "done") == "2"
    assert house.paused() == set()
    assert house.file.read_text() == EMPTY


def test_all_tables_of_a_view_are_chosen_by_its_filters(house):
    page, _ = house.preview("pause", all="1", q="bikes")
    assert big(page, "count") == "1"
    assert big(house.preview("pause", all="1")[0], "count") == "2"
    assert "No table is chosen" in house.preview("pause")[0].text


def test_more_tables_than_one_action_takes_are_refused(house, monkeypatch):
    monkeypatch.setattr(many, "MOST_TABLES", 1)
    page, form = house.preview("pause", "trips", "bikes")
    assert page.status_code == 409
    assert "more than 1 tables are chosen" in page.text
    assert form["token"] == ""


def test_plans_are_published_on_each_table_that_is_as_previewed(house):
    page, form = house.preview("plan clustering", "trips", "bikes")
    assert big(page, "count") == "2"
    assert list(house.consoles.open("trips").state.pending()) == []
    answer, shown = house.confirm(form)
    assert answer.status_code == 303
    assert big(shown, "done") == "2"
    assert [a.action for a in house.consoles.open("trips").state.pending()] == ["replacecommit"]
    assert len(house.acting.recorded) == 4
    assert house.confirm(form)[0].status_code == 303
    assert len(house.acting.recorded) == 4, "a repeated submit does nothing"


def test_a_policy_file_that_changed_since_the_preview_stays(house):
    _, form = house.preview("pause", "trips", "bikes")
    house.file.write_text(EMPTY + "# mine\n")
    assert house.confirm(form)[0].status_code == 409
    assert house.file.read_text() == EMPTY + "# mine\n"
    assert house.acting.recorded == []


def test_without_record_reason_or_time_nothing_is_done(house, monkeypatch):
    _, form = house.preview("pause", "trips", "bikes")
    assert house.confirm(form, reason=" ")[0].status_code == 409
    assert house.confirm(form, token="guessed")[0].status_code == 409
    assert house.confirm(form, csrf="guessed")[0].status_code == 403

    def away(*_events):
        raise EventLogUnavailable("the event log does not answer")

    monkeypatch.setattr(house.acting.actions, "_record", away)
    assert house.confirm(form)[0].status_code == 503
    house.consoles.clock.advance(601)
    assert house.confirm(form)[0].status_code == 409
    assert house.file.read_text() == EMPTY


def test_a_console_that_only_reads_lets_no_table_be_chosen(consoles):
    write(consoles.create("trips"), 0)
    client = consoles.client()
    assert 'type="checkbox"' not in client.get("/tables").text
    assert client.get("/act?what=pause&all=1").status_code == 403
    assert client.post("/act", data={"token": "x"}).status_code == 403
    assert client.get("/act/x").status_code == 403


def test_a_repair_makes_a_damaged_metadata_table_anew(consoles):
    acting = Acting(consoles)
    create_metadata(acting.table)
    write(acting.table, 40)
    acting.follower.turn()
    key = acting.row["key"]
    assert "Check and repair the metadata table" in acting.client.get(f"/tables/{key}").text
    files = (Path(consoles.path("trips")) / FILES_FOLDER).iterdir()
    (log,) = [file for file in files if ".log." in file.name and ".log.1_" not in file.name]
    log.unlink()
    assert check_table(consoles.open())
    page, token = acting.preview("repair", service="metadata")
    assert "check --repair --json" in Parsed(page.text).text
    assert check_table(consoles.open()), "a preview repairs nothing"
    done = acting.confirm("repair", token, service="metadata")
    assert done.status_code == 200, done.text
    assert check_table(consoles.open()) == []
    assert [(e.action, e.state) for e in acting.recorded] == [("repair metadata", "asked"), ("repair metadata", "done")]


def test_a_repair_needs_its_finding_and_its_command_is_one_of_tideline(consoles):
    acting = Acting(consoles)
    for kind in ("dead_writer", "hidden_commit", "metadata", "clock"):
        assert acting.preview("repair", service=kind)[0].status_code == 409, kind
    status = acting.follower.fleet().examine_table(acting.table)
    found = replace(status, findings=(Finding(FindingKind.DEAD_WRITER, "writer w shows no heartbeat"),))
    repair, texts = repair_of(acting.table, found, "dead_writer")
    assert texts == ["writer w shows no heartbeat"]
    assert "rollback" in ran((*repair.command, acting.row["base_path"]), "")
    assert "reappended" in ran((*REPAIRS["hidden_commit"].command, acting.row["base_path"]), "")
    with pytest.raises(InvalidOption, match="share"):
        ran((*REPAIRS["unlocked_writer"].command, acting.row["base_path"]), "")
