"""Names of timeline files in layout 2, which tables of version 8 and later have (format reference 16.3)."""

from __future__ import annotations

import re

from tideline_table.timeline.instant import Action, Instant, State

_FILE = re.compile(r"^(\d{14,20})(?:_(\d{14,20}))?\.(?:(inflight)|([a-z]+)(?:\.(requested|inflight))?)\Z", re.ASCII)
_CLUSTERING = "clustering"
"""A pending clustering's own action; completed it is a replace commit."""


def parse_layout_two_name(name: str) -> tuple[Instant, str] | None:
    """The instant behind `<requested>[_<completed>].<action>[.<state>]` and its completion time, None for other names.

    The completion time is empty for pending instants, and for completed ones of releases that did not write it.
    """
    match = _FILE.match(name)
    if match is None:
        return None
    time, completed, bare_inflight, action, state = match.groups()
    if bare_inflight:
        action, state = Action.COMMIT.value, State.INFLIGHT.value
    if state and completed:
        return None
    if action == _CLUSTERING and state:
        action = Action.REPLACE_COMMIT.value
    if action not in set(Action):
        return None
    return Instant(time, Action(action), State(state) if state else State.COMPLETED), completed or ""
