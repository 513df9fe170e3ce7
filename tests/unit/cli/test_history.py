"""Documents of instants whose log entries were trimmed."""

from tests.unit.table.tables import new_table, write

from tideline_cli.history import instant_document
from tideline_table.log.entry import entry_path


def test_counts_of_a_trimmed_entry_come_from_the_timeline_file() -> None:
    table, storage, _ = new_table()
    write(table, [("a", "p", 1, "x")])
    done = write(table, [("a", "p", 2, "y"), ("b", "p", 2, "y")])
    record = table.state.actions[done.instant]
    expected = instant_document(table, record)
    assert (expected["rows_inserted"], expected["rows_updated"]) == (1, 1)
    storage.delete(entry_path(done.sequence))
    assert instant_document(table, record) == expected
    storage.delete(f".hoodie/{done.instant}.commit")
    assert {**expected, **dict.fromkeys(("rows_inserted", "rows_updated", "rows_deleted", "files"))} == instant_document(
        table, record
    )
