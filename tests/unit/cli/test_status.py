"""`tideline status`, `why` and `maintain`."""

from __future__ import annotations

import re
import shutil
from datetime import datetime, timedelta
from pathlib import Path

import pyarrow as pa
from tests.real.ports import free_ports
from tests.unit.cli.conftest import json_line
from tests.unit.table.shared import upgrade

import tideline
from tideline_table.action import Backlog, backlog_of, request_compaction
from tideline_table.hudi import Action
from tideline_table.storage import LocalStorage
from tideline_table.table import Table

EAGER = ("--option=hoodie.compact.inline.max.delta.commits=1",)


def by_name(outcome):
    return {found["table"]: found for found in outcome.document["tables"]}


def test_a_line_for_each_table_and_each_failure(cli, done, filled, merging, tmp_path):
    shown = done("status", f"{tmp_path}/*").text
    assert [line.split()[0] for line in shown.splitlines()] == ["TABLE", "trips", "weather"]
    broken = tmp_path / "broken"
    shutil.copytree(filled, broken)
    (broken / ".hoodie/hoodie.properties").write_bytes(b"\xff\xfe nothing")
    outcome = cli("status", f"{tmp_path}/*", f"{tmp_path}/none/*", "--json")
    assert (outcome.code, outcome.stderr) == (1, "")
    found = by_name(outcome)
    assert (found["trips"]["verdict"], found["trips"]["findings"]) == ("idle", [])
    assert found["weather"]["backlog"]["log_files"] == 3
    assert found["weather"]["backlog"]["oldest_log_s"] >= 0
    assert [f["kind"] for f in found["broken"]["findings"]] == ["cannot_open"]
    assert found["broken"]["error"]
    assert [f["kind"] for f in found["*"]["findings"]] == ["no_table"]
    text = cli("status", f"{tmp_path}/*").text
    assert "broken: cannot_open: " in text
    assert "Traceback" not in text


def test_a_table_of_hudi_is_unmanaged_and_says_what_managing_would_gain(done, merging, filled, snapshot):
    for path in (merging, filled):
        done("leave", path)
    before = snapshot(merging)
    found = by_name(done("status", merging, filled, "--json"))
    assert [document["verdict"] for document in found.values()] == ["unmanaged", "unmanaged"]
    gain, backlog = found["weather"]["gain"], found["weather"]["backlog"]
    assert (gain["files_saved"], gain["log_files"], gain["log_bytes"]) == (3, 3, backlog["log_bytes"])
    assert gain["rewrite_bytes"] == backlog["log_bytes"] + backlog["base_bytes"]
    assert found["trips"]["gain"]["files_saved"] == 1, "two small files of Paris become one"
    text = done("status", merging, filled).text
    assert "weather: unmanaged: services would save readers 3 file(s), 3 of them log files" in text
    assert "tideline share PATH --check" in text
    assert snapshot(merging) == before


def test_status_does_not_send_to_share_what_share_refuses(done, tmp_path):
    path = tmp_path / "nine"
    rows = pa.table({"id": [1, 2], "p": ["a", "a"]})
    table = tideline.create(path, schema=rows.schema, key="id", partition="p", type="mor", table_version=9)
    table.upsert(rows)
    table.upsert(rows)
    (path / ".hoodie/.bucket_index/another_engine/a").mkdir(parents=True)
    shutil.rmtree(path / ".hoodie" / ".tideline")
    text = done("status", path).text
    assert "nine: unmanaged: services would save readers" in text
    assert "sharing is not possible: a table with Apache Hudi's bucket index (folder .hoodie/.bucket_index/another_engine)" in text
    assert "--check" not in text


