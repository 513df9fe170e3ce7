"""Whether the buckets of an open table can be left out of a query."""

from __future__ import annotations

import logging

from tideline_table.errors import UnsupportedTable
from tideline_table.hudi.properties import CREATE_SCHEMA
from tideline_table.index.bucket_pruning import BucketPruning
from tideline_table.schema import arrow_from_avro
from tideline_table.table.definition import TableDefinition
from tideline_table.table.identity import TableIdentity, check_index_unchanged

_LOGGER = logging.getLogger(__name__)


def pruning_of(definition: TableDefinition, identity: TableIdentity | None, *, is_exclusive: bool) -> BucketPruning | None:
    """Return how queries find buckets; None without a bucket index, or if the rows may be elsewhere than it says.

    A table without an identity only has what `hoodie.properties` claims. Where these contradict the identity, a warning is logged:
    queries then read all buckets, and writers stop (`check_index_unchanged`).
    """
    if identity is None:
        return None
    try:
        index = definition.buckets
        check_index_unchanged(definition.index_text, identity)
    except UnsupportedTable as error:
        _LOGGER.warning("queries of table %r read all buckets: %s", definition.name, error)
        return None
    if index is None:
        return None
    created = definition.properties.get(CREATE_SCHEMA, "")
    key_types = {f.name: f.type for f in arrow_from_avro(created) if f.name in index.key_fields} if created else {}
    return BucketPruning(
        index, definition.keygen, key_types, is_exclusive=is_exclusive, has_plain_values=is_exclusive and definition.has_plain_keys
    )
