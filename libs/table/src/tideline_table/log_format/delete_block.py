"""Delete blocks, version 3 (format reference 9.7); versions 1 and 2 are only read (`kryo`).

The content is one Avro datum: a list of record key, partition path and ordering value. Each ordering value is in a wrapper record
of its type. All values of a block have one type, because readers of several releases reject or misread mixed types.
"""

from __future__ import annotations

import functools
import json
import struct
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tideline_table.errors import CorruptMetadata, InvalidRecord, SchemaMismatch, UnsupportedTable
from tideline_table.log_format.avro.cursor import PAD_BYTES, Cursor, Octets
from tideline_table.log_format.avro.decode import decode
from tideline_table.log_format.avro.encode import encode, octets_of
from tideline_table.log_format.avro.node import Node, parse_schema
from tideline_table.log_format.avro.pieces import Pieces
from tideline_table.log_format.avro.walk import branches, list_items
from tideline_table.log_format.block import BlockType, LogBlock, damaged, read_content
from tideline_table.log_format.framing import BLOCK_VERSION, block_header, frame_block
from tideline_table.log_format.kryo import KRYO_VERSIONS, Deletion, read_kryo
from tideline_table.schema import MetaField
from tideline_table.storage import Storage

_PREFIX = struct.Struct(">ii")
_BATCH_ROWS = 16_384

# In the order of the union branches after null. Each release decodes with its own list, so new branches are only appended.
_WRAPPERS: tuple[tuple[str, object, pa.DataType], ...] = (
    ("BooleanWrapper", "boolean", pa.bool_()),
    ("IntWrapper", "int", pa.int32()),
    ("LongWrapper", "long", pa.int64()),
    ("FloatWrapper", "float", pa.float32()),
    ("DoubleWrapper", "double", pa.float64()),
    ("BytesWrapper", "bytes", pa.binary()),
    ("StringWrapper", "string", pa.string()),
    ("DateWrapper", "int", pa.date32()),
    ("DecimalWrapper", "bytes", pa.decimal128(30, 15)),
    ("TimeMicrosWrapper", "long", pa.time64("us")),
    ("TimestampMicrosWrapper", "long", pa.timestamp("us", tz="UTC")),
)
_KRYO_TYPES: dict[str, pa.DataType | None] = {
    "Integer": pa.int32(),
    "Long": pa.int64(),
    "Float": pa.float32(),
    "Double": pa.float64(),
    "Boolean": pa.bool_(),
    "java.math.BigDecimal": None,
    "java.sql.Timestamp": pa.timestamp("us", tz="UTC"),
    "java.sql.Date": pa.date32(),
    "java.time.LocalDate": pa.date32(),
    "String": pa.string(),
    "Utf8": pa.string(),
}
_INT_BRANCH = 2
_ARRAY_BRANCH = len(_WRAPPERS) + 1


def _wrapper(name: str, kind: object) -> dict[str, object]:
    return {"type": "record", "name": name, "fields": [{"name": "value", "type": kind}]}


def _delete_record() -> Node:
    wrappers: list[object] = ["null", *(_wrapper(name, kind) for name, kind, _ in _WRAPPERS)]
    listed = ["null", *(name for name, _, _ in _WRAPPERS), _wrapper("LocalDateWrapper", "int")]
    array = {
        "type": "record",
        "name": "ArrayWrapper",
        "fields": [{"name": "wrappedValues", "type": ["null", {"type": "array", "items": listed}]}],
    }
    fields = [
        {"name": "recordKey", "type": ["null", "string"]},
        {"name": "partitionPath", "type": ["null", "string"]},
        {"name": "orderingVal", "type": [*wrappers, array]},
    ]
    return parse_schema(json.dumps({"type": "record", "name": "HoodieDeleteRecord", "fields": fields}))


_RECORD = _delete_record()
_KEY, _PARTITION, _ORDERING = _RECORD.children


