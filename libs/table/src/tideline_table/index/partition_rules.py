"""Numbers of buckets by partition path (format reference 12.3; Apache Hudi's partition-level bucket index, RFC-89).

A rule is a regular expression of Java and a number of buckets, `regex,n`; rules are separated by `;`. The first one whose
expression is found in the partition path decides. Apache Hudi's writers take the rules from `hoodie.properties`, and its bulk
inserts and readers from the newest committed file in `RULES_FOLDER`, so a table keeps them in both places.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from tideline_table.errors import CorruptMetadata, InvalidOption
from tideline_table.hudi.file_names import MAX_BUCKETS
from tideline_table.index.java_pattern import java_pattern
from tideline_table.json_text import parse_json

RULE_TYPE = "regex"
"""The one type of rules that Apache Hudi has."""
RULES_FOLDER = ".hoodie/.bucket_index/partition_bucket_index_meta/configs"
FIRST_INSTANT = "00000000000000"
"""The instant of the rules that a table was created with."""
_ANY_PATH = ".*"
_SUFFIX = ".hashing_config"
_VERSION = 1
_JAVA_BLANKS = "".join(map(chr, range(0x21)))
"""What Java's `String.trim` removes."""


@dataclass(frozen=True, slots=True)
class PartitionRule:
    """Partitions in whose path `expression` is found have `number` buckets."""

    expression: str
    number: int

    def applies(self, partition_path: str) -> bool:
        """Return whether the expression is found in a partition path."""
        return java_pattern(self.expression).search(partition_path) is not None


@dataclass(frozen=True, slots=True)
class PartitionRules:
    """Rules in their order; none for a table with one number of buckets. Rules are equal if their expressions and numbers are."""

    rules: tuple[PartitionRule, ...] = ()
    given: str = field(default="", compare=False)
    """The text that the table keeps. Apache Hudi compares it literally with the options of its writers."""

    def __bool__(self) -> bool:
        return bool(self.rules)

    @property
    def text(self) -> str:
        """The rules without blanks around their parts."""
        return ";".join(f"{rule.expression},{rule.number}" for rule in self.rules)

    @classmethod
    def parse(cls, text: str) -> PartitionRules:
        """Read rules as Apache Hudi does; an empty text has none.

        Raises `InvalidOption` for half a rule, a number out of range and an expression outside the subset of `java_pattern`.
        """
        trimmed = text.strip(_JAVA_BLANKS)
        if not trimmed:
            return cls()
        # Java's `split` drops empty texts at the end only.
        return cls(tuple(_rule(part) for part in trimmed.rstrip(";").split(";")), trimmed)

    def closed(self, default: int) -> PartitionRules:
        """Return rules with the same numbers of which one always applies; none stay none.

        Apache Hudi keeps rules in memory by their text alone, with the default number of the table that it met first
        (docs/peer-differences.md, 29). Rules that say all numbers are safe from this.
        """
        if not self.rules or self.rules[-1].expression == _ANY_PATH:
            return self
        rules = (*self.rules, PartitionRule(_ANY_PATH, default))
        return PartitionRules(rules, PartitionRules(rules).text)

    def opened(self) -> PartitionRules:
        """Return the rules without a last one that always applies, such as `closed` adds."""
        if not self.rules or self.rules[-1].expression != _ANY_PATH:
            return self
        rules = self.rules[:-1]
        return PartitionRules(rules, PartitionRules(rules).text)

    @classmethod
    def of_all(cls, number: int) -> PartitionRules:
        """Return rules that give all partitions one number."""
        return cls.parse(f"{_ANY_PATH},{number}")

    def number_of(self, partition_path: str, default: int) -> int:
        """Return the number of buckets of a partition: that of the first rule that applies, otherwise `default`."""
        return next((rule.number for rule in self.rules if rule.applies(partition_path)), default)


NO_RULES = PartitionRules()


def _rule(text: str) -> PartitionRule:
    parts = [part.strip(_JAVA_BLANKS) for part in text.split(",")]
    if len(parts) != 2 or not parts[0]:
        raise InvalidOption(
            f"the partition rule {text!r}",
            expected="a regular expression and a number of buckets, such as ^dt=2026-,32; rules are separated by ';', and an "
            "expression holds no ','",
        )
    expression, number = parts
    if not (number.isascii() and number.isdecimal()) or not 1 <= int(number) <= MAX_BUCKETS:
        raise InvalidOption(f"the partition rule {text!r}", expected=f"1 to {MAX_BUCKETS} buckets after the ','")
    java_pattern(expression)
    return PartitionRule(expression, int(number))


@dataclass(frozen=True, slots=True)
class RulesFile:
    """A file of rules that Apache Hudi reads."""

    instant: str
    expressions: str
    number: int
    """The number of buckets of partitions to which no rule applies."""
    rule_type: str = RULE_TYPE

    @property
    def rules(self) -> PartitionRules:
        """The rules. Raises `InvalidOption` as `PartitionRules.parse`, and for rules of another type."""
        if self.rule_type != RULE_TYPE:
            raise InvalidOption(f"partition rules of the type {self.rule_type!r}", expected=RULE_TYPE)
        return PartitionRules.parse(self.expressions)

    @staticmethod
    def instant_of(name: str) -> str:
        """Return the instant in the name of a file, empty for other files."""
        instant = name.removesuffix(_SUFFIX)
        return instant if instant != name and instant.isascii() and instant.isdecimal() else ""

    @staticmethod
    def path_of(instant: str) -> str:
        """Return the path of the file of an instant in the table."""
        return f"{RULES_FOLDER}/{instant}{_SUFFIX}"

    @property
    def path(self) -> str:
        """Its path in the table."""
        return self.path_of(self.instant)

    @property
    def content(self) -> bytes:
        """What Apache Hudi reads."""
        document = {
            "expressions": self.expressions,
            "defaultBucketNumber": self.number,
            "rule": self.rule_type,
            "version": _VERSION,
            "instant": self.instant,
        }
        return json.dumps(document, indent=2).encode()

    @classmethod
    def parse(cls, path: str, content: bytes) -> RulesFile:
        """Read a file. Raises `CorruptMetadata`."""
        try:
            found: dict[str, Any] = parse_json(content)
            return cls(str(found["instant"]), str(found["expressions"]), int(found["defaultBucketNumber"]), str(found["rule"]))
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise CorruptMetadata(
                f"{path} cannot be read ({error})", expected="partition rules of Apache Hudi's bucket index in JSON"
            ) from None
