"""Table schemas: Avro (what Hudi stores) and Arrow (what the engine computes on), and whether rows fit them."""

from tideline_table.schema.avro import arrow_from_avro, avro_from_arrow, avro_with_meta_fields
from tideline_table.schema.fit import fit_rows
from tideline_table.schema.meta_fields import META_FIELDS, MetaField, with_meta_fields, without_meta_fields

__all__ = [
    "META_FIELDS",
    "MetaField",
    "arrow_from_avro",
    "avro_from_arrow",
    "avro_with_meta_fields",
    "fit_rows",
    "with_meta_fields",
    "without_meta_fields",
]