def read_deletes(storage: Storage, block: LogBlock) -> pa.Table:
    """Read the deletions of a delete block.

    Columns: `_hoodie_record_key` and `_hoodie_partition_path` (strings), `ordering` (with the type of the values in the block; type
    null if there are none) and `commit_time_delete`. The last is true if the deletion has no ordering value (null or the int 0, as
    all of version 1), and therefore deletes all earlier records of the key. `ordering` keeps the int 0, except in blocks with
    values of another type, where it is null. Values of several ordering fields are structs. Raises `UnsupportedTable` for later
    versions and mixed types, `CorruptMetadata` for malformed content.
    """
    content = read_content(storage, block, BlockType.DELETE)
    if len(content) < _PREFIX.size:
        raise damaged(block, f"has {len(content)} bytes")
    version, length = _PREFIX.unpack_from(content)
    if version not in (*KRYO_VERSIONS, BLOCK_VERSION):
        raise UnsupportedTable(
            f"delete block version {version} at {block.offset} of {block.path!r}",
            expected=f"versions 1 to {BLOCK_VERSION}",
            remedy="compact the file group with the release that wrote it",
        )
    if length != len(content) - _PREFIX.size:
        raise damaged(block, f"claims {length} bytes and has {len(content) - _PREFIX.size}")
    try:
        datum = content[_PREFIX.size :]
        return _columns(read_kryo(datum, version)) if version in KRYO_VERSIONS else _deletions(datum)
    except CorruptMetadata as error:
        raise damaged(block, f"holds {error.found}") from error


def _deletions(datum: bytes) -> pa.Table:
    octets = Octets(datum)
    cursor = Cursor(octets, np.array([PAD_BYTES]), np.array([octets.limit]))
    items, _ = list_items(_RECORD, cursor)
    if cursor.position[0] != octets.limit:
        raise CorruptMetadata("bytes after the list of deletions", expected="one list")
    keys = decode(_KEY, pa.string(), items)
    if keys.null_count:
        raise CorruptMetadata("a deletion without a record key", expected="a key in every deletion")
    partitions = decode(_PARTITION, pa.string(), items)
    ordering, commit_time = _ordering_values(items)
    columns = {
        MetaField.RECORD_KEY.value: keys,
        MetaField.PARTITION_PATH.value: partitions,
        "ordering": ordering,
        "commit_time_delete": commit_time,
    }
    return pa.table(columns)


def _columns(deletions: Sequence[Deletion]) -> pa.Table:
    """Return the deletions of a block that is serialised by Kryo."""
    none = [kind is None or (kind == "Integer" and value == 0) for _, _, kind, value in deletions]
    kinds = {_KRYO_TYPES[kind] for _, _, kind, _ in deletions if kind is not None}
    skipped = [False] * len(none)
    if len(kinds) > 1:
        kinds = {_KRYO_TYPES[kind] for (_, _, kind, _), absent in zip(deletions, none, strict=True) if kind and not absent}
        skipped = none
    if len(kinds) > 1:
        names = ", ".join(sorted({kind for _, _, kind, _ in deletions if kind}))
        raise UnsupportedTable(f"deletions with ordering values of several types ({names})", expected="one type in a block")
    values = [None if skip else value for (*_, value), skip in zip(deletions, skipped, strict=True)]
    try:
        # The precision and scale of decimals are those that the values need.
        ordering = pa.array(values, kinds.pop() if kinds else pa.null())
    except (pa.ArrowException, OverflowError) as error:
        raise CorruptMetadata(f"impossible ordering values ({error})", expected="ordering values in range") from None
    columns = {
        MetaField.RECORD_KEY.value: pa.array([key for key, *_ in deletions], pa.string()),
        MetaField.PARTITION_PATH.value: pa.array([path for _, path, *_ in deletions], pa.string()),
        "ordering": ordering,
        "commit_time_delete": pa.array(none, pa.bool_()),
    }
    return pa.table(columns)


def _ordering_values(items: Cursor) -> tuple[pa.Array, pa.Array]:
    """Return the ordering values in their own type, and a mask of the deletions without an ordering value."""
    taken = branches(_ORDERING, items, None)
    present = set(np.unique(taken).tolist()) - {0}
    commit_time = taken == 0
    values: dict[int, pa.Array] = {}
    for branch in sorted(present):
        if branch == _ARRAY_BRANCH:
            values[branch] = _several_values(items, taken == branch)
            continue
        wrapped = _ORDERING.children[branch].children[0]
        values[branch] = decode(wrapped, _WRAPPERS[branch - 1][2], items, taken == branch, nulls=True)
    if _INT_BRANCH in values:
        commit_time |= pc.equal(values[_INT_BRANCH], 0).fill_null(False).to_numpy(zero_copy_only=False)
        if len(values) > 1 and commit_time[taken == _INT_BRANCH].all():
            del values[_INT_BRANCH]
    if len(values) > 1:
        names = ", ".join(_WRAPPERS[branch - 1][0] if branch < _ARRAY_BRANCH else "ArrayWrapper" for branch in values)
        raise UnsupportedTable(f"deletions with ordering values of several types ({names})", expected="one type in a block")
    ordering = next(iter(values.values()), pa.nulls(len(items)))
    return ordering, pa.array(commit_time, pa.bool_())


