"""Parses the text of a policy file to `Policies`. Every value is checked, and every problem has its line."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from tideline_runtime.policy.document import MAX_BYTES, Document, Place, parse_document, place_text
from tideline_runtime.policy.errors import PolicyRefused, Problem
from tideline_runtime.policy.fields import FLEET_OPTIONS, OPTION, Field, fields_of
from tideline_runtime.policy.model import Body, Match, PauseModel, PolicyFile, RuleModel, Tag, WindowModel
from tideline_runtime.policy.quantity import time_of_day
from tideline_runtime.policy.resolution import Fleet, Policies, Rule
from tideline_runtime.policy.selector import Group, Selector, is_uid
from tideline_runtime.policy.table_policy import Given, Origin, Pause
from tideline_runtime.policy.window import Window
from tideline_runtime.registry import TablePattern
from tideline_runtime.setting_errors import expectation, shortened
from tideline_runtime.table_settings import overrides_problem
from tideline_table.config import Options
from tideline_table.errors import TidelineError


def read_policies(path: Path) -> Policies:
    """Read a policy file. Raises `PolicyRefused` with every problem and its line, also for a file that cannot be read."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise PolicyRefused(str(path), [Problem(1, "", str(error.strerror), "a readable file")]) from None
    return parse_policies(content, str(path))


def parse_policies(content: bytes | str, source: str) -> Policies:
    """Parse the content of a policy file; `source` names it in messages. Raises `PolicyRefused`."""
    if len(content) > MAX_BYTES:
        raise PolicyRefused(source, [Problem(1, "", f"more than {MAX_BYTES} bytes", "a policy file")])
    try:
        text = content.decode() if isinstance(content, bytes) else content
    except UnicodeDecodeError as error:
        raise PolicyRefused(source, [Problem(1, "", f"no UTF-8 at byte {error.start}", "text in UTF-8")]) from None
    document = parse_document(text, source)
    try:
        # As JSON, because pydantic's strict mode for JSON accepts a list for a tuple and text for a time, which JSON cannot
        # express.
        parsed = PolicyFile.model_validate_json(json.dumps(document.values))
    except ValidationError as error:
        raise PolicyRefused(source, [_problem(document, e) for e in error.errors(include_url=False)]) from None
    reader = _Reader(document)
    policies = reader.policies(parsed, source)
    if reader.problems:
        raise PolicyRefused(source, reader.problems)
    return policies


def _problem(document: Document, error: ErrorDetails) -> Problem:
    place = tuple(part for part in error["loc"] if not isinstance(part, str) or not part.startswith(("function-", "constrained-")))
    line, shown = document.line(place), place_text(place)
    if error["type"] == "extra_forbidden":
        return Problem(line, shown, "is no field of a policy", "a field of docs/policies.md")
    if error["type"] == "missing":
        return Problem(line, shown, "is missing", "a value")
    return Problem(line, shown, f"is {shortened(repr(error['input']))}", expectation(error))


