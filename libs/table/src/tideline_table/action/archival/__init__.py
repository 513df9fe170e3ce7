"""Archival: move instants from the active timeline to an archive file."""
