"""From file slices to Arrow rows: columns and filters pushed down into base files."""

from tideline_table.reader.base_file import BaseFileFooter, read_base_file, read_footer, scan_slices

__all__ = ["BaseFileFooter", "read_base_file", "read_footer", "scan_slices"]
