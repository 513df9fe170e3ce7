"""Ingestion progress, kept in commit metadata: the rows of a commit and the source position that they came from change together.

Extra metadata under `PROGRESS_PREFIX` is folded into the table state and so into checkpoints. A reader finds it without searching
for the commit, and it remains after log entries are trimmed. Only a later commit with the same key replaces a value.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tideline_table.errors import InvalidOption

PROGRESS_PREFIX = "tideline.progress."
"""Prefix of progress keys in extra metadata."""
MAX_VALUE_BYTES = 256 * 1024
"""Limit for the size of a value, because every checkpoint of the table holds every value."""
_KEY = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]{0,199}")


@dataclass(frozen=True, slots=True)
class Progress:
    """The newest committed value of a key, and the instant that set it."""

    value: str
    instant: str


@dataclass(frozen=True, slots=True)
class ProgressStep:
    """A compare-and-set of `key` from `expected` (None: no commit ever set it) to `value`. If it fails, the commit fails.

    Raises `InvalidOption` for a malformed key and for a value larger than `MAX_VALUE_BYTES`.
    """

    key: str
    expected: str | None
    value: str

    def __post_init__(self) -> None:
        if not _KEY.fullmatch(self.key):
            raise InvalidOption(f"progress key {self.key!r}", expected="up to 200 letters, digits, '_', '.', ':' and '-'")
        size = len(self.value.encode())
        if size > MAX_VALUE_BYTES:
            raise InvalidOption(f"progress {self.key!r} of {size} bytes", expected=f"at most {MAX_VALUE_BYTES}")

    @property
    def metadata(self) -> dict[str, str]:
        """The extra metadata of a commit that sets `key` to `value`."""
        return {f"{PROGRESS_PREFIX}{self.key}": self.value}


def progress_json(progress: Mapping[str, Progress]) -> dict[str, list[str]]:
    """Return the JSON form of progress in log entries. `progress_from` parses it."""
    return {key: [held.value, held.instant] for key, held in progress.items()}


def progress_from(document: Mapping[str, Any]) -> dict[str, Progress]:
    """Parse the output of `progress_json`."""
    return {str(key): Progress(str(value), str(at)) for key, (value, at) in document.items()}


def progress_in(extra: Mapping[str, str], instant: str) -> dict[str, Progress]:
    """Return the progress in the extra metadata of the commit `instant`, by key."""
    return {
        name.removeprefix(PROGRESS_PREFIX): Progress(value, instant)
        for name, value in extra.items()
        if name.startswith(PROGRESS_PREFIX)
    }


def progress_said_by(
    progress: Mapping[str, Progress],
    counts: Callable[[str], bool],
    earlier: Iterable[str],
    extra_of: Callable[[str], Mapping[str, str]],
) -> dict[str, Progress]:
    """Return `progress` as set by writes for which `counts` is true; for other keys, the value from the newest of `earlier` writes.

    `earlier` is ordered newest first. `extra_of` reads the extra metadata of a write and is called only until every key is found.
    A key that no such write set is left out.
    """
    found = {key: held for key, held in progress.items() if counts(held.instant)}
    missing = set(progress) - set(found)
    for instant in earlier:
        if not missing:
            break
        said = progress_in(extra_of(instant), instant)
        found |= {key: said[key] for key in missing & set(said)}
        missing -= set(said)
    return found


def archived_progress(extra: Iterable[tuple[str, Mapping[str, str]]], counts: Callable[[str], bool]) -> dict[str, Progress]:
    """Return the newest ingestion progress of each key in archived writes (instant, extra metadata) for which `counts` is true."""
    found: dict[str, Progress] = {}
    for time, said in extra:
        if counts(time):
            found |= {key: held for key, held in progress_in(said, time).items() if key not in found or found[key].instant < time}
    return found
