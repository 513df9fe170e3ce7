"""Instants, the transition table, the table log, and the timeline files with their contents.

What a commit means for file groups does not belong here; see `file_group` and `transaction`.
"""
