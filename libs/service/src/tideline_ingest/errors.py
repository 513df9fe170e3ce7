"""What can come between a topic and a table."""

from __future__ import annotations

from tideline_table.errors import Recovery, TidelineError


class Undecodable(TidelineError):
    """Values that are not what the declared format and schema say."""


class PoisonRecord(TidelineError):
    """A record that cannot become a row. Nothing of its batch was written."""

    def __init__(self, topic: str, partition: int, offset: int, reason: str) -> None:
        super().__init__(
            f"record {offset} of {topic}/{partition} cannot be taken in ({reason})",
            expected="a record of the declared format that fits the table",
            remedy="correct the schema or the table, or set poison = 'dead_letter' to put such records aside",
        )
        self.topic = topic
        self.partition = partition
        self.offset = offset


class OffsetsLost(TidelineError):
    """Records that were not taken in yet are no longer in the topic, or the topic is another one than it was."""

    def __init__(self, topic: str, partition: int, committed: int, found: str) -> None:
        super().__init__(
            f"{topic}/{partition} was taken in up to offset {committed} (out), {found}",
            expected=f"a partition that has offset {committed}",
            remedy="records are missing: load them from elsewhere, or go on without them by on_lost_offsets = 'continue'",
        )
        self.topic = topic
        self.partition = partition
        self.committed = committed


class TopicUnavailable(TidelineError):
    """Kafka did not answer, or does not know the topic."""

    recovery = Recovery.RETRY


class RegistryUnavailable(TidelineError):
    """The schema registry gave no answer, or a failure that may pass. What it would have said about a record is not known."""

    recovery = Recovery.RETRY


class RegistryRefused(TidelineError):
    """The schema registry understood and refused, or what answers is none: credentials, rights or the URL are wrong."""
