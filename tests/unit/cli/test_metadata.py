"""`tideline metadata` and `tideline check`."""

from pathlib import Path

import pytest
from tests.unit.cli.conftest import json_line


@pytest.mark.parametrize("command", ["create", "drop", "list"])
def test_every_command_teaches_with_an_example(done, command):
    text = done("metadata", command, "--help").text
    assert f"tideline metadata {command}" in text.split("Example")[1]
    assert "tideline check" in done("check", "--help").text.split("Example")[1]


def test_created_listed_checked_and_dropped(done, cli, filled):
    rows = done("read", filled).plain_rows()
    assert "tideline metadata create" in done("metadata", "list", filled).text
    assert done("check", filled).text == "the data files are as committed; no metadata table\n"
    made = done("metadata", "create", filled, "--type", "files", "--json").document
    assert (made["types"], made["delta_commits"]) == (["files"], 0)
    assert done("metadata", "list", filled, "--json").document["metadata_table"] == made
    done("write", filled, "--from", "-", stdin=json_line(id="b", city="Paris", n=200))
    assert done("metadata", "list", filled, "--json").document["metadata_table"]["delta_commits"] == 1
    assert done("check", filled, "--json").document == {
        "base_path": done("show", filled, "--json").document["base_path"],
        "findings": [],
        "repaired": False,
        "is_sound": True,
    }
    done("metadata", "drop", filled)
    assert done("metadata", "list", filled, "--json").document["metadata_table"] is None
    assert len(done("read", filled).plain_rows()) == len(rows)


def test_damage_fails_the_check_until_it_is_repaired(done, cli, filled):
    done("metadata", "create", filled, "--type", "files")
    done("write", filled, "--from", "-", stdin=json_line(id="b", city="Paris", n=200))
    (log,) = [
        path for path in Path(filled, ".hoodie/metadata/files").iterdir() if ".log." in path.name and ".log.1_" not in path.name
    ]
    log.unlink()
    checked = cli("check", filled, "--json")
    assert checked.code == 1
    assert {finding["kind"] for finding in checked.document["findings"]} == {"missing file", "not listed"}
    assert "missing file" in cli("check", filled).text
    repaired = done("check", filled, "--repair", "--json").document
    assert (repaired["repaired"], repaired["is_sound"]) == (True, True)
    assert done("check", filled).text == "the data files are as committed; the metadata table agrees with the table\n"


def test_bad_requests_are_refused_in_one_line(cli, filled):
    refused = cli("metadata", "create", filled, "--type", "partition_stats")
    assert (refused.code, "partition_stats', which Tideline does not write yet" in refused.stderr) == (2, True)
    missing = cli("metadata", "drop", filled)
    assert (missing.code, "tideline metadata create" in missing.stderr) == (2, True)


def test_a_record_index_is_added_listed_and_dropped(done, cli, filled):
    made = done("metadata", "create", filled, "--type", "record_index", "--json").document
    assert made["types"] == ["files", "record_index"]
    assert [part["file_groups"] for part in made["partitions"]] == [1, 10]
    assert "record_index" in done("metadata", "list", filled).text
    rows = done("read", filled).plain_rows()
    done("write", filled, "--from", "-", stdin=json_line(id="zz", city="Paris", n=200))
    assert done("check", filled, "--json").document["is_sound"] is True
    assert len(done("read", filled).plain_rows()) == len(rows) + 1
    done("metadata", "drop", filled, "--type", "record_index")
    assert done("metadata", "list", filled, "--json").document["metadata_table"]["types"] == ["files"]
    assert cli("metadata", "drop", filled, "--type", "record_index").code == 2


def test_the_list_names_the_columns_with_statistics(done, filled):
    done("metadata", "create", filled, "--type", "column_stats", "--columns", "n")
    heading, *lines = done("metadata", "list", filled).text.splitlines()
    assert heading.split()[-1] == "COLUMNS"
    (stats,) = [line for line in lines if line.startswith("column_stats")]
    assert stats[heading.index("COLUMNS") :].strip().endswith("_hoodie_record_key, n")
