"""The view of a table: found once for each state, with the capabilities that follow from who writes the table."""

from tests.unit.table.shared import shared_table
from tests.unit.table.tables import new_table, open_table, write

from tideline_table.action import resize_buckets
from tideline_table.coordination.capabilities import EXCLUSIVE, SHARED
from tideline_table.table import BucketIndex

ROWS = [("a", "p", 1, "x"), ("b", "p", 1, "y")]


def test_a_view_stays_until_the_state_moves():
    table, storage, clock = new_table(index=BucketIndex(2))
    write(table, ROWS)  # the first write of a process reads the properties again
    before = table.view()
    assert table.view() is before
    write(table, ROWS)
    after = table.view()
    assert after is not before
    assert after.definition is before.definition
    resize_buckets(table, 4)
    assert (before.definition.buckets.number, table.view().definition.buckets.number) == (2, 4)
    assert open_table(storage, clock, "other").view().definition.buckets.number == 4


def test_options_of_one_write_are_in_its_view_only():
    table, _, _ = new_table()
    own = table.view({"hoodie.cleaner.commits.retained": 3})
    assert (own.state, own.definition) == (table.state, table.definition)
    assert own.options.given() == {**table.options.given(), "hoodie.cleaner.commits.retained": "3"}
    assert table.view().options is table.options


def test_a_shared_table_has_other_capabilities():
    table, _, _ = new_table()
    assert table.view().capabilities == EXCLUSIVE
    shared, storage, clock = shared_table()
    assert shared.view().capabilities == SHARED
    assert open_table(storage, clock).view().capabilities == SHARED
