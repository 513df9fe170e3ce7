"""Rules that give partitions numbers of buckets: their text, and the expressions of Java that they may hold.

`tests/spark/test_partition_buckets.py` compares the expressions with `java.util.regex`.
"""

from __future__ import annotations

import json

import numpy as np
import pytest

from tideline_table.errors import CorruptMetadata, InvalidOption, UnsupportedTable
from tideline_table.index.bucket import Engine
from tideline_table.index.bucket_properties import bucket_index, declared_index
from tideline_table.index.java_pattern import MOST_CHARACTERS, java_pattern
from tideline_table.index.partition_rules import PartitionRule, PartitionRules, RulesFile


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        (" \t", []),
        ("a,1", [("a", 1)]),
        (" p0$ , 5 ;p[1],2;", [("p0$", 5), ("p[1]", 2)]),
        ("a,00016;;", [("a", 16)]),
        (r"dt=2026-\d{2},99999", [(r"dt=2026-\d{2}", 99_999)]),
    ],
)
def test_rules_are_split_as_apache_hudi_splits_them(text: str, expected: list[tuple[str, int]]) -> None:
    found = PartitionRules.parse(text)
    assert [(rule.expression, rule.number) for rule in found.rules] == expected
    assert PartitionRules.parse(found.text) == found


@pytest.mark.parametrize("text", [";", "a", "a,1,2", ",3", "a,;b,2", "a,1;;b,2", "a,0", "a,100000", "a,-1", "a,1.5", "a,٣", "a,x"])
def test_half_a_rule_and_numbers_out_of_range_are_refused(text: str) -> None:
    with pytest.raises(InvalidOption, match="partition rule"):
        PartitionRules.parse(text)


def test_closed_rules_say_all_numbers() -> None:
    rules = PartitionRules.parse("a,8;b,2")
    closed = rules.closed(4)
    assert closed.text == closed.given == "a,8;b,2;.*,4"
    assert closed.closed(9) is closed
    for path in ("", "a", "xb", "c", "\n"):
        assert closed.number_of(path, 99) == rules.number_of(path, 4)
    assert PartitionRules.parse("").closed(4).text == ""


def test_the_first_rule_that_is_found_decides() -> None:
    rules = PartitionRules.parse("^dt=2026-1,32;dt=2026,16;9$,8")
    assert [rules.number_of(path, 4) for path in ("dt=2026-11", "dt=2026-09", "x/dt=2026-11", "dt=2029", "dt=202", "")] == [
        32,
        16,
        16,
        8,
        4,
        4,
    ]


@pytest.mark.parametrize(
    ("expression", "path", "found"),
    [
        ("b", "abc", True),
        ("^b", "abc", False),
        (r"^p\d+$", "p٣", False),
        (r"\w", "é", False),
        (r"^\S$", "\u2003", True),
        ("a.c", "a\u2028c", False),
        ("a.c", "a😀c", True),
        ("c$", "c\u0085", True),
        ("c$", "c\r\n", True),
        ("c\r$", "c\r\n", False),
        (r"[\w\-.]{3}$", "a-.", True),
        ("[^0-9-]", "1-2", False),
        ("(?:ab|cd)?x(yz){2}", "xyzyz", True),
        (r"\.", "a", False),
    ],
)
def test_expressions_find_what_java_finds(expression: str, path: str, found: bool) -> None:
    assert PartitionRule(expression, 1).applies(path) is found


@pytest.mark.parametrize(
    "expression",
    [
        "(",
        "a)",
        "a|",
        "()",
        "[a",
        "[]",
        "[[a]]",
        "[a&&b]",
        "[z-a]",
        r"[\d-z]",
        "[a-c-e]",
        "a**",
        "a*+",
        "a+?",
        "a{0}",
        "a{2",
        "a{1001}",
        "^*",
        "$+",
        "*a",
        "a]",
        "}",
        r"\b",
        r"\p{L}",
        r"\1",
        r"\Qa\E",
        "\\",
        "(?i)a",
        "(?=a)",
        "(?<n>a)",
        "(a+)+",
        "(a|b)*",
        "(a?){3}",
        "(^a)+",
        "a" * (MOST_CHARACTERS + 1),
    ],
)
def test_expressions_that_java_and_python_may_read_differently_are_refused(expression: str) -> None:
    with pytest.raises(InvalidOption, match="regular expression"):
        java_pattern(expression)


def test_an_index_of_the_table_says_no_bucket_where_partitions_have_their_own_numbers() -> None:
    index = bucket_index(4, (), ("id",), rules=PartitionRules.parse("p0,8"))
    assert [index.in_partition(name).number for name in ("p0", "p1")] == [8, 4]
    assert index.in_partition("p1").in_partition("p0").number == 4
    with pytest.raises(AssertionError, match="of a partition"):
        index.buckets_of(np.array([1, 2]))
    assert index.text == "4 bucket(s) by id, by partition p0,8"
    assert declared_index(index.properties, ("id",)) == index


def test_partitions_are_counted_off_by_their_greatest_common_divisor() -> None:
    index = bucket_index(4, (), ("id",), rules=PartitionRules.parse("p0,8;p6,6;p9,9;p1,1"))
    for partitions, expected in (((), 4), (("p0",), 8), (("p0", "x"), 4), (("p0", "p6"), 2), (("p9",), 9), (("p1",), 1)):
        assert index.common_number(partitions) == expected
    for partitions in (("p0", "p9"), ("p0", "p1")):
        with pytest.raises(InvalidOption, match="common divisor"):
            index.common_number(partitions)


@pytest.mark.parametrize(
    "changed",
    [
        {"hoodie.bucket.index.partition.expressions": "(?i)a,2"},
        {"hoodie.bucket.index.partition.expressions": "a"},
        {"hoodie.bucket.index.partition.rule.type": "glob"},
        {"hoodie.index.bucket.engine": Engine.CONSISTENT.value},
    ],
)
def test_properties_with_rules_that_cannot_be_written_are_refused(changed: dict[str, str]) -> None:
    index = bucket_index(4, (), ("id",), rules=PartitionRules.parse("p0,8"))
    with pytest.raises(UnsupportedTable, match="bucket index"):
        declared_index({**index.properties, **changed}, ("id",))


def test_a_file_of_rules_has_the_fields_of_apache_hudi() -> None:
    held = RulesFile("00000000000000", r"\d,2", 4)
    assert json.loads(held.content) == {
        "expressions": r"\d,2",
        "defaultBucketNumber": 4,
        "rule": "regex",
        "version": 1,
        "instant": "00000000000000",
    }
    assert RulesFile.parse(held.path, held.content) == held
    for content in (b"", b"[]", b"{}", held.content[:-1], b'{"expressions": "a,1", "defaultBucketNumber": "x", "rule": "regex"}'):
        with pytest.raises(CorruptMetadata, match="hashing_config"):
            RulesFile.parse(held.path, content)
