"""The offsets up to which topics are ingested: their form in a commit, and the offsets from which an application continues."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from tideline_ingest.errors import OffsetsLost
from tideline_table.errors import CorruptMetadata

_ID = "id"
"""The key of the topic id. The other keys of a topic are partition numbers."""
Place = tuple[str, int]
"""Topic and partition."""


@dataclass(frozen=True, slots=True)
class Offsets:
    """The offset of the next record to ingest, by partition."""

    next: Mapping[Place, int] = field(default_factory=dict)
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    """Topic ids. A topic with the same name and another id is a new topic. Topics of brokers that provide no ids are missing."""

    def to_text(self) -> str:
        """Return JSON: topic → partition → next offset, sorted, with the id of the topic."""
        document: dict[str, dict[str, int | str]] = {}
        for (topic, partition), offset in sorted(self.next.items()):
            document.setdefault(topic, {})[str(partition)] = offset
        for topic, topic_id in sorted(self.topic_ids.items()):
            document.setdefault(topic, {})[_ID] = topic_id
        return json.dumps(document, separators=(",", ":"))

    @classmethod
    def from_text(cls, text: str) -> Offsets:
        """Parse the text in a commit. Raises `CorruptMetadata`."""
        try:
            document = json.loads(text)
            parts = [(str(t), name, value) for t, offsets in document.items() for name, value in offsets.items()]
            found = {(topic, int(name)): int(value) for topic, name, value in parts if name != _ID}
            topic_ids = {topic: str(value) for topic, name, value in parts if name == _ID}
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            raise CorruptMetadata(
                f"offsets {text[:200]!r} cannot be read ({error})",
                expected='{"topic": {"partition": offset}}',
                remedy="another kind of writer uses this application id: choose another id",
            ) from None
        return cls(found, topic_ids)

    def only(self, partitions: Collection[int]) -> Offsets:
        """Return the offsets of these partitions of all topics, or all offsets if `partitions` is empty."""
        left = {place: offset for place, offset in self.next.items() if not partitions or place[1] in partitions}
        return Offsets(left, self.topic_ids)

    def renewed(self, topic_ids: Mapping[str, str]) -> frozenset[str]:
        """Return the topics whose ids differ from those in `topic_ids`: they were recreated.

        Topics without a known id are left out.
        """
        return frozenset(topic for topic, known in self.topic_ids.items() if topic_ids.get(topic, known) != known)

    def moved(self, to: Mapping[Place, int], topic_ids: Mapping[str, str] | None = None) -> Offsets:
        """Return the offsets with the new values `to` and `topic_ids`. Other offsets of a recreated topic are dropped."""
        renewed = self.renewed(topic_ids or {})
        left = {place: offset for place, offset in self.next.items() if place[0] not in renewed}
        return Offsets({**left, **to}, {**self.topic_ids, **(topic_ids or {})})


@dataclass(frozen=True, slots=True)
class Kept:
    """The offsets that a partition holds now: from `first` (inclusive) to `end` (exclusive)."""

    first: int
    end: int


def starting_points(
    committed: Offsets | None, kept: Mapping[Place, Kept], topic_ids: Mapping[str, str], *, at_end: bool, over_gaps: bool
) -> tuple[dict[Place, int], list[OffsetsLost]]:
    """Return the offset to continue from for each existing partition, and an error for each partition with lost records.

    `committed` is None for an application that never committed. Only then does `at_end` skip the records that the topics already
    hold. A partition that appears later begins at its first record. Raises the first of these errors unless `over_gaps` is set.
    """
    points: dict[Place, int] = {}
    lost: list[OffsetsLost] = []
    known = committed.next if committed else {}
    renewed = committed.renewed(topic_ids) if committed else frozenset()
    for (topic, partition), offset in sorted(known.items()):
        if (topic, partition) not in kept and topic in {place[0] for place in kept}:
            lost.append(OffsetsLost(topic, partition, offset, "but the topic no longer has this partition"))
    for place, range_ in sorted(kept.items()):
        offset = known.get(place, range_.end if committed is None and at_end else range_.first)
        if place[0] in renewed and place in known:
            lost.append(OffsetsLost(*place, offset, "but the topic was deleted and created again"))
            offset = range_.first
        elif not range_.first <= offset <= range_.end:
            found = f"but the topic holds only the records from {range_.first} to {range_.end} (exclusive)"
            lost.append(OffsetsLost(*place, offset, found))
            offset = range_.first
        points[place] = offset
    if lost and not over_gaps:
        raise lost[0]
    return points, lost
