"""The search for tables below a root: patterns of base paths, and the folders that match."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import unquote

from tideline_runtime.errors import InvalidSetting
from tideline_table.clock import Clock
from tideline_table.errors import TidelineError, UnsupportedTable
from tideline_table.storage import Storage, exists, root_uri
from tideline_table.table import IDENTITY_PATH

PROPERTIES = ".hoodie/hoodie.properties"
"""The file that makes a folder a table."""

MAX_DEPTH = 12
"""Number of levels below its root that a `**` pattern searches."""

MAX_TABLES = 100_000
"""Ten times the planned fleet; a pattern that finds more is a mistake."""

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


@dataclass(frozen=True, slots=True)
class Search:
    """What a search found, or why it failed, by pattern."""

    found: Mapping[TablePattern, tuple[str, ...] | TidelineError]
    took_s: float


def search(
    patterns: Iterable[TablePattern],
    sure: Collection[str],
    clock: Clock,
    storage_of: Callable[[str], Storage],
    beat: Callable[[], None] = lambda: None,
) -> Search:
    """Search for each pattern in turn, in storages that `storage_of` opens on its root. `sure` and `beat` are as in `find_tables`.

    A search that fails does not end the others.
    """
    began_s, found = clock.monotonic_s(), dict[TablePattern, tuple[str, ...] | TidelineError]()
    for pattern in patterns:
        beat()
        try:
            found[pattern] = tuple(_bounded(find_tables(pattern, storage_of(pattern.root), beat, sure), pattern))
        except TidelineError as error:
            found[pattern] = error
    return Search(found, clock.monotonic_s() - began_s)


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
