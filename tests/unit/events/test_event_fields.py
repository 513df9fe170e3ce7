"""docs/event-fields.md says what events hold."""

from __future__ import annotations

import dataclasses
import re

from tests.unit.events.event_fields import PAGE, text, written

from tideline_events import Transition


def test_the_page_says_where_each_field_comes_from() -> None:
    sources = PAGE.read_text().partition("## By action")[0]
    rows = [line for line in sources.splitlines() if line.startswith("| `")]
    named = [name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[1])]
    assert sorted(named) == sorted(field.name for field in dataclasses.fields(Transition))


def test_the_page_says_what_each_action_fills() -> None:
    assert written(PAGE.read_text()) == text(), "python -m tests.unit.events.event_fields"
