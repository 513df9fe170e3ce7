"""Keys that are unique in the table: rows move between partitions, and nobody leaves a key in two of them."""

import functools

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from tests.plans import schedule_clustering
from tests.simulation.starting_point import place as copy_with_clock
from tests.unit.table.tables import cluster, compact, contents, new_table, open_table, rows_of, write

from tideline_table.action import delete_partitions, write_rows
from tideline_table.action.write.executor import ThisProcess
from tideline_table.errors import DuplicateKey, InvalidOption
from tideline_table.table import TableType
from tideline_table.writer import Operation, task

GLOBAL = {"hoodie.index.type": "GLOBAL_SIMPLE"}
STAYS = {**GLOBAL, "hoodie.simple.index.update.partition.path": "false"}
STAYS_IN_BOTH = {f"hoodie.{index}.index.update.partition.path": "false" for index in ("simple", "bloom")}
DUP = "hoodie.datasource.insert.dup.policy"
KINDS = {
    "cow": {"type": TableType.COW},
    "mor": {"type": TableType.MOR},
    "logs": {"type": TableType.MOR},
    "small files": {"type": TableType.COW},
    "filters": {"type": TableType.COW},
    "filters of logs": {"type": TableType.MOR},
}
OPTIONS = {"logs": {"tideline.insert.to.log": "true"}, "small files": {"hoodie.parquet.small.file.limit": 10**8}}
OPTIONS |= {name: {"hoodie.index.type": "GLOBAL_BLOOM"} for name in ("filters", "filters of logs")}


def options_of(kind):
    return {**GLOBAL, **OPTIONS.get(kind, {})}


@functools.cache
def prepared(kind):
    """The table of each kind is made once; each test gets a copy."""
    _, storage, clock = new_table(**KINDS[kind])
    write(open_table(storage, clock, **options_of(kind)), [("a", "p", 5, "x"), ("b", "p", 5, "x"), ("c", "q", 5, "x")])
    return storage, clock.monotonic_s()


@pytest.fixture(params=KINDS)
def place(request):
    """A table and a second one that writes to the same place."""
    _, storage, clock = copy_with_clock(prepared(request.param))
    table, other = (open_table(storage, clock, name, **options_of(request.param)) for name in ("w", "other"))
    return table, other


@pytest.fixture
def table(place):
    return place[0]


def beside(monkeypatch, act, writer="w"):
    """Calls `act` between the routing of the first attempt of that writer and its files."""
    write_files, done = ThisProcess.write, []

    def interrupted(self, work):
        if work.table.timeline.log.writer_id == writer and not done:
            done.append(1)
            act()
        return write_files(self, work)

    monkeypatch.setattr(ThisProcess, "write", interrupted)


def paths(table):
    """Key → partition paths, with a list where it is in several."""
    found = {}
    for row in table.read(["_hoodie_record_key", "_hoodie_partition_path"]).to_pylist():
        found.setdefault(row["_hoodie_record_key"], []).append(row["_hoodie_partition_path"])
    return {key: at[0] if len(at) == 1 else at for key, at in found.items()}


def test_a_row_moves_to_its_partition_in_one_commit(table):
    committed = write(table, [("a", "q", 6, "moved"), ("c", "q", 6, "stayed"), ("n", "r", 1, "new")])
    assert contents(table) == [("a", "q", 6, "moved"), ("b", "p", 5, "x"), ("c", "q", 6, "stayed"), ("n", "r", 1, "new")]
    assert paths(table) == {"a": "q", "b": "p", "c": "q", "n": "r"}
    assert (committed.rows_inserted, committed.rows_updated, committed.rows_deleted) == (2, 1, 1)
    assert {s.partition_path for s in committed.stats} == {"p", "q", "r"}


def test_it_moves_back_and_away_again(table):
    for ts, part in ((6, "q"), (7, "p"), (8, "r"), (9, "p")):
        write(table, [("a", part, ts, part)])
        assert [r for r in contents(table) if r[0] == "a"] == [("a", part, ts, part)]
        if table.definition.has_logs and ts == 7:
            compact(table)
    if table.definition.has_logs:
        compact(table)
    assert contents(table) == [("a", "p", 9, "p"), ("b", "p", 5, "x"), ("c", "q", 5, "x")]


@pytest.mark.parametrize("options", [{}, STAYS_IN_BOTH])
def test_an_older_row_changes_nothing_and_one_of_the_same_time_wins(table, options):
    write(table, [("a", "q", 4, "late"), ("c", "p", 5, "same time")], **options)
    assert contents(table) == [("a", "p", 5, "x"), ("b", "p", 5, "x"), ("c", "p", 5, "same time")]
    assert paths(table) == {"a": "p", "b": "p", "c": "q" if options else "p"}


