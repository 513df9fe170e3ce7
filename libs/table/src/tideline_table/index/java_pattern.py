r"""A checked subset of Java's regular expressions, as Python patterns that find the same.

Apache Hudi searches partition paths with `java.util.regex`. Both languages read most expressions alike and some differently
(Unicode classes, line terminators, sets inside sets, possessive quantifiers), so that everything outside the subset is refused
by name: literals, `.`, `^`, `$`, `\d \w \s \D \W \S`, escaped punctuation, `[...]` without `[` and `&&`, `(...)`, `(?:...)`,
`|`, `*`, `+`, `?`, `{n}`.

A repeated group may hold neither alternatives, quantifiers nor anchors. No search then takes exponential time.
"""

from __future__ import annotations

import re
import string
from dataclasses import dataclass
from functools import lru_cache

from tideline_table.errors import InvalidOption

MOST_CHARACTERS = 200
"""The longest expression that is accepted."""
_MOST_REPEATS = 1000
_TERMINATORS = "\n\r\u0085\u2028\u2029"
_ANY = f"[^{_TERMINATORS}]"
_END = r"(?:(?=(?:\r\n|[\r\u0085\u2028\u2029])?\Z)|(?<!\r)(?=\n\Z))"
"""Java's `$`: the end, or before a line terminator at the end, and not between `\\r` and `\\n`."""
_CLASSES = "dwsDWS"


@lru_cache(maxsize=1024)
def java_pattern(expression: str) -> re.Pattern[str]:
    """Return the pattern whose `search` finds what Java's `find` does. Raises `InvalidOption` for what is outside the subset."""
    if len(expression) > MOST_CHARACTERS:
        raise InvalidOption(f"a regular expression of {len(expression)} characters", expected=f"at most {MOST_CHARACTERS}")
    reader = _Reader(expression)
    found = reader.alternatives()
    if reader.at < len(expression):
        raise reader.refusal("an unmatched ')'")
    return re.compile(found.text, re.ASCII)


@dataclass(frozen=True, slots=True)
class _Part:
    text: str
    is_fixed: bool = True
    """Whether it has neither alternatives, quantifiers nor anchors."""


class _Reader:
    def __init__(self, expression: str) -> None:
        self.expression = expression
        self.at = 0

    def refusal(self, what: str) -> InvalidOption:
        """Return the error that names what is refused, and where."""
        return InvalidOption(
            f"{what} at character {min(self.at, len(self.expression)) + 1} of the regular expression {self.expression!r}",
            expected=r"literals, ., ^, $, \d \w \s \D \W \S, escaped punctuation, [...], (...), |, *, +, ? and {n}: Java and "
            r"Python read these alike",
        )

    def _peek(self) -> str:
        return self.expression[self.at : self.at + 1]

    def _take(self) -> str:
        found = self._peek()
        self.at += 1
        return found

    def alternatives(self) -> _Part:
        """Read up to the end, or to the `)` of the group."""
        branches = [self._branch()]
        while self._peek() == "|":
            self.at += 1
            branches.append(self._branch())
        return _Part("|".join(b.text for b in branches), len(branches) == 1 and branches[0].is_fixed)

    def _branch(self) -> _Part:
        parts: list[_Part] = []
        while self._peek() not in ("", "|", ")"):
            parts.append(self._piece())
        if not parts:
            raise self.refusal("nothing")
        return _Part("".join(p.text for p in parts), all(p.is_fixed for p in parts))

    def _piece(self) -> _Part:
        char = self._take()
        if char in "^$":
            if self._peek() in ("*", "+", "?", "{"):
                raise self.refusal("a repeated anchor")
            return _Part("^" if char == "^" else _END, is_fixed=False)
        if char == "(":
            return self._quantified(self._group(), is_group=True)
        return self._quantified(_Part(self._atom(char)), is_group=False)

    def _atom(self, char: str) -> str:
        if char == ".":
            return _ANY
        if char == "\\":
            return self._escape()
        if char == "[":
            return self._class()
        if char in "*+?{}]":
            self.at -= 1
            raise self.refusal(f"an unescaped {char!r} that repeats or closes nothing")
        return re.escape(char)

    def _escape(self) -> str:
        char = self._take()
        if char and char in _CLASSES:
            return f"\\{char}"
        if char and char in string.punctuation:
            return re.escape(char)
        self.at -= 1
        raise self.refusal(f"the escape '\\{char}'")

    def _group(self) -> _Part:
        if self._peek() == "?":
            if self.expression[self.at : self.at + 2] != "?:":
                raise self.refusal(f"the group '(?{self.expression[self.at + 1 : self.at + 2]}'")
            self.at += 2
        found = self.alternatives()
        if self._take() != ")":
            raise self.refusal("an unmatched '('")
        return _Part(f"(?:{found.text})", found.is_fixed)

    def _quantified(self, atom: _Part, *, is_group: bool) -> _Part:
        char = self._peek()
        if char not in ("*", "+", "?", "{"):
            return atom
        self.at += 1
        quantifier = self._count() if char == "{" else char
        if self._peek() in ("*", "+", "?", "{"):
            raise self.refusal("a second quantifier")
        if is_group and char != "?" and not atom.is_fixed:
            raise self.refusal("a repeated group with alternatives, quantifiers or anchors")
        return _Part(atom.text + quantifier, is_fixed=False)

    def _count(self) -> str:
        end = self.expression.find("}", self.at)
        digits = self.expression[self.at : end] if end >= 0 else ""
        if not (digits.isascii() and digits.isdecimal()) or not 1 <= int(digits) <= _MOST_REPEATS:
            raise self.refusal("a number of repetitions")
        self.at = end + 1
        return f"{{{int(digits)}}}"

    def _class(self) -> str:
        items: list[str] = []
        negated = self._peek() == "^"
        self.at += negated
        while (char := self._take()) != "]":
            if not char:
                raise self.refusal("an unmatched '['")
            if char in "[&^" or (char == "-" and items and self._peek() != "]"):
                self.at -= 1
                raise self.refusal(f"an unescaped {char!r} in [...]")
            first = self._escape() if char == "\\" else re.escape(char)
            if self._peek() == "-" and self.expression[self.at + 1 : self.at + 2] != "]":
                items.append(self._range(first))
            else:
                items.append(first)
        if not items:
            raise self.refusal("an empty [...]")
        return f"[{'^' if negated else ''}{''.join(items)}]"

    def _range(self, first: str) -> str:
        self.at += 1
        char = self._take()
        if not char or char in "[&^-":
            raise self.refusal("the end of a range in [...]")
        last = self._escape() if char == "\\" else re.escape(char)
        bounds = [text[-1] for text in (first, last)]
        if any(len(text) > 1 and text[-1] in _CLASSES for text in (first, last)) or bounds[0] > bounds[1]:
            raise self.refusal(f"the range '{bounds[0]}-{bounds[1]}'")
        return f"{first}-{last}"
