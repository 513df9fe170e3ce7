"""The lock service: offers leases over HTTP to clients without access to the lock store, watches leases, publishes lock events.

It stores no leases: only the lock store knows the holders, so every instance gives the same answers, also after a restart. It does
not decide what a holder may do to a table: the table log does.
"""
