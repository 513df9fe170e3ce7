"""The table definition: the part of `hoodie.properties` that reading and writing depend on."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import pyarrow as pa

from tideline_table.config import Options
from tideline_table.coordination.capabilities import Capabilities
from tideline_table.errors import CorruptMetadata, ObjectNotFound, SchemaMismatch, TableNotFound, UnsupportedTable
from tideline_table.hudi import properties as p
from tideline_table.hudi.format import Feature, TableFormat
from tideline_table.hudi.formats import check_writable, format_of, version_of
from tideline_table.hudi.merge_rules import BY_COMMIT_TIME, BY_EVENT_TIME, CUSTOM, POSTGRES, MergeRule, rule_of_class
from tideline_table.hudi.properties import CREATE_SCHEMA, read_properties
from tideline_table.index.bucket import PLAIN_KEYS, RESIZING, BucketIndex
from tideline_table.index.bucket_kinds import RingIndex
from tideline_table.index.bucket_properties import declared_index, declares_index, with_numbers
from tideline_table.index.scope import kept_type
from tideline_table.keygen import KeyGenerator, KeyGeneratorType, PathColumns
from tideline_table.log.resizes import BucketResize
from tideline_table.log.state import TableState
from tideline_table.merge import MergeMode, Merging
from tideline_table.schema import arrow_from_avro
from tideline_table.storage import Storage
from tideline_table.table.declared_keys import KEY_SETTINGS, keygen_properties, read_keygen
from tideline_table.table.declared_merging import POSTGRES_ON_BASE_FILES, read_merging

_FIXED = KEY_SETTINGS | {
    p.TYPE,
    p.KEY_FIELDS,
    p.PARTITION_FIELDS,
    p.PRECOMBINE_FIELD,
    p.KEYGEN_CLASS,
    p.PARTITION_PATH_FIELD,
    p.HIVE_STYLE,
    p.URL_ENCODE,
    p.POPULATE_META_FIELDS,
    p.DROP_PARTITION_COLUMNS,
    p.ARCHIVE_FOLDER,
    p.INITIAL_VERSION,
    p.TIMELINE_PATH,
    p.HISTORY_PATH,
    p.MERGE_MODE,
    p.MERGER,
    p.PARTIAL_UPDATE_MODE,
    p.UNAVAILABLE_VALUE,
    p.DELETE_FIELD,
    p.DELETE_MARKER,
    p.ORDERING_FIELDS,
}


_FLAGS = (
    p.HIVE_STYLE,
    p.URL_ENCODE,
    p.POPULATE_META_FIELDS,
    p.DROP_PARTITION_COLUMNS,
    p.CHANGES,
    p.COMPLEX_NEW_ENCODING,
    p.LOGICAL_TIMESTAMPS,
)


def fixed_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """Return those of `properties` that no action changes, and with other values of which files would show other rows.

    Without the payload class: users of Hudi change it, and from then on it decides how versions become one.
    """
    return {key: value for key, value in sorted(properties.items()) if key in _FIXED}


class TableType(enum.StrEnum):
    """Copy-on-write or merge-on-read."""

    COW = "COPY_ON_WRITE"
    MOR = "MERGE_ON_READ"


@dataclass(frozen=True)
class TableDefinition:
    """The name, type, version, keys and merge rule of a table. What follows from the properties is found once, when it is asked."""

    name: str
    type: TableType
    version: int
    keygen: KeyGenerator
    ordering_field: str
    payload_class: str
    properties: Mapping[str, str]

    @cached_property
    def format(self) -> TableFormat:
        """The names and places of the files of the table's version. Raises `UnsupportedTable` for an unknown timeline layout."""
        return format_of(self.properties)

    @cached_property
    def merging(self) -> Merging:
        """The merge rule of record versions (format reference 2.3, 16.3). Raises `UnsupportedTable` for a rule that is code."""
        found = read_merging(self.properties, self.name, self.format, self.ordering_field, self.payload_class)
        if found.merger is not None:
            names = (*self.keygen.key_fields, *self.keygen.partition_fields)
            return replace(found, merger=replace(found.merger, fixed=frozenset(name.partition(".")[0] for name in names)))
        if self._merges_as_postgres and not self.has_logs:
            return replace(POSTGRES_ON_BASE_FILES, ordering_field=self.ordering_field)
        return found

    @property
    def _merges_as_postgres(self) -> bool:
        # Version 9 says what the rule does, and Apache Hudi does it on every path.
        return self.payload_class == POSTGRES.payload_class and p.PARTIAL_UPDATE_MODE not in self.properties

    @property
    def merge_rule(self) -> MergeRule:
        """The rule as users name it; errors as `merging`."""
        merging, found = self.merging, rule_of_class(self.payload_class)
        if merging.merger is not None:
            return MergeRule(merging.merger.name, "", CUSTOM, strategy=self.properties.get(p.MERGE_STRATEGY, ""))
        if found is not None and (found.mode == merging.mode.value or found.partial):
            return found
        return BY_EVENT_TIME if merging.mode is MergeMode.EVENT_TIME else BY_COMMIT_TIME

    @property
    def merge_mode(self) -> MergeMode:
        """The rule that decides which of two whole versions of a record wins; errors as `merging`."""
        return self.merging.mode

    @cached_property
    def buckets(self) -> BucketIndex | None:
        """The bucket index that the properties declare, None for none. Raises `UnsupportedTable` for one that cannot be written."""
        return declared_index(self.properties, self.keygen.key_fields)

    @property
    def one_group_per_bucket(self) -> bool:
        """Whether the bucket of a key names its file group, so that two writers of one key meet in it."""
        return self.buckets is not None and self.buckets.one_group_per_bucket

    @property
    def ring_index(self) -> RingIndex | None:
        """The bucket index of a table with consistent hashing, None for any other table."""
        return self.buckets if isinstance(self.buckets, RingIndex) else None

    @property
    def has_plain_keys(self) -> bool:
        """Whether Tideline's writers refuse keys that `BucketIndex.check_plain` refuses."""
        return self.properties.get(PLAIN_KEYS, "false").lower() == "true"

    @property
    def is_resizing(self) -> bool:
        """Whether the properties say that the buckets are being split: then the log alone says their number."""
        return RESIZING in self.properties

    def resized(self, resize: BucketResize | None) -> TableDefinition:
        """Return the definition with the numbers of buckets that the log says; None leaves those of the properties."""
        return self if resize is None else replace(self, properties=with_numbers(self.properties, resize.number, resize.rules))

    @property
    def routes_to_logs(self) -> bool:
        """Whether writers append rows to the log of their bucket without looking for their keys.

        The commit then counts each row as an update or a deletion, whether the table has its key or not.
        """
        return self.has_logs and declares_index(self.properties)

    @property
    def has_logs(self) -> bool:
        """Whether rows may be appended to log files, which readers merge with base files."""
        return self.type is TableType.MOR

    @property
    def writes_logs(self) -> bool:
        """Whether writers append rows to log files: rows without meta fields could not be told apart there."""
        return self.type is TableType.MOR and self.has_meta_fields

    @cached_property
    def kept_index(self) -> str:
        """`BLOOM` or `GLOBAL_BLOOM` if the properties declare it, else empty."""
        return kept_type(self.properties)

    @cached_property
    def index_text(self) -> str:
        """`BucketIndex.text` or `kept_index`, empty for a table that keeps no index; errors as `buckets`."""
        return self.buckets.text if self.buckets is not None else self.kept_index

    @cached_property
    def path_columns(self) -> PathColumns | None:
        """Partition columns that only paths hold, None if files hold all. Raises `UnsupportedTable` if paths lack the values."""
        if self.properties.get(p.DROP_PARTITION_COLUMNS, "false").lower() != "true" or not self.keygen.partition_fields:
            return None
        if self.keygen.time_based is not None or self.keygen.declared_type is KeyGeneratorType.OTHER:
            raise UnsupportedTable(
                f"table {self.name!r} drops partition columns that its key generator turns into other text",
                expected="partition paths of plain values",
                remedy=f"write it with {p.DROP_PARTITION_COLUMNS}=false",
            )
        ordering = {name.strip() for name in self.ordering_field.split(",")}
        return PathColumns(tuple(self.keygen.partition_fields)) if ordering.isdisjoint(self.keygen.partition_fields) else None

    @cached_property
    def filling_columns(self) -> PathColumns | None:
        """Partition columns that the path supplies where log files of a Hudi-written table lack them, None if the path cannot."""
        is_plain = self.keygen.has_plain_paths and self.keygen.type in (KeyGeneratorType.SIMPLE, KeyGeneratorType.COMPLEX)
        if not self.has_logs or not self.keygen.partition_fields or not is_plain:
            return None
        return PathColumns(tuple(self.keygen.partition_fields), only_fill=True)

    @cached_property
    def extension(self) -> str:
        """The extension of the base files."""
        return self.properties.get(p.BASE_FORMAT, "PARQUET").lower()

    @cached_property
    def changes(self) -> str:
        """What change files say of each change (`hoodie.table.cdc.supplemental.logging.mode`); empty for a table without them."""
        is_on = self.properties.get(p.CHANGES, "false").lower() == "true"
        return self.properties.get(p.CHANGES_MODE, "DATA_BEFORE_AFTER").upper() if is_on else ""

    @cached_property
    def has_meta_fields(self) -> bool:
        """Whether rows have the five meta fields."""
        return self.properties.get(p.POPULATE_META_FIELDS, "true").lower() == "true"

    @classmethod
    def read(cls, storage: Storage, base_path: str) -> TableDefinition:
        """Read the definition of the table in `storage`. Raises `TableNotFound`, and as `from_properties`."""
        try:
            return cls.from_properties(read_properties(storage))
        except ObjectNotFound:
            raise TableNotFound(
                f"no table at {base_path!r}",
                expected=f"{p.PROPERTIES_PATH} below it",
                remedy="check the path, or create the table: tideline create PATH",
            ) from None

    @classmethod
    def from_properties(cls, properties: Mapping[str, str]) -> TableDefinition:
        """Return the definition. Raises `CorruptMetadata` naming what is missing, `UnsupportedTable` naming what cannot be read."""
        name = properties.get(p.NAME)
        if not name:
            raise CorruptMetadata(f"{p.PROPERTIES_PATH} without {p.NAME}", expected="the table's name", remedy="restore the file")
        version = version_of(properties)
        type_text = properties.get(p.TYPE, "")
        if type_text not in set(TableType):
            raise CorruptMetadata(
                f"{p.PROPERTIES_PATH} with {p.TYPE}={type_text!r}", expected=" or ".join(TableType), remedy="restore the file"
            )
        for key in _FLAGS:
            if properties.get(key, "").lower() not in ("", "true", "false"):
                raise CorruptMetadata(
                    f"{p.PROPERTIES_PATH} with {key}={properties[key]!r}", expected="true or false", remedy="restore the file"
                )
        for key, usual in ((p.BOOTSTRAP_BASE_PATH, ""), (p.TABLE_FORMAT, "native")):
            if properties.get(key, usual) not in ("", usual):
                raise UnsupportedTable(f"table {name!r} has {key}={properties[key]}", expected=f"a table without {key}")
        base_format = properties.get(p.BASE_FORMAT, "PARQUET")
        if base_format.upper() not in p.BASE_FORMATS:
            raise UnsupportedTable(f"base files in {base_format}", expected=" or ".join(p.BASE_FORMATS))
        return cls(
            name=name,
            type=TableType(type_text),
            version=version,
            keygen=read_keygen(properties),
            ordering_field=properties.get(p.PRECOMBINE_FIELD) or properties.get(p.ORDERING_FIELDS, ""),
            payload_class=properties.get(p.PAYLOAD_CLASS) or properties.get(p.LEGACY_PAYLOAD_CLASS, ""),
            properties=dict(properties),
        )

    def check_writable(self, *, keyed: bool = True) -> None:
        """Raise `UnsupportedTable` naming what this engine cannot write. `keyed` writes find rows by key and need meta fields."""
        check_writable(self.name, self.version)
        if keyed and not self.has_meta_fields:
            raise UnsupportedTable(
                f"table {self.name!r} has no meta fields, so that no row is found by its key",
                expected="insert or bulk_insert without a duplicate policy",
                remedy=f"create the table with {p.POPULATE_META_FIELDS}=true",
            )
        if keyed and not self.keygen.key_fields:
            raise UnsupportedTable(
                f"table {self.name!r} has no record key columns, so that no row is found by its key",
                expected="insert or bulk_insert without a duplicate policy",
                remedy="create the table with a key",
            )
        self.keygen.check_usable()
        self._check_merging()
        if self.index_text and not self.has_meta_fields:
            raise UnsupportedTable(
                f"table {self.name!r} has an index ({self.index_text}) and no meta fields",
                expected=f"{p.POPULATE_META_FIELDS}=true",
            )
        if self.properties.get(p.DROP_PARTITION_COLUMNS, "false").lower() == "true":
            raise UnsupportedTable(
                f"table {self.name!r} drops its partition columns", expected=f"{p.DROP_PARTITION_COLUMNS}=false for writing"
            )

    def _check_merging(self) -> None:
        """Raise `UnsupportedTable` for a merge rule that writers cannot follow, or that Apache Hudi's readers apply differently."""
        if self.merging.merger is not None:
            self.merging.merger.check()
        if len(self.merging.ordering_fields) > 1 and Feature.SEVERAL_ORDERING_FIELDS in self.format.missing:
            raise UnsupportedTable(
                f"table {self.name!r} has the ordering fields {self.ordering_field}",
                expected="one ordering field for writing",
                remedy="read it, or write it with Apache Hudi",
            )
        if self._merges_as_postgres and self.ordering_field != POSTGRES.ordering:
            raise UnsupportedTable(
                f"table {self.name!r} with {self.payload_class} and the ordering field {self.ordering_field!r}",
                expected=f"{POSTGRES.ordering!r}, which this payload class compares",
                remedy="read it, or write it with Apache Hudi",
            )
        if self._merges_as_postgres and self.has_logs:
            raise UnsupportedTable(
                f"merge-on-read table {self.name!r} with {self.payload_class}: Apache Hudi merges its logs by another rule than "
                "its base files",
                expected=f"a table of type {TableType.COW} for writing with this payload class",
                remedy="read it, or write it with Apache Hudi (docs/peer-differences.md, 25)",
            )


