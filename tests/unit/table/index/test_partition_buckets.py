"""Tables whose partitions have numbers of buckets of their own: creation, writes, services, queries, and what is refused."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest
from tests.plans import schedule_clustering
from tests.unit.table.tables import Row, cluster, compact, contents, create, new_table, open_table, rows_of, set_properties, write

from tideline_locks import open_hudi_lock
from tideline_table.action import delete_partitions, write_rows
from tideline_table.clock import ManualClock, SystemClock
from tideline_table.coordination.shared.hudi_rules import hold_to_rules
from tideline_table.coordination.shared.partition_numbers import newest_rules
from tideline_table.errors import InvalidOption, TableExists, TableNotFound, UnsupportedTable
from tideline_table.hudi.file_names import bucket_of_file_id
from tideline_table.hudi.formats import WRITTEN
from tideline_table.hudi.properties import PROPERTIES_PATH, read_properties
from tideline_table.index.bucket import BucketIndex
from tideline_table.index.colocation import sampled_slices
from tideline_table.index.partition_rules import RULES_FOLDER, RulesFile
from tideline_table.log.sharing import HudiLockKind, Sharing
from tideline_table.storage import LocalStorage, MemoryStorage
from tideline_table.table import BucketIndex as NewBuckets
from tideline_table.table import Table, TableType, advise, share_table
from tideline_table.writer import Operation

RULES = "^a,8;b$,2"
KEPT = f"{RULES};.*,4"
"""With a rule for all other partitions: see `PartitionRules.closed`."""
NUMBERS = {"a1": 8, "xb": 2, "c": 4}
CONFIG = RulesFile("00000000000000", KEPT, 4)
EXPRESSIONS = "hoodie.bucket.index.partition.expressions"
KEYS = [f"k{n:03}" for n in range(80)]


@pytest.fixture(params=[TableType.COW, TableType.MOR])
def table(request: pytest.FixtureRequest) -> Table:
    found, _, _ = new_table(type=request.param, index=NewBuckets(4, partition_buckets=RULES))
    return found


def rows(keys: Iterable[str], ts: int, v: str, partitions: Iterable[str] = NUMBERS) -> list[Row]:
    return [(key, partition, ts, v) for key, partition in itertools.product(keys, partitions)]


def check_places(table: Table) -> None:
    """Every row is in the file group of its bucket of its partition, every bucket has one file group, and no key is there twice."""
    index = table.definition.buckets
    assert index is not None
    found = table.read(["id", "part", "_hoodie_file_name"]).to_pylist()
    for row in found:
        own = BucketIndex(NUMBERS[row["part"]], index.fields, index.key_fields)
        assert own.buckets(rows_of([(row["id"], "", 0, "")]).column("id")).tolist() == [bucket_of_file_id(row["_hoodie_file_name"])]
    identities = [(row["part"], row["id"]) for row in found]
    assert len(set(identities)) == len(identities)
    groups = [(s.group.partition_path, bucket_of_file_id(s.group.file_id)) for s in table.slices()]
    assert len(set(groups)) == len(groups)


def buckets_of(table: Table) -> dict[str, int]:
    found: dict[str, int] = {}
    for file_slice in table.slices():
        found[file_slice.group.partition_path] = found.get(file_slice.group.partition_path, 0) + 1
    return found


def test_each_partition_has_its_number_of_buckets_through_writes_and_services(table: Table) -> None:
    write(table, rows(KEYS[:60], 1, "a"))
    assert buckets_of(table) == NUMBERS
    write(table, rows(KEYS[40:], 2, "b"))
    write(table, rows(KEYS[:5], 0, ""), Operation.DELETE)
    write(table, rows(KEYS[10:20], 3, "c"), Operation.INSERT)
    check_places(table)
    expected = sorted(rows(KEYS[5:10] + KEYS[20:40], 1, "a") + rows(KEYS[40:], 2, "b") + rows(KEYS[10:20], 3, "c"), key=repr)
    assert contents(table) == expected
    if table.definition.has_logs:
        assert compact(table) is not None
        check_places(table)
    assert schedule_clustering(table, {"hoodie.clustering.plan.strategy.sort.columns": "v"}) is not None
    assert cluster(table) is not None
    check_places(table)
    write(table, rows(KEYS[5:10], 4, "d"), Operation.INSERT_OVERWRITE)
    write(table, rows(KEYS[7:12], 5, "e"))
    check_places(table)
    assert contents(open_table(table.storage, table.clock)) == sorted(rows(KEYS[5:7], 4, "d") + rows(KEYS[7:12], 5, "e"), key=repr)
    assert delete_partitions(table, ["a1"]) is not None
    write(table, rows(KEYS, 6, "f"))
    check_places(table)
    assert len(contents(table)) == 3 * len(KEYS)


def test_queries_leave_out_the_other_buckets_of_each_partition(table: Table) -> None:
    write(table, rows(KEYS, 1, "a"))
    write(table, rows(KEYS[:20], 2, "b"))
    for key in KEYS[::7]:
        one = table.snapshot().only(pc.field("id") == key)
        assert sorted(s.group.partition_path for s in one.slices) == sorted(NUMBERS)
        assert table.read(where=f"id = '{key}'").num_rows == 3
        assert table.snapshot().only(keys=rows_of([(key, "", 0, "")]).column("id").combine_chunks()).slices == one.slices


def test_samples_count_buckets_off_by_the_common_divisor(table: Table) -> None:
    write(table, rows(KEYS, 1, "a"))
    parts = [table.snapshot().sampled([part]).read(columns=["id", "part"]).to_pylist() for part in (0, 1)]
    keys = [{row["id"] for row in part} for part in parts]
    assert keys[0] | keys[1] == set(KEYS)
    assert not keys[0] & keys[1]
    assert sum(map(len, parts)) == 3 * len(KEYS)
    with pytest.raises(InvalidOption, match="divisor of the number of buckets, 2"):
        table.snapshot().sampled([0], 4)
    index = table.definition.buckets
    assert index is not None
    odd = replace(index, rules=type(index.rules).parse("^a,8;b$,3"))
    with pytest.raises(InvalidOption, match="partitions with 3, 4, 8 buckets"):
        sampled_slices(odd, table.slices(), [0])


def test_advice_measures_the_buckets_of_each_partition(table: Table) -> None:
    write(table, rows([f"k{n}" for n in range(2000)], 1, "a", ["a1", "xb"]))
    found = advise(table)
    assert found.index == f"4 bucket(s) by id, by partition {KEPT}"
    assert found.rows_per_bucket_skew is not None
    # Counted off by four, half of the buckets of the second partition would be empty: a skew of 2.
    assert 1 < found.rows_per_bucket_skew < 1.5


def test_a_row_in_a_bucket_of_the_other_numbers_is_found_out(table: Table) -> None:
    """Buckets 0 and 1 of two are in the range of four, and hold rows of all four."""
    write(table, rows(KEYS, 1, "a", ["xb"]))
    partition = {s.group.file_id: s for s in table.slices()}
    index = table.definition.buckets
    assert index is not None
    for file_slice in partition.values():
        keys = replace(table.snapshot(), slices=(file_slice,), buckets=None).read(columns=["_hoodie_record_key"]).column(0)
        index.in_partition("xb").check_members(file_slice.group.file_id, keys)
        with pytest.raises(UnsupportedTable, match="of other buckets"):
            index.in_partition("c").check_members(file_slice.group.file_id, keys)


def test_rules_are_kept_in_the_file_that_apache_hudi_reads_and_in_the_properties(table: Table) -> None:
    assert table.storage.read(CONFIG.path) == CONFIG.content
    assert read_properties(table.storage)[EXPRESSIONS] == KEPT
    assert read_properties(table.storage)["hoodie.bucket.index.partition.rule.type"] == "regex"
    assert table.identity is not None
    assert table.identity.index == f"4 bucket(s) by id, by partition {KEPT}"


class DyingStorage(MemoryStorage):
    """Dies before the put of one path."""

    dies_before = ""

    def put_if_absent(self, path: str, content: bytes) -> Any:
        if path == self.dies_before:
            raise KeyboardInterrupt
        return super().put_if_absent(path, content)


@pytest.mark.parametrize("last", [CONFIG.path, PROPERTIES_PATH])
def test_a_creation_that_died_is_completed_or_refused(last: str) -> None:
    clock = ManualClock()
    storage = DyingStorage(clock=clock)
    storage.dies_before = last
    with pytest.raises(KeyboardInterrupt):
        create(storage, clock, index=NewBuckets(4, partition_buckets=RULES))
    # The properties come last: a table that Apache Hudi can open has both.
    with pytest.raises(TableNotFound):
        Table.open(storage.root, storage=storage, clock=clock)
    storage.dies_before = ""
    with pytest.raises(TableExists, match="by partition"):
        create(storage, clock, index=NewBuckets(4, partition_buckets="^a,16"))
    create(storage, clock, index=NewBuckets(4, partition_buckets=" ^a,8 ; b$,2"))
    assert storage.read(CONFIG.path) == CONFIG.content
    write(open_table(storage, clock), rows(KEYS[:3], 1, "a"))


@pytest.mark.parametrize(
    ("request_", "what"),
    [
        ({"index": NewBuckets(partition_buckets=RULES)}, "without a number of buckets"),
        ({"index": NewBuckets(4, partition_buckets="(?i)a,2")}, "group"),
        ({"index": NewBuckets(4, partition_buckets=RULES), "partitions": ()}, "without partitions"),
    ],
)
def test_requests_that_cannot_be_are_refused_before_anything_is_written(request_: dict[str, Any], what: str) -> None:
    clock = ManualClock()
    storage = MemoryStorage(clock=clock)
    with pytest.raises(InvalidOption, match=what):
        create(storage, clock, **request_)
    assert not list(storage.list_objects(""))


def test_a_writer_with_other_rules_is_refused(table: Table) -> None:
    for other in ("^a,4;b$,2", "b$,2;^a,8", "^a,8"):
        with pytest.raises(InvalidOption, match="by partition"):
            write_rows(table, rows_of(rows(KEYS[:2], 1, "a")), Operation.UPSERT, options={EXPRESSIONS: other})
    write(table, rows(KEYS[:2], 1, "a"), **{EXPRESSIONS: " ^a , 8;b$,2;"})
    plain, _, _ = new_table(index=NewBuckets(4))
    with pytest.raises(InvalidOption, match=r"partition\.expressions"):
        write(plain, rows(KEYS[:2], 1, "a"), **{EXPRESSIONS: RULES})


@pytest.mark.parametrize("other", ["", "^a,4;b$,2"])
def test_rules_that_were_changed_by_hand_are_refused(table: Table, other: str) -> None:
    write(table, rows(KEYS, 1, "a"))
    properties = read_properties(table.storage)
    set_properties(
        table.storage, {**properties, EXPRESSIONS: other} if other else {k: v for k, v in properties.items() if k != EXPRESSIONS}
    )
    changed = open_table(table.storage, table.clock)
    assert changed.snapshot().buckets is None
    assert changed.read(where="id = 'k003'").num_rows == 3
    with pytest.raises(UnsupportedTable, match=r"hoodie\.properties"):
        write(changed, rows(KEYS[:2], 2, "b"))


def shared_table(folder: Path, rules: str = RULES) -> Table:
    storage, clock = LocalStorage(folder / "t"), SystemClock()
    create(storage, clock, index=NewBuckets(4, partition_buckets=rules))
    table = open_table(storage, clock)
    write(table, rows(KEYS[:20], 1, "a"))
    return share_table(table, Sharing(HudiLockKind.FILE_SYSTEM, expire_min=5), open_hudi_lock)


def test_a_shared_table_is_written_by_its_rules(tmp_path: Path) -> None:
    table = shared_table(tmp_path)
    assert table.hudi_options()[EXPRESSIONS] == KEPT
    write(table, rows(KEYS, 2, "b"))
    check_places(table)
    assert buckets_of(table) == NUMBERS
    (one,) = {s.group for s in table.snapshot().only(pc.field("id") == "k003").slices if s.group.partition_path == "c"}
    assert one.file_id.startswith("0000000")


def test_sharing_a_table_of_an_earlier_release_keeps_rules_of_hudis_writers_out(tmp_path: Path) -> None:
    """An empty text in its place makes Apache Hudi refuse them; it is no option that a writer must set."""
    storage, clock = LocalStorage(tmp_path / "t"), SystemClock()
    create(storage, clock, index=NewBuckets(4))
    set_properties(storage, {k: v for k, v in read_properties(storage).items() if k != EXPRESSIONS})
    table = share_table(open_table(storage, clock), Sharing(HudiLockKind.FILE_SYSTEM, expire_min=5), open_hudi_lock)
    assert read_properties(storage)[EXPRESSIONS] == ""
    assert EXPRESSIONS not in table.hudi_options()
    write(table, rows(KEYS[:20], 1, "a"))
    assert table.snapshot().buckets is not None


def changed_rules(table: Table, rules: str, number: int = 4, instant: str = "20991231000000000") -> RulesFile:
    """Keep the rules of an instant as Apache Hudi's procedure does."""
    found = RulesFile(instant, rules, number)
    table.storage.put(found.path, found.content)
    return found


