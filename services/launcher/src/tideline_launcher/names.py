"""Names of applications: `table-instant-attempt`, equal for launchers that make the same decision."""

from __future__ import annotations

import hashlib
import re

from tideline_table.storage import root_uri

MAX_LENGTH = 47
"""A DNS label has 63 characters; Spark appends `-exec-` and a number of up to 10 digits for executor pods."""
_DIGEST_BYTES = 5
_NAME = re.compile(r"[a-z](?:[a-z0-9-]*[a-z0-9])?-([0-9a-f]{10})-([0-9]{1,17})-([1-9][0-9]*)")
_NOT_ALLOWED = re.compile(r"[^a-z0-9]+")


def place_digest(base_path: str) -> str:
    """Return the part of a name that stands for the base path, in any spelling of it: 10 hexadecimal digits."""
    return hashlib.blake2b(root_uri(base_path).encode(), digest_size=_DIGEST_BYTES).hexdigest()


def application_name(table_name: str, base_path: str, instant: str, attempt: int) -> str:
    """Return the name of an attempt at a plan: a DNS label of at most 47 characters that begins with a letter.

    Tables of one name differ by a digest of their base paths. `instant` consists of up to 17 digits.
    """
    assert attempt >= 1
    rest = f"-{place_digest(base_path)}-{instant}-{attempt}"
    readable = _NOT_ALLOWED.sub("-", table_name.lower()).strip("-")
    if not readable or not readable[0].isalpha():
        readable = f"t-{readable}"
    return readable[: MAX_LENGTH - len(rest)].strip("-") + rest


def digest_in(name: str) -> str | None:
    """Return the digest of the base path in a name, None if it is no name of an application."""
    found = _NAME.fullmatch(name)
    return found.group(1) if found and len(name) <= MAX_LENGTH else None
