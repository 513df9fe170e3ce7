"""Table discovery: the base paths that `tables` and a source of tables select, and those in this instance's shards."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol
from urllib.parse import unquote

from tideline_runtime.errors import InvalidSetting
from tideline_runtime.logging import get_logger
from tideline_runtime.metrics import TABLE_SCAN_FAILURES, TABLES, Metrics
from tideline_runtime.shards import Shards, StaticShards, holds
from tideline_table.clock import Clock
from tideline_table.errors import StorageError, TidelineError, UnsupportedTable
from tideline_table.storage import Storage, exists, open_storage, root_uri
from tideline_table.table import IDENTITY_PATH

_log = get_logger(__name__)

PROPERTIES = ".hoodie/hoodie.properties"
"""The file that makes a folder a table."""

RESTING_S = 3600.0
"""Interval of scans while a mirror tells which tables come and go."""

_SCANS_PER_CHECK = 10
"""Scans of which one asks every folder whether it is a table; the others ask those that were none."""

MAX_DEPTH = 12
"""Number of levels below its root that a `**` pattern searches."""

MAX_TABLES = 100_000
"""Ten times the planned fleet; a pattern that finds more is a mistake."""

_EVERYTHING = StaticShards()
_WILDCARD = re.compile(r"[*?]")
_EVERY_DEPTH = "**"


@dataclass(frozen=True, slots=True)
class TablePattern:
    """One item of the `tables` setting: the folder without wildcards, and the pattern of each folder level below it.

    Without parts, `root` is the base path itself. A last part `**` stands for any number of levels.
    """

    root: str
    parts: tuple[str, ...]

    @property
    def text(self) -> str:
        """The pattern as text, with a canonical root."""
        return "/".join((self.root, *self.parts))

    def matches(self, base_path: str) -> bool:
        """Return whether the search for this pattern finds a table at the canonical base path."""
        if base_path == self.root:
            return not self.parts
        inside = base_path.removeprefix(f"{self.root.rstrip('/')}/")
        levels = inside.split("/")
        if inside == base_path or not self.parts:
            return False
        if self.parts[-1] == _EVERY_DEPTH:
            first = self.parts[:-1]
            return len(levels) > len(first) and all(map(_fits, first, levels))
        return len(levels) == len(self.parts) and all(map(_fits, self.parts, levels))

    @classmethod
    def parse(cls, text: str) -> TablePattern:
        """Parse a pattern. Raises `InvalidSetting` for `!`, for `**` anywhere but at the end, and for an unsupported scheme."""
        if text.startswith("!"):
            raise _wrong_pattern(text, "patterns of tables to work on: no pattern can exclude tables")
        levels = text.rstrip("/").split("/")
        first = next((i for i, level in enumerate(levels) if _WILDCARD.search(level)), len(levels))
        root, parts = "/".join(levels[:first]) or ("/" if text.startswith("/") else "."), tuple(levels[first:])
        if not text or any(_EVERY_DEPTH in part and (part != _EVERY_DEPTH or part is not parts[-1]) for part in parts):
            raise _wrong_pattern(text, "a base path, or one with * and ? in folder names and ** as the last part")
        try:
            return cls(root_uri(root), parts)
        except UnsupportedTable as error:
            raise _wrong_pattern(text, error.expected) from None


class TableChoice(Protocol):
    """The choice of a source about a base path."""

    @property
    def is_wanted(self) -> bool:
        """Whether this service works on the table, also if a pattern selects it."""
        ...


class NamingSource(Protocol):
    """The part of a `TableSource` that the registry uses."""

    @property
    def revision(self) -> int:
        """A number that grows when `named` changes."""
        ...

    def named(self) -> Mapping[str, TableChoice]:
        """Return the choices of the source by canonical base path. Raises `DependencyDown` until the source has answered once."""
        ...


class TableRegistry:
    """The tables of the shards that this instance holds, scanned again at an interval. Used by one thread.

    A table that a `source` names is searched for as soon as the source names it; the source decides whether the service works
    on it. `beat` is called at every folder that a search lists, because a search can take minutes. The constructor raises
    `InvalidSetting` for an invalid pattern.
    """

    def __init__(
        self,
        tables: Sequence[str],
        clock: Clock,
        *,
        rescan_s: float = 60.0,
        shards: Shards = _EVERYTHING,
        metrics: Metrics | None = None,
        storage_of: Callable[[str], Storage] = open_storage,
        source: NamingSource | None = None,
        beat: Callable[[], None] = lambda: None,
    ) -> None:
        self._patterns = tuple(dict.fromkeys(TablePattern.parse(text) for text in tables))
        self._clock = clock
        self._rescan_s = rescan_s
        self._shards = shards
        self._held: tuple[int, ...] = ()
        self._metrics = metrics
        self._storage_of = storage_of
        self._source = source
        self._beat = beat
        self._revision = 0
        self._named: Mapping[str, TableChoice] = {}
        self._failed: dict[TablePattern, str] = {}
        self._found: dict[TablePattern, tuple[str, ...]] = {}
        self._unmatched: set[TablePattern] = set()
        self._searched: set[TablePattern] = set(self._patterns)
        self._tables: tuple[str, ...] = ()
        self._scanned_at_s: float | None = None
        self._scans = 0
        self._sure: set[str] = set()
        """The tables that the last scan found and that nothing casts doubt on: their folders need no request of their own."""

    def tables(self, *, rests: bool = False) -> tuple[str, ...]:
        """Return the canonical base paths of the shards held, sorted; scan first if the interval is over.

        With `rests`, a mirror tells which tables come and go: the registry scans once an hour, unless a search failed.

        Raises `DependencyDown` until the source has answered once, and `InvalidSetting` for a pattern with more than
        `MAX_TABLES` tables. A root whose storage does not answer is no error; see `rescan`.
        """
        if self.next_scan_in_s() <= 0 and not (rests and not self._failed and self._scanned_for_s() < RESTING_S):
            self.rescan()
        elif self._shards.held() != self._held or (self._source is not None and self._source.revision != self._revision):
            self._search(pattern for pattern in self._named_patterns() if pattern not in self._found)
            self._select()
        return self._tables

    def covers(self, base_path: str) -> bool:
        """Return whether a table at this base path, in a shard that this instance holds, would be found.

        Its search must not have failed.
        """
        if not self._is_mine(base_path):
            return False
        covering = {pattern for pattern in (*self._patterns, *self._found) if pattern.matches(base_path)}
        return bool(covering) and not covering & self._failed.keys()

    def excludes(self, base_path: str) -> bool:
        """Return whether neither a pattern nor the source selects this base path, which is in a shard that this instance holds."""
        return self._is_mine(base_path) and not any(p.matches(base_path) for p in (*self._patterns, *self._found, *self._failed))

    def named(self) -> tuple[str, ...]:
        """Return the base paths of the shards held on which the source wants this service to work, also those without a table."""
        return tuple(base for base, wish in self._named.items() if wish.is_wanted and self._is_mine(base))

    def failure(self, base_path: str) -> str | None:
        """Return why the last search for a table at this base path failed; None if it did not fail."""
        return self._failed.get(TablePattern(base_path, ()))

    def search_failure(self) -> str | None:
        """Return the cause in one line if the last search failed for every pattern and every named table, else None.

        None, too, if there was nothing to search for.
        """
        if not self._failed or self._failed.keys() < self._searched:
            return None
        pattern, cause = min(self._failed.items(), key=lambda item: item[0].text)
        others = f" (and {len(self._failed) - 1} more)" if len(self._failed) > 1 else ""
        return " ".join(f"every search for tables fails: {pattern.text}{others}: {cause}".split())

    def unmatched(self) -> tuple[str, ...]:
        """Return the patterns of the setting that select no table, sorted."""
        return tuple(sorted(pattern.text for pattern in self._unmatched))

    @property
    def scans(self) -> int:
        """The number of scans so far."""
        return self._scans

    def next_scan_in_s(self) -> float:
        """Return the seconds until a scan is due; 0 if one is due."""
        return max(0.0, self._rescan_s - self._scanned_for_s())

    def doubt(self, base_path: str) -> None:
        """Let the next scan check that a table is at this base path, which it otherwise does for known tables at every tenth."""
        self._sure.discard(base_path)

    def _scanned_for_s(self) -> float:
        """Return the seconds since the last scan."""
        return math.inf if self._scanned_at_s is None else self._clock.monotonic_s() - self._scanned_at_s

    def rescan(self) -> None:
        """Scan all patterns now.

        If storage does not answer for a root, the tables found there before are kept. Raises as `tables` does.
        """
        if self._scans % _SCANS_PER_CHECK == 0:
            self._sure.clear()
        self._scans += 1
        self._search((*self._patterns, *self._named_patterns()))
        self._sure = {base for bases in self._found.values() for base in bases}
        self._select()
        self._scanned_at_s = self._clock.monotonic_s()

    def _named_patterns(self) -> tuple[TablePattern, ...]:
        """Read the source; return the tables to search for, and forget those that it no longer names."""
        if self._source is None:
            return ()
        self._revision = self._source.revision
        self._named = self._source.named()
        # The instances that hold the other shards search for the other tables.
        named = tuple(TablePattern(base, ()) for base, wish in self._named.items() if wish.is_wanted and self._is_mine(base))
        for known in (self._found, self._failed):
            for pattern in known.keys() - {*self._patterns, *named}:
                del known[pattern]
        self._searched = {*self._patterns, *named}
        return named

    def _is_mine(self, base_path: str) -> bool:
        return holds(self._shards, base_path)

    def _search(self, patterns: Iterable[TablePattern]) -> None:
        for pattern in patterns:
            self._beat()
            self._failed.pop(pattern, None)
            try:
                found = find_tables(pattern, self._storage_of(pattern.root), self._beat, self._sure)
                self._found[pattern] = tuple(_bounded(found, pattern))
            except TidelineError as error:
                if not isinstance(error, StorageError) and pattern.root not in self._named:
                    raise
                # A wrong setting ends the service; a wrong base path in a source of tables must not end it.
                self._failed[pattern] = str(error)
                _log.warning("search for tables failed", root=pattern.root, exc_info=error)
                if self._metrics:
                    self._metrics.increment(TABLE_SCAN_FAILURES)
            else:
                self._report_match(pattern)

    def _report_match(self, pattern: TablePattern) -> None:
        """Log a pattern of the setting that selects no table: once, and again after it has selected tables in between."""
        if self._found[pattern]:
            self._unmatched.discard(pattern)
        elif pattern in self._patterns and pattern not in self._unmatched:
            self._unmatched.add(pattern)
            _log.warning("no table matches", setting="tables", pattern="/".join((pattern.root, *pattern.parts)))

    def _select(self) -> None:
        self._held = self._shards.held()
        unwanted = {base for base, wish in self._named.items() if not wish.is_wanted}
        found = {base for bases in self._found.values() for base in bases} - unwanted
        self._tables = tuple(sorted(base for base in found if self._is_mine(base)))
        if self._metrics:
            self._metrics.set(TABLES, len(self._tables))


def find_tables(
    pattern: TablePattern, storage: Storage, beat: Callable[[], None] = lambda: None, sure: Collection[str] = ()
) -> Iterator[str]:
    """Yield canonical base paths that match and hold a table. `storage` is opened on the pattern's root. Raises `StorageError`.

    Does not search inside tables or hidden folders, nor through symbolic links. `beat` is called before each folder. Folders in
    `sure` count as tables without being asked.
    """
    yield from _matching(storage, "", pattern.parts, 0, beat, sure)


def _matching(
    storage: Storage, folder: str, parts: tuple[str, ...], depth: int, beat: Callable[[], None], sure: Collection[str]
) -> Iterator[str]:
    beat()
    if not parts or parts == (_EVERY_DEPTH,):
        base_path = f"{storage.root.rstrip('/')}/{_quoted(storage, folder)}" if folder else storage.root
        # `root/**` matches folders below root only; a plain base path names root itself.
        if (not parts or depth) and (base_path in sure or _is_table(storage, folder)):
            yield base_path
            return
        if not parts or depth >= MAX_DEPTH:
            return
    every_depth = parts[0] == _EVERY_DEPTH
    wanted = re.compile(".*") if every_depth else level_pattern(parts[0])
    for name in storage.list_folder(folder).folders:
        # A name with a backslash is not a valid path of the storage port, so no table can be there.
        if not name.startswith(".") and "\\" not in name and wanted.fullmatch(name):
            inner = f"{folder}/{name}" if folder else name
            yield from _matching(storage, inner, parts if every_depth else parts[1:], depth + 1, beat, sure)


def _fits(part: str, level: str) -> bool:
    return level_pattern(part).fullmatch(unquote(level)) is not None


def _is_table(storage: Storage, folder: str) -> bool:
    # A table that lost its properties is found, too, so that it is reported instead of missed.
    return any(exists(storage, f"{folder}/{path}" if folder else path) for path in (PROPERTIES, IDENTITY_PATH))


@lru_cache(maxsize=1024)
def level_pattern(part: str) -> re.Pattern[str]:
    """Return what matches names of one folder level: `*` stands for any characters, `?` for one.

    Matching takes no exponential time.
    """
    first, *others = (re.escape(piece).replace(r"\?", ".") for piece in re.split(r"\*+", part))
    if not others:
        return re.compile(first, re.DOTALL)
    *middle, last = others
    # The first place of each piece leaves the most room for the next ones, so the groups are atomic.
    return re.compile(f"{first}{''.join(f'(?>.*?{piece})' for piece in middle)}.*{last}", re.DOTALL)


def _quoted(storage: Storage, folder: str) -> str:
    # Quoted like the roots of tables named without a pattern; otherwise a table found both ways would count twice.
    return root_uri(f"/{folder}").partition(":/")[2] if storage.root.startswith("file:") else folder


def _bounded(found: Iterator[str], pattern: TablePattern) -> Iterator[str]:
    for count, base_path in enumerate(found):
        if count >= MAX_TABLES:
            raise _wrong_pattern(pattern.text, f"a pattern for at most {MAX_TABLES} tables")
        yield base_path


def _wrong_pattern(text: str, expected: str) -> InvalidSetting:
    # The text before an @ may be a secret.
    shown = re.sub(r"//[^/@]*@", "//***@", text)
    return InvalidSetting(f"setting 'tables' has {shown!r}", name="tables", origin="", expected=expected)
