"""What the commands do when all is well."""

import json
import shutil

import pyarrow.parquet as pq
import pytest
from tests.unit.cli.conftest import json_line
from tests.unit.locks.unreachable import nobody_there

from tideline_table.action.write.transaction import WriteTransaction
from tideline_table.table import Table

KEEP_ONE = ("--option", "hoodie.cleaner.commits.retained=1")
UPDATE = json_line(id="b", city="Paris", n=200)


def test_read_selects_columns_rows_and_a_number_of_them(done, filled):
    assert sorted(r["id"] for r in done("read", filled, "--where", "n >= 3").rows) == ["b", "c", "d"]
    assert done("read", filled, "--columns", "n,id", "--where", "city = 'Rome'").text == '{"n":3,"id":"c"}\n'
    assert len(done("read", filled, "--limit", "2").rows) == 2
    assert done("read", filled, "--limit", "0").stdout == b""
    assert done("read", filled, "--where", "_hoodie_record_key = 'b' AND n IS NOT NULL", "--columns", "id").rows == [{"id": "b"}]


def test_read_as_of_an_instant(done, filled):
    first = done("timeline", filled, "--json").document["instants"][-1]["instant"]
    assert {r["id"]: r["n"] for r in done("read", filled, "--as-of", first).rows} == {"a": 1, "b": 2, "c": 3}


def test_output_is_whole_or_not_there(cli, done, filled, tmp_path):
    broken = next((filled / "Rome").glob("*.parquet"))
    done("read", filled, "--output", tmp_path / "good.parquet")
    assert pq.read_table(tmp_path / "good.parquet").num_rows == 4
    report = done("read", filled, "--output", tmp_path / "good.csv", "--where", "n = 4", "--json").document
    assert report == {"output": str(tmp_path / "good.csv"), "row_count": 1}

    broken.unlink()
    before = sorted(tmp_path.iterdir())
    outcome = cli("read", filled, "--output", tmp_path / "bad.parquet")
    assert outcome.code == 1
    assert "which the query reads, is gone" in outcome.stderr
    assert sorted(tmp_path.iterdir()) == before


def test_show_and_timeline_for_people(done, filled):
    shown = done("show", filled, "--files").text
    assert "trips (COPY_ON_WRITE, version 6)" in shown
    assert "Paris" in shown
    assert ".parquet" in shown
    assert "health            good" in shown
    lines = done("timeline", filled).text.splitlines()
    assert len(lines) == 3
    assert "UPSERT" in lines[1]


def test_show_and_timeline_for_programs(done, filled):
    shown = done("show", filled, "--json", "--files").document
    assert (shown["is_exclusive"], shown["rows"], shown["commits"], shown["file_groups"]) == (True, 4, 2, 3)
    assert {p["partition"]: (p["file_groups"], p["rows"]) for p in shown["partitions"]} == {"Paris": (2, 3), "Rome": (1, 1)}
    assert len(shown["file_slices"]) == 3
    assert shown["is_healthy"] is True
    document = done("timeline", filled, "--json", "--limit", "1").document
    assert document["total"] == 2
    (newest,) = document["instants"]
    assert (newest["action"], newest["state"], newest["operation"], newest["sequence"]) == ("commit", "completed", "UPSERT", 4)
    assert (newest["rows_inserted"], newest["rows_updated"], newest["files"]) == (1, 1, 2)


def test_share_prints_what_other_writers_need_and_the_table_goes_on(done, filled):
    rows = done("read", filled).plain_rows()
    shared = done("share", filled, "--lock-expiry", "5", "--json").document
    assert (shared["lock"], shared["expire_min"]) == ("filesystem", 5)
    assert shared["hudi_options"]["hoodie.cleaner.policy.failed.writes"] == "LAZY"
    assert shared["hudi_options"]["hoodie.write.lock.filesystem.expire"] == "5"
    again = done("share", filled).text
    assert "org.apache.hudi.client.transaction.lock.FileSystemBasedLockProvider" in again
    shown = done("show", filled, "--json").document
    assert (shown["mode"], shown["is_exclusive"], shown["uid"]) == ("shared", False, shared["uid"])
    assert "Tideline and Apache Hudi" in done("show", filled).text
    assert done("read", filled).plain_rows() == rows
    done("write", filled, "--from", "-", stdin=UPDATE)
    assert done("read", filled).plain_rows() != rows
    assert done("timeline", filled, "--json").document["instants"][0]["operation"] == "UPSERT"


