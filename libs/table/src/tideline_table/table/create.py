"""Creation of a table."""

from __future__ import annotations

import difflib
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC
from urllib.parse import unquote

import pyarrow as pa

from tideline_table.clock import Clock, SystemClock
from tideline_table.config import INDEX_TYPE
from tideline_table.errors import InvalidOption, ObjectExists, SchemaMismatch, TableExists, TableIncomplete
from tideline_table.hudi.formats import format_to_create
from tideline_table.hudi.merge_rules import MergeRule
from tideline_table.hudi.properties import (
    BASE_FORMAT,
    BASE_FORMATS,
    CHANGES,
    CHANGES_MODE,
    CHANGES_MODES,
    HIVE_STYLE,
    KEY_FIELDS,
    KEYGEN_TYPE,
    PARTITION_FIELDS,
    POPULATE_META_FIELDS,
    PROPERTIES_PATH,
    URL_ENCODE,
    format_properties,
)
from tideline_table.index.bucket import PLAIN_KEYS, BucketIndex, Engine
from tideline_table.index.bucket_properties import bucket_index
from tideline_table.index.partition_rules import FIRST_INSTANT, PartitionRules, RulesFile
from tideline_table.index.scope import RECORD_INDEX
from tideline_table.keygen import KeyGenerator, KeyGeneratorType
from tideline_table.reader.orc_file import orc_schema
from tideline_table.schema import (
    META_FIELDS,
    arrow_from_avro,
    avro_from_arrow,
    nested_limits,
    reader_limits,
)
from tideline_table.storage import Storage, exists, open_storage, root_uri
from tideline_table.table.declared_keys import KEY_SETTINGS, read_keygen
from tideline_table.table.definition import TableType, fixed_properties, new_properties
from tideline_table.table.identity import create_identity
from tideline_table.table.key_index import BloomIndex, KeyIndex, RecordIndex, wrong_index
from tideline_table.table.key_index import BucketIndex as AskedBuckets
from tideline_table.table.remains import check_no_remains
from tideline_table.table.requested_merging import requested_merging
from tideline_table.table.store_probe import probe_conditional_put

_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TableRequest:
    """The definition of a table to create. `key_fields` form the record key; without `ordering_field`, the later write wins.

    Without key fields, rows can be added, read and clustered, but not updated or deleted by key.

    Several ordering fields are separated by commas; the first one that differs decides.

    Key, partition and ordering fields may be fields of structs, named by their dotted paths.
    """

    name: str
    schema: pa.Schema
    key_fields: tuple[str, ...]
    partition_fields: tuple[str, ...] = ()
    ordering_field: str = ""
    type: TableType = TableType.COW
    hive_style: bool = False
    url_encode: bool = False
    database: str = ""
    key_generator: str = ""
    """A name of `KeyGeneratorType`; empty: inferred from the columns, as Hudi does. For CUSTOM, partition fields are
    `column:SIMPLE` or `column:TIMESTAMP`."""
    key_settings: Mapping[str, str] = field(default_factory=dict)
    """Properties of the key generator: `hoodie.keygen.timebased.*` and the like (format reference 2.1)."""
    meta_fields: bool = True
    """False: rows carry no record keys, so they can be added and read, but not updated or deleted."""
    base_format: str = BASE_FORMATS[0]
    """The format of base files: PARQUET or ORC."""
    changes: str = ""
    """What change files say of each change, by Hudi's names; empty for none."""
    index: KeyIndex | None = None
    """Kept with the table; None if each writer names its index."""
    version: int = 0
    """The table version: 6, 8 or 9; 0 for the default."""
    merge: str = ""
    """How two versions of a row become one: a name of `MERGE_RULES`, or a payload class of Apache Hudi. Empty: by event time if
    there is an ordering field, else by commit time."""


