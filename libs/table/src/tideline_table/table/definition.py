"""What a table is: the part of `hoodie.properties` that reading and writing depend on."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass

from tideline_table.config import column_list
from tideline_table.errors import CorruptMetadata, UnsupportedTable
from tideline_table.keygen import KeyGenerator
from tideline_table.merge import DEFAULT_PAYLOAD, OVERWRITE_PAYLOAD, MergeMode, merge_mode
from tideline_table.timeline import properties as p

WRITABLE_VERSION = 6


class TableType(enum.StrEnum):
    """Copy-on-write or merge-on-read."""

    COW = "COPY_ON_WRITE"
    MOR = "MERGE_ON_READ"


@dataclass(frozen=True, slots=True)
class TableDefinition:
    """A table's identity, keys and merge rule."""

    name: str
    type: TableType
    version: int
    keygen: KeyGenerator
    ordering_field: str
    payload_class: str
    properties: Mapping[str, str]

    @property
    def merge_mode(self) -> MergeMode:
        """How two versions of a record compare."""
        return merge_mode(self.payload_class, self.ordering_field)

    @classmethod
    def from_properties(cls, properties: Mapping[str, str]) -> TableDefinition:
        """Read the definition; `CorruptMetadata` names what is missing, `UnsupportedTable` what cannot be read."""
        name = properties.get(p.NAME)
        if not name:
            raise CorruptMetadata(f"{p.PROPERTIES_PATH} without {p.NAME}", expected="the table's name", remedy="restore the file")
        version_text = properties.get(p.VERSION, "")
        if not (version_text.isascii() and version_text.isdecimal()):
            raise CorruptMetadata(
                f"{p.PROPERTIES_PATH} with {p.VERSION}={version_text!r}", expected="a number", remedy="restore the file"
            )
        type_text = properties.get(p.TYPE, TableType.COW)
        if type_text not in set(TableType):
            raise CorruptMetadata(f"{p.PROPERTIES_PATH} with {p.TYPE}={type_text!r}", expected=" or ".join(TableType))
        base_format = properties.get(p.BASE_FORMAT, "PARQUET")
        if base_format.upper() != "PARQUET":
            raise UnsupportedTable(f"base files in {base_format}", expected="PARQUET")
        return cls(
            name=name,
            type=TableType(type_text),
            version=int(version_text),
            keygen=KeyGenerator(
                key_fields=column_list(properties.get(p.KEY_FIELDS, "")),
                partition_fields=tuple(f.partition(":")[0] for f in column_list(properties.get(p.PARTITION_FIELDS, ""))),
                hive_style=properties.get(p.HIVE_STYLE, "false").lower() == "true",
                url_encode=properties.get(p.URL_ENCODE, "false").lower() == "true",
            ),
            ordering_field=properties.get(p.PRECOMBINE_FIELD) or properties.get(p.ORDERING_FIELDS, ""),
            payload_class=properties.get(p.PAYLOAD_CLASS, ""),
            properties=dict(properties),
        )

    def check_writable(self) -> None:
        """Raise `UnsupportedTable` naming what this engine does not write."""
        if self.version != WRITABLE_VERSION:
            raise UnsupportedTable(
                f"table {self.name!r} has version {self.version}",
                expected=f"version {WRITABLE_VERSION} for writing",
                remedy="read it, or write it with the Apache Hudi release that made it",
            )
        if self.type is not TableType.COW:
            raise UnsupportedTable(f"table {self.name!r} is {self.type}", expected=f"{TableType.COW} for writing")
        if self.properties.get(p.POPULATE_META_FIELDS, "true").lower() != "true":
            raise UnsupportedTable(f"table {self.name!r} has no meta fields", expected=f"{p.POPULATE_META_FIELDS}=true for writing")
        if self.properties.get(p.DROP_PARTITION_COLUMNS, "false").lower() == "true":
            raise UnsupportedTable(
                f"table {self.name!r} drops its partition columns", expected=f"{p.DROP_PARTITION_COLUMNS}=false for writing"
            )


def new_properties(
    name: str, table_type: TableType, keygen: KeyGenerator, ordering_field: str, schema_json: str, database: str = ""
) -> dict[str, str]:
    """`hoodie.properties` of a new table: the set that every tested reader and writer accepts (format reference 2.1)."""
    properties = {
        p.NAME: name,
        p.TYPE: table_type.value,
        p.VERSION: str(WRITABLE_VERSION),
        p.LAYOUT: "1",
        p.KEY_FIELDS: ",".join(keygen.key_fields),
        p.KEYGEN_CLASS: keygen.class_name,
        p.BASE_FORMAT: "PARQUET",
        p.ARCHIVE_FOLDER: "archived",
        p.TIMEZONE: "UTC",
        p.POPULATE_META_FIELDS: "true",
        p.HIVE_STYLE: str(keygen.hive_style).lower(),
        p.URL_ENCODE: str(keygen.url_encode).lower(),
        p.DROP_PARTITION_COLUMNS: "false",
        p.PAYLOAD_CLASS: DEFAULT_PAYLOAD if ordering_field else OVERWRITE_PAYLOAD,
        p.CREATE_SCHEMA: schema_json,
    }
    if keygen.partition_fields:
        properties[p.PARTITION_FIELDS] = ",".join(keygen.partition_fields)
    if ordering_field:
        properties[p.PRECOMBINE_FIELD] = ordering_field
    if database:
        properties[p.DATABASE] = database
    return {**properties, p.CHECKSUM: p.checksum(properties)}
