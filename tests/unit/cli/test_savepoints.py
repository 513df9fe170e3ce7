"""`tideline savepoint` and what the other commands show of it."""

import pytest

UPDATE = b'{"id": "b", "city": "Paris", "n": 200}\n'
KEEP_ONE = ("--option", "hoodie.cleaner.commits.retained=1")


@pytest.mark.parametrize("command", ["create", "delete", "list"])
def test_every_command_teaches_with_an_example(done, command):
    text = done("savepoint", command, "--help").text
    assert f"tideline savepoint {command}" in text.split("Example")[1]
    assert "--json" in text


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
