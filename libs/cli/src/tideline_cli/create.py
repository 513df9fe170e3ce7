"""`tideline create`: an empty table with the schema of a file."""

from __future__ import annotations

import enum
import re
from typing import Annotated
from urllib.parse import unquote

import typer

from tideline_cli.arguments import AsJson, TablePath, choice, column_names, settings_from
from tideline_cli.report import print_facts, print_json, print_line
from tideline_cli.sources import read_schema
from tideline_cli.tables import column_documents
from tideline_table.storage import root_uri
from tideline_table.table import Table, TableRequest, TableType, create_table

app = typer.Typer()

_EXAMPLES = """Examples:

tideline create ./trips --schema-from trips.parquet --key trip_id --partition city --ordering updated_at

tideline create ./log --schema-from log.avsc --key host,line --partition day --hive-style

tideline create ./rides --schema-from rides.parquet --key id --partition at --key-generator timestamp \
  --key-option hoodie.keygen.timebased.timestamp.type=UNIX_TIMESTAMP --key-option hoodie.keygen.timebased.output.dateformat=yyyy/MM/dd"""


class TypeName(enum.StrEnum):
    """Table types as people type them."""

    COW = "cow"
    MOR = "mor"


_TYPES = {TypeName.COW: TableType.COW, TypeName.MOR: TableType.MOR}


@app.command(epilog=_EXAMPLES)
def create(
    path: TablePath,
    *,
    schema_from: Annotated[
        str,
        typer.Option(
            metavar="FILE",
            help="Take the columns from this .parquet, .arrow or .feather file, from an Avro schema (.avsc), or infer them from the rows "
            "of a .csv, .json, .jsonl or .ndjson file. The rows are not written.",
            show_default=False,
        ),
    ],
    key: Annotated[list[str], typer.Option(metavar="COLUMNS", help="Record key columns. Repeatable or a,b.", show_default=False)],
    partition: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMNS", help="Partition columns, one folder level each. Repeatable or a,b.", show_default=False),
    ] = None,
    ordering: Annotated[
        str,
        typer.Option(
            metavar="COLUMN", help="Of two versions of a row the larger value wins; without it the later write.", show_default=False
        ),
    ] = "",
    table_type: Annotated[str, typer.Option("--type", metavar="cow|mor", help="Copy-on-write or merge-on-read.")] = "cow",
    name: Annotated[str, typer.Option(help="Table name; the folder's if not given.", show_default=False)] = "",
    hive_style: Annotated[bool, typer.Option("--hive-style", help="Name partition folders column=value.")] = False,
    url_encode: Annotated[bool, typer.Option("--url-encode", help="Escape special characters in partition folders.")] = False,
    key_generator: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="How keys and partition folders are made: simple, complex, timestamp, custom (with --partition column:SIMPLE or "
            "column:TIMESTAMP) or non-partition. Inferred from the columns if not given.",
            show_default=False,
        ),
    ] = "",
    key_option: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            help="A property of the key generator, hoodie.keygen.timebased.* mostly. Repeatable.",
            show_default=False,
        ),
    ] = None,
    meta_fields: Annotated[
        bool, typer.Option("--meta-fields/--no-meta-fields", help="Without them rows can be added and read, never changed.")
    ] = True,
    as_json: AsJson = False,
) -> None:
    """Create an empty Hudi table that Tideline writes. Nothing is created unless everything about the request is sound."""
    request = TableRequest(
        name=name or default_name(path),
        schema=read_schema(schema_from),
        key_fields=column_names(key),
        partition_fields=column_names(partition),
        ordering_field=ordering,
        type=_TYPES[choice("--type", table_type, TypeName)],
        hive_style=hive_style,
        url_encode=url_encode,
        key_generator=key_generator.upper().replace("-", "_"),
        key_settings=settings_from(key_option, "--key-option"),
        meta_fields=meta_fields,
    )
    create_table(path, request)
    _report(Table.open(path), as_json=as_json)


def default_name(path: str) -> str:
    """The last part of `path` with everything that a table name cannot have made '_'."""
    root = root_uri(path)
    folder = (unquote(root) if root.startswith("file:") else root).rstrip("/").rpartition("/")[2]
    safe = re.sub(r"[^A-Za-z0-9_.-]", "_", folder)
    return safe if re.match(r"[A-Za-z0-9_]", safe) else f"_{safe}"


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
                "columns": columns,
            }
        )
        return
    print_line(f"created table {definition.name} at {table.base_path}")
    facts = [
        ("record key", ", ".join(definition.keygen.key_fields)),
        ("partitioned by", ", ".join(definition.keygen.partition_fields) or "-"),
        ("ordering", definition.ordering_field or "the later write wins"),
        ("columns", ", ".join(f"{c['name']} {c['type']}" for c in columns)),
    ]
    print_facts(facts)
