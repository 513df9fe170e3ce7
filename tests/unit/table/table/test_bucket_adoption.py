"""Sharing of a table with Hudi's simple bucket index: number and hash fields are found in its rows, and kept.

The tables are of files and timeline that Apache Hudi's writers could have left, without a table log and without the index in
the properties; `tests/conformance/test_bucket_index.py` does the same with Apache Hudi's own tables.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.plans import schedule_compaction

from tideline_locks import open_hudi_lock
from tideline_table.action import run_compaction, write_rows
from tideline_table.errors import InvalidOption, UnsupportedTable
from tideline_table.hudi.file_names import bucket_of_file_id
from tideline_table.hudi.properties import PROPERTIES_PATH, format_properties, read_properties
from tideline_table.index import bucket
from tideline_table.index.partition_rules import FIRST_INSTANT, RULES_FOLDER, RulesFile
from tideline_table.log.sharing import HudiLockKind, Sharing
from tideline_table.table import BucketIndex, Table, TableRequest, TableType, create_table, share_table
from tideline_table.table.sharing import why_unsharable
from tideline_table.writer import Operation

SCHEMA = pa.schema([("user", pa.string()), ("page", pa.string()), ("part", pa.string()), ("ts", pa.int64())])
SHARING = Sharing(HudiLockKind.FILE_SYSTEM, expire_min=5)
OF_INDEX = (
    *("hoodie.index.type", "hoodie.index.bucket.engine", "hoodie.bucket.index.num.buckets", "hoodie.bucket.index.hash.field"),
    *("hoodie.bucket.index.partition.expressions", "hoodie.bucket.index.partition.rule.type"),
)
RULES = "^x0$,9;x1,2"


@pytest.fixture(autouse=True)
def hudis_file_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    """File ids are random UUIDs, as Apache Hudi's: of version 4."""
    made = bucket.new_bucket_file_id

    def of_version_4(*given: Any) -> str:
        found = made(*given)
        return f"{found[:14]}4{found[15:]}"

    monkeypatch.setattr(bucket, "new_bucket_file_id", of_version_4)


def rows(numbers: range, ts: int) -> pa.Table:
    columns = {
        "user": [f"u{n % 40}" for n in numbers],
        "page": [f"p{n}" for n in numbers],
        "part": [f"x{n % 2}" for n in numbers],
        "ts": [ts] * len(numbers),
    }
    return pa.table(columns, schema=SCHEMA)


def hudis(
    folder: Path,
    kind: TableType,
    numbers: range = range(120),
    buckets: int = 6,
    hash_fields: tuple[str, ...] = ("user",),
    *,
    rules: str = "",
) -> Table:
    """Return a table of which nothing shows that Tideline made it."""
    path = folder / "table"
    create_table(
        str(path),
        TableRequest(
            "t", SCHEMA, ("user", "page"), ("part",), "ts", kind, index=BucketIndex(buckets, hash_fields, partition_buckets=rules)
        ),
    )
    writer = Table.open(str(path))
    write_rows(writer, rows(numbers, 1), Operation.UPSERT)
    write_rows(writer, rows(numbers[:20], 2), Operation.UPSERT)
    writer.storage.delete_below(".hoodie/.tideline")
    writer.storage.delete_below(".hoodie/.bucket_index")
    properties = {k: v for k, v in read_properties(writer.storage).items() if k not in OF_INDEX and not k.startswith("tideline")}
    writer.storage.put(PROPERTIES_PATH, format_properties(properties, "as Hudi's"))
    return Table.open(str(path))


@pytest.mark.parametrize("kind", list(TableType))
@pytest.mark.parametrize("fields", [("user",), ("page",), ("user", "page")])
def test_number_and_hash_fields_are_found_and_kept(tmp_path: Path, kind: TableType, fields: tuple[str, ...]) -> None:
    table = hudis(tmp_path, kind, hash_fields=fields)
    assert (table.capabilities.keeps_log, table.definition.buckets) == (False, None)
    before = table.read().num_rows
    shared = share_table(table, SHARING, open_hudi_lock)
    index = shared.definition.buckets
    assert index is not None
    assert index.text == f"6 bucket(s) by {','.join(fields)}"
    assert read_properties(shared.storage)["hoodie.bucket.index.num.buckets"] == "6"
    assert shared.hudi_options()["hoodie.index.type"] == "BUCKET"
    groups = {s.group for s in shared.slices()}
    write_rows(shared, rows(range(60, 180), 3), Operation.UPSERT)
    if kind is TableType.MOR:
        schedule_compaction(shared, {"hoodie.compact.inline.max.delta.commits": 1})
        run_compaction(shared)
    found = Table.open(str(tmp_path / "table"), hudi_lock=open_hudi_lock)
    assert {s.group for s in found.slices()} >= groups
    assert found.read().num_rows == before + 60
    named = [bucket_of_file_id(name.split("_")[0]) for name in found.read()["_hoodie_file_name"].to_pylist()]
    assert named == index.buckets(found.read()["_hoodie_record_key"]).tolist()