def test_each_table_has_a_state_by_which_status_chooses(cli, done, merging, filled, tmp_path):
    shutil.copytree(filled, tmp_path / "moved")
    shutil.copytree(filled, tmp_path / "unreadable")
    (tmp_path / "unreadable/.hoodie/hoodie.properties").write_bytes(b"\xff\xfe nothing")
    upgraded = tmp_path / "upgraded"
    shutil.copytree(filled, upgraded)
    done("adopt", upgraded)
    done("share", upgraded)
    upgrade(LocalStorage(upgraded))
    done("leave", merging)
    found = {d["base_path"].rpartition("/")[2]: d for d in cli("status", f"{tmp_path}/*", "--json").document["tables"]}
    every = {name: document["state"] for name, document in found.items()}
    assert {name for name, document in found.items() if document["state_since"]} == {"trips"}
    assert found["trips"]["remedy"] is None
    remedies = {"moved": "adopt PATH", "unreadable": "the error names", "upgraded": "downgrade", "weather": "share PATH --check"}
    assert all(remedy in found[name]["remedy"] for name, remedy in remedies.items())
    assert every == {
        "moved": "moved",
        "trips": "managed",
        "unreadable": "unreadable",
        "upgraded": "upgraded",
        "weather": "unmanaged",
    }
    chosen = cli("status", f"{tmp_path}/*", "--state", "unmanaged", "--state", "moved", "--json").document["tables"]
    assert [document["state"] for document in chosen] == ["moved", "unmanaged"]
    assert cli("status", tmp_path, "--state", "lost").code == 2
    text = cli("status", f"{tmp_path}/*").text
    assert re.search(r"cow +moved ", text)
    assert f"file:{tmp_path}/upgraded: refused: " in text, "its name is that of two others"


def test_status_prints_the_tables_with_the_largest_backlog_first_and_in_pages(done, merging, filled, tmp_path):
    paths = [f"file:{merging}", f"file:{filled}"]

    def shown(*arguments: str) -> list[str]:
        return [document["base_path"] for document in done("status", f"{tmp_path}/*", "--json", *arguments).document["tables"]]

    assert shown() == sorted(paths)
    assert shown("--sort", "log_files") == paths
    assert shown("--limit", "1") + shown("--limit", "1", "--offset", "1") == sorted(paths)
    assert shown("--offset", "2") == []


def test_status_and_why_follow_the_table(done, merging):
    assert by_name(done("status", merging, "--json"))["weather"]["services"]["compaction"]["outcome"] == "not_due"
    why = done("why", merging, "compaction").text
    assert "compaction: idle: 4 delta commit(s) since the last compaction" in why
    assert "changed by: 1 more delta commit(s)" in why
    (verdict,) = done("why", merging, "compaction", *EAGER, "--json").document["verdicts"]
    assert (verdict["outcome"], verdict["is_due"]) == ("due", True)
    assert Table.open(str(merging)).state.pending_compactions() == [], "looking publishes nothing"
    instant = done("plan", "compaction", merging, *EAGER, "--json").document["instant"]
    found = by_name(done("status", merging, "--json"))["weather"]
    assert found["verdict"] == "working"
    assert [(job["instant"], job["service"], job["is_running"]) for job in found["pending"]] == [(instant, "compaction", False)]
    (verdict,) = done("why", merging, "compaction", "--json").document["verdicts"]
    assert (verdict["outcome"], verdict["instants"]) == ("planned", [instant])
    done("run", "compaction", merging)
    after = by_name(done("status", merging, "--json"))["weather"]
    assert after["services"]["compaction"]["last_run"]["instant"] == instant
    assert after["backlog"]["log_files"] == 0


def test_why_says_what_excludes_a_service(done, filled):
    verdicts = {v["service"]: v for v in done("why", filled, "--json").document["verdicts"]}
    assert verdicts["compaction"]["outcome"] == "not_applicable"
    assert verdicts["compaction"]["until"] == ""
    assert "more write(s), or a smaller planner setting clustering_min_commits" in verdicts["clustering"]["until"]
    assert verdicts["rollback"]["outcome"] == "not_due"


def test_the_settings_of_the_planner_decide(done, filled, tmp_path):
    file = tmp_path / "settings.toml"
    file.write_text("[planner]\nclustering_min_files = 2\nclustering_min_commits = 1\n")
    (verdict,) = done("why", filled, "clustering", "--settings", file, "--json").document["verdicts"]
    assert verdict["outcome"] == "due"


