"""The merge rule of a table to create."""

from __future__ import annotations

import difflib

import pyarrow as pa

from tideline_table.errors import InvalidOption, SchemaMismatch
from tideline_table.hudi.format import Feature, TableFormat
from tideline_table.hudi.merge_rules import BY_COMMIT_TIME, BY_EVENT_TIME, CUSTOM, EVENT_TIME, MERGE_RULES, MergeRule, rule_of_class
from tideline_table.schema import field_path, named_field
from tideline_table.schema.arrow import is_text

_BY_NAME = {rule.name: rule for rule in MERGE_RULES}


def named_rule(text: str) -> MergeRule:
    """Return the rule of this name, or that of a payload class of Apache Hudi. Raises `InvalidOption` for an unknown one."""
    name = text.lower().replace("-", "_")
    found = _BY_NAME.get(name) or rule_of_class(text)
    if found is None:
        from tideline_table.merge.merger import strategy_of  # noqa: PLC0415 - few tables have one

        if strategy := strategy_of(text):
            return MergeRule(text, "", CUSTOM, strategy=strategy)
        near = difflib.get_close_matches(name, _BY_NAME, n=1)
        raise InvalidOption(
            f"merge rule {text!r}",
            expected=near[0] if near else ", ".join(_BY_NAME),
            remedy="" if near else "other payload classes are code that cannot run here (a merger of one's own: docs/merging.md)",
        )
    return found


def requested_merging(
    asked: str, ordering_field: str, schema: pa.Schema, form: TableFormat, *, has_logs: bool
) -> tuple[MergeRule, str]:
    """Return the merge rule of a new table and its ordering fields, separated by commas.

    `asked` is a name or a payload class as for `named_rule`; empty: by event time if there is an ordering field, else by commit
    time. Raises `InvalidOption` for a rule that does not fit the ordering fields, `SchemaMismatch` for columns that it lacks, and
    `UnsupportedTable` for a rule that a table of this version cannot declare.
    """
    rule = named_rule(asked) if asked else BY_EVENT_TIME if ordering_field else BY_COMMIT_TIME
    if rule.needs_modes or (rule.unavailable and has_logs):
        form.check_supports(Feature.RULES_AS_PROPERTIES)
    if rule.strategy:
        form.check_supports(Feature.MERGERS)
    names = [name.strip() for name in ordering_field.split(",") if name.strip()]
    if rule.ordering:
        if names and names != rule.ordering.split(","):
            raise InvalidOption(
                f"ordering columns {', '.join(names)} with the merge rule {rule.name}",
                expected=f"{rule.ordering.replace(',', ', ')}, which this rule compares",
                remedy="leave the ordering columns out",
            )
        names = rule.ordering.split(",")
    if rule.mode == EVENT_TIME and not names:
        raise InvalidOption(
            f"the merge rule {rule.name} without an ordering column", expected="the column that says which is newer"
        )
    if len(set(names)) < len(names):
        raise InvalidOption(f"ordering columns {', '.join(names)}", expected="each column once")
    if len(names) > 1:
        form.check_supports(Feature.SEVERAL_ORDERING_FIELDS)
    if names and rule == BY_COMMIT_TIME:
        form.check_supports(Feature.ORDERED_COMMIT_TIME)
    for name in names:
        _check_ordering(schema, name, several=len(names) > 1)
    if rule.deletion is not None:
        column = rule.deletion[0]
        if column not in schema.names or not is_text(schema.field(column).type):
            raise SchemaMismatch(
                f"no text column {column!r} for the merge rule {rule.name}",
                expected=f"it: {rule.deletion[1]!r} in it deletes a row",
            )
    return rule, ",".join(names)


def _check_ordering(schema: pa.Schema, name: str, *, several: bool) -> None:
    if not field_path(schema, name):
        raise SchemaMismatch(
            f"ordering column {name!r} is not in the schema",
            expected=f"one of {', '.join(schema.names)}, or a field of a struct by its dotted path",
        )
    kind = named_field(schema, name).type
    if pa.types.is_nested(kind) or pa.types.is_null(kind) or pa.types.is_dictionary(kind):
        raise SchemaMismatch(f"ordering column {name!r} of type {kind}", expected="a type whose values can be compared")
    if several and not (pa.types.is_integer(kind) or is_text(kind) or kind == pa.float64()):
        raise SchemaMismatch(
            f"ordering column {name!r} of type {kind}, one of several",
            expected="whole numbers, doubles or text",
            remedy="order by one column, or cast it",
        )
