"""The numbers of buckets that a resize gave a table with a bucket index, as the metadata of its commit says them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

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