def test_the_settings_of_the_cleaner_decide_about_cleans(cli, done, filled, tmp_path):
    """Neither the options of the planner nor their absence say what the cleaner retains."""
    file, policies = tmp_path / "settings.toml", tmp_path / "policies.yaml"
    row = json_line(id="b", city="Paris", n=21)
    done("write", filled, "--from", "-", stdin=row)
    policies.write_text("version: 1\ndefaults: {settings: {cleaner: {clean_interval_s: 30.0}}}\n")
    retained = "[{}]\noptions = {{ 'hoodie.cleaner.commits.retained' = '1' }}\n"

    def verdict():
        (found,) = done("why", filled, "clean", "--settings", file, "--json").document["verdicts"]
        assert (
            by_name(done("status", f"{tmp_path}/*", "--settings", file, "--json"))["trips"]["services"]["clean"]["reason"]
            == found["reason"]
        )
        return found

    file.write_text(f'policy_file = "{policies}"\n' + retained.format("planner"))
    assert verdict()["outcome"] == "not_due"
    assert "hoodie.cleaner.commits.retained=10" in verdict()["reason"]
    file.write_text(f'policy_file = "{policies}"\n' + retained.format("cleaner"))
    assert verdict()["outcome"] == "due"
    assert "after 5 write(s) (clean_min_commits), or 30 s (clean_interval_s)" in verdict()["until"]
    (step,) = [
        s
        for s in done("maintain", filled, "--settings", file, "--json").document["tables"][0]["services"]
        if s["service"] == "clean"
    ]
    assert (step["outcome"], step["files"]) == ("done", 1)


def test_a_plan_that_cannot_be_made_is_a_finding(done, filled, tmp_path):
    file = tmp_path / "settings.toml"
    file.write_text("[planner]\nclustering_min_commits = 1\n")
    arguments = ("--settings", file, "--option", "hoodie.clustering.plan.strategy.sort.columns=nowhere")
    found = by_name(done("status", filled, *arguments, "--json"))["trips"]
    assert (found["verdict"], [f["kind"] for f in found["findings"]]) == ("attention", ["cannot_plan"])
    assert "'nowhere'" in found["findings"][0]["text"]


def test_locks_that_do_not_resolve_are_a_finding(done, filled):
    found = by_name(done("status", filled, "--locks", "nowhere://x", "--json"))["trips"]
    assert [f["kind"] for f in found["findings"]] == ["locks"]


def test_a_server_of_locks_that_does_not_answer_is_a_finding(done, filled, tmp_path):
    (port,) = free_ports(1)
    file = tmp_path / "settings.toml"
    file.write_text(f'locks = "redis://127.0.0.1:{port}/0"\n')
    for arguments in (("--locks", f"redis://127.0.0.1:{port}/0"), ("--settings", file)):
        found = by_name(done("status", filled, *arguments, "--json"))["trips"]
        assert [f["kind"] for f in found["findings"]] == ["locks"]
        assert f"127.0.0.1:{port}" in found["findings"][0]["text"]


def test_a_backlog_is_a_finding_and_bad_health(done, merging):
    limit = ("--option", "tideline.write.backlog.log.files=3")
    found = by_name(done("status", merging, *limit, "--json"))["weather"]
    assert [f["kind"] for f in found["findings"]] == ["backlog"]
    assert found["findings"][0]["age_s"] >= 0
    assert not done("show", merging, *limit, "--json").document["is_healthy"]
    assert done("show", merging, "--json").document["is_healthy"]


