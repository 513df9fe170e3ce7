"""Table discovery: the base paths that `tables` and a source of tables select, and those in this instance's shards."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from threading import Thread
from typing import Protocol

from tideline_runtime.logging import get_logger
from tideline_runtime.metrics import TABLE_SCAN_FAILURES, TABLES, Metrics
from tideline_runtime.shards import Shards, StaticShards, holds
from tideline_runtime.table_search import Search, TablePattern, search
from tideline_table.clock import Clock
from tideline_table.errors import StorageError, TidelineError
from tideline_table.storage import Storage, open_storage

_log = get_logger(__name__)

RESTING_S = 3600.0
"""Interval of scans while a mirror tells which tables come and go."""

_SCANS_PER_CHECK = 10
"""Scans of which one asks every folder whether it is a table; the others ask those that were none."""

BESIDE_FROM_S = 0.1
"""Behind a scan that took longer, scans run beside the visits of tables: an event about one of them does not wait for them."""

_EVERYTHING = StaticShards()


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
    on it. `beat` is called at every folder that a search lists, because a search can take minutes. Behind a scan that took longer
    than `BESIDE_FROM_S`, the further ones run in a thread of their own; until one ends, the tables of the last one are returned.
    The constructor raises `InvalidSetting` for an invalid pattern.
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
        self._is_slow = False
        """Whether a scan took longer than `BESIDE_FROM_S`."""
        self._beside: Future[Search] | None = None
        """The scan that runs beside the visits."""
        self._doubted: set[str] = set()
        """Known tables of which the next scan asks whether they are there. The others need no request of their own."""

    def tables(self, *, rests: bool = False) -> tuple[str, ...]:
        """Return the canonical base paths of the shards held, sorted; scan first if the interval is over.

        With `rests`, a mirror tells which tables come and go: the registry scans once an hour, unless a search failed.

        Raises `DependencyDown` until the source has answered once, and `InvalidSetting` for a pattern with more than
        `MAX_TABLES` tables. A root whose storage does not answer is no error; see `rescan`.
        """
        if self._beside is not None and self._beside.done():
            done, self._beside = self._beside, None
            self._end(done.result())
        is_due = self.next_scan_in_s() <= 0 and not (rests and not self._failed and self._scanned_for_s() < RESTING_S)
        if is_due and not self._is_slow:
            self.rescan()
            return self._tables
        if is_due and self._beside is None:
            self._begin_beside()
        if self._shards.held() != self._held or (self._source is not None and self._source.revision != self._revision):
            added = [pattern for pattern in self._named_patterns() if pattern not in self._found]
            self._take(search(added, (), self._clock, self._storage_of, self._beat))
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
        """The number of scans that have begun."""
        return self._scans

    def next_scan_in_s(self) -> float:
        """Return the seconds until a scan is due; 0 if one is due."""
        return max(0.0, self._rescan_s - self._scanned_for_s())

    def doubt(self, base_path: str) -> None:
        """Let the next scan check that a table is at this base path, which it otherwise does for known tables at every tenth."""
        self._doubted.add(base_path)

    def _scanned_for_s(self) -> float:
        """Return the seconds since the last scan."""
        return math.inf if self._scanned_at_s is None else self._clock.monotonic_s() - self._scanned_at_s

    def rescan(self) -> None:
        """Scan all patterns now.

        If storage does not answer for a root, the tables found there before are kept. Raises as `tables` does.
        """
        self._end(search(*self._begin(), self._clock, self._storage_of, self._beat))

    def _begin(self) -> tuple[tuple[TablePattern, ...], set[str]]:
        """Return what a scan searches for, and the tables that need no request."""
        is_check = self._scans % _SCANS_PER_CHECK == 0
        sure = set() if is_check else {base for bases in self._found.values() for base in bases} - self._doubted
        self._scans += 1
        self._doubted.clear()
        return (*self._patterns, *self._named_patterns()), sure

    def _end(self, found: Search) -> None:
        self._take(found)
        self._select()
        self._scanned_at_s = self._clock.monotonic_s()
        self._is_slow |= found.took_s > BESIDE_FROM_S

    def _begin_beside(self) -> None:
        patterns, sure = self._begin()
        found: Future[Search] = Future()
        self._beside = found

        def run() -> None:
            # Without a beat: the thread of the visits gives the signs of life.
            try:
                found.set_result(search(patterns, sure, self._clock, self._storage_of))
            except Exception as error:  # noqa: BLE001 - `tables` raises it
                found.set_exception(error)

        Thread(target=run, name="table-search", daemon=True).start()

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

    def _take(self, of_patterns: Search) -> None:
        for pattern, found in of_patterns.found.items():
            if pattern not in self._searched:
                continue  # the source has withdrawn it meanwhile
            self._failed.pop(pattern, None)
            if not isinstance(found, TidelineError):
                self._found[pattern] = found
                self._report_match(pattern)
                continue
            if not isinstance(found, StorageError) and pattern.root not in self._named:
                raise found
            # A wrong setting ends the service; a wrong base path in a source of tables must not end it.
            self._failed[pattern] = str(found)
            _log.warning("search for tables failed", root=pattern.root, exc_info=found)
            if self._metrics:
                self._metrics.increment(TABLE_SCAN_FAILURES)

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
