"""Events of tables: a program hears of each commit from Kafka, or on one machine from SQLite (docs/events.md)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tideline.hints import Hints
from tideline_events import (
    CATALOG,
    DEAD_LETTER,
    DECISIONS,
    HINTS,
    JOBS,
    LOCKS,
    MIRRORS,
    TABLES,
    TIMELINE,
    ActionEvent,
    ConsumerCounts,
    DeadLetter,
    Event,
    EventConsumer,
    FindingEvent,
    Heartbeat,
    Hint,
    JobEvent,
    LockEvent,
    TableChange,
    TableDeleted,
    TableIdentity,
    TableRecord,
    Transition,
    VerdictEvent,
    open_event_log,
)

__all__ = [
    "CATALOG",
    "DEAD_LETTER",
    "DECISIONS",
    "HINTS",
    "JOBS",
    "LOCKS",
    "MIRRORS",
    "TABLES",
    "TIMELINE",
    "ActionEvent",
    "ConsumerCounts",
    "DeadLetter",
    "Event",
    "EventConsumer",
    "FindingEvent",
    "Heartbeat",
    "Hint",
    "Hints",
    "JobEvent",
    "LockEvent",
    "TableChange",
    "TableDeleted",
    "TableIdentity",
    "TableRecord",
    "Transition",
    "VerdictEvent",
    "consumer",
    "hints",
]


def consumer(
    url: str,
    group: str,
    *,
    topics: Sequence[str] = (TIMELINE.name,),
    snapshot: bool = False,
    from_beginning: bool = True,
    member: str = "",
    seen: Callable[[], Mapping[str, int]] | None = None,
    client_options: Mapping[str, str] | None = None,
) -> EventConsumer:
    """Join `group`, whose members share the tables, for the length of a `with` block. No event is missed.

    `url` is `kafka://host:port,host:port` or `sqlite:///folder/events.db`, `member` a name that each process of the group keeps
    over restarts. `client_options` are for librdkafka: TLS and SASL. The rest is as for `EventConsumer`. Raises `InvalidInput` for
    arguments that make no sense, and `Unavailable` if the event log does not answer or has no topics yet (the mirror makes them).
    """
    log = open_event_log(url, client_options=client_options)
    try:
        return EventConsumer(
            log, group, topics=topics, from_beginning=from_beginning, snapshot=snapshot, member=member, seen=seen, owns_log=True
        )
    except BaseException:
        log.close()
        raise


def hints(url: str, *, client_options: Mapping[str, str] | None = None) -> Hints:
    """Open the hints of a writer, for the length of a `with` block: `give` tells the mirror of a commit that it publishes at once.

    Arguments as for `consumer`. Raises `InvalidInput` for a URL that is none.
    """
    return Hints(open_event_log(url, client_options=client_options))
