"""The Hudi metadata format: instants, legal transitions, table properties, and timeline files with their contents.

The effect of a commit on file groups does not belong here; see `tideline_table.log` and `tideline_table.file_group`.
"""

from tideline_table.hudi.avro_container import decode_document
from tideline_table.hudi.file_names import is_log_path
from tideline_table.hudi.format import TableFormat
from tideline_table.hudi.instant import WRITE_ACTIONS, Action, State, time_from_instant
from tideline_table.hudi.listing import ListedTimeline
from tideline_table.hudi.merge_rules import UNAVAILABLE_VALUE
from tideline_table.hudi.point import Point, is_sequence, parse_as_of
from tideline_table.hudi.properties import CREATE_SCHEMA, DATABASE, PROPERTIES_PATH
from tideline_table.hudi.write_stats import REPLACED_ROWS_KEY, SCHEMA_KEY, CommitMetadata
