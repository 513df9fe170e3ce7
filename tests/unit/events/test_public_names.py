"""What `tideline.events` offers to applications."""

from __future__ import annotations

import tideline_events
from tideline import events
from tideline_events.envelope import KINDS
from tideline_events.topics import TOPICS


def test_an_application_can_name_each_topic_of_events_and_the_class_of_each_event() -> None:
    """Changes of tables and heartbeats, of which the page tells, could be read but not told apart by their class."""
    assert {kind.payload.__name__ for kind in KINDS} <= set(events.__all__)
    of_events = {kind.topic for kind in KINDS}
    topics = {name for name, found in vars(tideline_events).items() if found in TOPICS and found.name in of_events}
    assert len(topics) == len(of_events)
    assert topics <= set(events.__all__)
