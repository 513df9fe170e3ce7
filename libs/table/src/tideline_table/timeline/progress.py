"""Progress of those who feed a table, kept in the metadata of their commits: rows and the place that they came from change together.

Extra metadata under `PROGRESS_PREFIX` is folded into the state of the table and so into its checkpoints. It is found without looking for
the commit, outlives the entries of the log, and nothing but a later value of the same key replaces it: no other writer and no table service.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from tideline_table.errors import InvalidOption

PROGRESS_PREFIX = "tideline.progress."
"""In extra metadata, before the key."""
MAX_VALUE_BYTES = 256 * 1024
"""Every checkpoint of the table holds every value."""
_KEY = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]{0,199}")


@dataclass(frozen=True, slots=True)
class Progress:
    """The newest committed value of a key, and the instant that set it."""

    value: str
    instant: str


@dataclass(frozen=True, slots=True)
class ProgressStep:
    """A commit moves `key` from `expected` (None: no commit ever set it) to `value`, or does not happen.

    Raises `InvalidOption` for a key or a value that cannot be kept.
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
        """The extra metadata that says so."""
        return {f"{PROGRESS_PREFIX}{self.key}": self.value}


def progress_in(extra: Mapping[str, str], instant: str) -> dict[str, Progress]:
    """What the extra metadata of the commit `instant` says, by key."""
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
    """`progress` as far as only writes that count said so: for what others moved, what the newest of `earlier` (newest first) said.

    `extra_of` gives the extra metadata of a write and is asked only until every key is found. A key that none of them said is left out.
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
