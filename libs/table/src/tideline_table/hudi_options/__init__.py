"""Apache Hudi's own options: what each means here, and the table, write and query of a job that was written with them."""

from tideline_table.hudi_options.creation import HUDI_BUCKETS, check_agrees, named_request, request_fields, table_request
from tideline_table.hudi_options.declared import HUDI_OPTIONS
from tideline_table.hudi_options.option import Effect, HudiOption
from tideline_table.hudi_options.parse import Given, HudiOptions, is_hudi_option, parse_hudi_options

__all__ = [
    "HUDI_BUCKETS",
    "HUDI_OPTIONS",
    "Effect",
    "Given",
    "HudiOption",
    "HudiOptions",
    "check_agrees",
    "is_hudi_option",
    "named_request",
    "parse_hudi_options",
    "request_fields",
    "table_request",
]