def create_table(base_path: str, request: TableRequest, clock: Clock | None = None, storage: Storage | None = None) -> None:
    """Create an empty table, exclusive to Tideline's writers.

    The request is checked before anything is written. Raises `TableExists`, `SchemaMismatch`, `InvalidOption`, `UnsupportedTable`
    (the store accepts a put-if-absent over an existing object), `TableIncomplete` (rows of a table without `hoodie.properties`
    are here). Logs a warning for a type that a known reader cannot read, and for partition and ordering fields of structs that
    it does not know.
    """
    clock = clock or SystemClock()
    storage = storage or open_storage(base_path)
    schema_json = _checked(request)
    for limit in (*reader_limits(request.schema), *_nested_limits(request)):
        _LOGGER.warning("%s", limit)
    _refuse_existing(storage, base_path)
    probe_conditional_put(storage)
    index, kept = _requested_buckets(request), _kept_type(request.index)
    form, (rule, ordering) = format_to_create(request.version), _merging(request)
    properties = new_properties(
        form, request.name, request.type, requested_keygen(request), rule, ordering, schema_json, request.database
    )
    properties[BASE_FORMAT], properties[POPULATE_META_FIELDS] = request.base_format, str(request.meta_fields).lower()
    if request.changes:
        properties |= {CHANGES: "true", CHANGES_MODE: request.changes}
    if kept:
        properties[INDEX_TYPE.key] = kept
    if index is not None:
        properties.update({**index.properties, **({PLAIN_KEYS: "true"} if index.is_cut_from_keys else {})})
    create_identity(storage, clock, index.text if index is not None else kept, fixed_properties(properties))
    if index is not None and index.rules:
        # Before hoodie.properties: with rules there and without this file, Apache Hudi's readers leave out buckets by another
        # number.
        rules = RulesFile(FIRST_INSTANT, index.rules.given, index.number)
        _put_once(storage, base_path, rules.path, rules.content)
    for path in form.new_files:
        _put_once(storage, base_path, path, b"")
    content = format_properties(properties, f"Created by Tideline at {clock.now().astimezone(UTC).isoformat()}")
    _put_once(storage, base_path, PROPERTIES_PATH, content)


def _put_once(storage: Storage, base_path: str, path: str, content: bytes) -> None:
    try:
        storage.put_if_absent(path, content)
    except ObjectExists:
        if storage.read(path) != content:  # same content: an earlier try succeeded, its reply was lost
            raise TableExists(f"a table at {base_path!r} ({path})", expected="an empty place") from None


def default_name(path: str) -> str:
    """Return the last part of `path` as a table name, with '_' in place of forbidden characters."""
    safe = re.sub(r"[^A-Za-z0-9_.-]", "_", folder_name(path))
    return safe if re.match(r"[A-Za-z0-9_]", safe) else f"_{safe}"


def folder_name(path: str) -> str:
    """Return the last part of `path` as it is spelled on disk or in an object store."""
    root = root_uri(path)
    return (unquote(root) if root.startswith("file:") else root).rstrip("/").rpartition("/")[2]


def _checked(request: TableRequest) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", request.name):
        raise InvalidOption(f"table name {request.name!r}", expected="letters, digits, '_', '-' and '.'")
    if not request.key_fields and (request.index is not None or not request.meta_fields):
        raise InvalidOption("no record key columns", expected="at least one, or meta fields, which hold made-up keys, and no index")
    if not request.schema.names:
        raise SchemaMismatch("a schema without columns", expected="at least the record key columns")
    taken = [n for n in request.schema.names if n in META_FIELDS]
    if taken or len(set(request.schema.names)) < len(request.schema.names):
        raise SchemaMismatch(
            f"columns {', '.join(taken or request.schema.names)}", expected="each name once and no meta field among them"
        )
    requested_keygen(request).check_columns(request.schema)
    _requested_buckets(request)
    inside = [name for name in request.key_fields if name not in request.schema.names]
    if inside and not request.meta_fields:
        raise InvalidOption(
            f"record key column {inside[0]!r}, a field of a struct, without meta fields",
            expected="meta fields, which hold the record keys, or key columns of their own",
        )
    empty = [f.name for f in request.schema if pa.types.is_null(f.type)]
    if empty:
        raise SchemaMismatch(f"column {empty[0]!r} without a type (all null)", expected="a type", remedy="cast the column")
    _merging(request)
    if request.base_format not in BASE_FORMATS:
        raise InvalidOption(f"base files in {request.base_format}", expected=" or ".join(BASE_FORMATS))
    if request.changes not in ("", *CHANGES_MODES):
        raise InvalidOption(f"change files with {request.changes}", expected=" or ".join(CHANGES_MODES))
    if request.base_format == "ORC":
        orc_schema(request.schema)
    text = avro_from_arrow(request.schema, request.name)
    arrow_from_avro(text)
    return text


