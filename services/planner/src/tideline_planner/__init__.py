"""Decides which table services a table needs and publishes their plans."""
