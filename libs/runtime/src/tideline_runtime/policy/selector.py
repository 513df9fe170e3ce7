"""Which tables a rule is for, and how narrow it is for one of them. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import unquote

from tideline_runtime.table_search import TablePattern, level_pattern

Rank = tuple[int, ...]
"""How narrow a rule is for a table. Of two ranks, the greater tuple is the narrower one."""
_PATHS, _TAGS, _TABLE = 1, 2, 3
RESOURCE: Rank = (4,)
_UID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_EVERY_DEPTH = "**"


def is_uid(text: str) -> bool:
    """Return whether the text has the form of a table's uid."""
    return _UID.fullmatch(text) is not None


def matches(pattern: TablePattern, base_path: str) -> bool:
    """Return whether the pattern selects a table at this canonical base path, as the search for tables would."""
    if not pattern.parts:
        return pattern.root == base_path
    root = pattern.root.rstrip("/") + "/"
    if not base_path.startswith(root):
        return False
    levels = base_path[len(root) :].split("/")
    if pattern.root.startswith("file:"):
        levels = [unquote(level) for level in levels]
    if any(level.startswith(".") for level in levels):
        return False
    parts = pattern.parts
    if parts[-1] == _EVERY_DEPTH:
        parts = parts[:-1]
        if len(levels) <= len(parts):
            return False
        levels = levels[: len(parts)]
    return len(levels) == len(parts) and all(level_pattern(p).fullmatch(name) for p, name in zip(parts, levels, strict=True))


def narrowness(pattern: TablePattern) -> Rank:
    """Return how narrow a pattern is.

    The parts of the rank, the first one decides: folder levels before the first wildcard; no wildcard at all; no `**`; number
    of levels with and after the first wildcard; characters of these levels that are no wildcards.
    """
    levels = len([level for level in pattern.root.split("/") if level])
    is_bounded = _EVERY_DEPTH not in pattern.parts
    letters = sum(len(part.replace("*", "").replace("?", "")) for part in pattern.parts)
    return (levels, int(not pattern.parts), int(is_bounded), len(pattern.parts), letters)


@dataclass(frozen=True, slots=True)
class Group:
    """Tables by patterns, and single tables by base path or uid, without those that `exclude` matches."""

    paths: tuple[TablePattern, ...] = ()
    exclude: tuple[TablePattern, ...] = ()
    tables: frozenset[str] = frozenset()
    """Canonical base paths and uids."""

    def rank(self, base_path: str, uid: str) -> Rank | None:
        """Return how narrowly the group names the table; None if the table is not in the group."""
        if any(matches(pattern, base_path) for pattern in self.exclude):
            return None
        if base_path in self.tables or (uid and uid in self.tables):
            return (_TABLE,)
        found = [narrowness(pattern) for pattern in self.paths if matches(pattern, base_path)]
        return (_PATHS, *max(found)) if found else None


@dataclass(frozen=True, slots=True)
class Selector:
    """The tables of a rule: a group of its own, or the groups of tags."""

    group: Group = Group()
    tags: frozenset[str] = frozenset()

    def rank(self, base_path: str, uid: str, tags: Mapping[str, Group]) -> Rank | None:
        """Return the rank of the rule for a table; None if the rule does not match it."""
        if not self.tags:
            return self.group.rank(base_path, uid)
        if any(matches(pattern, base_path) for pattern in self.group.exclude):
            return None
        named = any(tags[tag].rank(base_path, uid) is not None for tag in self.tags)
        return (_TAGS,) if named else None