def _several_values(items: Cursor, mask: np.ndarray) -> pa.Array:
    """Return the values of several ordering fields as structs with members `"0"`, `"1"`, …; null for rows outside `mask`."""
    wrapped = _ORDERING.children[_ARRAY_BRANCH].children[0]
    if (branches(wrapped, items, mask)[mask] != 1).any():
        raise CorruptMetadata("a deletion without its ordering values", expected="a value for each ordering field")
    listed = wrapped.children[1].children[0]
    found, counts = list_items(listed, items, mask)
    rows = int(mask.sum())
    fields = int(counts[mask][0])
    if (counts[mask] != fields).any() or not fields:
        raise CorruptMetadata("deletions with different numbers of ordering values", expected="a value for each ordering field")
    members = [_member(listed, found.part(np.arange(rows) * fields + field)) for field in range(fields)]
    dense = pa.StructArray.from_arrays(members, names=[str(field) for field in range(fields)])
    places = np.cumsum(mask) - 1
    return dense.take(pa.array(places, mask=~mask))


def _member(listed: Node, values: Cursor) -> pa.Array:
    """Decode the values of one of several ordering fields. All values of a field have one type, or are null."""
    taken = branches(listed, values, None)
    kinds = set(np.unique(taken).tolist()) - {0}
    if len(kinds) > 1:
        raise UnsupportedTable("deletions with ordering values of several types", expected="one type for each ordering field")
    if not kinds:
        return pa.nulls(len(values))
    branch = kinds.pop()
    kind = _WRAPPERS[branch - 1][2] if branch <= len(_WRAPPERS) else pa.date32()
    return decode(listed.children[branch].children[0], kind, values, taken == branch, nulls=True)


def delete_block(
    keys: pa.Array, partition_path: str, ordering: pa.Array | None, avro_schema_json: str, instant: str, merged: Sequence[str] = ()
) -> bytes:
    """Return a block that deletes the record `keys` of a partition, written by `instant`; `merged` as for `avro_block`.

    `ordering` holds a value for each key, a struct for several ordering fields. With None, the deletions apply to all earlier
    records of the keys. Raises `InvalidRecord` for null keys or ordering values, and `SchemaMismatch` for an ordering type that the
    format lacks.
    """
    if ordering is None:
        ordering = pa.repeat(pa.scalar(0, pa.int32()), len(keys))
    keys, ordering = _one_chunk(keys), _one_chunk(ordering)
    if len(ordering) != len(keys) or keys.null_count or has_nulls(ordering):
        raise InvalidRecord(
            "deletions with a null or missing key or ordering value", expected="a key and an ordering value in each"
        )
    members = _wrapped_members(ordering)
    keys = keys.cast(pa.string())
    parts = [_varint(len(keys))] if len(keys) else []
    bounds = [*range(0, len(keys), _BATCH_ROWS), len(keys)]
    for first, last in pairwise(bounds):
        parts.append(octets_of(_records(keys[first:last], partition_path, [(b, v[first:last]) for b, v in members])))
    datum = b"".join((*parts, b"\x00"))
    return frame_block(
        BlockType.DELETE, block_header(instant, merged, avro_schema_json), _PREFIX.pack(BLOCK_VERSION, len(datum)) + datum
    )


def reads_as_none(ordering: pa.Array | pa.ChunkedArray) -> np.ndarray:
    """Return True for each ordering value of a deletion that readers of the block do not compare: the deletion then always wins.

    These are null, the number 0 in the width of a Java int (as in dates), and times in milliseconds, which rows hold in another
    width.
    """
    values = _one_chunk(ordering)
    if pa.types.is_struct(values.type):
        # Lists of values compare whatever they hold, but one with null is written as no value.
        return np.asarray(_null_members(values))
    if pa.types.is_time32(values.type):
        return np.ones(len(values), dtype=bool)
    branch, written = _wrapped(values)
    none = written.is_null() if branch != _INT_BRANCH else pc.fill_null(pc.equal(written, 0), fill_value=True)
    return np.asarray(none)