def test_an_index_that_the_caller_names_is_checked_against_all_rows(tmp_path: Path) -> None:
    table = hudis(tmp_path, TableType.COW)
    for wrong in (BucketIndex(12, ("user",)), BucketIndex(6), BucketIndex(6, ("page",)), BucketIndex(5, ("user",))):
        with pytest.raises(UnsupportedTable, match="rows are not where it puts them"):
            share_table(table, SHARING, open_hudi_lock, wrong)
    assert not Table.open(str(tmp_path / "table")).capabilities.keeps_log
    assert "hoodie.index.type" not in read_properties(table.storage)
    shared = share_table(table, SHARING, open_hudi_lock, BucketIndex(6, ("user",)))
    assert shared.definition.index_text == "6 bucket(s) by user"
    with pytest.raises(InvalidOption, match="keeps its index"):
        share_table(shared, SHARING, open_hudi_lock, BucketIndex(6, ("user",)))


def test_few_rows_leave_a_choice_to_the_caller(tmp_path: Path) -> None:
    table = hudis(tmp_path, TableType.COW, range(2))
    with pytest.raises(InvalidOption, match="--buckets N --hash-fields"):
        share_table(table, SHARING, open_hudi_lock)
    shared = share_table(table, SHARING, open_hudi_lock, BucketIndex(6, ("user",)))
    write_rows(shared, rows(range(50), 5), Operation.UPSERT)
    assert shared.read().num_rows == 50


@pytest.mark.usefixtures("unrecorded_files")
def test_a_row_in_another_bucket_is_found_before_anything_changes(tmp_path: Path) -> None:
    table = hudis(tmp_path, TableType.COW)
    path = tmp_path / "table"
    one, other = [path / s.path for s in table.slices() if s.group.partition_path == "x0"][:2]
    one.write_bytes(other.read_bytes())
    before = {p.relative_to(path): p.read_bytes() for p in path.rglob("*") if p.is_file()}
    with pytest.raises(UnsupportedTable, match="rows are not where it puts them"):
        share_table(table, SHARING, open_hudi_lock, BucketIndex(6, ("user",)))
    assert {p.relative_to(path): p.read_bytes() for p in path.rglob("*") if p.is_file() and "probe" not in p.name} == before


@pytest.mark.parametrize("kind", list(TableType))
@pytest.mark.parametrize("fields", [("user",), ("user", "page")])
def test_numbers_by_partition_are_taken_from_the_rules_of_apache_hudi(
    tmp_path: Path, kind: TableType, fields: tuple[str, ...]
) -> None:
    table = hudis(tmp_path, kind, hash_fields=fields, rules=RULES)
    file = RulesFile("20260101000000000", RULES, 6)
    table.storage.put(file.path, file.content)
    before = table.read().num_rows
    for wrong in (BucketIndex(12, fields), BucketIndex(0, fields, "^x0$,9")):
        with pytest.raises(InvalidOption, match=r"as .*20260101000000000"):
            share_table(table, SHARING, open_hudi_lock, wrong)
    with pytest.raises(UnsupportedTable, match="by partition put them"):
        share_table(table, SHARING, open_hudi_lock, BucketIndex(6, ("page",)))
    shared = share_table(table, SHARING, open_hudi_lock)
    assert shared.definition.index_text == f"6 bucket(s) by {','.join(fields)}, by partition {RULES}"
    assert read_properties(shared.storage)["hoodie.bucket.index.partition.expressions"] == RULES
    write_rows(shared, rows(range(60, 180), 3), Operation.UPSERT)
    assert shared.read().num_rows == before + 60
    assert Counter(s.group.partition_path for s in shared.slices()) == {"x0": 9, "x1": 2}


def test_rules_that_only_writers_know_are_named_by_the_caller(tmp_path: Path) -> None:
    table = hudis(tmp_path, TableType.COW, rules=RULES)
    for wrong, said in (
        (BucketIndex(6, ("user",), "^x0$,3;x1,2"), "by partition put them"),
        (BucketIndex(6, ("user",), "^x0$,9"), "by partition put them"),
    ):
        with pytest.raises(UnsupportedTable, match=said):
            share_table(table, SHARING, open_hudi_lock, wrong)
    with pytest.raises(InvalidOption, match="without buckets"):
        share_table(table, SHARING, open_hudi_lock, BucketIndex(0, ("user",), RULES))
    assert not table.storage.list_folder(RULES_FOLDER).objects
    shared = share_table(table, SHARING, open_hudi_lock, BucketIndex(6, (), RULES))
    assert shared.definition.index_text == f"6 bucket(s) by user, by partition {RULES}"
    assert shared.storage.read(RulesFile.path_of(FIRST_INSTANT)) == RulesFile(FIRST_INSTANT, RULES, 6).content
    write_rows(shared, rows(range(60, 180), 3), Operation.UPSERT)
    with pytest.raises(InvalidOption, match="keeps its index"):
        share_table(shared, SHARING, open_hudi_lock, BucketIndex(partition_buckets=RULES))


def test_a_pending_change_of_rules_is_not_adopted(tmp_path: Path) -> None:
    table = hudis(tmp_path, TableType.COW, rules=RULES)
    for instant in ("20260101000000000", "20260102000000000"):
        file = RulesFile(instant, RULES, 6)
        table.storage.put(file.path, file.content)
    table.storage.put(".hoodie/20260102000000000.replacecommit.requested", b"")
    assert "20260102000000000" in why_unsharable(table)
    with pytest.raises(UnsupportedTable, match="20260102000000000, which is pending"):
        share_table(table, SHARING, open_hudi_lock)


def test_few_rows_leave_a_choice_of_hash_fields(tmp_path: Path) -> None:
    table = hudis(tmp_path, TableType.COW, range(1), rules="x,1")
    with pytest.raises(InvalidOption, match="one choice of hash fields"):
        share_table(table, SHARING, open_hudi_lock, BucketIndex(6, (), "x,1"))
