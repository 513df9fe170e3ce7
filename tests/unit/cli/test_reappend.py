"""`tideline reappend`. What it appends: `tests/unit/table/coordination/shared/test_hidden_rows.py`."""

from __future__ import annotations


def test_nothing_is_written_where_nothing_is_hidden(done, merging, snapshot):
    done("share", merging)
    before = snapshot(merging)
    assert done("reappend", merging, "--json").document["reappended"] == []
    assert done("reappend", merging).text == "no completed rewrite hides a write\n"
    assert snapshot(merging) == before


def test_a_table_that_only_apache_hudi_writes_has_to_be_shared(refused, merging, done):
    done("share", merging)
    done("leave", merging)
    assert "share it" in refused("reappend", merging, code=2)
