"""What the decisions of a write, a table service or the planner depend on, found once when it begins on a state and passed down."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from tideline_table.config import Options
from tideline_table.coordination.capabilities import Capabilities
from tideline_table.errors import SchemaMismatch
from tideline_table.hudi.properties import CREATE_SCHEMA
from tideline_table.log.state import TableState
from tideline_table.schema import arrow_from_avro
from tideline_table.table.definition import TableDefinition


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
