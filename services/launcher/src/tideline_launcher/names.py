"""Names of attempts at plans and of applications. Launchers that make the same decision give the same names.

The name of an attempt is `table-digest-instant-attempt`. The launcher gives an application with one plan the name of its
attempt, and an application with several plans the name `shared-digest`, with a digest of the names of its attempts.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable

from tideline_table.storage import root_uri

MAX_LENGTH = 47
"""A DNS label has 63 characters; Spark appends `-exec-` and a number of up to 10 digits for executor pods."""
_DIGEST_BYTES = 5
_SHARED = "shared"
_SHARED_DIGEST_BYTES = 16
"""Long, because a launcher would treat two groups of attempts with equal names as one application."""
_NAME = re.compile(r"[a-z](?:[a-z0-9-]*[a-z0-9])?-([0-9a-f]{10})-([0-9]{1,17})-([1-9][0-9]*)")
_SHARED_NAME = re.compile(rf"{_SHARED}-[0-9a-f]{{{2 * _SHARED_DIGEST_BYTES}}}")
_NOT_ALLOWED = re.compile(r"[^a-z0-9]+")


def place_digest(base_path: str) -> str:
    """Return the part of a name that identifies the base path: 10 hexadecimal digits, equal for all spellings of the path."""
    return hashlib.blake2b(root_uri(base_path).encode(), digest_size=_DIGEST_BYTES).hexdigest()


def application_name(table_name: str, base_path: str, instant: str, attempt: int) -> str:
    """Return the name of an attempt at a plan: a DNS label of at most 47 characters that begins with a letter.

    A digest of the base path distinguishes tables with the same name. `instant` consists of up to 17 digits.
    """
    assert attempt >= 1
    rest = f"-{place_digest(base_path)}-{instant}-{attempt}"
    readable = _NOT_ALLOWED.sub("-", table_name.lower()).strip("-")
    if not readable or not readable[0].isalpha():
        readable = f"t-{readable}"
    return readable[: MAX_LENGTH - len(rest)].strip("-") + rest


def shared_name(attempts: Iterable[str]) -> str:
    """Return the name of the application that makes these attempts, in any order: a DNS label that is no name of an attempt."""
    digest = hashlib.blake2b("\n".join(sorted(attempts)).encode(), digest_size=_SHARED_DIGEST_BYTES)
    return f"{_SHARED}-{digest.hexdigest()}"


def is_shared_name(name: str) -> bool:
    """Return whether an application of several plans has this name."""
    return _SHARED_NAME.fullmatch(name) is not None


def digest_in(name: str) -> str | None:
    """Return the digest of the base path in a name, None if it is no name of an attempt."""
    found = _NAME.fullmatch(name)
    return found.group(1) if found and len(name) <= MAX_LENGTH else None
