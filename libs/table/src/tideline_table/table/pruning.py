"""Whether the buckets of an open table can be left out of a query."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pyarrow as pa

from tideline_table.coordination.shared.partition_numbers import check_numbers
from tideline_table.errors import UnsupportedTable
from tideline_table.hudi.properties import CREATE_SCHEMA
from tideline_table.index.bucket import BucketIndex
from tideline_table.index.bucket_pruning import BucketPruning
from tideline_table.log.state import TableState
from tideline_table.schema import arrow_from_avro, field_path, named_field
from tideline_table.storage import Storage
from tideline_table.table.definition import TableDefinition
from tideline_table.table.identity import TableIdentity, check_index_unchanged
from tideline_table.table.rings import TableRings

_LOGGER = logging.getLogger(__name__)


def pruning_of(
    declared: TableDefinition,
    identity: TableIdentity | None,
    state: TableState,
    as_of: str,
    rings: Callable[[BucketIndex], TableRings],
    storage: Storage,
    *,
    is_exclusive: bool,
) -> BucketPruning | None:
    """Return how queries find buckets; None without a bucket index, or if the rows may be elsewhere than it says.

    A table without an identity only has what `hoodie.properties` claims (`declared`). Where these contradict the identity and the log,
    a warning is logged: queries then read all buckets, and writers stop (`check_index_unchanged`). A table that stays open may have read the properties
    before a resize; the number of buckets is that of the log.
    """
    if identity is None:
        return None
    created, hashed = identity.index.partition(" ")[::2]
    try:
        index = declared.buckets
        number, fields = declared.index_text.partition(" ")[::2]
        is_known = declared.is_resizing or number in {created, *map(str, state.bucket_numbers.values())}
        if fields != hashed or not is_known:
            check_index_unchanged(declared.index_text, identity, state.bucket_number())
    except UnsupportedTable as error:
        _LOGGER.warning("queries of table %r read all buckets: %s", declared.name, error)
        return None
    if index is None:
        return None
    index = replace(index, number=state.bucket_number(as_of) or int(created))
    schema = declared.properties.get(CREATE_SCHEMA, "")
    created_schema = arrow_from_avro(schema) if schema else pa.schema([])
    key_types = {name: named_field(created_schema, name).type for name in index.key_fields if field_path(created_schema, name)}
    return BucketPruning(
        index,
        declared.keygen,
        key_types,
        is_exclusive=is_exclusive,
        has_plain_values=is_exclusive and declared.has_plain_keys,
        ring_of=partial(rings(index).at, as_of=as_of) if index.is_consistent else None,
        check=None if is_exclusive else partial(check_numbers, storage, declared.properties),
    )
