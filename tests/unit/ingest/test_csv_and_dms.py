"""Lines of CSV, numbers since the epoch, and changes of AWS DMS."""

from datetime import UTC, date, datetime, time
from decimal import Decimal

import pyarrow as pa
import pytest
from tests.unit.ingest.topics import Topics, application, ids, new_table, open_table, row, run

from tideline_ingest.csv_decoding import CsvDecoder
from tideline_ingest.decoding import JsonDecoder
from tideline_ingest.errors import PoisonRecord, Undecodable
from tideline_ingest.forms import form
from tideline_ingest.settings import CsvSettings
from tideline_runtime.errors import InvalidSetting
from tideline_table.clock import SystemClock
from tideline_table.storage import MemoryStorage
from tideline_table.table import TableRequest, create_table

T0 = ("t", 0)
COLUMNS = pa.schema(
    [
        ("id", pa.string()),
        ("n", pa.int64()),
        ("flag", pa.bool_()),
        ("price", pa.decimal128(10, 2)),
        ("day", pa.date32()),
        ("clock", pa.time64("us")),
        ("at", pa.timestamp("us", tz="UTC")),
        ("local", pa.timestamp("us")),
    ]
)
AT = datetime(2026, 1, 31, 12, 30, 0, 250_000, UTC)


def test_lines_of_every_type():
    lines = [
        '"a, ""b""\nc",7,true,12.50,2026-01-31,12:30:00,2026-01-31T14:30:00.25+02:00,2026-01-31 12:30:00.25',
        "b,,,,,,2026-01-31 12:30:00.25,2026-01-31T12:30:00.25Z\r\n",
    ]
    rows = CsvDecoder(COLUMNS, CsvSettings(), {}).decode([line.encode() for line in lines]).to_pylist()
    naive = AT.replace(tzinfo=None)
    assert tuple(rows[0].values()) == ('a, "b"\nc', 7, True, Decimal("12.50"), date(2026, 1, 31), time(12, 30), AT, naive)
    assert tuple(rows[1].values()) == ("b", None, None, None, None, None, AT, naive)
    assert CsvDecoder(COLUMNS, CsvSettings(), {}).decode([]).num_rows == 0


@pytest.mark.parametrize("kind", [pa.timestamp("us", tz="UTC"), pa.timestamp("us")])
@pytest.mark.parametrize(
    ("text", "hour"),
    [("2026-01-31", 0), ("2026-01-31 12:00", 12), ("2026-01-31T12:00:00", 12), ("2026-01-31T12:00:00.0-01:30", None), ("x", None)],
)
def test_texts_of_timestamps(kind, text, hour):
    decoder = CsvDecoder(pa.schema([("at", kind)]), CsvSettings(), {})
    if text == "x":
        with pytest.raises(Undecodable, match="'at'"):
            decoder.decode([b"x"])
        return
    expected = datetime(2026, 1, 31, 13, 30) if hour is None else datetime(2026, 1, 31, hour)
    expected = expected.replace(tzinfo=UTC) if kind.tz else expected
    assert decoder.decode([text.encode(), b'""']).to_pylist() == [{"at": expected}, {"at": None}]


def test_lines_in_another_dialect_and_order():
    settings = CsvSettings(columns=("n", "gone", "id"), delimiter="|", null="NULL")
    rows = CsvDecoder(COLUMNS, settings, {}).decode([b"7|x|", b"NULL|NULL|a|b".replace(b"|b", b"")])
    assert rows.select(["id", "n"]).to_pylist() == [{"id": "", "n": 7}, {"id": "a", "n": None}]
    assert rows.column_names == ["n", "id"]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"", "a line of 0 fields; expected 2: id, n"),
        (b"a", "a line of 1 fields"),
        (b"a,1,2", "a line of 3 fields"),
        (b"a,1\nb,2", "no line of CSV"),
        (b'"a,1', "no line of CSV"),
        (b'"a"x,1', "no line of CSV"),
        (b"\xff,1", "no line of CSV"),
        (b"a,1.5", "field 'n' has the value '1.5', which is no int64"),
        (b"a,x", "field 'n' has the value 'x'"),
    ],
)
def test_what_is_no_line_is_refused(line, reason):
    decoder = CsvDecoder(pa.schema(list(COLUMNS)[:2]), CsvSettings(), {})
    with pytest.raises(Undecodable, match=reason):
        decoder.decode([line])
    for values in ([b"a,1", line], [line, b"a,1"], [line, line]):
        with pytest.raises(Undecodable):
            decoder.decode(values)