def test_no_command_is_greener_than_status(cli, done, filled):
    """Where `status` says attention, `why`, `maintain` and `show` name the same findings."""
    next(filled.glob("*/*.parquet")).unlink()
    status = by_name(done("status", filled, "--json"))["trips"]
    (finding,) = status["findings"]
    assert (status["verdict"], finding["kind"]) == ("attention", "damaged")
    for service in ((), ("rollback",)):
        why = done("why", filled, *service, "--json").document
        assert (why["verdict"], why["findings"]) == ("attention", status["findings"])
        assert done("why", filled, *service).text.startswith(f"trips: damaged: {finding['text']}\n")
    (previewed,) = done("maintain", filled, "--dry-run", "--json").document["tables"]
    assert previewed["findings"] == status["findings"]
    for mode in (("--dry-run",), ()):
        assert f": damaged: {finding['text']}\n" in cli("maintain", filled, *mode).text
    shown = done("show", filled, "--json").document
    assert (shown["is_healthy"], shown["problems"]) == (False, [finding["text"]])


def test_maintain_does_what_is_due_once(cli, done, merging, filled):
    before = [done("read", path).plain_rows() for path in (merging, filled)]
    dry = {d["base_path"]: d for d in done("maintain", merging, filled, *EAGER, "--dry-run", "--json").document["tables"]}
    outcomes = {s["service"]: s["outcome"] for s in dry[f"file:{merging}"]["services"]}
    assert (outcomes["compaction"], outcomes["rollback"]) == ("due", "nothing")
    assert Table.open(str(merging)).state.pending_compactions() == []
    ran = {d["base_path"]: d for d in done("maintain", merging, filled, *EAGER, "--json").document["tables"]}
    assert all(d["ok"] for d in ran.values())
    outcomes = {s["service"]: s["outcome"] for s in ran[f"file:{merging}"]["services"]}
    assert outcomes["compaction"] == "done"
    again = {s["service"]: s["outcome"] for s in done("maintain", merging, *EAGER, "--json").document["tables"][0]["services"]}
    assert set(again.values()) == {"nothing"}
    assert [done("read", path).plain_rows() for path in (merging, filled)] == before
    outcome = cli("maintain", merging, f"{merging}/none")
    assert outcome.code == 1
    assert "none: failed: no table matches" in outcome.text


def test_maintain_runs_the_plans_that_wait(merging):
    opened = Table.open(str(merging))
    planned = request_compaction(opened, {"hoodie.compact.inline.max.delta.commits": 1})
    steps = {str(step.service): step for step in tideline.open(str(merging)).maintenance.run_due()}
    assert steps["compaction"].instants == (planned,)
    assert steps["compaction"].rows == 2
    assert [a.instant for a in opened.refresh().completed_writes() if a.action is Action.COMPACTION] == [planned]


def test_one_failing_service_does_not_stop_the_others(cli, merging):
    bad = ("--option", "hoodie.clustering.plan.strategy.sort.columns=nowhere", *EAGER)
    file = merging.parent / "settings.toml"
    file.write_text("[planner]\nclustering_min_commits = 1\n")
    outcome = cli("maintain", merging, *bad, "--settings", file, "--json")
    assert outcome.code == 1
    steps = {s["service"]: s for s in outcome.document["tables"][0]["services"]}
    assert (steps["clustering"]["outcome"], steps["compaction"]["outcome"]) == ("failed", "done")
    assert "'nowhere'" in steps["clustering"]["error"]


def test_a_policy_decides(done, filled, tmp_path):
    policies = tmp_path / "policies.yaml"
    file = tmp_path / "settings.toml"
    file.write_text(f'policy_file = "{policies}"\n')

    def verdicts(*more: str) -> dict:
        shown = done("status", filled, "--settings", file, *more, "--json").document["tables"][0]
        return {**{name: v["outcome"] for name, v in shown["services"].items()}, "findings": [f["kind"] for f in shown["findings"]]}

    policies.write_text(
        "version: 1\ndefaults:\n  settings:\n    planner:\n      clustering_min_files: 2\n      clustering_min_commits: 1\n"
    )
    assert verdicts()["clustering"] == "due"
    policies.write_text("version: 1\ndefaults:\n  services:\n    clustering: false\n  objectives:\n    small_files: 1\n")
    found = verdicts()
    assert (found["clustering"], found["findings"]) == ("off", ["objective"])
    for text, by in (
        ("services: {clustering: false}", "defaults (line 3)"),
        ("mode: observe", "mode: observe of defaults (line 3)"),
    ):
        policies.write_text(f"version: 1\ndefaults:\n  {text}\n")
        (verdict,) = done("why", filled, "clustering", "--settings", file, "--json").document["verdicts"]
        assert verdict["reason"] == f"the service is switched off for this table by {by}"
    policies.write_text("version: 1\ndefaults:\n  pause:\n    reason: a migration\n")
    assert (verdicts()["clustering"], verdicts()["rollback"]) == ("held", "not_due")
    (verdict,) = done("why", filled, "clustering", "--settings", file, "--json").document["verdicts"]
    assert "a migration" in verdict["reason"]
    assert {s["outcome"] for s in done("maintain", filled, "--settings", file, "--json").document["tables"][0]["services"]} == {
        "nothing"
    }


