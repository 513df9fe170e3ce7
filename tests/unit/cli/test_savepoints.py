"""`tideline savepoint` and what the other commands show of it."""

import pytest
from tests.unit.cli.conftest import json_line

from tideline_table.action import write_rows
from tideline_table.log.progress import ProgressStep
from tideline_table.table import Table
from tideline_table.writer import Operation

UPDATE = json_line(id="b", city="Paris", n=200)
KEEP_ONE = ("--option", "hoodie.cleaner.commits.retained=1")


@pytest.mark.parametrize("command", ["create", "delete", "list"])
def test_every_command_teaches_with_an_example(done, command):
    text = done("savepoint", command, "--help").text
    assert f"tideline savepoint {command}" in text.split("Example")[1]
    assert "--json" in text
    assert "tideline restore" in done("restore", "--help").text.split("Example")[1]


def test_made_listed_read_and_deleted(done, cli, filled):
    rows = done("read", filled).plain_rows()
    assert "tideline savepoint create" in done("savepoint", "list", filled).text
    made = done("savepoint", "create", filled, "--comment", "before", "--user", "ada", "--json").document
    assert (made["comment"], made["user"]) == ("before", "ada")
    listed = done("savepoint", "list", filled, "--json").document["savepoints"]
    assert listed == [made]
    assert "ada" in done("savepoint", "list", filled).text
    assert f"{made['instant']} by ada before" in done("show", filled).text
    assert done("show", filled, "--json").document["savepoints"] == listed
    newest, first = done("timeline", filled, "--json").document["instants"]
    assert (newest["has_savepoint"], first["has_savepoint"]) == (True, False)
    assert "completed, savepoint" in done("timeline", filled).text

    for _ in range(3):
        done("write", filled, "--from", "-", stdin=UPDATE)
    done("plan", "clean", filled, *KEEP_ONE)
    done("run", "clean", filled)
    assert done("read", filled, "--as-of", made["instant"]).plain_rows() == rows
    again = cli("savepoint", "create", filled, "--instant", made["instant"])
    assert (again.code, "already" in again.stderr) == (2, True)
    old = cli("savepoint", "create", filled, "--instant", first["instant"])
    assert (old.code, "cleaning" in old.stderr) == (2, True)
    assert "deleted" in done("savepoint", "delete", filled, made["instant"]).text
    gone = cli("savepoint", "delete", filled, made["instant"])
    assert (gone.code, "no savepoint" in gone.stderr) == (2, True)


def test_of_a_shared_table_they_are_apache_hudis(done, cli, filled):
    made = done("savepoint", "create", filled, "--json").document
    done("share", filled)
    listed = done("savepoint", "list", filled, "--json").document["savepoints"]
    assert [s["instant"] for s in listed] == [made["instant"]]
    refused = cli("savepoint", "create", filled)
    assert refused.code == 2
    assert "create_savepoint" in refused.stderr


def test_back_to_a_savepoint(done, cli, filled):
    rows = done("read", filled).plain_rows()
    made = done("savepoint", "create", filled, "--json").document["instant"]
    for _ in range(2):
        done("write", filled, "--from", "-", stdin=UPDATE)
    undone = [i["instant"] for i in done("timeline", filled, "--json").document["instants"][:2]]
    later = done("savepoint", "create", filled, "--json").document["instant"]
    changed = done("read", filled).plain_rows()
    assert changed != rows

    said = done("restore", filled, "--to", made, "--dry-run").text
    assert "2 completed write(s) will be lost" in said
    assert all(instant in said for instant in undone)
    assert f"savepoint {later} will be lost" in said
    assert done("restore", filled, "--to", made, "--dry-run", "--json").document["restore"] is None
    assert done("read", filled).plain_rows() == changed

    for unasked in ((), ("--json",)):
        refused = cli("restore", filled, "--to", made, *unasked)
        assert (refused.code, "--yes" in refused.stderr) == (2, True)
    assert done("read", filled).plain_rows() == changed

    document = done("restore", filled, "--to", made, "--json", "--yes").document
    assert [w["instant"] for w in document["undone"]] == undone
    assert (document["savepoint"], document["savepoints_lost"], document["files_deleted"]) == (made, [later], 2)
    assert done("read", filled).plain_rows() == rows
    states = {i["instant"]: (i["action"], i["state"]) for i in done("timeline", filled, "--json").document["instants"]}
    assert states[document["restore"]] == ("restore", "completed")
    assert {states[instant] for instant in undone} == {("commit", "rolledback")}
    assert done("show", filled, "--json").document["is_healthy"]
    gone = cli("restore", filled, "--to", later, "--yes")
    assert (gone.code, made in gone.stderr) == (2, True)
    assert "0 completed write(s)" in done("restore", filled, "--to", made, "--yes").text


def test_progress_that_goes_back_is_told(done, filled):
    table = Table.open(str(filled))
    row = table.read(table.schema.names).slice(0, 1)
    made = done("savepoint", "create", filled, "--json").document["instant"]
    write_rows(table, row, Operation.UPSERT, progress=ProgressStep("feed", None, "17"))
    assert "progress feed is reset from 17 to no value" in done("restore", filled, "--to", made, "--yes").text
    assert done("show", filled, "--json").document["progress"] == {}


def test_changes_across_a_restore(done, cli, filled):
    made = done("savepoint", "create", filled, "--json").document["instant"]
    done("write", filled, "--from", "-", stdin=UPDATE)
    point = done("timeline", filled, "--json").document["instants"][0]["instant"]
    done("restore", filled, "--to", made, "--yes")
    told = cli("read", filled, "--since", point)
    assert told.code == 1
    assert "undid" in told.stderr
    assert "snapshot" in told.stderr
