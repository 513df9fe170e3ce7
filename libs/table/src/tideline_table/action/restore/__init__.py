"""Restore: bring a table back to a savepoint."""