def has_nulls(ordering: pa.Array | pa.ChunkedArray) -> bool:
    """Return whether an ordering value, or one of several of a row, is null."""
    values = _one_chunk(ordering)
    return bool(pc.any(_null_members(values)).as_py()) if pa.types.is_struct(values.type) else bool(values.null_count)


def _null_members(values: pa.StructArray) -> pa.Array:
    """Return True for each row of which a value is null."""
    return functools.reduce(pc.or_, [member.is_null() for member in values.flatten()], values.is_null())


def _wrapped_members(ordering: pa.Array) -> list[tuple[int, pa.Array]]:
    """Return the branch and the values of each ordering field, as `_wrapped`; of the only one if `ordering` is no struct."""
    return [_wrapped(one) for one in (ordering.flatten() if pa.types.is_struct(ordering.type) else [ordering])]


def _records(keys: pa.Array, partition_path: str, members: Sequence[tuple[int, pa.Array]]) -> pa.Array:
    out = Pieces(len(keys))
    encode(_KEY, keys, out, MetaField.RECORD_KEY)
    encode(_PARTITION, pa.repeat(pa.scalar(partition_path, pa.string()), len(keys)), out, MetaField.PARTITION_PATH)
    if len(members) > 1:
        # One wrapper of a list: the branch of the union, the branch of the list that is not null, and its length.
        for number in (_ARRAY_BRANCH, 1, len(members)):
            out.add_varints(np.full(len(keys), number, np.int64))
    for branch, ordering in members:
        out.add_varints(np.full(len(keys), branch, np.int64))
        encode(_ORDERING.children[branch].children[0], ordering, out, "ordering")
    if len(members) > 1:
        out.add_varints(np.zeros(len(keys), np.int64))  # the end of the list
    return out.join()


def _varint(count: int) -> bytes:
    out = Pieces(1)
    out.add_varints(np.array([count], np.int64))
    return bytes(octets_of(out.join()))


def _one_chunk(values: pa.Array | pa.ChunkedArray) -> pa.Array:
    if not isinstance(values, pa.ChunkedArray):
        return values
    return values.combine_chunks() if values.num_chunks != 1 else values.chunk(0)


def _wrapped(ordering: pa.Array) -> tuple[int, pa.Array]:
    """Return the union branch for the type of `ordering`, and the values in the type of that branch."""
    kind = ordering.type.value_type if pa.types.is_dictionary(ordering.type) else ordering.type
    if pa.types.is_date64(kind):
        ordering = ordering.cast(pa.date32())
    target = next((wrapper for matches, wrapper in _NATIVE if matches(kind)), None)
    if target is None:
        raise SchemaMismatch(f"ordering values of type {kind}", expected="a number, text, bytes, date, time or timestamp")
    branch = next(i for i, (name, _, _) in enumerate(_WRAPPERS, 1) if name == target)
    try:
        return branch, ordering.cast(_WRAPPERS[branch - 1][2])
    except pa.ArrowException as error:
        reason = str(error).split("\n", 1)[0]
        raise SchemaMismatch(f"ordering values of type {kind} ({reason})", expected=str(_WRAPPERS[branch - 1][2])) from None


_SMALL = (pa.int8(), pa.int16(), pa.int32(), pa.uint8(), pa.uint16())
_NATIVE = (
    (pa.types.is_boolean, "BooleanWrapper"),
    (lambda kind: kind in _SMALL, "IntWrapper"),
    (pa.types.is_integer, "LongWrapper"),
    (lambda kind: kind == pa.float32(), "FloatWrapper"),
    (pa.types.is_floating, "DoubleWrapper"),
    (lambda kind: pa.types.is_string(kind) or pa.types.is_large_string(kind) or kind == pa.string_view(), "StringWrapper"),
    (
        lambda kind: pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind),
        "BytesWrapper",
    ),
    # Write dates and timestamps as numbers, as Hudi does: its log reader compares the value with the number in a row.
    (pa.types.is_date, "IntWrapper"),
    (pa.types.is_decimal, "DecimalWrapper"),
    (pa.types.is_time, "TimeMicrosWrapper"),
    (pa.types.is_timestamp, "LongWrapper"),
)
