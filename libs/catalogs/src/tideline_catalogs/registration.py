"""What a catalog should hold of a table, by the conventions of Apache Hudi's sync. Decides without I/O."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from tideline_catalogs.catalog import CatalogRefused, Column, Partition, Registered
from tideline_catalogs.hive_types import columns_of, spark_schema
from tideline_table.schema import avro_with_meta_fields
from tideline_table.table import Table

INPUT = "org.apache.hudi.hadoop.HoodieParquetInputFormat"
REALTIME_INPUT = "org.apache.hudi.hadoop.realtime.HoodieParquetRealtimeInputFormat"
OUTPUT = "org.apache.hadoop.hive.ql.io.parquet.MapredParquetOutputFormat"
SERDE = "org.apache.hadoop.hive.ql.io.parquet.serde.ParquetHiveSerDe"
ORC = "org.apache.hadoop.hive.ql.io.orc.Orc"
LAST_SYNCED = "last_commit_time_sync"
LAST_COMPLETED = "last_commit_completion_time_sync"
SEQUENCE = "tideline.synced.sequence"
"""Table parameter: the entry of the table log that is registered. Changes expect the value that was read, so a late sync loses."""
UID = "tideline.table.uid"
"""Table parameter: the table that is registered. Another one may lie at the same place later, with a log of its own."""
PROVIDER = "spark.sql.sources.provider"
_PIECE = 4000
"""Longest value of a table parameter in the metastore's database."""
_NAME = re.compile(r"[a-z0-9_]+")


@dataclass(frozen=True, slots=True)
class Names:
    """How tables are named in a catalog.

    `table` is a pattern with `{name}` for the table's own name. Raises `CatalogRefused` for one that no catalog can hold.
    """

    database: str = "default"
    table: str = "{name}"

    def __post_init__(self) -> None:
        self.of("x")

    def of(self, name: str) -> tuple[str, str]:
        """Return the database and the name of a table, in lower case."""
        found = self.database.lower(), self.table.replace("{name}", name).replace("-", "_").replace(".", "_").lower()
        for text in found:
            if not _NAME.fullmatch(text):
                raise CatalogRefused(
                    f"name {text!r}", expected="letters of ASCII, digits and _", remedy="give --database or --name"
                )
        return found


def uri_of(base_path: str) -> str:
    """Return the URI of a table's folder or of a folder below it."""
    place = path_of(base_path).rstrip("/")
    return place if "://" in place else f"file://{Path(place).absolute()}"


def registrations(table: Table, name: str) -> list[Registered]:
    """Return the entries of a table: one if it is copy-on-write, else `_ro`, `_rt` and the name itself, which is as `_rt`."""
    if not table.definition.has_logs:
        return [_registered(table, name, realtime=False, read_optimized=False)]
    return [
        _registered(table, f"{name}_ro", realtime=False, read_optimized=True),
        _registered(table, f"{name}_rt", realtime=True, read_optimized=False),
        _registered(table, name, realtime=True, read_optimized=False),
    ]


def _registered(table: Table, name: str, *, realtime: bool, read_optimized: bool) -> Registered:
    definition = table.definition
    schema = avro_with_meta_fields(table.schema_json) if definition.has_meta_fields else table.schema_json
    fields, is_orc = definition.keygen.partition_fields, definition.extension == "orc"
    columns = columns_of(schema)
    by_name = {column.name: column for column in columns}
    keys = tuple(
        Column(f.lower(), "string" if definition.keygen.is_time_based(f) else by_name[f.lower()].type, by_name[f.lower()].comment)
        if f.lower() in by_name
        else Column(f.lower(), "string")
        for f in fields
    )
    location = uri_of(table.storage.root)
    identity = {UID: table.uid} if table.uid else {}
    return Registered(
        name=name,
        columns=tuple(column for column in columns if column.name not in {key.name for key in keys}),
        partition_keys=keys,
        location=location,
        input_format=f"{ORC}InputFormat" if is_orc else REALTIME_INPUT if realtime else INPUT,
        output_format=f"{ORC}OutputFormat" if is_orc else OUTPUT,
        serde=f"{ORC}Serde" if is_orc else SERDE,
        parameters={"EXTERNAL": "TRUE", PROVIDER: "hudi", **identity, **_schema_parameters(spark_schema(schema, fields), fields)},
        serde_parameters={
            "serialization.format": "1",
            "path": location,
            "hoodie.query.as.ro.table": "true" if read_optimized else "false",
        },
    )


def _schema_parameters(schema: str, fields: tuple[str, ...]) -> dict[str, str]:
    pieces = [schema[at : at + _PIECE] for at in range(0, len(schema), _PIECE)]
    found = {"spark.sql.sources.schema.numParts": str(len(pieces))}
    found |= {f"spark.sql.sources.schema.part.{number}": piece for number, piece in enumerate(pieces)}
    if fields:
        found["spark.sql.sources.schema.numPartCols"] = str(len(fields))
        found |= {f"spark.sql.sources.schema.partCol.{number}": name for number, name in enumerate(fields)}
    return found


def partition_of(table: Table, path: str) -> Partition:
    """Return the partition of a folder, with one value for each field. Raises `CatalogRefused` if levels and fields do not fit."""
    keygen = table.definition.keygen
    count = len(keygen.partition_fields)
    levels = [path] if count == 1 else path.split("/")
    if len(levels) != count:
        raise CatalogRefused(f"partition {path!r} has {len(levels)} levels", expected=f"{count}, one for each partition field")
    if keygen.hive_style:
        levels = [level.partition("=")[2] or level for level in levels]
    values = tuple(unquote(level) if keygen.url_encode else level for level in levels)
    return Partition(values, uri_of(f"{table.storage.root.rstrip('/')}/{path}"))


def is_hudi(parameters: Mapping[str, str], input_format: str) -> bool:
    """Return whether a catalog's table is one of Hudi."""
    return parameters.get(PROVIDER, "").lower() == "hudi" or input_format in (INPUT, REALTIME_INPUT)


def path_of(location: str) -> str:
    """Return a location as the base path that Tideline opens: Hadoop's `file:/x`, `s3a://` and `s3n://` by their usual names."""
    scheme, _, rest = location.partition(":")
    if scheme == "file":
        return "/" + rest.lstrip("/")
    if scheme in ("s3a", "s3n"):
        return f"s3:{rest}"
    return location
