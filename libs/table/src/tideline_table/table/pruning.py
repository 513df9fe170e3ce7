"""Whether the buckets of an open table can be left out of a query."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

import pyarrow as pa

from tideline_table.coordination.shared.partition_numbers import check_numbers
from tideline_table.errors import UnsupportedTable
from tideline_table.hudi.properties import CREATE_SCHEMA
from tideline_table.index.bucket_properties import with_numbers_of
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
    rings: Callable[[], TableRings | None],
    storage: Storage,
    *,
    has_hudi_files: bool,
) -> BucketPruning | None:
    """Return how queries find buckets; None without a bucket index, or if the rows may be elsewhere than it says.

    A table without an identity only has what `hoodie.properties` claims (`declared`). Where these contradict the identity and
    the log, a warning is logged: queries then read all buckets, and writers stop (`check_index_unchanged`). A table that stays
    open may have read the properties before a resize; the numbers of buckets are those of the log.
    """
    if identity is None:
        return None
    try:
        index = declared.buckets
        known = {identity.index, *map(identity.index_after, state.bucket_resizes())}
        if declared.index_text not in known:
            check_index_unchanged(declared.index_text, identity, state.bucket_resize(), is_resizing=declared.is_resizing)
    except UnsupportedTable as error:
        _LOGGER.warning("queries of table %r read all buckets: %s", declared.name, error)
        return None
    if index is None:
        return None
    index = with_numbers_of(index, identity.index_after(state.bucket_resize(as_of)))
    schema = declared.properties.get(CREATE_SCHEMA, "")
    created_schema = arrow_from_avro(schema) if schema else pa.schema([])
    key_types = {name: named_field(created_schema, name).type for name in index.key_fields if field_path(created_schema, name)}
    found = rings()
    return BucketPruning(
        index,
        declared.keygen,
        key_types,
        cuts_alike=not has_hudi_files,
        has_plain_values=not has_hudi_files and declared.has_plain_keys,
        ring_of=partial(found.at, as_of=as_of) if found is not None else None,
        check=partial(check_numbers, storage, declared.properties) if has_hudi_files else None,
    )
