"""Publishes every transition of the table logs as an event."""
