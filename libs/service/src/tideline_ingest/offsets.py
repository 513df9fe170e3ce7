"""How far topics were taken in: what a commit says, and where to go on."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from tideline_ingest.errors import OffsetsLost
from tideline_table.errors import CorruptMetadata

_ID = "id"
"""Beside the partitions of a topic, which are numbers."""
Place = tuple[str, int]
"""Topic and partition."""


@dataclass(frozen=True, slots=True)
class Offsets:
    """Of each partition the offset of the next record to take in."""

    next: Mapping[Place, int] = field(default_factory=dict)
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    """Which topic of a name that is: another one of the same name begins anew. Topics of brokers that give no ids are missing."""

    def to_text(self) -> str:
        """JSON: topic → partition → next offset, in order, beside the id of the topic."""
        document: dict[str, dict[str, int | str]] = {}
        for (topic, partition), offset in sorted(self.next.items()):
            document.setdefault(topic, {})[str(partition)] = offset
        for topic, topic_id in sorted(self.topic_ids.items()):
            document.setdefault(topic, {})[_ID] = topic_id
        return json.dumps(document, separators=(",", ":"))

    @classmethod
    def from_text(cls, text: str) -> Offsets:
        """What a commit says. Raises `CorruptMetadata`."""
        try:
            document = json.loads(text)
            parts = [(str(t), name, value) for t, offsets in document.items() for name, value in offsets.items()]
            found = {(topic, int(name)): int(value) for topic, name, value in parts if name != _ID}
            topic_ids = {topic: str(value) for topic, name, value in parts if name == _ID}
        except (ValueError, TypeError, AttributeError) as error:
            raise CorruptMetadata(
                f"offsets {text[:200]!r} cannot be read ({error})",
                expected='{"topic": {"partition": offset}}',
                remedy="another kind of writer uses this application id: choose one of its own",
            ) from None
        return cls(found, topic_ids)

    def only(self, partitions: Collection[int]) -> Offsets:
        """Those of these partitions of all topics; all where none is named."""
        left = {place: offset for place, offset in self.next.items() if not partitions or place[1] in partitions}
        return Offsets(left, self.topic_ids)

    def renewed(self, topic_ids: Mapping[str, str]) -> frozenset[str]:
        """Topics that were made anew, by the ids that they have now; where no id is known, it cannot be told."""
        return frozenset(topic for topic, known in self.topic_ids.items() if topic_ids.get(topic, known) != known)

    def moved(self, to: Mapping[Place, int], topic_ids: Mapping[str, str] | None = None) -> Offsets:
        """With other next offsets for some partitions, and ids for some topics. Of a topic that was made anew nothing else is left."""
        renewed = self.renewed(topic_ids or {})
        left = {place: offset for place, offset in self.next.items() if place[0] not in renewed}
        return Offsets({**left, **to}, {**self.topic_ids, **(topic_ids or {})})


@dataclass(frozen=True, slots=True)
class Kept:
    """What a partition holds now: from `first` (in) to `end` (out)."""

    first: int
    end: int


def starting_points(
    committed: Offsets | None, kept: Mapping[Place, Kept], topic_ids: Mapping[str, str], *, at_end: bool, over_gaps: bool
) -> tuple[dict[Place, int], list[OffsetsLost]]:
    """Where to go on in each partition that is there, and which records are lost on the way.

    `committed` is None for an application that never committed: only then `at_end` leaves out what is in the topics already. A partition that
    appears later begins at its first record. Raises `OffsetsLost` unless gaps may be passed `over`.
    """
    points: dict[Place, int] = {}
    lost: list[OffsetsLost] = []
    known = committed.next if committed else {}
    renewed = committed.renewed(topic_ids) if committed else frozenset()
    for (topic, partition), offset in sorted(known.items()):
        if (topic, partition) not in kept and topic in {place[0] for place in kept}:
            lost.append(OffsetsLost(topic, partition, offset, "which is no longer a partition of the topic"))
    for place, range_ in sorted(kept.items()):
        offset = known.get(place, range_.end if committed is None and at_end else range_.first)
        if place[0] in renewed and place in known:
            lost.append(OffsetsLost(*place, offset, "of a topic that was deleted and made anew"))
            offset = range_.first
        elif not range_.first <= offset <= range_.end:
            found = f"of which the records from {range_.first} to {range_.end} (out) are left"
            lost.append(OffsetsLost(*place, offset, found))
            offset = range_.first
        points[place] = offset
    if lost and not over_gaps:
        raise lost[0]
    return points, lost