def test_why_says_when_time_lets_a_service_run(done, filled, merging, tmp_path):
    file = tmp_path / "settings.toml"
    file.write_text(f'policy_file = "{tmp_path}/policies.yaml"\n')

    def why(policy: str, service: str, path: Path = filled) -> tuple[str, str]:
        (tmp_path / "policies.yaml").write_text(f"version: 1\ndefaults: {{{policy}}}\n")
        (verdict,) = done("why", path, service, "--settings", file, "--json").document["verdicts"]
        return verdict["outcome"], verdict["until"]

    eager = "settings: {planner: {clustering_min_files: 2, clustering_min_commits: 1, clustering_backoff_s: 500.0}}"
    assert why(eager, "clustering")[0] == "due"
    assert why(f"{eager}, budget: {{bytes_per_day: 0}}", "clustering") == ("held", "the end of pending plans, or a larger budget")
    done(
        "job",
        "cancel",
        filled,
        done("plan", "clustering", filled, "--option=tideline.clustering.min.input.files=2", "--json").document["instant"],
    )
    table = Table.open(str(filled))
    (rollback,) = [a for a in table.state.actions.values() if a.action is Action.ROLLBACK]
    again = datetime.fromisoformat(rollback.since) + timedelta(seconds=500)
    assert why(eager, "clustering") == ("held", f"{again:%Y-%m-%d %H:%M:%S} UTC")
    oldest = table_backlog(merging).oldest_log
    assert oldest is not None
    outcome, until = why("objectives: {unmerged_log_age: 10h}", "compaction", merging)
    assert outcome == "not_due"
    assert until.startswith("1 more delta commit(s)")
    assert until.endswith(f" or {oldest + timedelta(hours=8):%Y-%m-%d %H:%M:%S} UTC")


def table_backlog(path: Path) -> Backlog:
    table = Table.open(str(path))
    return backlog_of(table.state, table.options)


def test_a_policy_switches_log_compaction_on(done, merging, tmp_path):
    file = tmp_path / "settings.toml"
    file.write_text(f'policy_file = "{tmp_path}/policies.yaml"\n')

    def verdict(policy: str) -> tuple[str, str]:
        (tmp_path / "policies.yaml").write_text(f"version: 1\ndefaults: {{{policy}}}\n")
        (found,) = done("why", merging, "logcompaction", "--settings", file, "--json").document["verdicts"]
        return found["outcome"], found["reason"]

    switched = "services: {logcompaction: true}, logcompaction: {files: 3}"
    assert verdict("priority: 50")[0] == "off"
    assert verdict(switched) == ("due", "1 slice(s) have 3 log files or more")
    outcome, why = verdict(f"{switched}, options: {{hoodie.compact.inline.max.delta.commits: 1}}")
    assert (outcome, "a compaction is due" in why) == ("not_due", True)
    outcome, why = verdict(f"{switched}, budget: {{bytes_per_day: 0}}")
    assert (outcome, "0 of 0 bytes" in why) == ("held", True)
    assert verdict(switched)[0] == "due"
    ran = done("maintain", merging, "--settings", file, "--json").document["tables"][0]["services"]
    assert {s["service"]: s["outcome"] for s in ran if s["outcome"] == "done"} == {"logcompaction": "done"}
    assert verdict(switched)[0] == "not_due"
