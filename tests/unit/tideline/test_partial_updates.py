"""Updates and merges that write the columns that they assign: log blocks, and what readers and services make of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tideline
from tideline_table import table as engine
from tideline_table.log_format import HeaderKey, LogBlock, scan_log

SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        ("day", pa.string()),
        ("fare", pa.float64()),
        ("note", pa.string()),
        ("updated_at", pa.int64()),
    ]
)
OPTION = "hoodie.spark.sql.merge.into.partial.updates"
FORMAT = "hoodie.logfile.data.block.format"
Change = Callable[[tideline.Table], object]
AT_ONCE = {"hoodie.compact.inline.max.delta.commits": 1, "hoodie.log.compaction.blocks.threshold": 2}


def trips(ids: str, ts: int = 1, day: str = "mon") -> pa.Table:
    rows = [{"id": i, "day": day, "fare": float(ord(i)), "note": f"first {i}", "updated_at": ts} for i in ids]
    return pa.Table.from_pylist(rows, SCHEMA)


def made(
    path: Path, mode: str = "event_time", *, on: str = "true", version: int = 9, kind: str = "mor", **options: object
) -> tideline.Table:
    named = {"tideline.column.stats.enable": "true", OPTION: on} | {key.replace("__", "."): value for key, value in options.items()}
    ordering: dict[str, Any] = {"ordering": "updated_at"} if mode == "event_time" else {}
    table = tideline.create(
        path, schema=SCHEMA, key="id", partition="day", merge=mode, type=kind, table_version=version, options=named, **ordering
    )
    table.upsert(trips("abcdef"))
    return table


def blocks(path: Path) -> list[LogBlock]:
    table = engine.Table.open(str(path))
    paths = {path for found in table.state.every_slice() for path in found.log_paths}
    return [block for each in sorted(paths) for block in scan_log(table.storage, each).blocks]


def rows(table: tideline.Table) -> list[dict[str, Any]]:
    order = [(name, "ascending") for name in ("id", "note", "fare")]
    found: list[dict[str, Any]] = table.read().sort_by(order).to_pylist()
    return found


def both(tmp_path: Path, mode: str, *changes: Change, **options: object) -> tuple[tideline.Table, tideline.Table]:
    """Make the same changes to a table with partial records and to one without, and compare the rows after each."""
    parts, whole = made(tmp_path / "parts", mode, **options), made(tmp_path / "whole", mode, on="false", **options)
    for change in changes:
        change(parts)
        change(whole)
        assert rows(parts) == rows(whole)
    assert not any(block.is_partial for block in blocks(tmp_path / "whole"))
    return parts, whole


@pytest.mark.parametrize("version", [8, 9])
@pytest.mark.parametrize("form", ["avro", "parquet"])
def test_an_update_appends_the_columns_that_it_assigns(tmp_path: Path, version: int, form: str) -> None:
    options: dict[str, Any] = {"version": version, "hoodie__logfile__data__block__format": form}
    parts, _ = both(tmp_path, "commit_time", lambda t: t.update({"fare": "fare + 1"}, "id < 'd'"), **options)
    (block,) = blocks(tmp_path / "parts")
    assert (block.is_partial, block.type.name.lower()) == (True, form)
    names = [field["name"] for field in json.loads(block.schema_json)["fields"]]
    assert [name for name in names if not name.startswith("_hoodie")] == ["fare"]
    assert len(names) == 5 + 1
    assert [row["fare"] for row in rows(parts)][:4] == [98.0, 99.0, 100.0, 100.0]


@pytest.mark.parametrize("form", ["avro", "parquet"])
@pytest.mark.parametrize("mode", ["commit_time", "event_time"])
def test_partial_records_among_other_writes_and_services(tmp_path: Path, mode: str, form: str) -> None:
    source = pa.table({"id": ["a", "b", "z"], "day": ["mon"] * 3, "fare": [5.0, 6.0, 7.0]})
    added = {"id": "source.id", "day": "source.day", "fare": "source.fare", "updated_at": 1}
    parts, _ = both(
        tmp_path,
        mode,
        lambda t: t.update({"fare": "fare + 1"}, "id < 'd'"),
        lambda t: t.update({"note": "'second'"}, "id = 'a' or id = 'e'"),
        lambda t: t.upsert(trips("b", 2)),
        lambda t: t.delete(where="id = 'c'"),
        lambda t: t.upsert(trips("c", 0)),
        lambda t: t.update({"note": "'third'"}, "id <= 'c'"),
        lambda t: (
            t.merge(source, ["id", "day"])
            .when_matched_update({"fare": "source.fare"}, condition="target.id = 'a'")
            .when_matched_update({"note": "'merged'"})
            .when_not_matched_insert(added)
            .execute()
        ),
        lambda t: t.maintenance.log_compact(options=AT_ONCE),
        lambda t: t.update({"fare": "fare * 2"}, "id = 'c' or id = 'd'"),
        lambda t: t.maintenance.compact(options=AT_ONCE),
        lambda t: t.update({"note": "'last'"}, "id = 'c' or id = 'd'"),
        hoodie__logfile__data__block__format=form,
    )
    found = blocks(tmp_path / "parts")
    assert {block.type.name.lower() for block in found} == {form, "delete"}
    merged = [block.is_partial for block in found if block.header.get(HeaderKey.COMPACTED_BLOCK_TIMES)]
    assert merged.count(True) == (2 if mode == "commit_time" else 0), "one block for each set of columns"
    assert parts.read(["note"], where="id = 'd'").to_pydict() == {"note": ["last"]}


def test_by_event_time_a_late_row_behind_an_update_changes_nothing(tmp_path: Path) -> None:
    """A reader would take the columns that a partial record lacks from a late row behind it."""
    late = trips("a", 0).set_column(3, "note", pa.array(["late"]))
    parts, _ = both(tmp_path, "event_time", lambda t: t.update({"fare": 1.0}, "id = 'a'"), lambda t: t.upsert(late))
    assert not any(block.is_partial for block in blocks(tmp_path / "parts"))
    assert parts.read(["note"], where="id = 'a'").to_pydict() == {"note": ["first a"]}


def test_a_row_that_was_deleted_and_written_again_is_updated(tmp_path: Path) -> None:
    parts, _ = both(
        tmp_path,
        "commit_time",
        lambda t: t.delete(where="id = 'a'"),
        lambda t: t.upsert(trips("a", 2)),
        lambda t: t.update({"note": "'new'"}, "id = 'a' or id = 'b'"),
        lambda t: t.maintenance.log_compact(options=AT_ONCE),
        lambda t: t.delete(where="id = 'b'"),
        lambda t: t.maintenance.compact(options=AT_ONCE),
    )
    assert parts.read(["updated_at", "note"], where="id = 'a'").to_pylist() == [{"updated_at": 2, "note": "new"}]


@pytest.mark.parametrize("mode", ["commit_time", "event_time"])
def test_history_and_changes(tmp_path: Path, mode: str) -> None:
    points: dict[str, list[str]] = {}

    def seen(table: tideline.Table) -> None:
        points.setdefault(table.path, []).append(str(engine.Table.open(table.path).newest_point()))

    steps: list[Change] = [
        seen,
        lambda t: t.update({"fare": "fare + 1"}, "id < 'c'"),
        seen,
        lambda t: t.update({"note": "'second'"}, "id = 'a'"),
    ]
    parts, whole = both(tmp_path, mode, *steps)
    for then in (0, 1):
        at = [points[table.path][then] for table in (parts, whole)]
        for read in ("past", "changes", "incremental"):
            found = [_read(table, read, point) for table, point in zip((parts, whole), at, strict=True)]
            assert found[0] == found[1]
            assert found[0]
    for table in (parts, whole):
        table.bulk_insert(trips("xyz"))
    done = parts.maintenance.cluster(options={"hoodie.clustering.inline.max.commits": 1})
    assert done.rows_rewritten == len(rows(whole)), done.reason
    assert rows(parts) == rows(whole)


def _read(table: tideline.Table, how: str, point: str) -> list[dict[str, Any]]:
    if how == "past":
        found: list[dict[str, Any]] = table.read(as_of=point).sort_by("id").to_pylist()
        return found
    rows = (table.changes(since=point) if how == "changes" else table.incremental(since=point)).read().to_pylist()
    return sorted(rows, key=str)


def test_statistics_cover_the_rows_that_readers_see(tmp_path: Path) -> None:
    parts = made(tmp_path / "parts", "commit_time")
    parts.update({"note": "'zz'"}, "id = 'a'")
    parts.update({"fare": 1000.0}, "id = 'a'")
    assert parts.read(["id"], where="note = 'zz' and fare = 1000").num_rows == 1
    parts.maintenance.log_compact(options=AT_ONCE)
    assert parts.read(["id"], where="note = 'zz' and fare = 1000").num_rows == 1
    assert parts.read(["id"], where="note = 'first b' and fare = 98").num_rows == 1


def set_fare(table: tideline.Table) -> None:
    table.update({"fare": 1.0})


def shared_and_set(table: tideline.Table) -> None:
    table.maintenance.share("filesystem")
    set_fare(table)


BUCKETS = {"hoodie__index__type": "BUCKET", "hoodie__bucket__index__num__buckets": 1}
CASES: dict[str, tuple[dict[str, Any], Change]] = {
    "by default": ({"on": "false"}, set_fare),
    "version 6": ({"version": 6}, set_fare),
    "a global index": ({"hoodie__index__type": "GLOBAL_SIMPLE"}, set_fare),
    "a record index": ({"hoodie__index__type": "RECORD_INDEX"}, set_fare),
    "cells from the stored row": ({"mode": "overwrite_non_defaults"}, set_fare),
    "change files": ({"hoodie__table__cdc__enabled": "true"}, set_fare),
    "shared, with a bucket index": (BUCKETS, shared_and_set),
}


@pytest.mark.parametrize("case", CASES)
def test_whole_rows_are_written(tmp_path: Path, case: str) -> None:
    options, change = CASES[case]
    table = made(tmp_path / "whole", **{"mode": "commit_time", **options})
    change(table)
    assert [block.is_partial for block in blocks(tmp_path / "whole")] == [False]
    assert [(row["fare"], row["note"]) for row in rows(table)] == [(1.0, f"first {i}") for i in "abcdef"]


@pytest.mark.parametrize(("options", "change"), [(BUCKETS, set_fare), ({}, shared_and_set)], ids=["a bucket index", "shared"])
def test_either_of_two_reasons_alone_gives_partial_records(tmp_path: Path, options: dict[str, Any], change: Change) -> None:
    table = made(tmp_path / "parts", "commit_time", **options)
    change(table)
    assert [block.is_partial for block in blocks(tmp_path / "parts")] == [True]
    assert [(row["fare"], row["note"]) for row in rows(table)] == [(1.0, f"first {i}") for i in "abcdef"]


def test_copy_on_write_tables_have_no_partial_records(tmp_path: Path) -> None:
    table = made(tmp_path / "whole", "commit_time", kind="cow")
    set_fare(table)
    assert not blocks(tmp_path / "whole")
    assert [(row["fare"], row["note"]) for row in rows(table)] == [(1.0, f"first {i}") for i in "abcdef"]


def test_every_column_assigned_gives_whole_rows(tmp_path: Path) -> None:
    table = made(tmp_path / "whole", "commit_time")
    table.merge(trips("ab", 3), ["id", "day"]).when_matched_update().execute()
    assert [block.is_partial for block in blocks(tmp_path / "whole")] == [False]
    assert [row["updated_at"] for row in rows(table)] == [3, 3, 1, 1, 1, 1]


def test_moved_rows_are_whole_and_the_others_partial(tmp_path: Path) -> None:
    parts, _ = both(tmp_path, "commit_time", lambda t: t.update({"day": "case when id = 'a' then 'tue' else day end", "fare": 3.0}))
    assert [block.is_partial for block in blocks(tmp_path / "parts") if block.type.name != "DELETE"] == [True]
    assert parts.read(["note"], where="day = 'tue'").to_pydict() == {"note": ["first a"]}


def test_a_row_whose_key_its_file_holds_twice_is_whole(tmp_path: Path) -> None:
    """Readers merge a record with the first row of its key, and the update may be of the second."""
    second = trips("ghh").set_column(3, "note", pa.array(["first g", "one", "two"]))
    parts, _ = both(
        tmp_path,
        "commit_time",
        lambda t: t.bulk_insert(second),
        lambda t: t.update({"fare": 9.0}, "note = 'two' or id = 'g'"),
    )
    assert [block.is_partial for block in blocks(tmp_path / "parts")] == [False, True]
    assert parts.read(["id"], where="note = 'two' and fare = 9").num_rows == 1


def test_a_row_whose_key_two_files_hold_is_whole(tmp_path: Path) -> None:
    """The row goes to both files, and a record of some columns would leave the other ones of the second row."""
    first, second = (trips("gh").set_column(3, "note", pa.array([text, "other"])) for text in ("one", "two"))
    parts, _ = both(
        tmp_path,
        "commit_time",
        lambda t: t.bulk_insert(first),
        lambda t: t.bulk_insert(second),
        lambda t: t.update({"fare": 9.0}, "note = 'two'"),
    )
    assert not any(block.is_partial for block in blocks(tmp_path / "parts"))
    assert parts.read(["id"], where="id = 'g' and fare = 9").num_rows == 2


def test_a_compaction_writes_whole_rows(tmp_path: Path) -> None:
    parts, _ = both(
        tmp_path,
        "commit_time",
        lambda t: t.update({"note": "'second'"}, "id < 'c'"),
        lambda t: t.update({"fare": 5.0}, "id = 'a'"),
        lambda t: t.maintenance.compact(options=AT_ONCE),
    )
    assert any(block.is_partial for block in blocks(tmp_path / "parts")), "of the slice before"
    assert parts.read(read_optimized=True).sort_by("id").to_pylist() == rows(parts)
    assert rows(parts)[0] == {"id": "a", "day": "mon", "fare": 5.0, "note": "second", "updated_at": 1}
