"""What an option of Apache Hudi is here."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase


class Effect(enum.StrEnum):
    """What an option decides here."""

    TABLE = "table"
    """Part of the definition: decides when the table is created, and is compared with it afterwards."""
    INDEX = "index"
    """The same for the index, which the writer's options name, too."""
    WRITE = "write"
    READ = "read"
    FIXED = "fixed"
    """Accepted with the values that say what Tideline does; others are refused."""
    IGNORED = "ignored"
    """Accepted with a warning: it changes no rows."""
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class HudiOption:
    """An option of Apache Hudi. A key may hold `*`."""

    key: str
    effect: Effect
    meaning: str
    """For users: what it does here, why it is ignored, or what to do instead."""
    target: str = ""
    """The part of a table, write or read that it names."""
    older: tuple[str, ...] = ()
    """Keys of other releases."""
    only: tuple[str, ...] = ()
    """FIXED: the accepted values. READ and WRITE: all values."""
    values: Mapping[str, str] = field(default_factory=dict)
    """Other spellings of values, in lower case."""

    def fits(self, key: str) -> bool:
        """Return whether `key` is one of this option's."""
        return any(key == own or ("*" in own and fnmatchcase(key, own)) for own in (self.key, *self.older))


WRITE = "hoodie.datasource.write."
READ = "hoodie.datasource.read."
