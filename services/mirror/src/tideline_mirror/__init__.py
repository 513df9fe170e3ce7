"""The mirror: publishes each table log entry as an event, once and in order, and repairs what crashed writers left unfinished.

Its cursor is the table's record in `tideline.tables`; it stores nothing else. It does not decide what a table needs.
"""