def new_properties(
    form: TableFormat,
    name: str,
    table_type: TableType,
    keygen: KeyGenerator,
    rule: MergeRule,
    ordering_field: str,
    schema_json: str,
    database: str = "",
) -> dict[str, str]:
    """Return `hoodie.properties` of a new table: the set that every tested reader and writer accepts (format reference 2.1)."""
    properties = {
        p.NAME: name,
        p.TYPE: table_type.value,
        **form.version_properties(),
        **keygen_properties(keygen),
        p.BASE_FORMAT: p.BASE_FORMATS[0],
        p.POPULATE_META_FIELDS: "true",
        p.DROP_PARTITION_COLUMNS: "false",
        **form.merge_properties(rule, ordering_field),
        p.CREATE_SCHEMA: schema_json,
    }
    if database:
        properties[p.DATABASE] = database
    return {**properties, p.CHECKSUM: p.checksum(properties)}


@dataclass(frozen=True, slots=True)
class TableView:
    """A table on one state. All members are values, so it may also describe a table of the past, or under another policy."""

    base_path: str
    uid: str
    root: str
    """The base path as a URI."""
    definition: TableDefinition
    """The definition with the numbers of buckets that the log says."""
    state: TableState
    options: Options
    """The options with which rows are written, or plans made."""
    capabilities: Capabilities
    holds_keys_once: bool
    """Whether a key may be in one place of the table only, because it has a record index."""

    @property
    def refuses_cut_keys(self) -> bool:
        """Whether all writers refuse keys that `BucketIndex.check_plain` refuses."""
        return self.definition.has_plain_keys and not self.capabilities.has_hudi_files

    @property
    def schema_json(self) -> str:
        """The Avro text of the schema: of the newest commit, else of the creation."""
        return self.state.schema_json or self.definition.properties.get(CREATE_SCHEMA, "")

    @property
    def schema(self) -> pa.Schema:
        """The columns of the table, without meta fields. Raises `SchemaMismatch` if the table declares none."""
        return self.schema_of(self.schema_json)

    def schema_of(self, text: str) -> pa.Schema:
        """Return the columns that the Avro `text` declares; errors as `schema`."""
        if not text:
            raise SchemaMismatch("a table without a schema", expected="a commit, or a create schema in hoodie.properties")
        schema, path_columns = arrow_from_avro(text), self.definition.path_columns
        # A partition column that the schema does not have is text, as in Hudi.
        dropped = [] if path_columns is None else [name for name in path_columns.fields if name not in schema.names]
        return pa.schema([*schema, *(pa.field(name, pa.string()) for name in dropped)]) if dropped else schema
