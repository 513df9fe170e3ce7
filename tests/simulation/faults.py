"""Storage that crashes, fails or loses replies at a chosen call."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, BinaryIO

import pyarrow as pa

from tideline_table.clock import Clock
from tideline_table.errors import StorageError
from tideline_table.storage import Folder, MemoryStorage, ObjectStat, Storage

MUTATING = frozenset({"put", "put_if_absent", "put_if_version", "delete", "open_output"})
PUTS = MUTATING - {"delete"}
TORN = frozenset({"put", "open_output"})
"""Calls of which a disk without atomic renames may do half."""


class SimulatedCrash(BaseException):
    """The process is gone; whatever runs on in it cannot reach the storage any more."""


class FaultyStorage:
    """A storage whose calls are numbered. `before` and `after` hear of each and may raise.

    `delete_below` counts as one delete per object: a crash may tear it.
    """

    def __init__(self, inner: Storage) -> None:
        self.inner = inner
        self.calls: list[tuple[str, str]] = []
        self.before: Callable[[int, str, str], None] = lambda number, call, path: None
        self.after: Callable[[int, str, str], None] = lambda number, call, path: None
        self._lock = threading.Lock()

    @property
    def root(self) -> str:
        return self.inner.root

    def _run(self, call: str, path: str, do: Callable[[], Any]) -> Any:
        with self._lock:
            number = len(self.calls)
            self.calls.append((call, path))
        self.before(number, call, path)
        result = do()
        self.after(number, call, path)
        return result

    def read(self, path: str) -> bytes:
        return self._run("read", path, lambda: self.inner.read(path))

    def read_range(self, path: str, start: int, length: int) -> bytes:
        return self._run("read_range", path, lambda: self.inner.read_range(path, start, length))

    def stat(self, path: str) -> ObjectStat:
        return self._run("stat", path, lambda: self.inner.stat(path))

    def put(self, path: str, data: bytes) -> None:
        self._run("put", path, lambda: self.inner.put(path, data))

    def put_if_absent(self, path: str, data: bytes) -> None:
        self._run("put_if_absent", path, lambda: self.inner.put_if_absent(path, data))

    def read_versioned(self, path: str) -> tuple[bytes, str]:
        return self._run("read_versioned", path, lambda: self.inner.read_versioned(path))

    def put_if_version(self, path: str, data: bytes, version: str) -> bool:
        return self._run("put_if_version", path, lambda: self.inner.put_if_version(path, data, version))

    def delete(self, path: str) -> bool:
        return self._run("delete", path, lambda: self.inner.delete(path))

    def delete_below(self, folder: str) -> None:
        for found in list(self.list_objects(folder)):
            self.delete(found.path)

    def list_objects(self, prefix: str, after: str = "") -> Iterator[ObjectStat]:
        yield from self._run("list_objects", prefix, lambda: list(self.inner.list_objects(prefix, after)))

    def list_folder(self, path: str, after: str = "") -> Folder:
        return self._run("list_folder", path, lambda: self.inner.list_folder(path, *([after] if after else [])))

    def open_input(self, path: str) -> pa.NativeFile:
        return self._run("open_input", path, lambda: self.inner.open_input(path))

    @contextmanager
    def open_output(self, path: str) -> Iterator[BinaryIO]:
        with self._lock:
            number = len(self.calls)
            self.calls.append(("open_output", path))
        with self.inner.open_output(path) as sink:
            yield sink
            self.before(number, "open_output", path)
        self.after(number, "open_output", path)


def crash_at(storage: FaultyStorage, number: int, when: str) -> None:
    """Die at the `number`-th mutating call, `before` or `after` it took effect; or `torn`: half of what it put is there.

    Before a call, the storage is as it was after the one in front of it, so a test that dies after each call need not die
    before each one.
    """
    died = threading.Event()
    seen = 0

    def before(_: int, call: str, path: str) -> None:
        nonlocal seen
        if died.is_set():
            raise SimulatedCrash
        if call in MUTATING:
            seen += 1
            if when == "before" and seen == number + 1:
                died.set()
                raise SimulatedCrash

    def after(_: int, call: str, path: str) -> None:
        if call in MUTATING and when != "before" and seen > number and not died.is_set():  # a refused put has no after
            died.set()
            if when == "torn" and call in TORN:
                whole = storage.inner.read(path)
                storage.inner.put(path, whole[: len(whole) // 2])
            raise SimulatedCrash

    storage.before, storage.after = before, after


SAMPLE_STEP = int(os.environ.get("SAMPLE_STEP", "2"))  # make passes on `make test-faults SAMPLE_STEP=1`


def sampled(numbers: Sequence[int]) -> Sequence[int]:
    """The calls at which a long test injects its fault: every `SAMPLE_STEP`-th one."""
    return numbers[::SAMPLE_STEP]


def covering(strength: int, *axes: Iterable[Any]) -> list[tuple[Any, ...]]:
    """Combinations of one value of each axis, for `parametrize`: each value is in one of them (strength 1), or each pair of values
    (strength 2). With SAMPLE_STEP=1 all combinations."""
    left = list(itertools.product(*axes))
    if SAMPLE_STEP == 1:
        return left
    parts = {row: set(itertools.combinations(enumerate(row), strength)) for row in left}
    wanted: set[Any] = set().union(*parts.values())
    chosen: list[tuple[Any, ...]] = []

    def gain(row: tuple[Any, ...]) -> tuple[int, int]:
        """How much is new in it; among equals, how much differs from the last one: no value stays for long."""
        return len(parts[row] & wanted), sum(a != b for a, b in zip(row, (chosen or [()])[-1], strict=False))

    while wanted:
        chosen.append(max(left, key=gain))
        wanted -= parts[chosen[-1]]
    return chosen


def crash_points(mutating: Sequence[str], when: str) -> list[int]:
    """The numbers of the mutating calls at which `crash_at` can die like that."""
    return [number for number, call in enumerate(mutating) if when != "torn" or call in TORN]


def fail_at(storage: FaultyStorage, first: int, times: int, when: str) -> None:
    """Calls `first` to `first + times - 1` fail with a `StorageError`, before or after they took effect."""
    start = len(storage.calls)

    def check(number: int, call: str, path: str) -> None:
        if first <= number - start < first + times:
            raise StorageError(f"injected into {call} {path}")

    setattr(storage, when, check)


def fill_up(storage: FaultyStorage, first: int) -> None:
    """From call `first` on there is no space left: whatever puts something fails, everything else works."""
    start = len(storage.calls)

    def check(number: int, call: str, path: str) -> None:
        if number - start >= first and call in PUTS:
            raise StorageError(f"no space left for {path}")

    storage.before = check


def heal(storage: FaultyStorage) -> None:
    storage.before = storage.after = lambda number, call, path: None


def copy_of(storage: MemoryStorage, clock: Clock) -> MemoryStorage:
    """The same objects at the same times in a storage of its own."""
    other = MemoryStorage(storage.root, clock)
    other._objects = dict(storage._objects)
    return other
