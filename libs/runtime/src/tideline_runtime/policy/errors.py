"""Errors of policies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from tideline_runtime.errors import InputRefused
from tideline_table.errors import InvalidOption


@dataclass(frozen=True, slots=True)
class Problem:
    """One error in a policy file: its line (from 1), its place by names and indexes, what was found and what was expected."""

    line: int
    place: str
    found: str
    expected: str

    def __str__(self) -> str:
        place = f"{self.place} " if self.place else ""
        return f"line {self.line}: {place}{self.found}" + (f"; expected {self.expected}" if self.expected else "")


class PolicyRefused(InvalidOption):
    """A policy file that is not valid. `problems` are in order of line; `found` names the first one."""

    kind: ClassVar[str] = "policy file"
    command: ClassVar[str] = "tideline policy check"
    """What prints all problems."""

    def __init__(self, source: str, problems: Sequence[Problem]) -> None:
        self.source = source
        self.problems = tuple(sorted(problems, key=lambda p: (p.line, p.place)))
        first, others = self.problems[0], len(self.problems) - 1
        place = f"{first.place} " if first.place else ""
        super().__init__(
            f"{self.kind} {source}, line {first.line}: {place}{first.found}",
            expected=first.expected,
            remedy=f"and {others} more: {self.command} {source}" if others else "",
        )


class ContradictoryRules(InvalidOption):
    """Two rules of equal rank give one field of a table different values.

    No service works on the table until a user changes a rule.
    """

    def __init__(self, base_path: str, field: str, origins: Sequence[str]) -> None:
        self.base_path, self.field = base_path, field
        super().__init__(
            f"policy of {base_path}: {field} has different values in {' and '.join(origins)}",
            expected="one narrowest rule for each field",
            remedy="give the field in a rule for this table, or exclude the table from one of the rules",
        )


class FeedingRefused(InputRefused):
    """The policy of a table lets no ingestion of Tideline write it. `rule` is the mode with its rule and line; empty: no rule."""

    def __init__(self, base_path: str, rule: str) -> None:
        self.base_path, self.rule = base_path, rule
        super().__init__(
            f"policy of {base_path}: {rule or 'no rule gives a mode, and Apache Hudi created the table'}",
            expected="mode: write, in which an ingestion of Tideline may write the table beside its other writers",
            remedy="give it in a rule for this table, in the file that the setting policy_file names, or write another table",
        )
