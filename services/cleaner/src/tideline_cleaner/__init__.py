"""The cleaner: deletes file slices that no retained query reads, archives old instants and rolls back writes of dead writers.

It is the only service that deletes committed files. It does not decide when compaction or clustering runs.
"""
