"""Parses the text of a policy file to `Policies`. Every value is checked, and every problem has its line."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from tideline_runtime.policy.document import Place
from tideline_runtime.policy.errors import PolicyRefused
from tideline_runtime.policy.fields import FLEET_OPTIONS, OPTION, Field, fields_of
from tideline_runtime.policy.groups import GroupReader, parse_file, read_file
from tideline_runtime.policy.model import Body, Match, PauseModel, PolicyFile, RuleModel, Tag, WindowModel
from tideline_runtime.policy.quantity import time_of_day
from tideline_runtime.policy.resolution import Fleet, Policies, Rule
from tideline_runtime.policy.selector import Selector
from tideline_runtime.policy.table_policy import Given, Origin, Pause
from tideline_runtime.policy.window import Window
from tideline_runtime.setting_errors import shortened
from tideline_runtime.table_settings import overrides_problem
from tideline_table.config import Options
from tideline_table.errors import TidelineError


def read_policies(path: Path) -> Policies:
    """Read a policy file. Raises `PolicyRefused` with every problem and its line, also for a file that cannot be read."""
    return parse_policies(read_file(path), str(path))


def parse_policies(content: bytes | str, source: str) -> Policies:
    """Parse the content of a policy file; `source` names it in messages. Raises `PolicyRefused`."""
    document, parsed = parse_file(content, source, PolicyFile)
    reader = _Reader(document)
    policies = reader.policies(parsed, source)
    if reader.problems:
        raise PolicyRefused(source, reader.problems)
    return policies


class _Reader(GroupReader):
    """Builds rules from a parsed file, and collects the problems that only the engine and the services can find, in `problems`."""

    def policies(self, parsed: PolicyFile, source: str) -> Policies:
        tags = {name: self.group(tag, ("tags", name), tag.tables) for name, tag in parsed.tags.items()}
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
                self.refuse((*place, "match", "tags", at), f"is {tag!r}", f"a tag declared in tags: {known}")
        group = self.group(rule.match, (*place, "match"), rule.match.tables)
        return Rule(label, Selector(group, frozenset(rule.match.tags)), self._fields(rule, label, place))

    def _fields(self, body: Body, label: str, place: Place) -> dict[str, Given]:
        found: dict[str, Given] = {}
        for own in fields_of(body):
            inner = (*place, *own.place)
            if own.name in found:
                self.refuse(inner, f"stands for {own.name.removeprefix(OPTION)}, which the rule gives, too", "one of the two")
            self._check_option(own, inner)
            found[own.name] = Given(_converted(own), Origin(label, self.document.line(inner)))
        for service, settings in (body.settings or {}).items():
            text = overrides_problem(service, settings)
            if text is not None:
                self.refuse((*place, "settings", service), text.partition("; expected ")[0], text.partition("; expected ")[2])
        return found

    def _check_option(self, own: Field, place: Place) -> None:
        if not own.name.startswith(OPTION):
            return
        key = own.name.removeprefix(OPTION)
        if key.startswith(FLEET_OPTIONS):
            self.refuse(place, "holds for a whole fleet", "an option of a table; set this one in the settings of the services")
            return
        try:
            Options({key: own.value})
        except TidelineError as error:
            self.refuse(place, f"is refused: {error.found}", error.expected)


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
