"""The lock service: leases over HTTP for those who cannot reach the lock store, expiry watch, lock events.

It remembers no lease: the lock store alone knows who holds what, so that every instance answers the same, also after a restart. What a
holder may do to a table does not belong here: the table log decides that.
"""
