"""What is fuzzed: a parser of bytes that anybody may have written, and sound inputs to begin with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from tideline_table.errors import TidelineError
from tideline_table.storage import MemoryStorage

T = TypeVar("T")


@dataclass(frozen=True)
class Target:
    """`parse` gives anything or raises `TidelineError`; whatever else it raises is a finding.

    `is_json`: seeds are JSON documents.
    """

    name: str
    parse: Callable[[bytes], object]
    seeds: tuple[bytes, ...]
    is_json: bool = False


def typed(call: Callable[..., T], *arguments: Any) -> T | None:
    """The outcome of a step that others follow; None for a typed error, which has to say what was found."""
    try:
        return call(*arguments)
    except TidelineError as error:
        if not error.found:
            raise AssertionError(f"{type(error).__name__} that explains nothing") from error
        return None


def stored(**files: bytes) -> MemoryStorage:
    """A store with these objects; `__` in names stands for `/`, a leading `_` for `.`."""
    storage = MemoryStorage()
    for name, content in files.items():
        storage.put(name, content)
    return storage
