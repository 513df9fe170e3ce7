"""Vectors of Apache Hudi 1.2: fixed bytes in files, arrays for readers. Variants: structs of two fields."""

from __future__ import annotations

import json
import struct
from typing import Any

import pyarrow as pa
import pytest

from tideline_table.errors import CorruptMetadata, UnsupportedTable
from tideline_table.log_format.avro.decode import decode_datums, row_schema
from tideline_table.log_format.avro.node import parse_schema
from tideline_table.schema.avro import arrow_from_avro, check_writable_types
from tideline_table.schema.promotion import can_become, promoted


def declared(size: int, dimension: int = 2, item: str = "FLOAT") -> dict[str, Any]:
    return {"type": "fixed", "name": "v", "size": size, "logicalType": "vector", "dimension": dimension, "elementType": item}


def record(kind: dict[str, Any]) -> str:
    return json.dumps({"type": "record", "name": "r", "fields": [{"name": "v", "type": ["null", kind]}]})


@pytest.mark.parametrize(("item", "code"), [("FLOAT", "f"), ("DOUBLE", "d"), ("INT8", "b")])
def test_vectors_are_arrays(item: str, code: str) -> None:
    wanted, size = [[1, -2], None, [3, 4]], struct.calcsize(f"<2{code}")
    text = record(declared(size, item=item))
    kind = arrow_from_avro(text).field("v").type
    packed = [None if each is None else struct.pack(f"<2{code}", *each) for each in [[9, 9], *wanted]]
    stored = pa.array(packed, pa.binary(size)).slice(1)
    assert can_become(stored.type, kind)
    assert promoted(stored, kind).to_pylist() == wanted
    assert promoted(pa.array([None], pa.binary(size)), kind).to_pylist() == [None]
    assert promoted(stored.slice(0, 0), kind).to_pylist() == []
    datums = [b"\0" if each is None else b"\2" + each for each in packed[1:]]
    ends = [sum(map(len, datums[: at + 1])) for at in range(len(datums))]
    np = pytest.importorskip("numpy")
    node = parse_schema(text)
    begins = np.array([0, *ends[:-1]], np.int64)
    padded = b"".join(datums)
    (found,) = decode_datums(padded, begins, np.array(ends, np.int64), node, row_schema(text), {"v"})
    assert found.to_pylist() == wanted


def test_other_bytes_are_no_vectors() -> None:
    kind = pa.list_(pa.field("array", pa.float32(), nullable=False))
    assert not can_become(pa.binary(7), kind)
    assert not can_become(pa.binary(8), pa.list_(pa.string()))
    with pytest.raises(CorruptMetadata, match="vector of 3 times 'FLOAT' in 8 bytes"):
        arrow_from_avro(record(declared(8, 3)))


def test_tables_with_vectors_and_variants_are_not_written() -> None:
    for name in ("vector", "variant"):
        check_writable_types(record({"type": "fixed", "name": name, "size": 8}), "t")
    with pytest.raises(UnsupportedTable, match="VECTOR"):
        check_writable_types(record(declared(8)), "t")
    with pytest.raises(UnsupportedTable, match="VARIANT"):
        check_writable_types(record(variant()), "t")


def variant(*more: dict[str, Any]) -> dict[str, Any]:
    """As Apache Hudi 1.2 declares it on Spark 4."""
    fields = [{"name": "metadata", "type": "bytes"}, {"name": "value", "type": ["null", "bytes"]}, *more]
    return {"type": "record", "name": "variant", "fields": fields, "logicalType": "variant"}


def test_variants_are_structs_of_their_bytes_and_shredded_ones_are_refused() -> None:
    """Without its typed columns, a shredded variant would read as null."""
    (metadata, value) = arrow_from_avro(record(variant())).field("v").type
    assert (metadata.type, value.type) == (pa.binary(), pa.binary())
    with pytest.raises(UnsupportedTable, match="VARIANT that is shredded"):
        arrow_from_avro(record(variant({"name": "typed_value", "type": ["null", "long"]})))