def _kept_type(index: KeyIndex | None) -> str:
    """Return the index type by look-up that the table keeps, empty for none."""
    match index:
        case BloomIndex():
            return "GLOBAL_BLOOM" if index.across_partitions else "BLOOM"
        case RecordIndex():
            return RECORD_INDEX
        case None | AskedBuckets():
            return ""
    raise wrong_index(index)


def _requested_buckets(request: TableRequest) -> BucketIndex | None:
    """Return the requested bucket index, None for none. Raises `InvalidOption` for an index that cannot be."""
    asked, kept = request.index, _kept_type(request.index)
    if kept and not request.meta_fields:
        raise InvalidOption(f"the index {kept} without meta fields", expected="meta fields: rows are found by their record keys")
    if not isinstance(asked, AskedBuckets):
        return None
    if asked.buckets is None:
        raise InvalidOption("a bucket index without a number of buckets", expected="BucketIndex(8) or another number")
    if not request.meta_fields:
        raise InvalidOption("a bucket index without meta fields", expected="meta fields: rows are found by their keys in a bucket")
    if asked.consistent and request.type is not TableType.MOR:
        raise InvalidOption(
            "consistent hashing in a copy-on-write table",
            expected="a merge-on-read table: Apache Hudi allows consistent hashing only there",
            remedy="create it with the type mor, or with the simple engine",
        )
    named = PartitionRules.parse(asked.partition_buckets)
    # Apache Hudi compares the text with that of its writers: blanks would matter.
    rules = PartitionRules.parse(named.closed(asked.buckets).text)
    if rules and not request.partition_fields:
        raise InvalidOption(
            f"numbers of buckets by partition ({rules.text}) in a table without partitions", expected="partition columns"
        )
    engine = Engine.CONSISTENT if asked.consistent else Engine.SIMPLE
    return bucket_index(asked.buckets, asked.hash_fields, request.key_fields, engine, rules, has_several=asked.several_file_groups)


def requested_keygen(request: TableRequest) -> KeyGenerator:
    """Return the requested key generator. Raises `InvalidOption` for an unsupported one and for unknown settings."""
    unknown = sorted(set(request.key_settings) - KEY_SETTINGS)
    if unknown:
        near = difflib.get_close_matches(unknown[0], KEY_SETTINGS, n=1)
        raise InvalidOption(f"key generator setting {unknown[0]!r}", expected=near[0] if near else ", ".join(sorted(KEY_SETTINGS)))
    asked = {
        KEY_FIELDS: ",".join(request.key_fields),
        PARTITION_FIELDS: ",".join(request.partition_fields),
        HIVE_STYLE: str(request.hive_style),
        URL_ENCODE: str(request.url_encode),
        KEYGEN_TYPE: request.key_generator,
    }
    keygen = read_keygen({**request.key_settings, **asked})
    if keygen.problem:
        raise InvalidOption(keygen.problem, remedy="choose another key generator, or complete its settings")
    typed = any(":" in name for name in request.partition_fields)
    if typed and keygen.type is not KeyGeneratorType.CUSTOM:
        raise InvalidOption(
            f"partition columns with types ({', '.join(request.partition_fields)})", expected="the key generator CUSTOM"
        )
    if (
        keygen.time_based is not None
        and len(keygen.partition_fields) > 1
        and "/" in keygen.time_based.output.text
        and not keygen.url_encode
    ):
        raise InvalidOption(
            f"date pattern {keygen.time_based.output.text!r} with folders of its own among several partition columns",
            expected="a pattern without '/', or URL-encoded partitions: Apache Hudi cannot read such a table",
        )
    return keygen


def _nested_limits(request: TableRequest) -> list[str]:
    partition_fields = requested_keygen(request).partition_fields
    ordering = _merging(request)[1]
    return nested_limits(request.schema, partition_fields, ordering, has_logs=request.type is TableType.MOR)


def _merging(request: TableRequest) -> tuple[MergeRule, str]:
    form, has_logs = format_to_create(request.version), request.type is TableType.MOR
    return requested_merging(request.merge, request.ordering_field, request.schema, form, has_logs=has_logs)


def _refuse_existing(storage: Storage, base_path: str) -> None:
    try:
        if not exists(storage, PROPERTIES_PATH):
            check_no_remains(storage, base_path)
            return
    except TableIncomplete:
        # Another process may have created the table during the search, and written into it.
        if not exists(storage, PROPERTIES_PATH):
            raise
    raise TableExists(
        f"a table at {base_path!r}", expected="an empty place", remedy="choose another path, or write into this table"
    )
