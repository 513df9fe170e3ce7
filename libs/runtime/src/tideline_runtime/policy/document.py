"""YAML with line numbers: a policy file as plain values, and the line of each of them.

Scalars follow YAML 1.2's JSON schema: `on` and `22:00` are text. Anchors, aliases and tags are refused, so that each line shows the
value that holds there.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml  # type: ignore[import-untyped]

from tideline_runtime.policy.errors import PolicyRefused, Problem

Place = tuple[str | int, ...]
MAX_BYTES = 4 << 20
_MAX_DEPTH = 20
_WORDS = {"": None, "~": None, "null": None, "true": True, "false": False}
_INTEGER = re.compile(r"[-+]?[0-9]+")
_NUMBER = re.compile(r"[-+]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?")
_LOADER = yaml.CBaseLoader if yaml.__with_libyaml__ else yaml.BaseLoader


@dataclass(frozen=True, slots=True)
class Document:
    """The values of a file. `lines` has the line, from 1, of each value by its place."""

    values: Any
    lines: dict[Place, int] = field(default_factory=dict)

    def line(self, place: Sequence[str | int]) -> int:
        """Return the line of this place, or of the nearest one around it."""
        for length in range(len(place), -1, -1):
            if tuple(place[:length]) in self.lines:
                return self.lines[tuple(place[:length])]
        return 1


def place_text(place: Sequence[str | int]) -> str:
    """Return a place as a message names it: `rules[2].options.hoodie.x`."""
    text = ""
    for part in place:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def parse_document(text: str, source: str) -> Document:
    """Parse a file, in linear time and without recursion.

    Raises `PolicyRefused` for an empty file, text that is not YAML, several documents, anchors, aliases, tags and deep nesting.
    """
    builder = _Builder(source)
    try:
        # Events come one by one, so that the builder refuses deep nesting before the parser, which is slow there, has read far.
        for event in yaml.parse(text, Loader=_LOADER):
            builder.take(event)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise builder.refused(
            mark.line + 1 if mark else 1, (), f"no YAML: {error.problem or error.context}", "a policy file"
        ) from None
    except (yaml.YAMLError, UnicodeError) as error:
        raise builder.refused(1, (), f"no YAML: {' '.join(str(error).split())}", "a policy file") from None
    if not builder.documents:
        raise builder.refused(1, (), "an empty file", "`version: 1` and rules")
    return Document(builder.root, builder.lines)


@dataclass(slots=True)
class _Open:
    """A list or mapping whose end is not read yet. `key` is the key whose value comes next."""

    place: Place
    values: list[Any] | dict[str, Any]
    key: str | None = None


@dataclass(slots=True)
class _Builder:
    """Builds the values of a file from the events of the parser."""

    source: str
    root: Any = None
    documents: int = 0
    lines: dict[Place, int] = field(default_factory=dict)
    _open: list[_Open] = field(default_factory=list)

    def take(self, event: Any) -> None:
        """Take the next event. Raises `PolicyRefused`."""
        line = event.start_mark.line + 1
        if isinstance(event, yaml.DocumentStartEvent):
            self.documents += 1
            if self.documents > 1:
                raise self.refused(line, (), "a second document", "one document")
        elif isinstance(event, yaml.CollectionEndEvent):
            self._open.pop()
        elif isinstance(event, yaml.NodeEvent):
            self._node(event, line)

    def _node(self, event: Any, line: int) -> None:
        around = self._open[-1] if self._open else None
        place = self._next_place(around)
        if event.anchor is not None:
            raise self.refused(line, place, "an anchor or alias", "values in the place where they hold, or a rule for a tag")
        if event.tag is not None:
            raise self.refused(line, place, f"the tag {event.tag}", "a value without a tag")
        if around is not None and isinstance(around.values, dict) and around.key is None:
            self._begin_value(around, event, line)
            return
        self.lines.setdefault(place, line)
        if isinstance(event, yaml.ScalarEvent):
            value = event.value if event.style else _scalar(event.value)
        else:
            if len(self._open) >= _MAX_DEPTH:
                raise self.refused(line, place, "a value nested too deep", f"at most {_MAX_DEPTH} levels")
            value = [] if isinstance(event, yaml.SequenceStartEvent) else {}
            self._open.append(_Open(place, value))
        if around is None:
            self.root = value
        elif isinstance(around.values, list):
            around.values.append(value)
        else:
            assert around.key is not None
            around.values[around.key], around.key = value, None

    def _begin_value(self, around: _Open, event: Any, line: int) -> None:
        if not isinstance(event, yaml.ScalarEvent):
            raise self.refused(line, around.place, "a key that is no text", "names as keys")
        inner = (*around.place, event.value)
        if event.value in around.values:
            raise self.refused(line, inner, f"given again (first on line {self.lines[inner]})", "each key once")
        self.lines[inner] = line
        around.key = event.value

    @staticmethod
    def _next_place(around: _Open | None) -> Place:
        if around is None:
            return ()
        if isinstance(around.values, list):
            return (*around.place, len(around.values))
        return around.place if around.key is None else (*around.place, around.key)

    def refused(self, line: int, place: Place, found: str, expected: str) -> PolicyRefused:
        """Return the error for one problem of the file."""
        return PolicyRefused(self.source, [Problem(line, place_text(place), found, expected)])


def _scalar(text: str) -> str | int | float | bool | None:
    if text in _WORDS:
        return _WORDS[text]
    if _INTEGER.fullmatch(text) and len(text) < 30:
        return int(text)
    return float(text) if _NUMBER.fullmatch(text) else text