@pytest.mark.parametrize("kind", KINDS)
def test_without_ordering_values_the_later_write_wins(kind):
    table, _, _ = new_table(ordering="", **KINDS[kind])
    write(table, [("a", "p", 5, "x")], **GLOBAL)
    write(table, [("a", "q", 1, "y")], **GLOBAL)
    assert contents(table) == [("a", "q", 1, "y")]


def test_the_ordering_value_in_a_log_counts(table):
    write(table, [("a", "p", 9, "in the log")])
    write(table, [("a", "q", 8, "late")])
    assert [r for r in contents(table) if r[0] == "a"] == [("a", "p", 9, "in the log")]


def test_rows_stay_in_their_partition_where_the_option_says_so(table):
    write(table, [("a", "q", 6, "stayed"), ("n", "q", 6, "new")], **STAYS)
    write(table, [("a", "r", 7, "again")], **STAYS)
    assert contents(table) == [("a", "r", 7, "again"), ("b", "p", 5, "x"), ("c", "q", 5, "x"), ("n", "q", 6, "new")]
    assert paths(table) == {"a": "p", "b": "p", "c": "q", "n": "q"}
    if table.definition.has_logs:
        compact(table)
    schedule_clustering(table, {"tideline.clustering.min.input.files": 1})
    cluster(table)
    assert paths(table) == {"a": "p", "b": "p", "c": "q", "n": "q"}
    assert table.read(["id"], where=pc.field("part") == "r").to_pylist() == [{"id": "a"}]
    write(table, [("a", "r", 8, "moved after all")])
    assert paths(table)["a"] == "r"


@pytest.mark.parametrize("options", [GLOBAL, STAYS])
def test_deletions_find_their_keys_wherever_they_are(table, options):
    write(table, [("a", "q", 0, ""), ("a", "r", 0, ""), ("zz", "p", 0, "")], Operation.DELETE, **options)
    assert contents(table) == [("b", "p", 5, "x"), ("c", "q", 5, "x")]
    deleted = rows_of([("b", "q", 4, ""), ("c", "p", 6, "")]).append_column("_hoodie_is_deleted", pa.array([True, True]))
    write_rows(table, deleted, Operation.UPSERT, options=options)
    assert contents(table) == [("b", "p", 5, "x")], "the older deletion loses"
    gone = rows_of([("b", "r", 0, "")]).select(["id", "part"])
    write_rows(table, rows_of([("d", "p", 1, "new")]), Operation.UPSERT, options=options, removed=gone)
    assert contents(table) == [("d", "p", 1, "new")]


def test_a_key_that_was_deleted_elsewhere_is_inserted(table):
    write(table, [("a", "p", 0, "")], Operation.DELETE)
    write(table, [("a", "q", 1, "new")])
    assert [r for r in contents(table) if r[0] == "a"] == [("a", "q", 1, "new")]
    write(table, [("a", "p", 2, "back")], Operation.INSERT, **{DUP: "drop"})
    assert [r for r in contents(table) if r[0] == "a"] == [("a", "q", 1, "new")]
    write(table, [("b", "p", 0, "")], Operation.DELETE)
    write(table, [("b", "q", 1, "new")], Operation.INSERT, **{DUP: "fail"})
    write(table, [("c", "q", 0, "")], Operation.DELETE)
    write(table, [("c", "r", 1, "new")], **STAYS)
    assert paths(table) == {"a": "q", "b": "q", "c": "r"}


@pytest.mark.parametrize("operation", [Operation.INSERT, Operation.BULK_INSERT])
def test_insert_policies_mind_all_partitions(table, operation):
    rows = [("a", "q", 9, "known"), ("n", "p", 1, "first"), ("n", "q", 2, "second")]
    with pytest.raises(DuplicateKey, match=r"1 record key\(s\)"):
        write(table, rows[:2], operation, **{DUP: "fail"})
    with pytest.raises(DuplicateKey, match="'n' occur more than once"):
        write(table, rows[1:], operation, **{DUP: "fail"})
    write(table, rows, operation, **{DUP: "drop"})
    assert contents(table) == [("a", "p", 5, "x"), ("b", "p", 5, "x"), ("c", "q", 5, "x"), ("n", "q", 2, "second")]


def test_of_rows_of_one_key_one_stays_whatever_their_partitions(table):
    write(table, [("n", "p", 2, "wins"), ("n", "q", 1, "loses"), ("a", "q", 7, "wins"), ("a", "r", 6, "loses")])
    assert [r for r in contents(table) if r[0] in "an"] == [("a", "q", 7, "wins"), ("n", "p", 2, "wins")]
    with pytest.raises(DuplicateKey, match="more than once"):
        write(table, [("m", "p", 2, ""), ("m", "q", 1, "")], **{"hoodie.combine.before.upsert": "false"})


