"""Writing rows: prepare, tag, route, write files, commit."""
