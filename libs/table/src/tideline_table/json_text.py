"""JSON documents: parsing of untrusted ones whose texts must be writable again, and digests that documents hold of themselves."""

from __future__ import annotations

import json
import re
from typing import Any

import xxhash

_SEAL = re.compile(rb', "xxh3": "([0-9a-f]{16})"\}\Z')
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


def given(**values: Any) -> dict[str, Any]:
    """Return the values that are not None."""
    return {key: value for key, value in values.items() if value is not None}


def sealed(content: bytes) -> bytes:
    """Return a JSON object with one more field, the last: `xxh3`, the XXH3 of all bytes before it. `parse_sealed` verifies it."""
    return content[:-1] + f', "xxh3": "{_digest(content[:-1])}"}}'.encode()


def parse_sealed(content: bytes) -> Any:
    """Parse a document as `parse_json` does.

    Raises `ValueError` if it has another digest than its content; earlier releases wrote none.
    """
    seal = _SEAL.search(content)
    if seal is not None and (found := _digest(content[: seal.start()])) != seal[1].decode():
        raise ValueError(f"its bytes are damaged: their XXH3 is {found}, not {seal[1].decode()}")
    return parse_json(content)


def _digest(content: bytes) -> str:
    return xxhash.xxh3_64_hexdigest(content)
