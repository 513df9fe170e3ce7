"""Maintenance of a whole table.

Which of its services are due and why, what its state is, and running everything that is due once.
"""
