"""Parsing of untrusted JSON whose texts must be writable again."""

from __future__ import annotations

import json
import re
from typing import Any

_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def parse_json(content: bytes) -> Any:
    """Parse a JSON document in UTF-8. Raises `ValueError`, or `RecursionError` for too deep nesting.

    An escaped lone surrogate raises `ValueError`, because no file or path could hold it.
    """
    text = content.decode()
    document = json.loads(text)
    if _SURROGATE.search(text):
        json.dumps(document, ensure_ascii=False).encode()
    return document
