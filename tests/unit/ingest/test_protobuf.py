"""Protobuf behind the header of a schema registry."""

from datetime import UTC, datetime

import pyarrow as pa
import pytest
from confluent_kafka.schema_registry.serde import SchemaId
from google.protobuf import timestamp_pb2, wrappers_pb2
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from tests.unit.ingest.topics import Topics, application, open_table, run

from tideline_ingest.errors import PoisonRecord
from tideline_runtime.errors import InvalidSetting
from tideline_table.clock import SystemClock
from tideline_table.storage import MemoryStorage
from tideline_table.table import TableRequest, create_table

T0 = ("t", 0)
F = FieldDescriptorProto
COLUMNS = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("name", pa.string()),
        ("maybe", pa.int32()),
        ("raw", pa.binary()),
        ("kind", pa.string()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("note", pa.string()),
        ("tags", pa.list_(pa.string())),
        ("home", pa.struct([("street", pa.string())])),
    ]
)


def described(*more):
    """A file with the messages `shop.Other`, `shop.Order` and `shop.Order.Place`."""
    file = FileDescriptorProto(name="order.proto", package="shop", syntax="proto3")
    file.dependency.extend(["google/protobuf/timestamp.proto", "google/protobuf/wrappers.proto"])
    file.enum_type.add(name="Kind").value.add(name="UNKNOWN", number=0)
    file.enum_type[0].value.add(name="SALE", number=1)
    file.message_type.add(name="Other").field.add(name="id", number=1, type=F.TYPE_INT64, label=F.LABEL_OPTIONAL)
    order = file.message_type.add(name="Order")
    order.nested_type.add(name="Place").field.add(name="street", number=1, type=F.TYPE_STRING, label=F.LABEL_OPTIONAL)
    one, many = {"label": F.LABEL_OPTIONAL}, {"label": F.LABEL_REPEATED}
    order.field.add(name="id", number=1, type=F.TYPE_INT64, **one)
    order.field.add(name="name", number=2, type=F.TYPE_STRING, **one)
    order.oneof_decl.add(name="_maybe")
    order.field.add(name="maybe", number=3, type=F.TYPE_INT32, proto3_optional=True, oneof_index=0, **one)
    order.field.add(name="raw", number=4, type=F.TYPE_BYTES, **one)
    order.field.add(name="kind", number=5, type=F.TYPE_ENUM, type_name=".shop.Kind", **one)
    order.field.add(name="at", number=6, type=F.TYPE_MESSAGE, type_name=".google.protobuf.Timestamp", **one)
    order.field.add(name="note", number=7, type=F.TYPE_MESSAGE, type_name=".google.protobuf.StringValue", **one)
    order.field.add(name="tags", number=8, type=F.TYPE_STRING, **many)
    order.field.add(name="home", number=9, type=F.TYPE_MESSAGE, type_name=".shop.Order.Place", **one)
    for number, name in enumerate(more, 10):
        order.field.add(name=name, number=number, type=F.TYPE_STRING, **one)
    files = FileDescriptorSet()
    for known in (timestamp_pb2, wrappers_pb2):
        known.DESCRIPTOR.CopyToProto(files.file.add())
    files.file.append(file)
    return files


def message_class(files, name="shop.Order"):
    pool = DescriptorPool()
    for file in files.file:
        pool.Add(file)
    return GetMessageClass(pool.FindMessageTypeByName(name))


ORDER = message_class(described())


def framed(message, *indexes):
    return SchemaId("PROTOBUF", 7, None, list(indexes) or [1]).id_to_bytes() + message.SerializeToString()


def fed(tmp_path, *values, schema=COLUMNS, **given):
    path = tmp_path / "order.desc"
    path.write_bytes(described().SerializeToString())
    storage, topics = MemoryStorage(), Topics()
    create_table(storage.root, TableRequest("t", schema, ("id",)), SystemClock(), storage)
    for value in values:
        topics.send(T0, None, value)
    own = {"format": "protobuf_registry", "schema_files": (str(path),), "protobuf_message": "shop.Order", "batch_rows": 20}
    service, _ = application(topics, storage, tmp_path, **{**own, **given})
    run(service, bool(values))
    return sorted(open_table(storage).read(schema.names).to_pylist(), key=lambda r: r["id"])


def test_messages_become_rows(tmp_path):
    at = datetime(2026, 1, 31, 12, 30, 0, 250_000, UTC)
    full = ORDER(id=2**53 + 1, name="ä", maybe=0, raw=b"\x00\xff", kind=1, tags=["x", "y"])
    full.at.FromDatetime(at)
    full.note.value = ""
    full.home.street = "s"
    rows = fed(tmp_path, framed(full), framed(ORDER(id=1)))
    empty = {"id": 1, "name": "", "maybe": None, "raw": b"", "kind": "UNKNOWN", "at": None, "note": None, "tags": [], "home": None}
    assert rows == [
        empty,
        {
            "id": 2**53 + 1,
            "name": "ä",
            "maybe": 0,
            "raw": b"\x00\xff",
            "kind": "SALE",
            "at": at,
            "note": "",
            "tags": ["x", "y"],
            "home": {"street": "s"},
        },
    ]


NEWER = message_class(described("more"))


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"", "no message"),
        (b"\x01", "no message"),
        (b"\x00\x00\x00\x00\x07", "no message"),
        (framed(ORDER(id=1), 0), r"message \[0\] of a schema; expected shop.Order, \[1\]"),
        (framed(ORDER(id=1))[:-1], "no message"),
        (framed(ORDER(id=1)) + b"\xff", "no message"),
        (framed(NEWER(id=1, more="x")), "unexpected field 10"),
    ],
)
def test_what_is_no_such_message_is_poison(tmp_path, value, reason):
    with pytest.raises(PoisonRecord, match=reason) as caught:
        fed(tmp_path, framed(ORDER(id=2)), value)
    assert caught.value.offset == 1


def test_fields_of_newer_messages_are_ignored_on_request(tmp_path):
    rows = fed(tmp_path, framed(NEWER(id=1, more="x")), unknown_fields="ignore")
    assert [row["id"] for row in rows] == [1]


def test_a_field_that_the_table_lacks_is_poison(tmp_path):
    with pytest.raises(PoisonRecord, match="unexpected field 'name'"):
        fed(tmp_path, framed(ORDER(id=1)), schema=COLUMNS.remove(1))
    with pytest.raises(PoisonRecord, match="field 'name' has the value \"x\", which is no int64"):
        fed(tmp_path, framed(ORDER(id=1, name="x")), schema=COLUMNS.set(1, pa.field("name", pa.int64())))


@pytest.mark.parametrize("given", [{"protobuf_message": "Order"}, {"schema_files": ("/no/such.desc",)}, {"schema_files": ()}])
def test_settings_that_are_wrong(tmp_path, given):
    with pytest.raises(InvalidSetting, match=r"no message 'Order'|such.desc|schema_files"):
        fed(tmp_path, **given)
