"""Errors of ingestion from a topic into a table."""

from __future__ import annotations

from tideline_runtime.errors import InputRefused
from tideline_table.errors import Recovery, TidelineError


class Undecodable(TidelineError):
    """Values do not match the declared format and schema."""


class PoisonRecord(InputRefused):
    """A record cannot become a row. Nothing of its batch was written."""

    def __init__(self, topic: str, partition: int, offset: int, reason: str) -> None:
        super().__init__(
            f"record {offset} of {topic}/{partition} cannot be ingested ({reason})",
            expected="a record of the declared format that fits the table",
            remedy="correct the schema or the table, or set poison = 'dead_letter' to write such records to a dead-letter topic",
        )
        self.topic = topic
        self.partition = partition
        self.offset = offset


class OffsetsLost(TidelineError):
    """The topic no longer has records that were not ingested, or it was deleted and created again."""

    def __init__(self, topic: str, partition: int, committed: int, found: str) -> None:
        super().__init__(
            f"{topic}/{partition} was ingested up to offset {committed} (exclusive), {found}",
            expected=f"a partition that has offset {committed}",
            remedy="load the missing records from another source, or set on_lost_offsets = 'continue' to continue without them",
        )
        self.topic = topic
        self.partition = partition
        self.committed = committed


class TopicUnavailable(TidelineError):
    """Kafka did not answer, refused a request, or does not know the topic."""

    recovery = Recovery.RETRY


class RegistryUnavailable(TidelineError):
    """The schema registry did not answer, or failed temporarily. So the service cannot know whether a record is valid."""

    recovery = Recovery.RETRY


class RegistryRefused(TidelineError):
    """The schema registry refused the request, or the server is not a registry: credentials, permissions or the URL are wrong."""


class TablesSetAside(TidelineError):
    """Of several tables in one process, some are not fed."""

    recovery = Recovery.RETRY
