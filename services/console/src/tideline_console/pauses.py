"""Pauses as rules of the policy file: the text with a rule more or less. Everything else of the file stays as it is, byte by byte.

The policy file is where services learn of pauses (docs/policies.md). A rule that a page added is one line, whose name begins with
`NAME`; only such a rule is removed by a page.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from tideline_runtime.policy.groups import read_file
from tideline_runtime.policy.reading import parse_policies
from tideline_table.errors import Conflict, InvalidOption, TidelineError

NAME = "console: pause of "


@dataclass(frozen=True, slots=True)
class Edit:
    """A change of a policy file: its content before and after."""

    before: bytes
    after: bytes
    line: str
    """The rules that come or go, each a line."""


def paused(content: bytes, base_paths: Sequence[str], reason: str, until: datetime | None) -> Edit:
    """Return the edit that pauses tables. Raises `InvalidOption` for a file that cannot take a rule, and `PolicyRefused`."""
    if twice := given_by_pages(content).intersection(base_paths):
        expected = "a table that no page paused: two rules for it would contradict each other"
        raise InvalidOption(f"a page paused {min(twice)} already", expected=expected, remedy="end that pause first")
    pause: dict[str, Any] = {"reason": reason} | ({"until": until.isoformat()} if until is not None else {})
    rules = [{"name": f"{NAME}{base_path}", "match": {"tables": [base_path]}, "pause": pause} for base_path in base_paths]
    lines = [json.dumps(rule, ensure_ascii=False) for rule in rules]
    text = _text(content)
    root = _root(text)
    found = _rules(root)
    if found is None and root.flow_style:
        raise _unfit("its rules are missing from a mapping in braces")
    if found is None:
        after = f"{text}{'' if text.endswith(chr(10)) else chr(10)}rules:\n"
        after += "".join(f"  - {line}\n" for line in lines)
    elif not isinstance(found, yaml.SequenceNode):
        raise _unfit("its rules are no list")
    elif found.flow_style:
        at = found.start_mark.index + 1
        after = f"{text[:at]}{', '.join(lines)}{', ' if found.value else ''}{text[at:]}"
    else:
        at, column = found.start_mark.index, found.start_mark.column
        after = f"{text[:at]}{''.join(f'- {line}{chr(10)}{chr(32) * column}' for line in lines)}{text[at:]}"
    return _checked(content, after, lines)


def given_by_pages(content: bytes) -> frozenset[str]:
    """Return the base paths of the tables that a page paused. Raises `InvalidOption` and `PolicyRefused`."""
    names = (_name(rule) for rule in _listed(_rules(_root(_text(content)))))
    return frozenset(name.removeprefix(NAME) for name in names if name.startswith(NAME))


def resumed(content: bytes, base_paths: Sequence[str]) -> Edit:
    """Return the edit that removes the pauses that a page gave tables.

    Raises `InvalidOption` for a table without one: another rule pauses it.
    """
    text = after = _text(content)
    rules = _rules(_root(text))
    by_name = {_name(rule): (number, rule) for number, rule in enumerate(_listed(rules))}
    for base_path in base_paths:
        if f"{NAME}{base_path}" not in by_name:
            raise InvalidOption(
                f"no pause that a page gave {base_path}",
                expected=f"a rule named {NAME + base_path!r}",
                remedy="an operator removes the rule that pauses the table from the policy file",
            )
    chosen = [by_name[f"{NAME}{base_path}"] for base_path in base_paths]
    lines = [text[rule.start_mark.index : rule.end_mark.index] for _, rule in chosen]
    for number, rule in sorted(chosen, key=lambda one: -one[0]):  # From the last on: places before a removed rule stay.
        begin, end = rule.start_mark.index, rule.end_mark.index
        if rules.flow_style:
            comma = after.find(",", end) + 1 if number + 1 < len(rules.value) else 0
            after = after[:begin] + after[max(end, comma) :].lstrip(" " if comma else "")
            continue
        first = after.rfind("\n", 0, begin) + 1
        last = after.find("\n", end) + 1 or len(after)
        # A list in lines cannot be empty.
        empty = f"{' ' * (begin - first - 2)}[]\n" if number == 0 and len(chosen) == len(rules.value) else ""
        after = after[:first] + empty + after[last:]
    return _checked(content, after, lines)


def replace(path: Path, edit: Edit) -> None:
    """Replace the file by the edited one. Raises `Conflict` if it is not the one that was edited any more, and `InvalidOption`."""
    path = path.resolve()  # A link stays: the file that it leads to is the one that others keep and read.
    staged = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        if read_file(path) != edit.before:
            raise Conflict("the policy file changed meanwhile", expected="the file of the preview", remedy="look again")
        mode = path.stat().st_mode
        with staged.open("wb") as file:
            os.fchmod(file.fileno(), mode & 0o777)
            file.write(edit.after)
            file.flush()
            os.fsync(file.fileno())
        staged.replace(path)
    except OSError as error:
        raise InvalidOption(
            f"the policy file cannot be replaced: {error.strerror}",
            expected="a file in a folder that the console may write to",
            remedy="change the file where it is kept, such as the values of the chart",
        ) from error
    finally:
        staged.unlink(missing_ok=True)


def _text(content: bytes) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise _unfit("it is not text in UTF-8") from error


def _checked(before: bytes, after: str, lines: Sequence[str]) -> Edit:
    parse_policies(after, "the policy file with this change")
    return Edit(before, after.encode(), "\n".join(lines))


def _root(text: str) -> Any:
    parse_policies(text, "the policy file")
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    if not isinstance(root, yaml.MappingNode):
        raise _unfit("it is no mapping")
    return root


def _rules(root: Any) -> Any:
    return next((value for key, value in root.value if key.value == "rules"), None)


def _listed(rules: Any) -> list[Any]:
    return rules.value if isinstance(rules, yaml.SequenceNode) else []


def _name(rule: Any) -> str:
    named = {key.value: value.value for key, value in rule.value} if isinstance(rule, yaml.MappingNode) else {}
    name = named.get("name")
    return name if isinstance(name, str) else ""


def _unfit(why: str) -> TidelineError:
    return InvalidOption(f"the policy file cannot take a rule: {why}", expected="rules in a list", remedy="write the rule by hand")
