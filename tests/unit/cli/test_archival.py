"""Archival by hand."""

from __future__ import annotations

from tests.unit.cli.conftest import json_line

from tideline_table.table import Table

AT_ONCE = (
    "--option=hoodie.keep.min.commits=2",
    "--option=hoodie.keep.max.commits=2",
    "--option=hoodie.cleaner.commits.retained=1",
    "--option=tideline.archive.min.age=0",
)
ROW = json_line(id="b", city="Paris", n=200)


def test_plan_and_run(done, filled):
    idle = done("plan", "archival", filled).text
    assert "hoodie.keep.max.commits=30 keeps all 2 completed writes on the timeline" in idle
    assert "no archival plan is pending" in done("run", "archival", filled).text
    for _ in range(2):
        done("write", filled, "--from", "-", stdin=ROW)
    rows = done("read", filled).plain_rows()
    held = done("plan", "archival", filled, *AT_ONCE[:3]).text
    assert "ended less than 3600 s ago" in held
    planned = done("plan", "archival", filled, *AT_ONCE, "--json").document["instant"]
    assert f"archival {planned} is pending already" in done("plan", "archival", filled, *AT_ONCE).text
    ran = done("run", "archival", filled, "--instant", planned, "--json").document
    assert (ran["instant"], len(ran["archived"])) == (planned, 2)
    assert (filled / ran["file"]).exists()
    assert done("read", filled).plain_rows() == rows
    first = Table.open(str(filled)).state.archived_before
    assert f"instants before {first} are archived" in done("timeline", filled).text
    assert done("timeline", filled, "--json").document["archived_before"] == first


def test_numbers_that_do_not_fit(refused, filled):
    assert "hoodie.cleaner.commits.retained" in refused("plan", "archival", filled, "--option", "hoodie.keep.min.commits=3")


def test_a_shared_table_is_archived_by_the_other_side(done, refused, filled):
    done("share", filled)
    assert "let Apache Hudi archive it" in refused("plan", "archival", filled)
