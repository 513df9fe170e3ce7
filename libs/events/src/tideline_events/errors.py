"""Errors of publishing and reading events."""

from __future__ import annotations

from tideline_table.errors import Recovery, TidelineError, Unavailable


class InvalidEvent(TidelineError):
    """An event that the contract forbids to publish."""


class PoisonEvent(TidelineError):
    """A record whose bytes are not an event of the contract. Consumers send the record to the dead-letter topic."""


class PublisherFenced(TidelineError):
    """The event log rejects records of this publisher, because a newer publisher took over its writer id.

    Kafka also reports this error to a publisher whose transaction Kafka ended at the timeout. No record of the failed call became
    visible. The caller must assume that another process owns the shard.
    """

    def __init__(self, writer_id: str) -> None:
        super().__init__(
            f"writer id {writer_id!r} was taken over by a newer publisher, or its transaction timed out",
            expected="one publisher per shard, and fleets with different names (setting `fleet`)",
            remedy="stop publishing; open a new publisher only if this process still owns the shard",
        )
        self.writer_id = writer_id


class PublishUnknown(TidelineError):
    """The records were sent, but it is unknown whether they became visible. This publisher cannot be used any more."""

    recovery = Recovery.REFRESH


class EventLogUnavailable(Unavailable):
    """The event log did not answer, or refused a request for a transient reason. No record of the call became visible."""


class SchemaRegistryUnavailable(EventLogUnavailable):
    """The schema registry did not answer, or does not accept the credentials. Nothing was published."""


class SchemaRefused(TidelineError):
    """The schema registry holds a subject of the event contract that does not allow the schema of its events."""


class EventLogCorrupt(TidelineError):
    """The stored state of the embedded event log cannot be read. The mirror can publish the events again from the table logs."""


class TopicMismatch(TidelineError):
    """A topic exists with another `cleanup.policy` than the event contract requires."""


class CommitLost(TidelineError):
    """The group was rebalanced before the offsets were committed. This member or another one reads the records again."""

    recovery = Recovery.RETRY
