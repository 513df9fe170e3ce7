"""`tideline create`: create an empty table with the schema of a file."""

from __future__ import annotations

import enum
from typing import Annotated

import typer

import tideline
from tideline import BloomIndex, BucketIndex, RecordIndex
from tideline_cli.arguments import AsJson, TablePath, choice, column_names, option, settings_from
from tideline_cli.report import print_facts, print_json, print_line
from tideline_cli.sources import read_schema
from tideline_cli.tables import column_documents
from tideline_table.errors import InvalidOption
from tideline_table.table import KeyIndex, Table

app = typer.Typer()

_EXAMPLES = """Examples:

tideline create ./trips --schema-from trips.parquet --key trip_id --partition city --ordering updated_at

tideline create ./log --schema-from log.avsc --key host,line --partition day --hive-style

tideline create ./users --schema-from users.parquet --key id --index bucket --buckets 16

tideline create ./visits --schema-from visits.parquet --key id --partition day --index bucket --buckets 8 \
  --partition-buckets '^2026-,32;^2025-,16'

tideline create ./users --schema-from users.parquet --key id --partition country --index global_bloom

tideline create ./accounts --schema-from accounts.parquet --key id --ordering updated_at --merge partial_update

tideline create ./fares --schema-from fares.parquet --option hoodie.datasource.write.recordkey.field=id \
  --option hoodie.index.type=BUCKET --option hoodie.bucket.index.num.buckets=8

tideline create ./rides --schema-from rides.parquet --key id --partition at --key-generator timestamp \
  --key-option hoodie.keygen.timebased.timestamp.type=UNIX_TIMESTAMP --key-option hoodie.keygen.timebased.output.dateformat=yyyy/MM/dd"""


class TypeName(enum.StrEnum):
    """Table types as command-line values."""

    COW = "cow"
    MOR = "mor"


_SchemaFile = Annotated[
    str,
    option(
        metavar="FILE",
        help="Take the columns from this .parquet, .arrow or .feather file, from an Avro schema (.avsc), or infer them from the "
        "rows of a .csv, .json, .jsonl or .ndjson file. The rows are not written.",
    ),
]
_KeyColumns = Annotated[
    list[str] | None,
    option(metavar="COLUMNS", help="Record key columns; address.id is a field of a struct, here and below. Repeatable or a,b."),
]
_PartitionColumns = Annotated[
    list[str] | None, option(metavar="COLUMNS", help="Partition columns, one folder level each. Repeatable or a,b.")
]
_OrderingColumns = Annotated[
    list[str] | None,
    option(
        metavar="COLUMNS",
        help="Of two versions of a row, the one with the larger value in this column wins; of several columns (version 9), the "
        "first one that differs decides. Default: the later write. Repeatable or a,b.",
    ),
]
_MergeRule = Annotated[
    str,
    option(
        metavar="NAME",
        help="How two versions of a row become one: commit_time, event_time, partial_update, overwrite_non_defaults, aws_dms, "
        "postgres_debezium or mysql_debezium. Default: event_time with --ordering, else commit_time.",
    ),
]
_TableType = Annotated[str, typer.Option("--type", metavar="cow|mor", help="Copy-on-write or merge-on-read.")]
_Name = Annotated[str, option(help="Table name. Default: the name of the folder.")]
_HiveStyle = Annotated[bool, typer.Option("--hive-style", help="Name partition folders column=value.")]
_UrlEncode = Annotated[bool, typer.Option("--url-encode", help="Escape special characters in partition folders.")]
_KeyGenerator = Annotated[
    str,
    option(
        metavar="NAME",
        help="Key generator for record keys and partition folders: simple, complex, timestamp, custom (with --partition "
        "column:SIMPLE or column:TIMESTAMP) or non-partition. Default: inferred from the columns.",
    ),
]
_KeyProperties = Annotated[
    list[str] | None,
    option(metavar="KEY=VALUE", help="A property of the key generator, usually hoodie.keygen.timebased.*. Repeatable."),
]
_MetaFields = Annotated[
    bool,
    typer.Option(
        "--meta-fields/--no-meta-fields",
        help="Add the Hudi meta fields. Without them rows can be added and read, but not updated or deleted.",
    ),
]
_Index = Annotated[
    str,
    option(
        metavar="NAME",
        help="The index that all writers use. bucket: find rows by the hash of their key, in a fixed number of file groups per "
        "partition. bloom: by key ranges and Bloom filters in base files. global_bloom: the same, with keys unique in the table. "
        "record_index: the metadata table says where each key is; keys are unique in the table. "
        "Default: each writer sets hoodie.index.type.",
    ),
]
_Buckets = Annotated[
    int | None,
    option(metavar="N", help="With --index bucket: the number of buckets in each partition. resize-buckets changes it."),
]
_Consistent = Annotated[
    bool,
    option(
        help="With --index bucket: assign keys by a hash ring for each partition, instead of by the hash modulo the number of "
        "buckets. Merge-on-read only.",
    ),
]
_HashFields = Annotated[
    list[str] | None,
    option(
        metavar="COLUMNS",
        help="With --index bucket: the record key columns that decide the bucket. Default: all. Repeatable or a,b.",
    ),
]
_SeveralFileGroups = Annotated[
    bool,
    option(
        help="With --index bucket: a bucket that outgrows the largest file gets more file groups, among which key ranges and Bloom "
        "filters find a key. Without it, a bucket is one file group.",
    ),
]
_TableVersion = Annotated[
    int,
    option(
        metavar="N",
        help="The version of the table format: 6 (default), which all engines read, or 8 or 9, for engines with Hudi 1.x.",
    ),
]
_Options = Annotated[
    list[str] | None,
    option(
        "--option",
        metavar="KEY=VALUE",
        help="An option of Apache Hudi that defines the table (docs/hudi-options.md), such as "
        "hoodie.datasource.write.recordkey.field, in place of an argument; or one of the engine. Repeatable.",
    ),
]
_PartitionBuckets = Annotated[
    str,
    option(
        metavar="RULES",
        help="With --index bucket: numbers of buckets by partition, REGEX,N;REGEX,N. The first regular expression that is found in "
        "the partition path decides, otherwise --buckets.",
    ),
]


