import numpy as np
import pyarrow as pa
import pytest
from tests.unit.table.tables import SCHEMA, contents, new_table, rows_of, write

from tideline_table.action import write_rows
from tideline_table.errors import UnsupportedTable
from tideline_table.hudi.properties import DEFAULT_PAYLOAD, OVERWRITE_PAYLOAD
from tideline_table.merge import MergeMode, combine_input, incoming_wins, merge_mode
from tideline_table.writer import Operation

NAN = float("nan")


def combined(keys, ordering=None):
    rows = pa.table({"o": pa.array(ordering if ordering is not None else [None] * len(keys))})
    kept = combine_input(rows, pa.chunked_array([pa.array(keys)]), "o" if ordering is not None else "")
    return list(range(len(keys))) if kept is None else kept.tolist()


@pytest.mark.parametrize(
    ("keys", "ordering", "kept"),
    [
        (["a", "b"], [1, 2], [0, 1]),
        (["a", "a"], [1, 2], [1]),
        (["a", "a"], [2, 1], [0]),
        (["a", "a", "a"], [2, 2, 1], [1]),
        (["a", "a"], None, [1]),
        (["a", "b", "a", "b"], None, [2, 3]),
        (["a", "a"], [None, 1], [1]),
        (["a", "a"], [1, None], [0]),
        (["a", "a"], [None, None], [1]),
        (["a", "a"], ["x", "y"], [1]),
        (["a", "a"], [1.0, NAN], [1]),
        (["a", "a"], [NAN, 1.0], [0]),
        (["a", "a"], [NAN, None], [0]),
        (["b", "a", "b", "a"], [5, 1, 4, 2], [0, 3]),
    ],
)
def test_one_row_of_each_key_stays(keys, ordering, kept):
    assert combined(keys, ordering) == kept


def test_keys_over_several_chunks():
    keys = pa.chunked_array([["a", "b"], ["b"], ["a"]])
    rows = pa.table({"o": pa.chunked_array([[1], [9, 2], [3]])})
    assert combine_input(rows, keys, "o").tolist() == [1, 3]


@pytest.mark.parametrize(
    ("base", "incoming", "wins"),
    [
        (1, 2, True),
        (2, 2, True),
        (3, 2, False),
        (None, 2, True),
        (2, None, False),
        (None, None, True),
        (NAN, 2.0, False),
        (2.0, NAN, True),
        (NAN, NAN, True),
        (NAN, None, False),
        (None, NAN, True),
        ("a", "b", True),
    ],
)
def test_incoming_against_base(base, incoming, wins):
    kind = pa.array([v for v in (base, incoming) if v is not None] or [1]).type
    found = incoming_wins(pa.chunked_array([pa.array([base], kind)]), pa.chunked_array([pa.array([incoming], kind)]))
    assert found.dtype == np.bool_
    assert found.tolist() == [wins]


@pytest.mark.parametrize(
    ("payload", "ordering", "mode"),
    [
        (DEFAULT_PAYLOAD, "ts", MergeMode.EVENT_TIME),
        (DEFAULT_PAYLOAD, "", MergeMode.COMMIT_TIME),
        (OVERWRITE_PAYLOAD, "ts", MergeMode.COMMIT_TIME),
        (OVERWRITE_PAYLOAD, "", MergeMode.COMMIT_TIME),
        ("", "ts", MergeMode.EVENT_TIME),
        ("", "", MergeMode.COMMIT_TIME),
    ],
)
def test_mode(payload, ordering, mode):
    assert merge_mode(payload, ordering) is mode


def test_foreign_payload_code_is_refused():
    with pytest.raises(UnsupportedTable, match=r"com\.example"):
        merge_mode("com.example.Mine", "ts")


def marked(rows, deleted):
    return rows_of(rows).append_column("_hoodie_is_deleted", pa.array(deleted, pa.bool_()))


def test_event_time_on_a_table():
    table, _, _ = new_table()
    write(table, [("a", "p", 5, "five"), ("b", "p", 5, "five"), ("c", "p", None, "none")])
    write(table, [("a", "p", 4, "late"), ("b", "p", 5, "tie"), ("c", "p", 0, "zero"), ("d", "p", 1, "new")])
    assert contents(table) == [("a", "p", 5, "five"), ("b", "p", 5, "tie"), ("c", "p", 0, "zero"), ("d", "p", 1, "new")]
    write(table, [("b", "p", None, "null loses")])
    assert contents(table)[1] == ("b", "p", 5, "tie")


def test_commit_time_on_a_table():
    table, _, _ = new_table(ordering="")
    write(table, [("a", "p", 5, "five")])
    write(table, [("a", "p", 4, "later"), ("a", "p", 1, "last")])
    assert contents(table) == [("a", "p", 1, "last")]


def test_deletion_marks_follow_the_ordering_field():
    table, _, clock = new_table()
    write(table, [("a", "p", 5, "x"), ("b", "p", 5, "x"), ("c", "p", 5, "x")])
    clock.advance(1)
    late_early_and_new = marked([("a", "p", 4, "x"), ("b", "p", 6, "x"), ("n", "p", 9, "x")], [True, True, True])
    committed = write_rows(table, late_early_and_new, Operation.UPSERT, parallelism=1)
    assert [r[0] for r in contents(table)] == ["a", "c"]
    assert (committed.rows_inserted, committed.rows_updated, committed.rows_deleted) == (0, 0, 1)
    write_rows(table, marked([("c", "p", 7, "kept")], [None]), Operation.UPSERT, parallelism=1)
    assert contents(table)[1] == ("c", "p", 7, "kept")


def test_deletion_mark_loses_against_a_newer_row_of_the_same_input():
    table, _, _ = new_table()
    write_rows(table, marked([("a", "p", 2, "live"), ("a", "p", 1, "dead")], [False, True]), Operation.UPSERT, parallelism=1)
    assert contents(table) == [("a", "p", 2, "live")]


@pytest.mark.parametrize("limit", [0, 10**8])
@pytest.mark.parametrize("operation", [Operation.INSERT, Operation.BULK_INSERT])
def test_inserts_never_add_rows_marked_as_deleted(operation, limit):
    """Into a small file as into a new one."""
    table, _, clock = new_table()
    write(table, [("a", "p", 1, "x")])
    clock.advance(1)
    rows = marked([("b", "p", 1, "live"), ("c", "p", 1, "dead")], [False, True])
    write_rows(table, rows, operation, options={"hoodie.parquet.small.file.limit": limit}, parallelism=1)
    write_rows(table, rows.slice(1), operation, options={"hoodie.parquet.small.file.limit": limit}, parallelism=1)
    assert [r[0] for r in contents(table)] == ["a", "b"]


def test_meta_columns_keep_the_instant_that_wrote_the_row():
    table, _, _ = new_table()
    first = write(table, [("a", "p", 1, "x"), ("b", "p", 1, "x")])
    second = write(table, [("a", "p", 2, "y")])
    found = {r["id"]: r for r in table.read().to_pylist()}
    assert found["a"]["_hoodie_commit_time"] == second.instant
    assert found["b"]["_hoodie_commit_time"] == first.instant
    name = second.stats[0].path.rsplit("/", 1)[1]
    assert {r["_hoodie_file_name"] for r in found.values()} == {name}
    assert {r["_hoodie_partition_path"] for r in found.values()} == {"p"}
    assert {r["_hoodie_record_key"] for r in found.values()} == {"a", "b"}
    assert len({r["_hoodie_commit_seqno"] for r in found.values()}) == 2
    assert table.read().schema.names[5:] == SCHEMA.names