def test_keys_that_stand_in_several_partitions_become_one(table):
    """Writers without the global index, or blind inserts, left them."""
    write(table, [("a", "q", 6, "second"), ("a", "r", 7, "third")], **{"hoodie.index.type": "SIMPLE"})
    assert len([r for r in contents(table) if r[0] == "a"]) == 3
    write(table, [("a", "q", 6, "beaten by the third")])
    assert len([r for r in contents(table) if r[0] == "a"]) == 3
    write(table, [("a", "q", 8, "one")])
    assert [r for r in contents(table) if r[0] == "a"] == [("a", "q", 8, "one")]


def test_bloom_names_the_same_index(table):
    write(table, [("a", "q", 6, "y")], **{"hoodie.index.type": "GLOBAL_BLOOM"})
    assert paths(table)["a"] == "q"
    options = {"hoodie.index.type": "GLOBAL_BLOOM", "hoodie.bloom.index.update.partition.path": "false"}
    write(table, [("a", "p", 7, "z")], **options)
    assert paths(table)["a"] == "q"
    write(table, [("a", "p", 1, "another row")], **{"hoodie.index.type": "BLOOM"})
    assert paths(table)["a"] == ["q", "p"] or paths(table)["a"] == ["p", "q"]


@pytest.mark.parametrize("index", ["PARTITIONED_RECORD_INDEX", "INMEMORY"])
def test_other_indexes_are_refused(table, index):
    with pytest.raises(InvalidOption, match="SIMPLE or GLOBAL_SIMPLE or BLOOM or GLOBAL_BLOOM"):
        write(table, [("a", "q", 6, "y")], **{"hoodie.index.type": index})


def test_a_table_without_partitions():
    table, _, _ = new_table(partitions=())
    write(table, [("a", "p", 1, "x")], **GLOBAL)
    write(table, [("a", "q", 2, "y"), ("b", "q", 2, "y")], **GLOBAL)
    assert contents(table) == [("a", "q", 2, "y"), ("b", "q", 2, "y")]


def test_two_upserts_insert_the_same_new_key_into_two_partitions(place, monkeypatch):
    table, other = place
    beside(monkeypatch, lambda: write(other, [("n", "p", 1, "theirs")]))
    assert write(table, [("n", "q", 2, "mine")]).attempts == 2
    assert [r for r in contents(table) if r[0] == "n"] == [("n", "q", 2, "mine")]


def test_into_partitions_that_nobody_knew(place, monkeypatch):
    table, other = place
    beside(monkeypatch, lambda: write(other, [("n", "new", 3, "theirs")]))
    assert write(table, [("n", "newer", 2, "mine"), ("m", "newer", 2, "mine")]).attempts == 2
    assert [r for r in contents(table) if r[0] in "nm"] == [("m", "newer", 2, "mine"), ("n", "new", 3, "theirs")]


def test_other_keys_do_not_meet(place, monkeypatch):
    table, other = place
    beside(monkeypatch, lambda: write(other, [("m", "new", 1, "theirs")]))
    assert write(table, [("n", "newer", 2, "mine")]).attempts == 1
    assert [r for r in contents(table) if r[0] in "nm"] == [("m", "new", 1, "theirs"), ("n", "newer", 2, "mine")]


def test_more_keys_than_a_commit_carries_are_looked_up_in_its_files(place, monkeypatch):
    table, other = place
    monkeypatch.setattr("tideline_table.action.write.transaction.MAX_CARRIED_HASHES", 1)
    beside(monkeypatch, lambda: write(other, [("n", "p", 1, "theirs"), ("m", "p", 1, "theirs")]))
    assert write(table, [("n", "q", 2, "mine")]).attempts == 2
    assert [r for r in contents(table) if r[0] in "nm"] == [("m", "p", 1, "theirs"), ("n", "q", 2, "mine")]


def test_a_writer_without_the_global_index_is_met(place, monkeypatch):
    """Its commit tells of keys in partitions only, which says nothing of keys in the table: they are looked up in its files."""
    table, other = place
    beside(monkeypatch, lambda: write(other, [("n", "r", 1, "theirs")], **{"hoodie.index.type": "SIMPLE"}))
    assert write(table, [("n", "q", 2, "mine")]).attempts == 2
    assert [r for r in contents(table) if r[0] == "n"] == [("n", "q", 2, "mine")]


def test_and_meets_a_global_writer_in_its_partition(place, monkeypatch):
    table, other = place
    simple = {"hoodie.index.type": "SIMPLE"}
    beside(monkeypatch, lambda: write(other, [("n", "q", 1, "theirs")]))
    assert write(table, [("n", "q", 2, "mine")], **simple).attempts == 2
    assert [r for r in contents(table) if r[0] == "n"] == [("n", "q", 2, "mine")]


