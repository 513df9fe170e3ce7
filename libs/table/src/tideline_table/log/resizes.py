"""Which partitions a commit gave another hash ring, and which numbers of buckets a table, as its metadata says.

See docs/design/consistent-hashing.md for rings.
"""

from __future__ import annotations

import json
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import NamedTuple

from tideline_table.errors import parsing
from tideline_table.json_text import parse_json

RINGS_KEY = "tideline.bucket.rings"
"""Key in the metadata of a commit that gave partitions other hash rings: a JSON list of their paths."""


def rings_metadata(partitions: Iterable[str]) -> dict[str, str]:
    """Return the metadata of a commit that gives these partitions other hash rings."""
    return {RINGS_KEY: json.dumps(sorted(partitions))}


def resized_in(extra: Mapping[str, str], instant: str) -> tuple[str, ...]:
    """Return the partitions that the commit `instant` gave other rings. Raises `CorruptMetadata`."""
    if RINGS_KEY not in extra:
        return ()
    with parsing(f"{RINGS_KEY} in the metadata of {instant}", "a JSON list of partition paths"):
        names = parse_json(str(extra[RINGS_KEY]).encode())
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise TypeError(f"{names!r}")
    return tuple(names)


def made_by(resizes: Mapping[str, Sequence[str]], partition_path: str, as_of: str = "") -> str:
    """Return the last of the `resizes` (partitions by instant) of a partition, up to an instant if given; empty for none."""
    return max((at for at, names in resizes.items() if partition_path in names and (not as_of or at <= as_of)), default="")


def kept_resizes(
    resizes: Mapping[str, tuple[str, ...]], retained: str, saved: Iterable[str], replacing: Container[str]
) -> dict[str, tuple[str, ...]]:
    """Return the resizes that queries may still ask for, once files of states before the instant `retained` may be deleted.

    These are the resizes from `retained` on; of the earlier ones the last of each partition, as of `retained` and as of the `saved`
    instants; and those in `replacing`, whose replaced file groups still have files.
    """
    kept = {at: resizes[at] for at in sorted(resizes) if at >= retained or at in replacing}
    for end in (retained, *(f"{instant}~" for instant in saved if instant < retained)):
        known: set[str] = set()
        for at in sorted((at for at in resizes if at < end), reverse=True):
            last = set(resizes[at]) - known
            known |= last
            if last and at < retained and at not in replacing:
                kept[at] = tuple(name for name in resizes[at] if name in last or name in kept.get(at, ()))
    return dict(sorted(kept.items()))


BUCKET_NUMBER_KEY = "tideline.bucket.number"
"""Key in the metadata of the commit that gave the table other numbers of buckets: the number of partitions without a rule."""
BUCKET_RULES_KEY = "tideline.bucket.rules"
"""Key beside it with the text of the partition rules; absent if the table has none since."""


class BucketResize(NamedTuple):
    """The numbers of buckets from the instant of a resize on."""

    instant: str
    number: int
    rules: str = ""
    """The text of the partition rules; empty for one number in all partitions."""

    @property
    def metadata(self) -> dict[str, str]:
        """What the commit of the resize says."""
        return {BUCKET_NUMBER_KEY: str(self.number), **({BUCKET_RULES_KEY: self.rules} if self.rules else {})}

    @property
    def text(self) -> str:
        """The numbers, for messages."""
        return f"{self.number} bucket(s){', by partition ' if self.rules else ''}{self.rules}"


def resize_in(extra: Mapping[str, str], instant: str) -> BucketResize | None:
    """Return the numbers that the commit `instant` gave the table, None for a commit that is no resize."""
    number = str(extra.get(BUCKET_NUMBER_KEY, ""))
    if not (number.isascii() and number.isdecimal()):
        return None
    return BucketResize(instant, int(number), str(extra.get(BUCKET_RULES_KEY, "")))
