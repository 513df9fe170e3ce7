"""Avro datums in bulk: many records of one schema to Arrow columns and back, one field of all records at a time.

Arrow types are those of `tideline_table.schema`. The bytes around datums (lengths, blocks) belong to the callers.
"""

from tideline_table.log_format.avro.decode import decode_datums, row_schema
from tideline_table.log_format.avro.encode import encode_datums
from tideline_table.log_format.avro.node import Node, parse_schema