@pytest.mark.parametrize(("name", "factor"), [("epoch_s", 1), ("epoch_ms", 10**3), ("epoch_us", 10**6), ("epoch_ns", 10**9)])
@pytest.mark.parametrize("kind", [pa.timestamp("us", tz="UTC"), pa.timestamp("us"), pa.timestamp("ms", tz="UTC")])
def test_numbers_since_the_epoch(name, factor, kind):
    at = datetime(2026, 1, 31, 12, 30, tzinfo=UTC)
    expected = at if kind.tz else at.replace(tzinfo=None)
    schema, forms = pa.schema([("at", kind)]), {"at": form(name, kind)}
    number = int(at.timestamp()) * factor
    for value, decoder in (
        (b'{"at": %d}' % number, JsonDecoder(schema, forms)),
        (b"%d" % number, CsvDecoder(schema, CsvSettings(), forms)),
    ):
        assert decoder.decode([value, value]).to_pylist() == [{"at": expected}] * 2
    with pytest.raises(Undecodable, match="'at'"):
        JsonDecoder(schema, forms).decode([b'{"at": "2026-01-31"}'])


def test_before_1970_and_out_of_reach():
    kind = pa.timestamp("us", tz="UTC")
    decoder = JsonDecoder(pa.schema([("at", kind)]), {"at": form("epoch_s", kind)})
    assert decoder.decode([b'{"at": -1}']).to_pylist() == [{"at": datetime(1969, 12, 31, 23, 59, 59, tzinfo=UTC)}]
    with pytest.raises(Undecodable, match="'at'"):
        decoder.decode([b'{"at": 9223372036854775807}'])


def test_csv_into_a_table(tmp_path):
    storage, topics = MemoryStorage(), Topics()
    new_table(storage, SystemClock(), partition_fields=())
    topics.send(T0, "a", b"a,r,1,1.5")
    topics.send(T0, "b", b"b,,2,")
    topics.send(T0, "a", None)
    service, _ = application(topics, storage, tmp_path, format="csv", tombstones="delete")
    run(service, 1)
    assert open_table(storage).read(["id", "region", "ts", "amount"]).to_pylist() == [
        {"id": "b", "region": None, "ts": 2, "amount": None}
    ]


def dms(operation, data, **metadata):
    return {"data": data, "metadata": {"record-type": "data", "operation": operation, "table-name": "orders", **metadata}}


def test_dms_as_it_writes_to_kafka(tmp_path):
    storage, topics = MemoryStorage(), Topics()
    new_table(storage, SystemClock(), partition_fields=(), ordering_field="")
    topics.send(T0, None, {"metadata": {"record-type": "control", "operation": "create-table"}})
    for key in "abc":
        topics.send(T0, None, dms("load", row(key)))
    topics.send(T0, None, dms("insert", row("d")))
    topics.send(T0, None, dms("update", row("a", 5), **{"transaction-id": 7}))
    topics.send(T0, None, dms("delete", {"id": "b"}))
    service, _ = application(topics, storage, tmp_path, envelope="dms", batch_rows=20)
    run(service, 1)
    assert ids(storage) == ["a", "c", "d"]
    assert {r["ts"] for r in open_table(storage).read(["ts"]).to_pylist()} == {5, 1}


def test_an_update_that_changes_key_or_partition_moves_the_row(tmp_path):
    """As far as DMS tells what was before (`BeforeImageSettings`)."""
    storage, topics = MemoryStorage(), Topics()
    new_table(storage, SystemClock(), ordering_field="")
    for key in "abc":
        topics.send(T0, None, dms("load", row(key)))
    topics.send(T0, None, {**dms("update", {**row("a", 2), "region": "us"}), "before-image": {"region": row("a")["region"]}})
    topics.send(T0, None, {**dms("update", row("z", 3)), "before-image": {"id": "b"}})
    topics.send(T0, None, {**dms("update", row("c", 4)), "before-image": row("c")})
    service, _ = application(topics, storage, tmp_path, envelope="dms", batch_rows=20)
    run(service, 2)
    found = open_table(storage).read(["id", "region", "ts"]).to_pylist()
    assert sorted(tuple(r.values()) for r in found) == [("a", "us", 2), ("c", row("c")["region"], 4), ("z", row("z")["region"], 3)]


