"""What others do to a table while an application feeds it."""

import io
import json

import fastavro
import pyarrow as pa
import pytest
from tests.unit.ingest.topics import application, held, ids, new_table, numbered, open_table, row, run

from tideline_ingest.decoding import fingerprint
from tideline_runtime.errors import InvalidSetting
from tideline_table.action import write_rows
from tideline_table.clock import SystemClock
from tideline_table.errors import TableFrozen
from tideline_table.writer import Operation

T0 = ("t", 0)


def add_column(storage):
    """As another writer."""
    more = pa.table({"id": ["other"], "region": ["r"], "ts": [1], "amount": [1.0], "note": ["n"]})
    write_rows(open_table(storage), more, Operation.UPSERT, options={"tideline.write.schema.evolution": "evolve"})


@pytest.mark.parametrize("form", ["json", "avro", "avro_single_object"])
def test_columns_that_a_schema_lacks_are_null_in_each_format(storage, tmp_path, form):
    """As with a registry (`test_schema_registry`), whose producers may be older than the table, too."""
    fields = [{"name": name, "type": ["null", kind]} for name, kind in (("id", "string"), ("region", "string"), ("ts", "long"))]
    avro = {"type": "record", "name": "r", "fields": fields}
    (tmp_path / "value.avsc").write_text(json.dumps(avro))
    topics = numbered(0)
    value = {name: found for name, found in row("a").items() if name != "amount"}
    datum = io.BytesIO()
    fastavro.schemaless_writer(datum, fastavro.parse_schema(avro), value)
    framed = b"\xc3\x01" + fingerprint(json.dumps(avro)) + datum.getvalue()
    topics.send(T0, "a", {"json": value, "avro": datum.getvalue(), "avro_single_object": framed}[form])
    run(application(topics, storage, tmp_path, format=form, schema_files=(tmp_path / "value.avsc",))[0], 1)
    (found,) = open_table(storage).read(["id", "ts", "amount"]).to_pylist()
    assert found == {"id": "a", "ts": 1, "amount": None}


@pytest.mark.parametrize("unknown", ["refuse", "ignore"])
def test_a_column_that_is_added_under_a_running_application_is_taken_in(storage, tmp_path, unknown):
    """It was poison, or left out, until another process started the application again."""
    topics = numbered(1)
    service, _ = application(topics, storage, tmp_path, unknown_fields=unknown)
    service.start()
    service.tick()
    add_column(storage)
    topics.send(T0, "new", {**row("new"), "note": "of the new column"})
    service.tick()
    service.stop()
    assert {r["id"]: r["note"] for r in open_table(storage).read(["id", "note"]).to_pylist()} == {
        "k0": None,
        "other": "n",
        "new": "of the new column",
    }


def test_a_table_that_changes_so_that_no_record_fits_makes_none_of_them_poison(storage, tmp_path):
    options = {"hoodie.write.set.null.for.missing.columns": "false"}
    fields = (
        '{"name": "id", "type": "string"}, {"name": "region", "type": ["null", "string"]}, {"name": "ts", "type": ["null", "long"]}'
    )
    schema = tmp_path / "value.avsc"
    schema.write_text(f'{{"type": "record", "name": "r", "fields": [{fields}, {{"name": "amount", "type": ["null", "double"]}}]}}')
    topics = numbered(1)
    service, _ = application(
        topics, storage, tmp_path, schema_files=(schema,), options=options, poison="dead_letter", dead_letter_topic="aside"
    )
    service.start()
    service.tick()
    add_column(storage)
    topics.send(T0, "new", row("new"))
    for _ in range(2):
        with pytest.raises(InvalidSetting, match="do not fit the table"):
            service.tick()
    service.stop()
    assert held(storage) == {T0: 1}


def test_a_table_that_is_made_anew_under_a_running_application_is_left_alone(storage, tmp_path):
    """It went on behind the log of the old one, and who opened the new one found the old one's state and none of its files."""
    service, _ = application(numbered(8), storage, tmp_path)
    service.start()
    service.tick()
    for folder in (".hoodie", "r"):
        storage.delete_below(folder)
    new_table(storage, SystemClock())
    with pytest.raises(TableFrozen, match="open it again"):
        service.tick()
    service.stop()
    assert held(storage) is None
    assert ids(storage) == []
    run(application(numbered(8), storage, tmp_path)[0], 2)
    assert ids(storage) == sorted(f"k{n}" for n in range(8))
