"""What the properties of tables that others wrote mean for reading."""

import pytest

from tideline_table.errors import UnsupportedTable
from tideline_table.hudi.properties import DEFAULT_PAYLOAD, OVERWRITE_PAYLOAD
from tideline_table.merge import DeletionMark, MergeMode, OpenCells, PartialUpdate
from tideline_table.table.definition import TableDefinition

MODELS = "org.apache.hudi.common.model."
EVENT_TIME_PAYLOAD = f"{MODELS}EventTimeAvroPayload"
EVENT, COMMIT = MergeMode.EVENT_TIME, MergeMode.COMMIT_TIME
EVENT_ID, COMMIT_ID = "eeb8d96f-b1e4-49fd-bbf8-28ac514178e5", "ce9acb64-bde0-424c-9b91-f6ebba25356d"
PAYLOAD_ID = "00000000-0000-0000-0000-000000000000"

MARKER = "hoodie.record.merge.property.hoodie.write.partial.update.unavailable.value"
DELETE_FIELD = "hoodie.record.merge.property.hoodie.payload.delete.field"
DELETE_MARKER = "hoodie.record.merge.property.hoodie.payload.delete.marker"
BY_PAYLOAD = PartialUpdate(OpenCells.NULLS, by_payload=True)


def definition(version, **more):
    properties = {"hoodie.table.name": "t", "hoodie.table.type": "MERGE_ON_READ", "hoodie.table.version": str(version)}
    keys = {
        "ordering": "hoodie.table.ordering.fields",
        "precombine": "hoodie.table.precombine.field",
        "payload": "hoodie.compaction.payload.class",
        "legacy": "hoodie.table.legacy.payload.class",
        "mode": "hoodie.record.merge.mode",
        "strategy": "hoodie.record.merge.strategy.id",
        "old_strategy": "hoodie.compaction.record.merger.strategy",
        "partial": "hoodie.table.partial.update.mode",
    }
    return TableDefinition.from_properties(properties | {keys.get(k, k): v for k, v in more.items()})


@pytest.mark.parametrize(
    ("version", "settings", "mode"),
    [
        # Version 6: the payload class wins over the strategy.
        (6, {"precombine": "ts", "payload": DEFAULT_PAYLOAD}, EVENT),
        (6, {"ordering": "ts", "payload": EVENT_TIME_PAYLOAD}, EVENT),
        (6, {"precombine": "ts", "payload": OVERWRITE_PAYLOAD, "strategy": EVENT_ID}, COMMIT),
        (6, {"precombine": "ts", "payload": OVERWRITE_PAYLOAD, "old_strategy": EVENT_ID}, COMMIT),
        (6, {"precombine": "ts", "payload": DEFAULT_PAYLOAD, "strategy": COMMIT_ID}, EVENT),
        (6, {"precombine": "ts", "strategy": COMMIT_ID}, COMMIT),
        (6, {"precombine": "ts", "old_strategy": COMMIT_ID}, COMMIT),
        (6, {"precombine": "ts"}, EVENT),
        (6, {}, COMMIT),
        (6, {"precombine": "ts", "payload": OVERWRITE_PAYLOAD, "mode": "EVENT_TIME_ORDERING"}, COMMIT),
        # Version 8 and later: the mode, then the strategy, then the payload class.
        (8, {"precombine": "ts", "mode": "EVENT_TIME_ORDERING"}, EVENT),
        (8, {"precombine": "ts", "mode": "COMMIT_TIME_ORDERING", "payload": DEFAULT_PAYLOAD, "strategy": EVENT_ID}, COMMIT),
        (8, {"precombine": "ts", "mode": "EVENT_TIME_ORDERING", "payload": OVERWRITE_PAYLOAD}, EVENT),
        (9, {"ordering": "ts", "mode": "EVENT_TIME_ORDERING", "legacy": DEFAULT_PAYLOAD}, EVENT),
        (9, {"mode": "EVENT_TIME_ORDERING"}, COMMIT),
        (9, {"ordering": "ts", "strategy": COMMIT_ID, "payload": DEFAULT_PAYLOAD}, COMMIT),
        (9, {"ordering": "ts", "payload": OVERWRITE_PAYLOAD}, COMMIT),
        (9, {"ordering": "ts"}, EVENT),
        (9, {"ordering": "ts", "partial": "NONE"}, EVENT),
    ],
)
def test_merge_modes(version, settings, mode):
    assert definition(version, **settings).merge_mode is mode


