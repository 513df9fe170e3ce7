"""JSON of others whose texts can be written again."""

from __future__ import annotations

import json
import re
from typing import Any

_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def parse_json(content: bytes) -> Any:
    """The document in UTF-8 bytes. Raises `ValueError`, or `RecursionError` for one that is nested too deep.

    Half of a surrogate pair, which JSON can spell, is refused here: later it fits into no file and no path.
    """
    text = content.decode()
    document = json.loads(text)
    if _SURROGATE.search(text):
        json.dumps(document, ensure_ascii=False).encode()
    return document
