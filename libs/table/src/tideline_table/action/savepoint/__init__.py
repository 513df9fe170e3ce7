"""Savepoints: completed writes whose files cleaning keeps."""
