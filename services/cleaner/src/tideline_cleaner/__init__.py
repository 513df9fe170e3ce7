"""The cleaner: deletes file slices that no retained query reads, archives old instants, and rolls back writers that died.

The only service that deletes committed files. When compaction or clustering runs does not belong here.
"""
