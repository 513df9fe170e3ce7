"""`tideline leave`."""

import os
from unittest.mock import patch

from moto import mock_aws
from tests.real.dynamodb import CREDENTIALS

PLAN = ("--option", "hoodie.compact.inline.max.delta.commits=1")


def files_of_tideline(path):
    """The folder counts, too."""
    return list((path / ".hoodie").rglob("*tideline*"))


def test_a_shared_table_is_returned_and_its_compaction_is_run(done, merging):
    done("share", merging)
    planned = done("plan", "compaction", merging, *PLAN, "--json").document["instant"]
    rows = done("read", merging).plain_rows()
    left = done("leave", merging, "--json").document
    assert (left["run"], left["cancelled"], left["dropped_metadata"]) == ([planned], [], False)
    assert files_of_tideline(merging) == []
    assert done("read", merging).plain_rows() == rows
    assert "Apache Hudi only" in done("show", merging).text
    assert done("leave", merging).text == f"only Apache Hudi writes {merging} now\n"


def test_a_table_that_is_shared_in_dynamodb_goes_through_the_same_commands(done, merging):
    place = ("--lock-provider", "dynamodb", "--lock-place", "eu-west-1/hudi_locks/trips")
    with patch.dict(os.environ, CREDENTIALS), mock_aws():
        assert "hoodie.write.lock.dynamodb.partition_key" in done("share", merging, *place).text
        assert "lock provider dynamodb" in done("show", merging).text
        assert "managed" in done("status", merging, "--json").text
        rows = done("read", merging).plain_rows()
        done("plan", "compaction", merging, *PLAN)
        done("leave", merging)
        assert files_of_tideline(merging) == []
        assert done("read", merging).plain_rows() == rows


def test_an_exclusive_table_loses_its_metadata_table(done, filled):
    done("metadata", "create", filled, "--type", "files")
    rows = done("read", filled).plain_rows()
    assert "dropped the metadata table" in done("leave", filled).text
    assert files_of_tideline(filled) == []
    assert done("read", filled).plain_rows() == rows
    done("share", filled)
    assert done("read", filled).plain_rows() == rows


def test_what_cannot_be_undone_is_named(refused, done, merging):
    done("plan", "logcompaction", merging, "--option", "hoodie.log.compaction.blocks.threshold=2")
    done("run", "logcompaction", merging)
    assert "has a log file that a log compaction wrote" in refused("leave", merging, code=2)
