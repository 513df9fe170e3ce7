"""`tideline lease`, `tideline read --lease`, and `--dry-run` of the services."""

import pytest
from tests.unit.cli.conftest import json_line

UPDATE = json_line(id="b", city="Paris", n=200)
KEEP_ONE = ("--option", "hoodie.cleaner.commits.retained=1")


@pytest.mark.parametrize("command", ["take", "renew", "list", "release"])
def test_every_command_teaches_with_an_example(done, command):
    assert f"tideline lease {command}" in done("lease", command, "--help").text.split("Example")[1]


def test_taken_listed_renewed_and_released(done, cli, filled):
    assert "no reader leases" in done("lease", "list", filled).text
    before = done("read", filled).plain_rows()
    taken = done("lease", "take", filled, "--holder", "report", "--ttl", "600", "--json").document
    assert (taken["holder"], taken["ttl_s"]) == ("report", 600)
    assert done("lease", "list", filled, "--json").document["leases"] == [taken]
    for _ in range(3):
        done("write", filled, "--from", "-", stdin=UPDATE)
    why = done("plan", "clean", filled, *KEEP_ONE).text
    assert f"{taken['id']} of report keeps instant {taken['instant']}" in why
    preview = done("plan", "clean", filled, *KEEP_ONE, "--dry-run", "--json").document
    assert (preview["due"], preview["files"]) == (False, 0)
    assert taken["id"] in preview["reason"]
    assert done("read", filled, "--as-of", taken["instant"]).plain_rows() == before
    assert done("lease", "renew", filled, taken["id"], "--json").document["expires"] >= taken["expires"]
    assert "released" in done("lease", "release", filled, taken["id"]).text
    again = cli("lease", "release", filled, taken["id"])
    assert (again.code, "no reader lease" in again.stderr) == (2, True)


def test_what_a_dry_run_says_is_what_is_done(done, filled):
    for _ in range(3):
        done("write", filled, "--from", "-", stdin=UPDATE)
    instants = done("timeline", filled, "--json").document["total"]
    preview = done("plan", "clean", filled, *KEEP_ONE, "--dry-run", "--json").document
    assert preview["due"] is True
    assert set(preview) == {"service", "due", "reason", "groups", "files", "bytes"}
    assert preview["files"] == sum(g["files"] for g in preview["groups"]) > 0
    assert preview["bytes"] > 0
    assert done("timeline", filled, "--json").document["total"] == instants
    assert "no clean plan is pending" in done("run", "clean", filled, "--dry-run").text
    done("plan", "clean", filled, *KEEP_ONE)
    pending = done("run", "clean", filled, "--dry-run", "--json").document
    assert (pending["files"], pending["bytes"], pending["groups"]) == (preview["files"], preview["bytes"], preview["groups"])
    assert done("run", "clean", filled, "--json").document["files_deleted"] == preview["files"]


def test_a_dry_run_refuses_what_the_plan_refuses(cli, filled):
    carry = ["--option", "hoodie.clustering.updates.strategy=carry-over"]
    refused = cli("plan", "clustering", filled, *carry)
    assert (refused.code, "merge-on-read tables only" in refused.stderr) == (2, True)
    dry = cli("plan", "clustering", filled, *carry, "--dry-run")
    assert (dry.code, dry.stderr) == (refused.code, refused.stderr)


def test_a_dry_run_with_a_condition_prints_a_line_for_each_fact(done, filled):
    sizes = ["--option", "tideline.clustering.min.input.files=1", "--option", "hoodie.clustering.plan.strategy.sort.columns=n"]
    lines = done("plan", "clustering", filled, "--dry-run", "--where", "n > 3", *sizes).text.splitlines()
    assert lines[0].startswith("would cluster ")
    assert lines[-1].startswith("the condition reads ")
    assert len(lines) > 2
    assert "\\n" not in "".join(lines)


def test_a_clean_beyond_the_bound_says_how_to_go_on(done, cli, filled):
    for _ in range(4):
        done("write", filled, "--from", "-", stdin=UPDATE)
    refused = cli("plan", "clean", filled, *KEEP_ONE, "--option", "tideline.clean.max.deleted.share=0.1")
    assert refused.code == 2
    assert "tideline.clean.max.deleted.share=0" in refused.stderr
    assert done(
        "plan", "clean", filled, *KEEP_ONE, "--option", "tideline.clean.max.deleted.share=0.1", "--dry-run", "--json"
    ).document["due"]


def test_an_archival_that_is_not_due_says_why(done, cli, filled):
    assert "nothing to do" in done("plan", "archival", filled, "--dry-run").text
    refused = cli("run", "archival", filled, "--dry-run")
    assert (refused.code, "--dry-run with clustering, compaction, logcompaction, clean" in refused.stderr) == (2, True)


def test_reading_with_a_lease(done, filled):
    assert done("read", filled, "--lease").plain_rows() == done("read", filled).plain_rows()
    assert done("read", filled, "--lease", "--since", "1").rows
    assert done("lease", "list", filled, "--json").document["leases"] == []
