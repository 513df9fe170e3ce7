"""The metadata table of an exclusive table.

What each entry of the table log changes in it, its files, and its comparison with the log.

The table log decides what is in it (`tideline_table.log.metadata`), so its files are derived from entries, as timeline files are.
Tideline's own readers do not read it: they take the files of the table from the log. That of a table which Apache Hudi also
writes is known from its files alone (`stored`). Of a table without a log it lists the files (`hudi_listing`), and says which of
them a query can leave out (`hudi_statistics`, by keys `hudi_keys`).
"""

from tideline_table.metadata_table.check import check_metadata
from tideline_table.metadata_table.check_stored import check_stored
from tideline_table.metadata_table.finding import Finding, FindingKind
from tideline_table.metadata_table.hudi_keys import HudiKeys
from tideline_table.metadata_table.hudi_listing import listed_by_metadata
from tideline_table.metadata_table.hudi_statistics import HudiStatistics
from tideline_table.metadata_table.key_lookup import RecordIndex, is_advertised, record_index_of
from tideline_table.metadata_table.log_records import LogRecords
from tideline_table.metadata_table.prepared_delta import PreparedDelta, prepared_delta
from tideline_table.metadata_table.publishing import hide_records, publish_metadata, unpublish_metadata
from tideline_table.metadata_table.stored import StoredMetadata