def test_a_row_that_moves_is_new_where_it_goes(place, monkeypatch):
    table, other = place
    beside(monkeypatch, lambda: write(other, [("a", "q", 6, "theirs")]))
    assert write(table, [("a", "r", 7, "mine")]).attempts == 2
    assert [r for r in contents(table) if r[0] == "a"] == [("a", "r", 7, "mine")]


def test_an_update_beside_a_move(place, monkeypatch):
    table, other = place
    beside(monkeypatch, lambda: write(other, [("a", "p", 8, "theirs")]))
    assert write(table, [("a", "r", 7, "mine")]).attempts == 2
    assert [r for r in contents(table) if r[0] == "a"] == [("a", "p", 8, "theirs")]


def test_a_move_beside_an_update(place, monkeypatch):
    table, other = place
    beside(monkeypatch, lambda: write(other, [("a", "r", 8, "theirs")]))
    assert write(table, [("a", "p", 9, "mine")]).attempts == 2
    assert [r for r in contents(table) if r[0] == "a"] == [("a", "p", 9, "mine")]


def test_a_deletion_beside_a_move(place, monkeypatch):
    table, other = place
    beside(monkeypatch, lambda: write(other, [("a", "r", 8, "theirs")]))
    assert write(table, [("a", "zz", 0, "")], Operation.DELETE).attempts == 2
    assert [r for r in contents(table) if r[0] == "a"] == []


def test_keys_deleted_in_the_log_come_back_in_one_place_only(place, monkeypatch):
    """An insert where the log deleted the key must tell of it as one elsewhere does."""
    table, other = place
    write(table, [("a", "p", 0, "")], Operation.DELETE)
    beside(monkeypatch, lambda: write(other, [("a", "p", 8, "theirs")]))
    assert write(table, [("a", "r", 9, "mine")]).attempts == 2
    assert [r for r in contents(table) if r[0] == "a"] == [("a", "r", 9, "mine")]


def test_a_clustering_of_the_group_that_a_row_leaves(place, monkeypatch):
    table, other = place
    write(table, [("d", "p", 1, "x")])
    if table.definition.has_logs:
        compact(table)

    def act():
        assert schedule_clustering(other, {"tideline.clustering.min.input.files": 1}) is not None
        cluster(other)

    beside(monkeypatch, act)
    assert write(table, [("a", "r", 7, "mine")]).attempts == 2
    assert [r for r in contents(table) if r[0] == "a"] == [("a", "r", 7, "mine")]


@pytest.mark.parametrize("options", [GLOBAL, STAYS])
def test_the_partition_is_deleted_where_the_key_was_found(place, monkeypatch, options):
    table, other = place
    beside(monkeypatch, lambda: delete_partitions(other, ["p"]))
    assert write(table, [("a", "r", 7, "mine")], **options).attempts == 2
    assert contents(table) == [("a", "r", 7, "mine"), ("c", "q", 5, "x")]


@pytest.mark.parametrize("options", [GLOBAL, STAYS])
def test_the_partition_is_overwritten_with_the_key(place, monkeypatch, options):
    table, other = place
    beside(monkeypatch, lambda: write(other, [("n", "p", 6, "theirs")], Operation.INSERT_OVERWRITE))
    assert write(table, [("n", "r", 7, "mine")], **options).attempts == 2
    assert contents(table) == [("c", "q", 5, "x"), ("n", "r", 7, "mine")]


def test_what_commits_carry(place):
    table, _ = place
    body = table.timeline.log.read(write(table, [("a", "q", 6, "moved"), ("n", "r", 1, "new")]).sequence).body
    assert len(body.inserted_key_hashes_of_table) == len(body.inserted_key_hashes) == 24, "two hashes of eight bytes each"
    assert body.inserted_key_hashes_of_table != body.inserted_key_hashes
    body = table.timeline.log.read(write(table, [("m", "r", 1, "new")], **{"hoodie.index.type": "SIMPLE"}).sequence).body
    assert body.inserted_key_hashes_of_table is None
    assert body.inserted_key_hashes is not None
    body = table.timeline.log.read(write(table, [("m", "r", 2, "update")]).sequence).body
    assert body.inserted_key_hashes_of_table is None


def test_hashes_of_keys_alone_are_made_for_the_global_index_only(monkeypatch):
    asked = []
    real = task.key_hashes
    monkeypatch.setattr(task, "key_hashes", lambda partition, keys: asked.append(partition) or real(partition, keys))
    table, _, _ = new_table()
    write(table, [("a", "p", 1, "x")])
    assert asked == ["p"]
    write(table, [("a", "q", 2, "y")], **GLOBAL)
    assert sorted(asked[1:], key=str) == [None, "q"] or sorted(asked[1:], key=str) == [None, None, "p", "q"]
