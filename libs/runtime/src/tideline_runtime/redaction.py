"""Hide secrets: passwords in URLs, values under names that indicate a secret, and the secrets of the settings in any text."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

HIDDEN = "**********"
MIN_SECRET_LENGTH = 4
"""Shorter secrets are not replaced, because ordinary words may contain them."""

_MAX_DEPTH = 8
_USER_INFO = re.compile(r"(?<=://)([^/\s@:]*):([^/\s]*)@")
# Fencing, write and continuation tokens are not secrets; they must stay readable.
_SECRET_NAME = re.compile(
    r"(^|[_.-])(password|passwd|secret|secret[_-]?key|api[_-]?key|access[_-]?key|authorization|credentials?"
    r"|(http|auth|access|bearer|session|security)[_-]token)$",
    re.IGNORECASE,
)


def redacted_text(text: str) -> str:
    """Return `text` with the passwords of URLs hidden."""
    return _USER_INFO.sub(lambda m: f"{m[1]}:{HIDDEN}@", text)


def url_passwords(text: str) -> tuple[str, ...]:
    """Return the passwords that `redacted_text` hides."""
    return tuple(found[1] for found in _USER_INFO.findall(text) if found[1])


def redactor(secrets: tuple[str, ...] = ()) -> Callable[[Any], Any]:
    """Return a function that removes secrets from any log value; bytes and unknown objects become redacted text."""
    known = sorted({s for s in secrets if len(s) >= MIN_SECRET_LENGTH}, key=len, reverse=True)

    def clean(text: str) -> str:
        for secret in known:
            text = text.replace(secret, HIDDEN)
        return redacted_text(text)

    def walk(value: Any, depth: int) -> Any:
        if value is None or isinstance(value, bool | int | float):
            return value
        if isinstance(value, str):
            return clean(value)
        if depth >= _MAX_DEPTH:
            return clean(repr(value))
        if isinstance(value, Mapping):
            return {
                clean(str(k)): HIDDEN if _SECRET_NAME.search(str(k)) and v is not None else walk(v, depth + 1)
                for k, v in value.items()
            }
        if isinstance(value, list | tuple | set | frozenset):
            return [walk(item, depth + 1) for item in value]
        return clean(str(value))

    return lambda value: walk(value, 0)
