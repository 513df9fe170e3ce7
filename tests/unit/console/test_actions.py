"""Actions of people: what a preview says, what a confirmation does to the table, and what the record says of it."""

from __future__ import annotations

import json
import re
import threading
from functools import partial

import pytest
from starlette.testclient import TestClient
from tests.unit.console.conftest import ADDRESS
from tests.unit.console.test_pages import Parsed
from tests.unit.services.fleet import write

from tideline_console import pauses
from tideline_console.actions import Actions
from tideline_console.service import ConsoleService
from tideline_console.settings import ConsoleSettings
from tideline_console.web import console_app
from tideline_events import DECISIONS, ActionEvent, EventLogUnavailable
from tideline_runtime.errors import InvalidSetting
from tideline_table.action import SERVICES, TableService
from tideline_table.errors import InvalidOption
from tideline_table.table import GivenUp, given_up_plans, keep_given_up

FORM = {"content-type": "application/x-www-form-urlencoded"}


class Acting:
    """A console with actions over one table with small files, and what a person does there."""

    def __init__(self, consoles, **explicit) -> None:
        self.consoles = consoles
        self.table = consoles.create("trips")
        for first in range(0, 30, 10):
            write(self.table, first)
        self.table.refresh()
        self.follower, self.model, self.settings = consoles.follower(events=True, actions=True, **explicit)
        self.recorded: list[ActionEvent] = []
        service = ConsoleService(self.settings, consoles.context("console"))

        def record(*events: ActionEvent) -> None:
            service.record(*events)
            self.recorded.extend(events)

        self.actions = Actions(self.settings, self.follower, consoles.clock, record)
        self.follower.turn()
        self.app = console_app(self.settings, self.model, self.follower, consoles.clock, self.actions)
        self.client = TestClient(self.app, base_url=ADDRESS)
        self.csrf = ""
        (self.row,) = self.model.query("SELECT * FROM tables")
        self.address = f"/tables/{self.row['key']}/act"

    def plan(self) -> str:
        instant = SERVICES[TableService.CLUSTERING].plan(self.table)
        assert isinstance(instant, str)
        self.follower.turn()
        return instant

    def preview(self, kind: str, **given: str):
        page = self.client.get(self.address, params={"kind": kind, **given})
        found, csrf = (re.search(rf'name="{name}" value="([^"]+)"', page.text) for name in ("token", "csrf"))
        self.csrf = csrf[1] if csrf else self.csrf
        return page, found[1] if found else ""

    def confirm(self, kind: str, token: str, reason: str = "tidy up", hours: str = "", headers=None, csrf=None, **given: str):
        data = {"csrf": self.csrf if csrf is None else csrf, "token": token, "reason": reason, "hours": hours}
        return self.client.post(self.address, params={"kind": kind, **given}, data=data, headers=headers or {})

    def is_pending(self, instant: str) -> bool:
        return self.consoles.open().state.is_pending(instant)


@pytest.fixture
def acting(consoles):
    return Acting(consoles)


def test_cancel_ends_the_plan_and_is_recorded(acting):
    instant = acting.plan()
    page, token = acting.preview("cancel", instant=instant)
    assert "no row changes" in page.text
    assert f"job cancel --json -- {acting.row['base_path']} {instant}" in Parsed(page.text).text
    assert acting.is_pending(instant)
    done = acting.confirm("cancel", token, "import <b> at 15:00", instant=instant)
    assert done.status_code == 200, done.text
    assert not acting.is_pending(instant)
    asked, ended = [e for e in acting.consoles.events(DECISIONS.name) if isinstance(e, ActionEvent)]
    assert (asked.state, ended.state, asked.action_id) == ("asked", "done", ended.action_id)
    assert (ended.action, ended.instant, ended.reason) == ("cancel", instant, "import <b> at 15:00")
    assert ended.by
    assert "rollback" in ended.outcome
    acting.follower.turn()
    record = Parsed(acting.client.get("/actions").text).text
    assert "import <b> at 15:00" in record
    assert "cancel done" in record
    assert "cancel done" in Parsed(acting.client.get(f"/actions/{ended.action_id}").text).text