def test_tables_of_others_are_shown_and_read(done, filled):
    done("write", filled, "--from", "-", stdin=UPDATE)
    assert done("plan", "clean", filled, *KEEP_ONE, "--json").document["instant"]
    assert done("run", "clean", filled, "--json").document["files_deleted"] == 1
    rows = done("read", filled).plain_rows()
    shutil.rmtree(filled / ".hoodie" / ".tideline")

    assert done("read", filled).plain_rows() == rows
    shown = done("show", filled, "--json").document
    assert (shown["is_exclusive"], shown["rows"], shown["uid"]) == (False, None, "")
    assert "Apache Hudi only; Tideline can read it; to share it: tideline share PATH --check" in done("show", filled).text
    instants = done("timeline", filled, "--json").document["instants"]
    assert [(i["action"], i["files"], i["sequence"]) for i in instants] == [
        ("clean", 1, None),
        *[("commit", n, None) for n in (1, 2, 2)],
    ]


def test_clustering_is_planned_and_run(done, filled):
    before = done("read", filled).plain_rows()
    planned = done("plan", "clustering", filled, "--json").document
    shown = done("show", filled, "--json").document
    assert shown["pending"] == [f"{planned['instant']} replacecommit requested"]
    assert "pending plans (pending: " in done("plan", "clustering", filled).text

    ran = done("run", "clustering", filled, "--instant", planned["instant"], "--json").document

    assert (ran["instant"], ran["rows_rewritten"], ran["files_written"]) == (planned["instant"], 3, 1)
    assert done("read", filled).plain_rows() == before


def test_nothing_to_do_says_why(done, filled):
    done("plan", "clustering", filled)
    assert "completed" in done("run", "clustering", filled).text
    reason = done("plan", "clustering", filled, "--json").document
    assert reason["instant"] is None
    assert reason["reason"].startswith("no partition has 2 or more files below hoodie.clustering.plan.strategy.small.file.limit=")
    assert "hoodie.cleaner.commits.retained=10 keeps all 3" in done("plan", "clean", filled).text
    assert "tideline plan clean" in done("run", "clean", filled).text
    assert "tideline plan clustering" in done("run", "clustering", filled).text
    assert "every pending write has a live writer" in done("run", "rollback", filled).text
    for _ in range(2):
        done("write", filled, "--from", "-", stdin=UPDATE)
    done("plan", "clean", filled, *KEEP_ONE)
    assert "is pending already" in done("plan", "clean", filled).text
    assert "completed" in done("run", "clean", filled).text
    assert "keeps every file readable" in done("plan", "clean", filled, *KEEP_ONE).text


def test_rollback_undoes_the_dead_and_leaves_the_living(done, filled):
    opened = Table.open(str(filled))
    begun = WriteTransaction.begin(opened.timeline, opened.lock, "UPSERT")
    quick = ("--option", "hoodie.client.heartbeat.interval_in_ms=100", "--option", "hoodie.client.heartbeat.tolerable.misses=1")
    alive = done("run", "rollback", filled, "--json").document
    assert (alive["rolled_back"], alive["left_alone"]) == ([], [begun.instant])
    begun.abandon()

    problems = ()
    while not problems:  # until 0.1 s have passed since its last sign of life
        problems = done("show", filled, "--json", *quick).document["problems"]
    assert "tideline run rollback" in problems[0]
    undone = done("run", "rollback", filled, "--json", *quick).document

    assert undone["rolled_back"] == [begun.instant]
    states = [i["state"] for i in done("timeline", filled, "--json").document["instants"] if i["instant"] == begun.instant]
    assert states == ["rolledback"]


def test_a_copy_is_adopted_and_written(done, filled, tmp_path):
    shutil.copytree(filled, tmp_path / "copy")
    adopted = done("adopt", tmp_path / "copy", "--json").document
    assert adopted["uid"] != adopted["previous_uid"]
    done("write", tmp_path / "copy", "--from", "-", stdin=json_line(id="e", city="Oslo"))
    assert len(done("read", tmp_path / "copy").rows) == 5
    assert len(done("read", filled).rows) == 4


def test_a_table_at_its_recorded_place_keeps_its_uid_without_yes(done, cli, filled, tmp_path):
    uid = done("show", filled, "--json").document["uid"]
    refused = cli("adopt", filled)
    assert refused.code == 2
    assert "neither copied nor moved" in refused.stderr
    assert done("show", filled, "--json").document["uid"] == uid
    filled.rename(tmp_path / "moved")
    done("adopt", tmp_path / "moved")
    adopted = done("adopt", tmp_path / "moved", "--yes", "--json").document
    assert len({uid, adopted["previous_uid"], adopted["uid"]}) == 3


@pytest.mark.parametrize("through", ["--locks", "TIDELINE_LOCKS"])
def test_commits_go_through_the_lock(done, cli, filled, monkeypatch, through):
    arguments = ["write", filled, "--from", "-"]
    if through == "--locks":
        arguments += ["--locks", "storage:"]
    else:
        monkeypatch.setenv("TIDELINE_LOCKS", f"storage:{filled}")
    done(*arguments, stdin=json_line(id="e", city="Oslo"))
    assert any((filled / ".hoodie" / ".tideline" / "locks").rglob("*"))


