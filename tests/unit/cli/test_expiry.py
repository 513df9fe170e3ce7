"""`tideline expire`: what it shows, and what it deletes."""

from tests.unit.services.fleet import SCHEMA, write

from tideline_table.clock import ManualClock
from tideline_table.table import Table, TableRequest, create_table

DAYS = "hoodie.partition.ttl.strategy.days.retain"
OLD = ("--option", f"{DAYS}=10")


def partitions(path):
    return {one.group.partition_path for one in Table.open(path).state.latest_slices()}


def test_old_partitions_are_shown_and_then_deleted(done, tmp_path):
    path, clock = str(tmp_path / "trips"), ManualClock()  # which stands still at a time that is long gone
    create_table(path, TableRequest("trips", SCHEMA, ("id",), ("city",)), clock)
    table = Table.open(path, clock=clock)
    write(table, 0, city="oslo")
    write(Table.open(path), 10, city="rome")
    assert DAYS in done("expire", path).text
    assert "oslo: last written by" in done("expire", path, *OLD, "--dry-run").text
    assert partitions(path) == {"oslo", "rome"}
    found = done("expire", path, *OLD, "--json").document
    assert [one["path"] for one in found["partitions"]] == ["oslo"]
    assert Table.open(path).state.actions[found["instant"]].operation == "DELETE_PARTITION"
    assert partitions(path) == {"rome"}
    assert "within 10 days" in done("expire", path, *OLD).text
    assert "Example: tideline expire" in done("expire", "--help").text