def test_a_repeated_submit_does_it_once(acting):
    instant = acting.plan()
    _, token = acting.preview("cancel", instant=instant)
    answers = []
    threads = [
        threading.Thread(target=lambda: answers.append(acting.confirm("cancel", token, instant=instant).status_code)) for _ in "123"
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [200, 200, 200]
    assert [e.state for e in acting.recorded] == ["asked", "done"]


def test_the_second_of_two_operators_is_told(acting):
    instant = acting.plan()
    (_, first), (_, second) = acting.preview("cancel", instant=instant), acting.preview("cancel", instant=instant)
    assert acting.confirm("cancel", first, instant=instant).status_code == 200
    late = acting.confirm("cancel", second, instant=instant)
    assert late.status_code == 409
    assert "Nothing was done" in late.text
    assert [e.state for e in acting.recorded] == ["asked", "done"]


def test_plan_publishes_a_plan_that_an_executor_can_run(acting):
    page, token = acting.preview("plan", service="clustering")
    assert "the launcher runs it" in page.text
    assert acting.confirm("plan", token, service="clustering").status_code == 200
    assert [a.action for a in acting.consoles.open().state.pending()] == ["replacecommit"]
    assert [e.action for e in acting.recorded] == ["plan clustering"] * 2


def test_retry_lets_the_launcher_run_a_plan_again(acting):
    instant = acting.plan()
    keep_given_up(acting.table.storage, GivenUp(instant, "clustering", 3, "out of memory", "2026-11-28T12:00:00+00:00"))
    page, token = acting.preview("retry", instant=instant)
    assert "out of memory" in page.text
    assert acting.confirm("retry", token, instant=instant).status_code == 200
    assert given_up_plans(acting.table.storage) == {}
    assert acting.is_pending(instant)


def test_what_cannot_be_recorded_is_not_done(acting, monkeypatch):
    instant = acting.plan()
    _, token = acting.preview("cancel", instant=instant)

    def away(_event):
        raise EventLogUnavailable("the event log does not answer")

    monkeypatch.setattr(acting.actions, "_record", away)
    answer = acting.confirm("cancel", token, instant=instant)
    assert answer.status_code == 503
    assert "cannot be recorded" in answer.text
    assert acting.is_pending(instant)


@pytest.mark.parametrize(
    "headers",
    [{"sec-fetch-site": "cross-site"}, {"sec-fetch-site": "same-site"}, {"origin": "https://evil.example"}, {"origin": "null"}],
)
def test_a_page_of_another_site_does_nothing(acting, headers):
    instant = acting.plan()
    _, token = acting.preview("cancel", instant=instant)
    assert acting.confirm("cancel", token, headers=headers, instant=instant).status_code == 403
    assert acting.is_pending(instant)
    assert acting.recorded == []


def test_without_reason_or_preview_nothing_is_done(acting):
    instant = acting.plan()
    _, token = acting.preview("cancel", instant=instant)
    assert acting.confirm("cancel", token, "  ", instant=instant).status_code == 409
    assert acting.confirm("cancel", "guessed", instant=instant).status_code == 409
    acting.consoles.clock.advance(601)
    assert acting.confirm("cancel", token, instant=instant).status_code == 409
    assert acting.client.post(acting.address, content=b"x" * 20_000, headers=FORM).status_code == 413
    assert acting.client.post(acting.address, json={"token": token}).status_code == 400
    assert acting.preview("drop")[0].status_code == 409
    assert acting.is_pending(instant)
    assert acting.recorded == []


def test_a_console_that_only_reads_has_no_action(consoles):
    write(consoles.create("trips"), 0)
    client = consoles.client()
    (row,) = client.get("/api/v1/tables").json()["tables"]
    assert client.get(f"/tables/{row['key']}/act?kind=pause").status_code == 403
    assert client.post(f"/tables/{row['key']}/act", data={"token": "x"}).status_code == 403
    assert "/act?" not in client.get(f"/tables/{row['key']}").text


@pytest.mark.parametrize("given", [{"source": "tables"}, {"host_names": ("console.example",)}])
def test_actions_need_a_record_and_no_strangers(consoles, given):
    with pytest.raises(InvalidSetting, match="actions"):
        ConsoleService(consoles.settings(ConsoleSettings, actions=True, **given), consoles.context("console"))


FILES = {
    "lines": "# kept\nversion: 1\nrules:   # mine\n  - name: gold\n    match: {paths: [/nowhere/*]}\n    priority: 80\n# end\n",
    "flow": json.dumps({"version": 1, "rules": [{"name": "gold", "match": {"paths": ["/nowhere/*"]}, "priority": 80}]}),
    "none": "version: 1\n# nothing yet",
    "empty": "version: 1\nrules: []\n",
}


@pytest.mark.parametrize("name", FILES)
def test_pause_and_resume_change_one_line_of_the_policy_file(consoles, name):
    file = consoles.folder / "policy.yaml"
    file.write_text(FILES[name])
    acting = Acting(consoles, policy_file=file)
    _, token = acting.preview("pause")
    done = acting.confirm("pause", token, 'the "move": #1 \U0001f680', "4")
    assert done.status_code == 200, done.text
    acting.follower.turn()
    consoles.clock.advance(2)
    acting.follower.turn()
    consoles.clock.advance(2)
    acting.follower.turn()
    own = acting.follower.fleet().policies.of(acting.table.storage.root, acting.table.uid)
    pause = own.paused_at(consoles.clock.now())
    assert pause.reason == 'the "move": #1 \U0001f680'
    assert 3 * 3600 < (pause.until - consoles.clock.now()).total_seconds() <= 4 * 3600
    assert "the &#34;move&#34;" in acting.client.get("/policies").text
    assert acting.preview("pause")[0].status_code in (200, 409)
    _, token = acting.preview("resume")
    assert acting.confirm("resume", token).status_code == 200
    if name in ("lines", "flow", "empty"):
        assert file.read_text() == FILES[name]
    assert "console: pause" not in file.read_text()


def test_a_policy_file_that_changed_since_the_preview_is_left_alone(consoles):
    file = consoles.folder / "policy.yaml"
    file.write_text(FILES["lines"])
    acting = Acting(consoles, policy_file=file)
    _, token = acting.preview("pause")
    file.write_text(FILES["lines"].replace("80", "70"))
    assert acting.confirm("pause", token).status_code == 409
    assert "console" not in file.read_text()
    assert acting.recorded == []


def test_two_operators_who_pause_one_table_leave_one_rule(consoles):
    file = consoles.folder / "policy.yaml"
    file.write_text("version: 1\nrules: []\n")
    acting = Acting(consoles, policy_file=file)
    (_, first), (_, second) = acting.preview("pause"), acting.preview("pause")
    assert acting.confirm("pause", first, "move", "4").status_code == 200
    after = file.read_bytes()
    for token in (second, acting.preview("pause")[1]):
        late = acting.confirm("pause", token, "upgrade", "24")
        assert late.status_code == 409
        assert f"a page paused {acting.row['base_path']} already" in Parsed(late.text).text
    assert file.read_bytes() == after, "a second rule would contradict the first, and then no service works on the table"


def test_a_link_to_a_policy_file_stays_a_link(tmp_path):
    kept, link = tmp_path / "kept" / "policy.yaml", tmp_path / "policy.yaml"
    kept.parent.mkdir()
    kept.write_text("version: 1\nrules: []\n")
    link.symlink_to(kept)
    pauses.replace(link, pauses.paused(link.read_bytes(), ["/lake/trips"], "upgrade", None))
    assert link.is_symlink()
    assert "upgrade" in kept.read_text()
    assert [one.name for one in kept.parent.iterdir()] == ["policy.yaml"]


@pytest.mark.parametrize(
    "edit",
    [partial(pauses.paused, base_paths=["/lake"], reason="upgrade", until=None), partial(pauses.resumed, base_paths=["/lake"])],
)
def test_a_policy_file_that_is_not_utf_8_is_refused(edit):
    with pytest.raises(InvalidOption, match="UTF-8"):
        edit(b"version: 1 # \xff\nrules: []\n")
