"""Table discovery: which base paths the `tables` setting stands for now, and which of them belong to this shard."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from tideline_service.errors import InvalidSetting
from tideline_service.logging import get_logger
from tideline_service.metrics import TABLE_SCAN_FAILURES, TABLES, Metrics
from tideline_table.clock import Clock
from tideline_table.errors import StorageError, UnsupportedTable
from tideline_table.storage import Storage, exists, open_storage, root_uri

_log = get_logger(__name__)

PROPERTIES = ".hoodie/hoodie.properties"
"""What makes a folder a table."""

MAX_DEPTH = 12
"""How far below its root a `**` pattern looks."""

MAX_TABLES = 100_000
"""Ten times the fleet to plan for; a pattern that finds more is a mistake."""

_WILDCARD = re.compile(r"[*?]")
_EVERY_DEPTH = "**"


@dataclass(frozen=True, slots=True)
class TablePattern:
    """One item of the `tables` setting: the folder without wildcards, and the pattern of each folder level below it.

    No parts: `root` is the base path itself. A last part `**` stands for any number of levels.
    """

    root: str
    parts: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> TablePattern:
        """The pattern that `text` writes. Raises `InvalidSetting` for `**` anywhere but at the end and for an unsupported scheme."""
        levels = text.rstrip("/").split("/")
        first = next((i for i, level in enumerate(levels) if _WILDCARD.search(level)), len(levels))
        root, parts = "/".join(levels[:first]) or ("/" if text.startswith("/") else "."), tuple(levels[first:])
        if not text or any(_EVERY_DEPTH in part and (part != _EVERY_DEPTH or part is not parts[-1]) for part in parts):
            raise _wrong_pattern(text, "a base path, or one with * and ? in folder names and ** as the last part")
        try:
            return cls(root_uri(root), parts)
        except UnsupportedTable as error:
            raise _wrong_pattern(text, error.expected) from None


@dataclass(frozen=True, slots=True)
class Discovery:
    """The outcome of a look-up: canonical base paths of this shard, sorted, and what changed since the one before.

    `unreachable` are roots that storage did not answer for: their tables stay as they were known.
    """

    tables: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    unreachable: tuple[str, ...] = ()


def shard_of(identity: str, shard_count: int) -> int:
    """The shard of a table, by its canonical base path or uid: stable over processes and versions.

    Going from n to n + 1 shards moves only 1 / (n + 1) of the tables (jump consistent hash, Lamping and Veach 2014).
    """
    assert shard_count >= 1
    key = int.from_bytes(hashlib.blake2b(identity.encode(), digest_size=8).digest(), "big")
    shard, following = -1, 0
    while following < shard_count:
        shard = following
        key = (key * 2862933555777941757 + 1) & 0xFFFF_FFFF_FFFF_FFFF
        following = int((shard + 1) * (1 << 31) / ((key >> 33) + 1))
    return shard


class TableRegistry:
    """The tables of this shard, looked up again at an interval. Used by one thread.

    Raises `InvalidSetting` when made with a pattern that cannot be understood.
    """

    def __init__(
        self,
        tables: Sequence[str],
        clock: Clock,
        *,
        rescan_s: float = 60.0,
        shard_index: int = 0,
        shard_count: int = 1,
        metrics: Metrics | None = None,
        storage_of: Callable[[str], Storage] = open_storage,
    ) -> None:
        self._patterns = tuple(dict.fromkeys(TablePattern.parse(text) for text in tables))
        self._clock = clock
        self._rescan_s = rescan_s
        self._shard_index = shard_index
        self._shard_count = shard_count
        self._metrics = metrics
        self._storage_of = storage_of
        self._found: dict[TablePattern, tuple[str, ...]] = {}
        self._last = Discovery()
        self._scanned_at_s: float | None = None

    def tables(self) -> tuple[str, ...]:
        """Canonical base paths of this shard; looks them up first when the interval is over."""
        if self.next_scan_in_s() <= 0:
            self.rescan()
        return self._last.tables

    def next_scan_in_s(self) -> float:
        """Seconds until a look-up is due, 0 when it is."""
        if self._scanned_at_s is None:
            return 0.0
        return max(0.0, self._scanned_at_s + self._rescan_s - self._clock.monotonic_s())

    def rescan(self) -> Discovery:
        """Look up all patterns now. A root that storage does not answer for is reported, not raised."""
        unreachable: list[str] = []
        for pattern in self._patterns:
            try:
                self._found[pattern] = tuple(_bounded(find_tables(pattern, self._storage_of(pattern.root)), pattern))
            except StorageError as error:
                unreachable.append(pattern.root)
                _log.warning("tables not looked up", root=pattern.root, exc_info=error)
                if self._metrics:
                    self._metrics.increment(TABLE_SCAN_FAILURES)
        mine = {base for found in self._found.values() for base in found if shard_of(base, self._shard_count) == self._shard_index}
        before = set(self._last.tables)
        self._last = Discovery(tuple(sorted(mine)), tuple(sorted(mine - before)), tuple(sorted(before - mine)), tuple(unreachable))
        self._scanned_at_s = self._clock.monotonic_s()
        if self._metrics:
            self._metrics.set(TABLES, len(mine))
        return self._last


def find_tables(pattern: TablePattern, storage: Storage) -> Iterator[str]:
    """Canonical base paths that match and hold a table. `storage` is opened on the pattern's root. Raises `StorageError`.

    Does not look inside tables or hidden folders, nor through symbolic links.
    """
    for folder in _matching(storage, "", pattern.parts, 0):
        yield f"{storage.root.rstrip('/')}/{_quoted(storage, folder)}" if folder else storage.root


def _matching(storage: Storage, folder: str, parts: tuple[str, ...], depth: int) -> Iterator[str]:
    if not parts or parts == (_EVERY_DEPTH,):
        # `root/**` means below root: root itself is named by a plain base path.
        if (not parts or depth) and _is_table(storage, folder):
            yield folder
            return
        if not parts or depth >= MAX_DEPTH:
            return
    every_depth = parts[0] == _EVERY_DEPTH
    wanted = re.compile(".*") if every_depth else _folder_pattern(parts[0])
    for name in storage.list_folder(folder).folders:
        # A name with a backslash is no path of the storage port, so no table can be there.
        if not name.startswith(".") and "\\" not in name and wanted.fullmatch(name):
            inner = f"{folder}/{name}" if folder else name
            yield from _matching(storage, inner, parts if every_depth else parts[1:], depth + 1)


def _is_table(storage: Storage, folder: str) -> bool:
    return exists(storage, f"{folder}/{PROPERTIES}" if folder else PROPERTIES)


def _folder_pattern(part: str) -> re.Pattern[str]:
    return re.compile(re.escape(part).replace(r"\*", ".*").replace(r"\?", "."), re.DOTALL)


def _quoted(storage: Storage, folder: str) -> str:
    # Of one form with the roots of tables named without a pattern, or a table found both ways would count twice.
    return root_uri(f"/{folder}").partition(":/")[2] if storage.root.startswith("file:") else folder


def _bounded(found: Iterator[str], pattern: TablePattern) -> Iterator[str]:
    for count, base_path in enumerate(found):
        if count >= MAX_TABLES:
            raise _wrong_pattern("/".join((pattern.root, *pattern.parts)), f"a pattern for at most {MAX_TABLES} tables")
        yield base_path


def _wrong_pattern(text: str, expected: str) -> InvalidSetting:
    # What stands before an @ may be a secret.
    shown = re.sub(r"//[^/@]*@", "//***@", text)
    return InvalidSetting(f"setting 'tables' has {shown!r}", name="tables", origin="", expected=expected)
