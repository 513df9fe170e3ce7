"""Table schemas: Avro (stored by Hudi), Arrow (used by the engine), and the check that rows match a schema."""

from tideline_table.schema.arrow import field_path, field_values, named_field, named_values, top_columns
from tideline_table.schema.avro import arrow_from_avro, avro_from_arrow, avro_with_meta_fields
from tideline_table.schema.evolution import IS_DELETED, fit_rows
from tideline_table.schema.meta_fields import META_FIELDS, MetaField, with_meta_fields, without_meta_fields
from tideline_table.schema.readers import nested_limits, reader_limits
from tideline_table.schema.storable import storable_rows, storable_schema
from tideline_table.schema.text_values import REFUSALS, ZONED, cast_text, expected_text
