"""What can go wrong between a table log and those who read about it."""

from __future__ import annotations

from tideline_table.errors import Recovery, TidelineError


class InvalidEvent(TidelineError):
    """An event that the contract does not allow to be published."""


class PoisonEvent(TidelineError):
    """A record whose bytes are not an event of the contract. It belongs to the dead-letter topic."""


class PublisherFenced(TidelineError):
    """The event log no longer takes records of this publisher: a newer one of the same writer id took over.

    Kafka says the same to a publisher whose transaction it had to end because of its timeout. Nothing of the call became visible. Whoever
    gets this has to assume that the shard has a new owner.
    """

    def __init__(self, writer_id: str) -> None:
        super().__init__(
            f"writer id {writer_id!r} was taken over by a newer publisher, or its transaction timed out",
            expected="one publisher per shard",
            remedy="stop publishing; take a new publisher only if the shard is still yours",
        )
        self.writer_id = writer_id


class PublishUnknown(TidelineError):
    """The records were sent, but whether they became visible could not be learned. This publisher is finished."""

    recovery = Recovery.REFRESH


class EventLogUnavailable(TidelineError):
    """The event log did not answer or refused for a reason that may pass; nothing became visible."""

    recovery = Recovery.RETRY


class EventLogCorrupt(TidelineError):
    """The event log's own state cannot be read. Events can be published again from the table logs."""


class TopicMismatch(TidelineError):
    """A topic exists with settings that break the contract."""


class CommitLost(TidelineError):
    """The group was rebalanced before the offsets were committed; the records come again, here or at another member."""

    recovery = Recovery.RETRY
