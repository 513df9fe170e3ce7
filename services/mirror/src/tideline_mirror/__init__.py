"""The mirror: publishes each table log entry as an event, once and in order, and repairs what crashed writers left unfinished.

It also publishes changes of the tables themselves, and heartbeats. The cursor of the mirror is the table's record in
`tideline.tables`; it stores nothing else. It does not decide which services a table needs.
"""
