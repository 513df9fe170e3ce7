"""Deletes what nobody reads and rolls back dead writers."""
