"""Log files that a clustering wrote on behalf of earlier writes: their rows were written while it ran.

The commit of the clustering names them in its extra metadata. The state files each of them under the write that its rows are
of, so that a restore or a query as of an instant treats the rows as part of that write, wherever they are.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from tideline_table.errors import CorruptMetadata

CARRIED_KEY = "tideline.carried"
"""Key in the extra metadata of a clustering: JSON of the instant of each write → the paths of the log files with its rows."""


def carried_text(files: Mapping[str, list[str]]) -> str:
    """Return the value of `CARRIED_KEY` for these files: instant of the write → paths."""
    return json.dumps(files, sort_keys=True)


def carried_by_path(extra: Mapping[str, str]) -> dict[str, str]:
    """Return path → instant of the write for the log files that a clustering names; empty for other commits.

    Raises `CorruptMetadata` for a value that `carried_text` does not write.
    """
    text = extra.get(CARRIED_KEY, "")
    if not text:
        return {}
    try:
        return {str(path): str(instant) for instant, paths in json.loads(text).items() for path in paths}
    except (ValueError, AttributeError, TypeError, RecursionError):
        raise CorruptMetadata(f"{CARRIED_KEY} {text[:80]!r}", expected="instants of writes with paths of log files") from None
