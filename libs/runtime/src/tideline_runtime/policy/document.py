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
_PLAIN_TAGS = ("tag:yaml.org,2002:str", "tag:yaml.org,2002:seq", "tag:yaml.org,2002:map")


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
    """Parse a file. Raises `PolicyRefused` for an empty file, text that is not YAML, anchors, aliases, tags and deep nesting."""

    def refuse(line: int, found: str, expected: str) -> PolicyRefused:
        return PolicyRefused(source, [Problem(line, "", found, expected)])

    try:
        for event in yaml.parse(text, Loader=yaml.BaseLoader):
            if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
                raise refuse(
                    event.start_mark.line + 1, "an anchor or alias", "values in the place where they hold, or a rule for a tag"
                )
        root = yaml.compose(text, Loader=yaml.BaseLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise refuse(mark.line + 1 if mark else 1, f"no YAML: {error.problem or error.context}", "a policy file") from None
    except (yaml.YAMLError, RecursionError) as error:
        raise refuse(1, f"no YAML: {' '.join(str(error).split())}", "a policy file") from None
    if root is None:
        raise refuse(1, "an empty file", "`version: 1` and rules")
    document = Document(None)
    return Document(_Builder(document.lines, source).value(root, ()), document.lines)


@dataclass(slots=True)
class _Builder:
    lines: dict[Place, int]
    source: str

    def value(self, node: Any, place: Place) -> Any:
        line = node.start_mark.line + 1
        self.lines.setdefault(place, line)
        if node.tag not in _PLAIN_TAGS:
            raise self._refused(line, place, f"the tag {node.tag}", "a value without a tag")
        if len(place) > _MAX_DEPTH:
            raise self._refused(line, place, "a value nested too deep", f"at most {_MAX_DEPTH} levels")
        if isinstance(node, yaml.ScalarNode):
            return node.value if node.style else _scalar(node.value)
        if isinstance(node, yaml.SequenceNode):
            return [self.value(item, (*place, at)) for at, item in enumerate(node.value)]
        return self._mapping(node, place)

    def _mapping(self, node: Any, place: Place) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, item in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode):
                raise self._refused(line, place, "a key that is no text", "names as keys")
            inner = (*place, key.value)
            if key.value in found:
                raise self._refused(line, inner, f"given again (first on line {self.lines[inner]})", "each key once")
            self.lines[inner] = line
            found[key.value] = self.value(item, inner)
        return found

    def _refused(self, line: int, place: Place, found: str, expected: str) -> PolicyRefused:
        return PolicyRefused(self.source, [Problem(line, place_text(place), found, expected)])


def _scalar(text: str) -> str | int | float | bool | None:
    if text in _WORDS:
        return _WORDS[text]
    if _INTEGER.fullmatch(text) and len(text) < 30:
        return int(text)
    return float(text) if _NUMBER.fullmatch(text) else text
