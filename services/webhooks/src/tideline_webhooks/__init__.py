"""`tideline-webhooks`: sends events to HTTP endpoints, in order for each table, until they are taken.

Each subscription of a file has a consumer group, a thread and workers of its own. Its positions are in the event log; what that
has lost is read from the table logs.
"""