@app.command(epilog=_EXAMPLES)
def create(
    path: TablePath,
    *,
    schema_from: _SchemaFile,
    key: _KeyColumns = None,
    partition: _PartitionColumns = None,
    ordering: _OrderingColumns = None,
    merge: _MergeRule = "",
    table_type: _TableType = "cow",
    name: _Name = "",
    hive_style: _HiveStyle = False,
    url_encode: _UrlEncode = False,
    key_generator: _KeyGenerator = "",
    key_option: _KeyProperties = None,
    meta_fields: _MetaFields = True,
    index: _Index = "",
    buckets: _Buckets = None,
    consistent: _Consistent = False,
    hash_fields: _HashFields = None,
    partition_buckets: _PartitionBuckets = "",
    several_file_groups: _SeveralFileGroups = False,
    table_version: _TableVersion = 0,
    options: _Options = None,
    as_json: AsJson = False,
) -> None:
    """Create an empty Hudi table that Tideline writes. If any part of the request is invalid, nothing is created."""
    tideline.create(
        path,
        schema=read_schema(schema_from),
        key=column_names(key),
        partition=column_names(partition),
        ordering=column_names(ordering),
        merge=merge,
        type=choice("--type", table_type, TypeName).value,
        name=name,
        hive_style=hive_style,
        url_encode=url_encode,
        key_generator=key_generator,
        key_settings=settings_from(key_option, "--key-option", where="see tideline create --help for the keys"),
        meta_fields=meta_fields,
        table_version=table_version,
        options=settings_from(options),
        index=_key_index(
            index, BucketIndex(buckets, column_names(hash_fields), partition_buckets, consistent, several_file_groups)
        ),
    )
    _report(Table.open(path), as_json=as_json)


def _key_index(name: str, buckets: BucketIndex) -> KeyIndex | None:
    """Return the index of this name; `buckets` is what the other options ask for."""
    if name == "bucket":
        return buckets
    if buckets != BucketIndex():
        raise InvalidOption("options of a bucket index without it", expected="--index bucket, too")
    others = {"": None, "bloom": BloomIndex(), "global_bloom": BloomIndex(across_partitions=True), "record_index": RecordIndex()}
    if name not in others:
        raise InvalidOption(
            f"index {name!r}",
            expected="bucket, bloom, global_bloom, record_index, or none: other index types are options of writers "
            "(hoodie.index.type)",
        )
    return others[name]


def _report(table: Table, *, as_json: bool) -> None:
    definition = table.definition
    columns = column_documents(table.schema)
    if as_json:
        print_json(
            {
                "name": definition.name,
                "uid": table.uid,
                "base_path": table.storage.root,
                "type": definition.type.value,
                "key_fields": definition.keygen.key_fields,
                "partition_fields": definition.keygen.partition_fields,
                "key_generator": definition.keygen.type.value,
                "ordering_field": definition.ordering_field,
                "merge": definition.merge_rule.name,
                "index": "BUCKET" if definition.buckets is not None else definition.kept_index or None,
                "buckets": definition.buckets.number if definition.buckets is not None else None,
                "bucket_engine": definition.buckets.engine.value if definition.buckets is not None else None,
                "hash_fields": definition.buckets.fields if definition.buckets is not None else [],
                "partition_buckets": definition.buckets.rules.text or None if definition.buckets is not None else None,
                "several_file_groups": definition.buckets is not None and not definition.one_group_per_bucket,
                "columns": columns,
            }
        )
        return
    print_line(f"created table {definition.name} at {table.base_path}")
    facts = [
        ("record key", ", ".join(definition.keygen.key_fields)),
        ("partitioned by", ", ".join(definition.keygen.partition_fields) or "-"),
        ("ordering", definition.ordering_field or "the later write wins"),
        ("merge rule", definition.merge_rule.name),
        ("index", definition.index_text or "the writer's choice"),
        ("columns", ", ".join(f"{c['name']} {c['type']}" for c in columns)),
    ]
    print_facts(facts)
