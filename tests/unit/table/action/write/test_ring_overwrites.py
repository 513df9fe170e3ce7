"""Overwrites of tables with consistent hashing: the partitions get rings with other file ids, so that later rows find visible
file groups."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.plans import schedule_clean
from tests.unit.table.index.test_bucket_index import KEYS, beside, rows
from tests.unit.table.index.test_hash_rings import SMALL, check_rings, ring_table
from tests.unit.table.tables import compact, contents, open_table, rows_of, write

from tideline_table.action import create_savepoint, delete_partitions, preview_restore, resize_rings, run_clean, write_rows
from tideline_table.action.write.transaction import WriteTransaction
from tideline_table.coordination.shared.hudi_rules import check_buckets
from tideline_table.errors import StorageError, UnsupportedTable
from tideline_table.hudi.properties import read_properties
from tideline_table.index.hash_ring import marker_path, parse_ring
from tideline_table.index.ring_store import RingStore
from tideline_table.log.resizes import kept_resizes, made_by
from tideline_table.table import Table
from tideline_table.writer import Operation

FIRST = [(f"k{n}", "pq"[n % 2], 1, "x") for n in range(24)]


def overwrite(table: Table, given: list[Any], operation: Operation = Operation.INSERT_OVERWRITE) -> str:
    table.clock.advance(1)  # type: ignore[attr-defined]
    return write_rows(table, rows_of(given), operation).instant


def started() -> tuple[Table, Any, Any]:
    table, storage, clock = ring_table()
    write(table, FIRST)
    write(table, [("k1", "q", 2, "y"), ("k2", "p", 2, "y")])
    return table, storage, clock


def test_insert_overwrite_gives_its_partitions_rings_with_other_file_ids() -> None:
    table, storage, clock = started()
    rings = table.rings()
    before = rings.of(["p", "q"])
    instant = overwrite(table, rows(KEYS[:30], 1, "new", partition="p"))
    table.refresh()
    after = table.rings().of(["p", "q"])
    assert after["q"] == before["q"]
    assert [n.value for n in after["p"].nodes] == [n.value for n in before["p"].nodes]
    assert not set(after["p"].file_ids) & set(before["p"].file_ids)
    assert (after["p"].instant, after["p"].sequence) == (instant, 1)
    assert parse_ring(storage.read(after["p"].path), after["p"].path, "p", instant) == after["p"]
    assert storage.read(marker_path(after["p"])) == b""
    assert table.state.ring_resizes[instant] == ("p",)
    check_rings(table)
    kept = [(k, p, ts, v) for k, p, ts, v in contents(table) if p == "q"]
    assert len(kept) == 12
    # Later rows, also of nodes that the overwrite left empty, are in visible file groups.
    write(table, rows(KEYS, 3, "later", partition="p"))
    compact(table)
    check_rings(table)
    found = [row for row in contents(open_table(storage, clock, "r")) if row[1] == "p"]
    assert sorted(key for key, *_ in found) == sorted(KEYS)
    assert {value for *_, value in found} == {"later"}
    check_buckets(table.state, read_properties(storage))


def test_overwriting_the_table_gives_all_partitions_other_rings() -> None:
    table, storage, clock = started()
    instant = overwrite(table, [("a", "p", 1, "new"), ("b", "r", 1, "new")], Operation.INSERT_OVERWRITE_TABLE)
    assert contents(table) == [("a", "p", 1, "new"), ("b", "r", 1, "new")]
    assert table.state.ring_resizes[instant] == ("p", "q", "r")
    write(table, FIRST)
    check_rings(table)
    assert len(contents(open_table(storage, clock, "r"))) == 26
    overwrite(table, [], Operation.INSERT_OVERWRITE_TABLE)
    assert contents(table) == []
    write(table, FIRST)
    check_rings(table)
    assert len(contents(table)) == 24


def test_rows_return_into_a_deleted_partition() -> None:
    table, storage, clock = started()
    clock.advance(1)
    delete_partitions(table, ["p"])
    assert {p for _, p, *_ in contents(table)} == {"q"}
    write(table, FIRST)
    check_rings(table)
    assert len(contents(open_table(storage, clock, "r"))) == 24


def test_a_resized_ring_keeps_its_ranges_and_is_resized_again() -> None:
    table, _storage, clock = started()
    clock.advance(1)
    assert resize_rings(table, options=SMALL).committed is not None
    nodes = len(table.rings().at("p").nodes)
    assert nodes == 8
    overwrite(table, rows(KEYS, 1, "new", partition="p"))
    table.refresh()
    assert len(table.rings().at("p").nodes) == nodes
    clock.advance(1)
    assert resize_rings(table, options=SMALL).committed is not None
    check_rings(table)
    assert len(table.rings().at("p").nodes) == 16


def test_a_query_as_of_an_earlier_time_uses_the_ring_of_that_time() -> None:
    table, _storage, _clock = started()
    before = max(table.state.actions)
    wanted = contents(table)
    overwrite(table, [], Operation.INSERT_OVERWRITE_TABLE)
    write(table, FIRST)
    assert contents(table, as_of=before) == wanted
    found = table.read(["id", "v"], where="id = 'k2'", as_of=before).to_pylist()
    assert [row["v"] for row in found] == ["y"]


def test_a_write_that_meets_an_overwrite_is_repeated_by_the_new_ring(monkeypatch: pytest.MonkeyPatch) -> None:
    table, storage, clock = started()
    other = open_table(storage, clock, "other")
    beside(monkeypatch, lambda: overwrite(other, rows(KEYS[:4], 1, "new", partition="p")))
    clock.advance(1)
    done = write_rows(table, rows_of([("later", "p", 3, "z")]), Operation.UPSERT)
    assert done.attempts == 2
    check_rings(table)
    assert ("later", "p", 3, "z") in contents(table)


@pytest.mark.parametrize("partition", ["p", "new"])
def test_an_overwrite_of_the_table_that_meets_a_write_replaces_it(monkeypatch: pytest.MonkeyPatch, partition: str) -> None:
    """Also in a partition that the overwrite does not know: otherwise its ring would stay, with replaced file ids."""
    table, storage, clock = started()
    other = open_table(storage, clock, "other")
    beside(monkeypatch, lambda: write(other, [(f"n{n}", partition, 3, "z") for n in range(8)]))
    overwrite(table, [("a", "q", 1, "new")], Operation.INSERT_OVERWRITE_TABLE)
    assert contents(table) == [("a", "q", 1, "new")]
    write(table, [(f"n{n}", partition, 4, "again") for n in range(8)])
    check_rings(table)
    assert len(contents(open_table(storage, clock, "r"))) == 9


def test_an_overwrite_that_fails_leaves_no_ring(monkeypatch: pytest.MonkeyPatch) -> None:
    table, storage, _clock = started()
    before = sorted(found.path for found in storage.list_objects(".hoodie/.bucket_index"))

    def fail(*_: object, **__: object) -> None:
        raise StorageError("the store is gone")

    with monkeypatch.context() as patched:
        patched.setattr(WriteTransaction, "commit", fail)
        with pytest.raises(StorageError):
            overwrite(table, [("a", "p", 1, "new")])
    assert sorted(found.path for found in storage.list_objects(".hoodie/.bucket_index")) == before
    assert len(contents(table)) == 24


def test_a_restore_to_before_an_overwrite_is_refused() -> None:
    table, _, _ = started()
    saved = create_savepoint(table).instant
    overwrite(table, [("a", "p", 1, "new")])
    with pytest.raises(UnsupportedTable, match="gave them other hash rings"):
        preview_restore(table, saved)


def test_cleaning_after_overwrites_deletes_replaced_files_only() -> None:
    table, storage, clock = started()
    for turn in range(4):
        overwrite(table, rows(KEYS[turn:], turn, "new", partition="p"))
        write(table, rows(KEYS[: turn + 1], turn + 3, "more", partition="p"))
    wanted = contents(table)
    schedule_clean(table, {"hoodie.cleaner.commits.retained": 1})
    assert run_clean(table) is not None
    assert contents(open_table(storage, clock, "r")) == wanted
    write(table, rows(KEYS, 9, "last", partition="p"))
    check_rings(table)


def test_a_clean_forgets_rings_that_no_query_can_ask_for() -> None:
    table, storage, clock = started()
    overwrite(table, rows(KEYS, 1, "first", partition="p"))
    saved = create_savepoint(table).instant
    states = {saved: contents(table)}
    for turn in range(6):
        made = overwrite(table, rows(KEYS[turn:], turn + 2, "new", partition="p"))
        states[made] = contents(table)
    overwrite(table, rows(KEYS, 9, "new", partition="q"))
    assert len(table.state.ring_resizes) == 8
    schedule_clean(table, {"hoodie.cleaner.commits.retained": 1})
    run_clean(table)
    table.refresh()
    made_p, made_q = ([at for at, names in table.state.ring_resizes.items() if name in names] for name in "pq")
    first, *_, last = sorted(states)[1:]
    assert made_p == [saved, first, last], "the ring of the savepoint, the one that replaced its files, and the last one"
    assert len(made_q) == 1
    RingStore(storage).delete_uncommitted(table.state.ring_resizes)
    reopened = open_table(storage, clock, "r")
    assert contents(reopened, as_of=saved) == states[saved]
    assert [row for row in contents(reopened) if row[1] == "p"] == [row for row in states[last] if row[1] == "p"]
    write(reopened, rows(KEYS, 20, "later", partition="p") + rows(KEYS, 20, "later", partition="q"))
    check_rings(reopened)
    with pytest.raises(UnsupportedTable, match="gave them other hash rings"):
        preview_restore(table, saved)


@given(
    makings=st.lists(st.sets(st.sampled_from("pqr"), min_size=1), max_size=12),
    retained=st.integers(0, 13),
    saved=st.sets(st.integers(1, 12)),
    replacing=st.sets(st.integers(1, 12)),
)
def test_the_kept_resizes_answer_for_each_state_that_can_be_read(makings, retained, saved, replacing) -> None:  # type: ignore[no-untyped-def]
    resizes = {f"{at:02}": tuple(sorted(names)) for at, names in enumerate(makings, 1)}
    kept = kept_resizes(resizes, f"{retained:02}", [f"{at:02}" for at in saved], {f"{at:02}" for at in replacing})
    for at in (*range(max(0, retained - 1), 14), *saved):
        for name in "pqr":
            assert made_by(kept, name, f"{at:02}") == made_by(resizes, name, f"{at:02}")
    needed = {made_by(resizes, name, f"{at:02}") for name in "pqr" for at in (*range(retained - 1, 14), *saved) if at > 0}
    assert set(kept) <= needed | {f"{at:02}" for at in replacing} | {at for at in resizes if at >= f"{retained:02}"}
