"""File slices, and file ids and names (from `hudi.file_names`).

Reading and writing of rows does not belong here.
"""

from tideline_table.file_group.slice import FileGroupId, FileSlice, LogFile, SliceVersion
from tideline_table.hudi.file_names import in_bucket, new_file_id
