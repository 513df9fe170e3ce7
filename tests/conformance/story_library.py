"""Stories that the real Apache Hudi has made, ahead or when their first step is asked for.

None of our code takes part in them, so whole stories are kept in the cache folder for later sessions, until the module of a story,
what it imports, the peer or Hudi's release changes.
"""

from __future__ import annotations

import ast
import contextlib
import filecmp
import functools
import hashlib
import os
import shutil
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from tests.artifacts import REPOSITORY_ROOT, cache_folder
from tests.conformance.peers.apache_hudi import ApacheHudi, PeerFailed
from tests.conformance.stories.catalogue import MODULES
from tests.conformance.stories.story import Maker, Recorded, Story, record

_HERE = REPOSITORY_ROOT / "tests" / "conformance"
_WHOLE_PEER = (REPOSITORY_ROOT / "requirements" / "peer-hudi.txt", *sorted((_HERE / "peers").glob("*.py")))
"""What every story depends on, whether a module imports it or starts it as a program."""


def kept_story(story: Story) -> Path:
    """The folder in the cache for a story as its module, what that imports here, the peer and its release of Hudi make it."""
    (module,) = (module for module in MODULES if story in module.STORIES)
    digest = hashlib.sha256(b"".join(hashlib.sha256(file.read_bytes()).digest() for file in _decides(module.__name__)))
    return cache_folder() / "stories" / digest.hexdigest()[:16] / story.name


@functools.cache
def _decides(module: str) -> list[Path]:
    """The files that decide what the stories of a module are like."""
    found, todo = set(_WHOLE_PEER), {_file(module)}
    while todo:
        found.add(file := todo.pop())
        for node in ast.walk(ast.parse(file.read_bytes())):
            if isinstance(node, ast.ImportFrom):
                named = (node.module or "", *(f"{node.module}.{name.name}" for name in node.names))
                todo |= {path for path in map(_file, named) if path.is_relative_to(_HERE) and path.is_file()} - found
    return sorted(found)


def _file(module: str) -> Path:
    return REPOSITORY_ROOT / f"{module.replace('.', '/')}.py"


class Library:
    """Stories made so far. Whole ones are moved to the folders that `kept` names, and those that are there are used again.

    `make_ahead` makes stories in a thread while other tests run, and calls `rest` when all are made. `hudi` gives a peer that only
    the library asks.
    """

    def __init__(
        self,
        hudi: Callable[[], ApacheHudi],
        folder: Path,
        kept: Callable[[Story], Path] | None = None,
        rest: Callable[[], None] = lambda: None,
    ) -> None:
        self._hudi = hudi
        self._folder = folder
        self._kept = kept
        self._rest = rest
        self._failures: dict[str, tuple[str, str]] = {}
        self._making = threading.Lock()
        """Held while a story is made: one at a time."""
        self._at_work = threading.Lock()
        """Held during each step that is made ahead, and by who wants none."""
        self._may_go_on = threading.Event()
        self._may_go_on.set()
        self._ahead: threading.Thread | None = None
        self._is_closing = threading.Event()

    def make_ahead(self, stories: Sequence[Story]) -> None:
        """Begin to make the stories, in this order."""
        assert self._ahead is None
        self._ahead = threading.Thread(target=self._make_all, args=(stories,), name="stories")
        self._ahead.start()

    @contextlib.contextmanager
    def resting(self) -> Iterator[None]:
        """Nothing is made ahead inside: for tests that want the machine for themselves. They may not ask for a step."""
        self._may_go_on.clear()
        try:
            with self._at_work:
                yield
        finally:
            self._may_go_on.set()

    def close(self) -> None:
        """Leave what was not asked for unmade."""
        self._is_closing.set()
        if self._ahead is not None:
            self._ahead.join()

    def step(self, story: Story, name: str) -> Recorded:
        """The table after step `name`. Raises AssertionError with Hudi's words when Hudi could not get there."""
        folder = self._made(story, ahead=False)
        where = folder / f"{story.names.index(name):02}-{name.replace(' ', '-')}"
        recorded = Recorded(where / "table", where)
        if not (where / "snapshot.arrow").exists():
            at, message = self._failures[story.name]
            raise AssertionError(f"Apache Hudi could not make {story.name} beyond the step {at!r}: {message}")
        return recorded

    def _make_all(self, stories: Sequence[Story]) -> None:
        for story in stories:
            if self._is_closing.is_set():
                return
            # Whatever fails here fails again in the test that asks for the story.
            with contextlib.suppress(Exception):
                self._made(story, ahead=True)
        with self._making:
            self._rest()

    def _made(self, story: Story, *, ahead: bool) -> Path:
        folder = self._folder / story.name
        kept = self._kept(story) if self._kept is not None else folder
        with self._making:
            if kept.exists() and kept != folder:
                return kept
            if not (folder / "finished").exists() and story.name not in self._failures:
                shutil.rmtree(folder, ignore_errors=True)
                self._make(story, folder, ahead=ahead)
            if (folder / "finished").exists() and kept != folder:
                _move(folder, kept)
                return kept
        return folder

    def _make(self, story: Story, folder: Path, *, ahead: bool) -> None:
        maker = Maker(self._hudi(), folder / "live", story)
        step = story.steps[0]
        try:
            for number, step in enumerate(story.steps):
                if ahead:
                    # A lock alone would be taken again before who waits for it wakes up.
                    self._may_go_on.wait()
                with self._at_work if ahead else contextlib.nullcontext():
                    if ahead and self._is_closing.is_set():
                        return
                    step.do(maker)
                    record(maker, folder / f"{number:02}-{step.name.replace(' ', '-')}", step)
        except PeerFailed as error:
            self._failures[story.name] = (step.name, _causes(str(error)))
            return
        shutil.rmtree(maker.base)
        (folder / "finished").touch()


def _move(story: Path, kept: Path) -> None:
    """Move a story, which appears as a whole. If another session was faster, its story stays.

    Steps share the files that do not change between them: most of their bytes are base files with Bloom filters.
    """
    begun = kept.with_name(f".{kept.name}-{uuid.uuid4().hex}")
    copied: dict[tuple[str, int, int], str] = {}

    def copy(source: str, target: str) -> None:
        found = os.stat(source)
        first = copied.setdefault((os.path.basename(source), found.st_size, found.st_mtime_ns), target)
        if first != target and filecmp.cmp(source, first, shallow=False):
            os.link(first, target)
        else:
            shutil.copy2(source, target)

    shutil.copytree(story, begun, copy_function=copy)
    try:
        begun.rename(kept)
    except OSError:
        if not kept.exists():
            raise
        shutil.rmtree(begun)
    shutil.rmtree(story)


def _causes(message: str) -> str:
    """The first line of each cause: Java's messages repeat whole traces."""
    lines = message.splitlines()
    return "\n".join([lines[0], *(line for line in lines if line.startswith(("caused by", "Caused by:")))])
