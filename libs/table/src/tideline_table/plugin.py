"""Strategies by name: built-in ones, those of installed packages (entry points), Apache Hudi's class names as aliases."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from tideline_table.errors import InvalidOption

S = TypeVar("S")


@dataclass(frozen=True)
class Strategies(Generic[S]):
    """The strategies of one kind. A package adds some under the entry point group `group`; built-in names cannot be replaced."""

    group: str
    option: str
    """The key of the option that names a strategy, for errors."""
    kind: type | None
    """What an entry point must load, None for any callable."""
    built_in: Mapping[str, S]
    aliases: Mapping[str, str] = field(default_factory=dict)
    """Apache Hudi's class names, without packages → built-in names."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Known names (class names without packages) that this release does not have → what to use instead."""

    def name_of(self, text: str) -> str:
        """Return the name of a strategy for its name or one of its aliases."""
        short = text.strip().rsplit(".", 1)[-1]
        return self.aliases.get(short, short if short in self.refused else text.strip())

    def load(self, text: str) -> S:
        """Return the strategy with this name or alias. Raises `InvalidOption`, which lists the known names."""
        name = self.name_of(text)
        if name in self.built_in:
            return self.built_in[name]
        if name in self.refused:
            raise InvalidOption(
                f"option {self.option!r} names {text!r}, which this release does not have",
                expected=f"one of {', '.join(self.names())}",
                remedy=self.refused[name],
            )
        installed = importlib.metadata.entry_points(group=self.group, name=name)
        if not installed:
            raise InvalidOption(
                f"option {self.option!r} names {text!r}",
                expected=f"one of {', '.join(self.names())}, or a class name of Apache Hudi for one of them",
                remedy=f"install the package that has the entry point {name!r} in the group {self.group!r}",
            )
        return self._loaded(next(iter(installed)))

    def names(self) -> list[str]:
        """Return the names of all strategies, built-in ones first."""
        return [*self.built_in, *sorted({e.name for e in importlib.metadata.entry_points(group=self.group)} - set(self.built_in))]

    def _loaded(self, entry: importlib.metadata.EntryPoint) -> S:
        try:
            found: Any = entry.load()
        except (ImportError, AttributeError) as error:
            raise InvalidOption(
                f"entry point {entry.name!r} of the group {self.group!r} cannot be loaded ({error})",
                expected=f"an object at {entry.value!r}",
            ) from error
        if not (callable(found) if self.kind is None else isinstance(found, self.kind)):
            wanted = "a callable" if self.kind is None else f"an instance of {self.kind.__module__}.{self.kind.__qualname__}"
            raise InvalidOption(
                f"entry point {entry.name!r} of the group {self.group!r} is of type {type(found).__name__}", expected=wanted
            )
        return found  # type: ignore[no-any-return]