@pytest.mark.parametrize(
    ("unreachable", "code", "is_told"), [("wait", 1, "Redis at"), ("fail", 1, "Redis at"), ("storage", 0, "using the fallback")]
)
def test_a_redis_that_is_not_there(cli, filled, unreachable, code, is_told, caplog):
    wait_s = "3600" if unreachable == "fail" else "0.3"
    options = ("--option", f"tideline.lock.unreachable={unreachable}", "--option", f"tideline.lock.wait={wait_s}")
    with nobody_there() as url:
        outcome = cli("write", filled, "--from", "-", "--locks", url, *options, stdin=json_line(id="e", city="Oslo"))
    rows = Table.open(str(filled)).read(["id"]).num_rows
    assert (outcome.code, rows) == (code, 4 if code else 5), outcome.stderr
    assert is_told in outcome.stderr + caplog.text
    assert any((filled / ".hoodie/.tideline/locks").rglob("*.json")) is (code == 0), "a lease beside the table"


def test_going_on_without_redis_needs_redis(cli, filled):
    option = ("--option", "tideline.lock.unreachable=storage")
    for locks in ((), ("--locks", "storage:")):
        outcome = cli("write", filled, "--from", "-", *locks, *option, stdin=UPDATE)
        assert outcome.code == 2, outcome.stderr
        assert "tideline.lock.unreachable" in outcome.stderr
        assert "redis:" in outcome.stderr


@pytest.mark.parametrize("heading", ["id,city,n,x,price,day,at\n", "id,city,n,x,price,day,at"])
def test_an_empty_input_makes_no_commit_unless_asked_for(done, filled, tmp_path, heading):
    (tmp_path / "none.csv").write_text(heading)
    empty = ("write", filled, "--from", tmp_path / "none.csv", "--from", "-")
    before = done("timeline", filled, "--json").document["total"]
    assert "nothing to do: no rows in" in done(*empty).text
    report = done(*empty, "--operation", "insert_overwrite_table", "--json").document
    assert (report["instant"], report["operation"]) == (None, "insert_overwrite_table")
    assert done("timeline", filled, "--json").document["total"] == before
    report = done(*empty, "--allow-empty", "--json").document
    assert (report["rows_inserted"], report["rows_updated"]) == (0, 0)
    assert done("timeline", filled, "--json").document["total"] == before + 1
    assert len(done("read", filled).rows) == 4


@pytest.mark.parametrize("heading", ["id,city\n", "id,city"])
def test_a_heading_line_makes_a_table_of_text_columns(cli, done, tmp_path, heading):
    (tmp_path / "heading.csv").write_text(heading)
    created = cli("create", tmp_path / "t", "--schema-from", tmp_path / "heading.csv", "--key", "id", "--json")
    assert created.code == 0
    assert [(c["name"], c["type"]) for c in created.document["columns"]] == [("id", "string"), ("city", "string")]
    assert created.stderr.startswith("tideline: warning: ")
    assert "no value in column(s) id, city: they become text" in created.stderr
    (tmp_path / "row.csv").write_text(f"{heading.strip()}\na,Oslo")
    assert done("write", tmp_path / "t", "--from", tmp_path / "row.csv", "--json").document["rows_inserted"] == 1


def test_a_time_before_the_first_write_is_reported(cli, done, filled, table):
    first = done("timeline", filled, "--json").document["instants"][-1]["instant"]
    early = cli("read", filled, "--as-of", "2001-01-01")
    assert (early.code, early.stdout) == (0, b"")
    assert early.stderr == (f"tideline: warning: the table had no write yet as of 20010101000000000; its first one is {first}\n")
    assert len(done("read", filled, "--as-of", first).rows) == 3


def test_every_command_teaches_with_an_example(done):
    for command in ("create", "write", "read", "show", "timeline", "plan", "run", "adopt"):
        text = done(command, "--help").text
        assert f"tideline {command}" in text.split("Example")[1]
        assert "--json" in text
    assert "create" in done().text


def test_json_is_valid_for_names_of_any_language(done, tmp_path):
    (tmp_path / "s.jsonl").write_text(json.dumps({"id": "ключ"}), encoding="utf-8")
    path = tmp_path / "таблица"
    done("create", path, "--schema-from", tmp_path / "s.jsonl", "--key", "id")
    done("write", path, "--from", tmp_path / "s.jsonl")
    assert done("read", path, "--json", "--columns", "id").document["rows"] == [{"id": "ключ"}]
    assert (
        "таблица" in done("show", path, "--json").document["base_path"] or "%" in done("show", path, "--json").document["base_path"]
    )
