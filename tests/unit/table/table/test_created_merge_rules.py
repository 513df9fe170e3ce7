"""Tables created with a merge rule: what they declare, what they do with rows, and what is refused by name."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from tests.unit.table.tables import compact

import tideline
from tideline_table.action import write_rows
from tideline_table.errors import InvalidOption, InvalidRecord, SchemaMismatch, UnsupportedTable
from tideline_table.hudi.merge_rules import MERGE_RULES
from tideline_table.hudi.properties import read_properties
from tideline_table.hudi_options import check_agrees, parse_hudi_options
from tideline_table.table import Table
from tideline_table.writer import Operation

MODELS = "org.apache.hudi.common.model."
PAYLOAD = "hoodie.datasource.write.payload.class"
ORDERING = {"postgres_debezium": (), "mysql_debezium": (), "commit_time": (), "aws_dms": ()}
SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("ts", pa.int64()),
        ("n", pa.string()),
        ("v", pa.string()),
        ("Op", pa.string()),
        ("_change_operation_type", pa.string()),
        ("_event_lsn", pa.int64()),
        ("_event_bin_file", pa.string()),
        ("_event_pos", pa.int64()),
    ]
)
PROPERTY = "hoodie.record.merge.property."
DECLARED = {
    "commit_time": {"hoodie.record.merge.mode": "COMMIT_TIME_ORDERING"},
    "event_time": {"hoodie.record.merge.mode": "EVENT_TIME_ORDERING", "hoodie.table.ordering.fields": "ts"},
    "partial_update": {
        "hoodie.record.merge.mode": "EVENT_TIME_ORDERING",
        "hoodie.table.ordering.fields": "ts",
        "hoodie.table.legacy.payload.class": MODELS + "PartialUpdateAvroPayload",
        "hoodie.table.partial.update.mode": "IGNORE_DEFAULTS",
    },
    "overwrite_non_defaults": {
        "hoodie.record.merge.mode": "COMMIT_TIME_ORDERING",
        "hoodie.table.ordering.fields": "ts",
        "hoodie.table.legacy.payload.class": MODELS + "OverwriteNonDefaultsWithLatestAvroPayload",
        "hoodie.table.partial.update.mode": "IGNORE_DEFAULTS",
    },
    "aws_dms": {
        "hoodie.record.merge.mode": "COMMIT_TIME_ORDERING",
        "hoodie.table.legacy.payload.class": MODELS + "AWSDmsAvroPayload",
        PROPERTY + "hoodie.payload.delete.field": "Op",
        PROPERTY + "hoodie.payload.delete.marker": "D",
    },
    "postgres_debezium": {
        "hoodie.record.merge.mode": "EVENT_TIME_ORDERING",
        "hoodie.table.ordering.fields": "_event_lsn",
        "hoodie.table.legacy.payload.class": MODELS + "debezium.PostgresDebeziumAvroPayload",
        "hoodie.table.partial.update.mode": "FILL_UNAVAILABLE",
        PROPERTY + "hoodie.write.partial.update.unavailable.value": "__debezium_unavailable_value",
        PROPERTY + "hoodie.payload.delete.field": "_change_operation_type",
        PROPERTY + "hoodie.payload.delete.marker": "d",
    },
    "mysql_debezium": {
        "hoodie.record.merge.mode": "EVENT_TIME_ORDERING",
        "hoodie.table.ordering.fields": "_event_bin_file,_event_pos",
        "hoodie.table.legacy.payload.class": MODELS + "debezium.MySqlDebeziumAvroPayload",
        PROPERTY + "hoodie.payload.delete.field": "_change_operation_type",
        PROPERTY + "hoodie.payload.delete.marker": "d",
    },
}
"""What Apache Hudi 1.2.0 writes into the properties of such a table of version 9."""
ORDER = "hoodie.table.ordering.fields"


def create(path: Path, rule: str = "", **more: object) -> Table:
    arguments = {"schema": SCHEMA, "key": "id", "ordering": ORDERING.get(rule, ("ts",)), "merge": rule, **more}
    return Table.open(tideline.create(path, **arguments).path)


def merging_of(table: Table) -> dict[str, str]:
    found = read_properties(table.storage)
    return {key: value for key, value in found.items() if "merge" in key or "payload" in key or "partial" in key or key == ORDER}


@pytest.mark.parametrize("rule", DECLARED)
def test_version_9_declares_what_a_rule_does_as_apache_hudi(tmp_path: Path, rule: str) -> None:
    for kind in ("cow", "mor"):
        table = create(tmp_path / kind, rule, type=kind, table_version=9)
        assert merging_of(table) == DECLARED[rule]
        assert table.definition.merge_rule.name == rule
        assert check_agrees(parse_hudi_options({PAYLOAD: table.definition.merge_rule.payload_class}), table.definition) == []


@pytest.mark.parametrize("rule", [rule for rule in MERGE_RULES if rule.name != "mysql_debezium"], ids=lambda rule: rule.name)
def test_versions_before_declare_the_payload_class(tmp_path: Path, rule) -> None:
    table = create(tmp_path / "6", rule.name)
    assert merging_of(table) == {"hoodie.compaction.payload.class": rule.payload_class}
    assert table.definition.merge_rule == rule
    table = create(tmp_path / "8", rule.name, table_version=8)
    found = merging_of(table)
    is_mode = rule.name in ("commit_time", "event_time")
    assert found["hoodie.compaction.payload.class"] == rule.payload_class
    assert found["hoodie.record.merge.mode"] == (rule.mode if is_mode else "CUSTOM")
    assert found["hoodie.record.merge.strategy.id"].startswith({"CUSTOM": "00000000"}.get(found["hoodie.record.merge.mode"], ""))
    assert table.definition.merge_rule == rule


def test_an_option_of_hudi_names_the_same_rule(tmp_path: Path) -> None:
    options = {PAYLOAD: MODELS + "PartialUpdateAvroPayload", "hoodie.write.record.merge.mode": "CUSTOM"}
    table = create(tmp_path / "t", options=options)
    assert table.definition.merge_rule.name == "partial_update"
    by_time = {"hoodie.write.record.merge.mode": "COMMIT_TIME_ORDERING"}
    assert create(tmp_path / "u", options=by_time, table_version=9).definition.merge_rule.name == "commit_time"
    with pytest.raises(InvalidOption, match=r"merge org\S+AWSDmsAvroPayload by argument"):
        create(tmp_path / "v", "aws_dms", options=options)
    with pytest.raises(InvalidOption, match="whose rows are merged by partial_update"):
        check_agrees(parse_hudi_options(by_time), table.definition)


@pytest.mark.parametrize(
    ("rule", "more", "error", "words"),
    [
        ("newest", {}, InvalidOption, "merge rule 'newest'; expected commit_time, event_time"),
        ("aws-dsm", {}, InvalidOption, "expected aws_dms"),
        ("com.example.Mine", {}, InvalidOption, "code that cannot run here"),
        ("partial_update", {"ordering": ""}, InvalidOption, "partial_update without an ordering column"),
        ("postgres_debezium", {"ordering": "ts"}, InvalidOption, "expected _event_lsn, which this rule compares"),
        ("postgres_debezium", {"type": "mor"}, UnsupportedTable, "base files and to logs differently in a table of version 6"),
        ("postgres_debezium", {"type": "mor", "table_version": 8}, UnsupportedTable, "expected a table of version 9"),
        ("mysql_debezium", {}, UnsupportedTable, "expected a table of version 9"),
        ("event_time", {"ordering": ("ts", "n")}, UnsupportedTable, "several ordering columns in a table of version 6"),
        ("event_time", {"ordering": ("ts", "n"), "table_version": 8}, UnsupportedTable, "expected a table of version 9"),
        ("commit_time", {"ordering": "ts"}, UnsupportedTable, "an ordering column beside the merge rule commit_time"),
        ("event_time", {"ordering": ("ts", "ts"), "table_version": 9}, InvalidOption, "each column once"),
        ("event_time", {"ordering": ("ts", "what"), "table_version": 9}, SchemaMismatch, "ordering column 'what'"),
        ("aws_dms", {"schema": SCHEMA.remove(4)}, SchemaMismatch, "no text column 'Op'"),
        ("aws_dms", {"schema": SCHEMA.set(4, pa.field("Op", pa.int32()))}, SchemaMismatch, "no text column 'Op'"),
    ],
)
def test_what_cannot_be_is_refused_by_name(tmp_path: Path, rule: str, more: dict[str, object], error: type, words: str) -> None:
    with pytest.raises(error, match=words):
        create(tmp_path / "t", rule, **more)
    assert not (tmp_path / "t").exists()


ROWS = pa.schema(
    [("id", pa.string()), ("ts", pa.int64()), ("n", pa.string()), ("v", pa.string()), ("_hoodie_is_deleted", pa.bool_())]
)


def put(table: Table, *rows: tuple[object, ...]) -> None:
    found = pa.Table.from_pylist(
        [dict(zip(ROWS.names, (*r, *(None, False)[len(r) - 3 :]), strict=True)) for r in rows], schema=ROWS
    )
    write_rows(Table.open(table.base_path), found, Operation.UPSERT, options={"hoodie.parquet.small.file.limit": 0})


def shown(table: Table) -> dict[str, tuple[object, ...]]:
    rows = Table.open(table.base_path).read(["id", "ts", "n", "v"]).to_pylist()
    assert len({row["id"] for row in rows}) == len(rows)
    return {row["id"]: (row["ts"], row["n"], row["v"]) for row in rows}


@pytest.mark.parametrize("kind", ["cow", "mor"])
def test_the_first_of_several_ordering_columns_that_differs_decides(tmp_path: Path, kind: str) -> None:
    table = create(tmp_path, "event_time", schema=ROWS, ordering=("ts", "n"), type=kind, table_version=9)
    put(table, *((key, 5, "m", "first") for key in "abcdefgh"), ("i", 5, "a", "x"), ("i", 5, "b", "y"), ("i", 4, "z", "z"))
    put(
        table,
        ("a", 5, "n", "later"),
        ("b", 5, "l", "earlier"),
        ("c", 6, "a", "later"),
        ("d", 4, "z", "earlier"),
        ("e", 5, "m", "tie"),
        ("f", 5, "n", None, True),
        ("g", 5, "l", None, True),
        ("h", 5, None, None, True),
    )
    expected = {
        "a": (5, "n", "later"),
        "b": (5, "m", "first"),
        "c": (6, "a", "later"),
        "d": (5, "m", "first"),
        "e": (5, "m", "tie"),
        "g": (5, "m", "first"),
        "h": (5, "m", "first"),
        "i": (5, "b", "y"),
    }
    assert shown(table) == expected
    if kind == "mor":
        assert compact(Table.open(table.base_path)) is not None
        assert shown(table) == expected
    with pytest.raises(InvalidRecord, match="null in the ordering column 'n'"):
        put(table, ("a", 7, None, "x"))


@pytest.mark.parametrize("kind", ["cow", "mor"])
def test_rows_of_one_input_merge_as_those_of_two_in_version_9(tmp_path: Path, kind: str) -> None:
    table = create(tmp_path / "partial", "partial_update", schema=ROWS, type=kind, table_version=9)
    put(table, ("a", 6, None, "v6"), ("a", 5, "n5", "v5"), ("b", 5, "n", None), ("b", 5, None, "v"))
    assert shown(table) == {"a": (6, "n5", "v6"), "b": (5, "n", "v")}
    table = create(tmp_path / "latest", "commit_time", schema=ROWS, ordering="ts", type=kind, table_version=9)
    put(table, ("a", 6, "n6", "v6"), ("a", 5, "n5", "v5"))
    assert shown(table) == {"a": (5, "n5", "v5")}
    table = create(tmp_path / "latest6", "overwrite_non_defaults", schema=ROWS, type=kind)
    put(table, ("a", 6, None, "v6"), ("a", 5, "n5", "v5"))
    assert shown(table) == {"a": (6, None, "v6")}
    put(table, ("a", 4, "n4", None))
    assert shown(table) == {"a": (4, "n4", "v6")}


def test_a_late_row_that_fills_nothing_leaves_a_row_as_it_is_in_version_9(tmp_path: Path) -> None:
    table = create(tmp_path, "partial_update", schema=ROWS, table_version=9)
    put(table, ("a", 6, "n", "v"), ("b", 6, None, "v"))
    put(table, ("a", 5, "late", None), ("b", 5, "late", None))
    times = {row["id"]: row["_hoodie_commit_time"] for row in Table.open(table.base_path).read().to_pylist()}
    assert shown(table) == {"a": (6, "n", "v"), "b": (6, "late", "v")}
    assert times["b"] > times["a"]