@pytest.mark.parametrize("form", ["json", "csv"])
def test_dms_as_it_writes_to_s3(tmp_path, form):
    storage, topics = MemoryStorage(), Topics()
    new_table(storage, SystemClock(), partition_fields=(), ordering_field="")

    def send(operation, found):
        if form == "json":
            topics.send(T0, None, {**found, **({"Op": operation} if operation else {})})
        else:
            fields = [str(v) for v in found.values()]
            topics.send(T0, None, ",".join([operation, *fields] if operation else fields).encode())

    told = (None, "a", 1), (None, "b", 1), ("I", "c", 1), ("U", "a", 2), ("D", "b", 1), ("D", "c", 1), ("I", "c", 3)
    for operation, key, ts in told:
        send(operation, row(key, ts))
    service, _ = application(topics, storage, tmp_path, envelope="dms", format=form, batch_rows=20)
    run(service, 2)
    found = open_table(storage).read(["id", "ts"]).to_pylist()
    assert sorted((r["id"], r["ts"]) for r in found) == [("a", 2), ("c", 3)]


def test_a_table_that_has_the_operation_keeps_it(tmp_path):
    storage, topics = MemoryStorage(), Topics()
    schema = pa.schema([("Op", pa.string()), ("id", pa.string()), ("at", pa.timestamp("us", tz="UTC"))])
    create_table(storage.root, TableRequest("t", schema, ("id",), (), "at"), SystemClock(), storage)
    topics.send(T0, None, {"Op": "U", "id": "a", "at": 1_700_000_000})
    service, _ = application(topics, storage, tmp_path, envelope="dms", forms={"at": "epoch_s"})
    run(service, 1)
    assert open_table(storage).read(["Op", "id", "at"]).to_pylist() == [
        {"Op": "U", "id": "a", "at": datetime.fromtimestamp(1_700_000_000, UTC)}
    ]


def test_an_ordering_column_from_the_metadata(tmp_path):
    storage, topics = MemoryStorage(), Topics()
    schema = pa.schema([("id", pa.string()), ("n", pa.int64()), ("at", pa.timestamp("us", tz="UTC"))])
    create_table(storage.root, TableRequest("t", schema, ("id",), (), "at"), SystemClock(), storage)
    for second, n in ((2, 1), (1, 2)):
        topics.send(T0, None, dms("update", {"id": "a", "n": n}, timestamp=f"2026-01-31T12:30:0{second}.5Z"))
    service, _ = application(topics, storage, tmp_path, envelope="dms", envelope_columns={"at": "metadata.timestamp"})
    run(service, 1)
    assert open_table(storage).read(["n"]).to_pylist() == [{"n": 1}]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({"Op": "X", "id": "a"}, "field 'Op' has the value 'X'; expected one of I, U, D"),
        ({"Op": None, "id": "a"}, "field 'Op' has the value None"),
        (dms("merge", row("a")), "field 'metadata.operation' has the value 'merge'"),
        (dms("insert", None), "no object in the field 'data'"),
        (dms("insert", {**row("a"), "ts": "x"}), "field 'ts' has the value \"x\", which is no int64"),
        (dms("delete", {"region": "r"}), "id"),
        (b"[]", "a value that is no JSON object"),
        (b"{", "a value that is not JSON"),
    ],
)
def test_poison_names_the_field(tmp_path, value, reason):
    storage, topics = MemoryStorage(), Topics()
    new_table(storage, SystemClock(), partition_fields=(), ordering_field="")
    topics.send(T0, None, dms("insert", row("b")))
    topics.send(T0, None, value)
    service, _ = application(topics, storage, tmp_path, envelope="dms")
    with pytest.raises(PoisonRecord, match=reason) as caught:
        run(service, 1)
    assert caught.value.offset == 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"format": "csv", "csv": {"columns": ("id", "nope")}}, "names 'nope'"),
        ({"envelope": "dms", "format": "avro_registry"}, "format 'avro_registry' with envelope 'dms'"),
        ({"envelope": "dms", "format": "csv", "envelope_columns": {"ts": "x"}}, "with CSV"),
    ],
)
def test_settings_that_do_not_fit(tmp_path, settings, message):
    storage = MemoryStorage()
    new_table(storage, SystemClock())
    service, _ = application(Topics(), storage, tmp_path, **settings)
    with pytest.raises(InvalidSetting, match=message):
        service.start()
