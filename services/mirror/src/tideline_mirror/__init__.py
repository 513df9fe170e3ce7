"""The mirror: publishes each entry of each table log as an event, once and in order, and scrubs what crashed writers left undone.

Its cursor is the table's record in `tideline.tables`; nothing else is remembered. Deciding what a table needs does not belong here.
"""