class _Reader:
    """Builds rules from a parsed file, and collects the problems that only the engine and the services can find, in `problems`."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self.problems: list[Problem] = []

    def policies(self, parsed: PolicyFile, source: str) -> Policies:
        tags = {name: self._group(tag, ("tags", name), tag.tables) for name, tag in parsed.tags.items()}
        defaults = self._fields(parsed.defaults, "defaults", ("defaults",))
        rules = tuple(self._rule(rule, number, parsed.tags) for number, rule in enumerate(parsed.rules))
        fleet = Fleet(parsed.fleet.bytes_per_day, parsed.fleet.pending_plans)
        return Policies(source, defaults, rules, tags, fleet)

    def _rule(self, rule: RuleModel, number: int, tags: Mapping[str, Tag]) -> Rule:
        place: Place = ("rules", number)
        label = rule.name or f"rule {number + 1} ({_summary(rule.match)})"
        for at, tag in enumerate(rule.match.tags):
            if tag not in tags:
                known = ", ".join(sorted(tags)) or "none is declared"
                self._refuse((*place, "match", "tags", at), f"is {tag!r}", f"a tag declared in tags: {known}")
        group = self._group(rule.match, (*place, "match"), rule.match.tables)
        return Rule(label, Selector(group, frozenset(rule.match.tags)), self._fields(rule, label, place))

    def _group(self, scope: Match | Tag, place: Place, tables: Sequence[str]) -> Group:
        single = (self._table(text, (*place, "tables", at)) for at, text in enumerate(tables))
        return Group(
            tuple(self._patterns(scope.paths, (*place, "paths"))),
            tuple(self._patterns(scope.exclude, (*place, "exclude"))),
            frozenset(text for text in single if text),
        )

    def _patterns(self, texts: Sequence[str], place: Place) -> Iterator[TablePattern]:
        for at, text in enumerate(texts):
            found = self._pattern(text, (*place, at))
            if found is not None:
                yield found

    def _pattern(self, text: str, place: Place) -> TablePattern | None:
        if "/" not in text:
            # Each service would resolve a relative folder against its own working directory.
            self._refuse(place, f"is {shortened(repr(text))}", "an absolute path, a file: URI or s3://bucket/path, with * and ?")
            return None
        try:
            return TablePattern.parse(text)
        except TidelineError as error:
            self._refuse(place, f"is {shortened(repr(text))}", error.expected)
            return None

    def _table(self, text: str, place: Place) -> str:
        if is_uid(text):
            return text
        if "/" not in text:
            self._refuse(place, f"is {shortened(repr(text))}", "a base path or a uid: names of tables are not unique")
            return ""
        found = self._pattern(text, place)
        if found is not None and found.parts:
            self._refuse(place, f"is {shortened(repr(text))}", "the base path of one table, without * and ?")
            return ""
        return found.root if found is not None else ""

    def _fields(self, body: Body, label: str, place: Place) -> dict[str, Given]:
        found: dict[str, Given] = {}
        for own in fields_of(body):
            inner = (*place, *own.place)
            if own.name in found:
                self._refuse(inner, f"stands for {own.name.removeprefix(OPTION)}, which the rule gives, too", "one of the two")
            self._check_option(own, inner)
            found[own.name] = Given(_converted(own), Origin(label, self._document.line(inner)))
        for service, settings in (body.settings or {}).items():
            text = overrides_problem(service, settings)
            if text is not None:
                self._refuse((*place, "settings", service), text.partition("; expected ")[0], text.partition("; expected ")[2])
        return found

    def _check_option(self, own: Field, place: Place) -> None:
        if not own.name.startswith(OPTION):
            return
        key = own.name.removeprefix(OPTION)
        if key.startswith(FLEET_OPTIONS):
            self._refuse(place, "holds for a whole fleet", "an option of a table; set this one in the settings of the services")
            return
        try:
            Options({key: own.value})
        except TidelineError as error:
            self._refuse(place, f"is refused: {error.found}", error.expected)

    def _refuse(self, place: Place, found: str, expected: str) -> None:
        self.problems.append(Problem(self._document.line(place), place_text(place), found, expected))


def _converted(own: Field) -> Any:
    if own.name == "windows" and own.value is not None:
        return tuple(_window(window) for window in own.value)
    if isinstance(own.value, PauseModel):
        until = own.value.until
        return Pause(own.value.reason, None if until is None else datetime.fromisoformat(until))
    return own.value


def _window(model: WindowModel) -> Window:
    return Window(time_of_day(model.from_), time_of_day(model.to), ZoneInfo(model.time_zone), frozenset(model.days))


def _summary(match: Match) -> str:
    kind = "paths" if match.paths else "tags" if match.tags else "tables"
    named = getattr(match, kind)
    return f"{kind} {shortened(named[0])}" + (f" and {len(named) - 1} more" if len(named) > 1 else "")