@pytest.mark.parametrize(
    ("version", "settings", "words"),
    [
        (6, {"payload": "com.example.Mine"}, "com.example.Mine"),
        (6, {"payload": f"{MODELS}FirstValueAvroPayload"}, "FirstValueAvroPayload"),
        (6, {"strategy": PAYLOAD_ID}, PAYLOAD_ID),
        (8, {"mode": "CUSTOM", "payload": "com.example.Mine", "strategy": PAYLOAD_ID}, "CUSTOM with com.example.Mine"),
        (9, {"strategy": PAYLOAD_ID}, PAYLOAD_ID),
        (9, {"payload": "com.example.Mine"}, "com.example.Mine"),
        (9, {"mode": "SOMETHING_NEW"}, "SOMETHING_NEW"),
        (9, {"mode": "EVENT_TIME_ORDERING", "partial": "KEEP_SOME"}, "partial.update.mode=KEEP_SOME"),
        (9, {"mode": "COMMIT_TIME_ORDERING", "hoodie.record.merge.property.delete.key": "Op"}, "merge.property.delete.key"),
    ],
)
def test_merge_rules_that_cannot_run_here(version, settings, words):
    """Only merging needs the rule: the table opens, and its base files can be read."""
    found = definition(version, ordering="ts", **settings)
    with pytest.raises(UnsupportedTable, match=words.replace(".", r"\.")):
        _ = found.merge_mode


@pytest.mark.parametrize(
    ("version", "settings", "mode", "partial"),
    [
        (9, {"mode": "EVENT_TIME_ORDERING", "partial": "IGNORE_DEFAULTS"}, EVENT, PartialUpdate(OpenCells.NULLS)),
        (9, {"mode": "COMMIT_TIME_ORDERING", "partial": "IGNORE_DEFAULTS"}, COMMIT, PartialUpdate(OpenCells.NULLS)),
        (
            9,
            {"mode": "EVENT_TIME_ORDERING", "partial": "FILL_UNAVAILABLE", MARKER: "x"},
            EVENT,
            PartialUpdate(OpenCells.MARKED, "x"),
        ),
        (9, {"mode": "EVENT_TIME_ORDERING", "partial": "FILL_UNAVAILABLE"}, EVENT, None),
        (8, {"mode": "CUSTOM", "strategy": PAYLOAD_ID, "payload": f"{MODELS}PartialUpdateAvroPayload"}, EVENT, BY_PAYLOAD),
        (6, {"payload": f"{MODELS}PartialUpdateAvroPayload"}, EVENT, BY_PAYLOAD),
        (6, {"payload": f"{MODELS}OverwriteNonDefaultsWithLatestAvroPayload"}, COMMIT, PartialUpdate(OpenCells.NULLS)),
    ],
)
def test_records_that_leave_cells_open(version, settings, mode, partial):
    found = definition(version, ordering="ts", **settings).merging
    assert (found.mode, found.partial) == (mode, partial)


def test_defaults_that_are_no_nulls_are_refused_where_defaults_leave_cells_open():
    ignoring = definition(9, mode="EVENT_TIME_ORDERING", ordering="ts", partial="IGNORE_DEFAULTS").merging
    plain = (
        '{"type": "record", "name": "t", "fields": [{"name": "a", "type": ["null", "int"], "default": null}, {"name": "b", '
        '"type": "int"%s}]}'
    )
    ignoring.check_defaults(plain % "", "t")
    ignoring.check_defaults("", "t")
    with pytest.raises(UnsupportedTable, match="column 'b' has the default 0"):
        ignoring.check_defaults(plain % ', "default": 0', "t")
    definition(9, mode="EVENT_TIME_ORDERING", ordering="ts").merging.check_defaults(plain % ', "default": 0', "t")


def test_values_that_mark_deletions():
    marked = {DELETE_FIELD: "op", DELETE_MARKER: "D"}
    assert definition(9, mode="EVENT_TIME_ORDERING", ordering="ts", **marked).merging.deletion == DeletionMark("op", "D")
    assert definition(9, mode="EVENT_TIME_ORDERING", ordering="ts").merging.deletion is None


@pytest.mark.parametrize(("key", "value"), [("hoodie.bootstrap.base.path", "s3://old/table"), ("hoodie.table.format", "iceberg")])
def test_tables_that_keep_their_rows_elsewhere(key, value):
    with pytest.raises(UnsupportedTable, match=f"{key}={value}"):
        definition(9, **{key: value})
    assert definition(9, **{key: ""}).version == 9
    assert definition(9, **{"hoodie.table.format": "native"}).version == 9


def test_payload_class_where_it_moved_to():
    assert definition(9, legacy=DEFAULT_PAYLOAD).payload_class == DEFAULT_PAYLOAD
    assert definition(9, ordering="a,b").ordering_field == "a,b"