@pytest.mark.parametrize(("rules", "number"), [("^a,4;b$,2", 4), (RULES, 8), ("", 4), ("(?i)a,2", 4)])
@pytest.mark.parametrize("kept", [RULES, ""])
def test_newer_rules_of_apache_hudi_stop_writers_and_readers_read_all(tmp_path: Path, rules: str, number: int, kept: str) -> None:
    """Numbers can shrink with all file ids in range, so readers must not leave out what the kept rules exclude."""
    if not kept and not rules:
        return
    table = shared_table(tmp_path, kept)
    write(table, rows(KEYS[:30], 2, "b"))
    changed_rules(table, rules, number)
    with pytest.raises(UnsupportedTable, match=r"partition rules.*20991231000000000\.hashing_config"):
        write(table, rows(KEYS[:30], 3, "c"))
    again = Table.open(table.base_path, hudi_lock=open_hudi_lock, clock=table.clock)
    for found in (table, again):
        assert len(found.snapshot().only(pc.field("id") == "k003").slices) == len(found.slices())
        with pytest.raises(UnsupportedTable, match="partition rules"):
            found.snapshot().sampled([0], 2)
    with pytest.raises(UnsupportedTable, match="partition rules"):
        write(again, rows(KEYS[:30], 3, "c"))
    assert contents(again) == sorted(rows(KEYS[:30], 2, "b"), key=repr)


def test_equal_rules_are_allowed_and_pending_ones_do_not_hide_others(tmp_path: Path) -> None:
    table = shared_table(tmp_path)
    same = changed_rules(table, " ^a , 8; b$,2; .*,4")
    write(table, rows(KEYS[:30], 2, "b"))
    older = changed_rules(table, "^a,4", instant="20991230000000000")
    write(table, rows(KEYS[:30], 3, "c"))
    assert [found.instant for found in newest_rules(table.storage, table.timeline.format)] == [same.instant]
    requested = f".hoodie/{same.instant}.replacecommit.requested"
    table.storage.put(requested, b"")
    assert [found.instant for found in newest_rules(table.storage, table.timeline.format)] == [same.instant, older.instant]
    with pytest.raises(UnsupportedTable, match=older.instant):
        hold_to_rules(table.storage, WRITTEN)
    table.storage.put(f".hoodie/{same.instant}.replacecommit", b"{}")
    assert not hold_to_rules(table.storage, WRITTEN)
    table.storage.delete_below(RULES_FOLDER)
    with pytest.raises(UnsupportedTable, match="and none in"):
        hold_to_rules(table.storage, WRITTEN)
