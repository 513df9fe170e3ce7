"""Documents of instants whose log entries were trimmed."""

from tests.plans import schedule_clustering
from tests.unit.table.tables import new_table, write

from tideline_cli.history import instant_document
from tideline_table.action import run_clustering
from tideline_table.action.clustering.execute import cluster_group
from tideline_table.log.entry import entry_path
from tideline_table.writer import Operation


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


def test_clustering_moves_rows_and_inserts_none() -> None:
    table, storage, _ = new_table()
    for key in "ab":
        write(table, [(key, "p", 1, "x")], Operation.BULK_INSERT)
    schedule_clustering(table)
    clustered = run_clustering(table, run=lambda tasks: [cluster_group(task, storage) for task in tasks])
    assert clustered is not None
    assert (clustered.rows_inserted, sum(s.num_writes for s in clustered.stats)) == (0, 2)
    document = instant_document(table, table.state.actions[clustered.instant])
    assert (document["operation"], document["rows_inserted"], document["files"]) == ("CLUSTER", 0, 1)
