"""A topic that is ingested, and what the table has to hold of it by the offsets that commits carry."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeVar

from tests.simulation.call_faults import CallFaults
from tests.simulation.scheduler import Process, SimulatedClock

from tideline_ingest.batch import Batch, Received
from tideline_ingest.errors import TopicUnavailable
from tideline_ingest.offsets import Kept, Place
from tideline_ingest.topic_reader import Limits
from tideline_table.hudi.write_stats import CommitMetadata
from tideline_table.log.entry import Entry

if TYPE_CHECKING:
    from tests.simulation.oracle import Oracle
    from tests.simulation.world import World

TOPIC = "feed"
PARTITIONS = (0, 1)
PROGRESS = "tideline.progress.ingest."
"""What keys of offsets begin with in the metadata of commits."""
FEED_FAULTS: dict[str, frozenset[str]] = {
    "topic_silent": frozenset({"ask", "read"}),
    "ingest_killed_before": frozenset({"ask", "read"}),
    "ingest_killed_after": frozenset({"ask", "read"}),
    "ingest_paused": frozenset({"ask", "read"}),
}
"""Kinds of fault and the calls that they can hit."""

T = TypeVar("T")


class Feed:
    """One topic of a history, which grows, and the commits that took it in."""

    def __init__(self, world: World, oracle: Oracle) -> None:
        self.faults = CallFaults(world, "topic", FEED_FAULTS, _silent)
        choose = self.faults.choose
        self.records: dict[Place, list[Received]] = {(TOPIC, partition): [] for partition in PARTITIONS}
        self.operation = choose.choice(("insert", "insert", "bulk_insert", "upsert"))
        """Of inserts every record has a key of its own: one that is ingested twice stands twice."""
        self.is_shared_out = choose.random() < 0.4
        """Each partition has an application of its own; otherwise one application, started more than once, has both."""
        self.commits: list[tuple[Entry, str, dict[Place, int]]] = []
        """Each commit's entry, the application and the offsets that it carried."""
        self.work: Counter[str] = Counter()
        self._oracle = oracle
        oracle.feed = self

    def send(self, partition: int) -> None:
        """One more record."""
        place = (TOPIC, partition)
        offset = len(self.records[place])
        number = offset % 3 if self.operation == "upsert" else offset
        row = {"id": f"F{partition}-{number}", "part": "t", "v": f"{partition}:{offset}"}
        self.records[place].append(Received(place, offset, None, json.dumps(row).encode()))

    def held(self, application: str) -> dict[Place, int]:
        """Where the log says that `application` goes on."""
        # Entries may get lost that never became durable.
        ids, undone = {entry.append_id for entry in self._oracle.entries}, self._oracle.undone
        said = [found for at, of, found in self.commits if of == application and at.append_id in ids and at.sequence not in undone]
        return said[-1] if said else {}

    @property
    def rows(self) -> dict[str, str]:
        """What the table has to hold once everything is ingested."""
        values = [json.loads(record.value or b"") for records in self.records.values() for record in records]
        return {value["id"]: value["v"] for value in values}

    def changes(self, entry: Entry, metadata: CommitMetadata) -> dict[str, str | None]:
        """What a commit that carries offsets makes of keys: all records between those before it and its own, each once."""
        said = {name.removeprefix(PROGRESS): value for name, value in metadata.extra.items() if name.startswith(PROGRESS)}
        changes: dict[str, str | None] = {}
        for application, value in said.items():
            before, offsets = self.held(application), _offsets(value)
            taken: list[Received] = []
            for place, end in sorted(offsets.items()):
                start = before.get(place, 0)
                if end < start:
                    self._oracle.report(f"entry {entry.sequence} moves {application} in {place} back from {start} to {end}")
                taken += self.records[place][start:end]
            rows = [json.loads(record.value or b"") for record in taken]
            changes |= {row["id"]: row["v"] for row in rows}
            inserted = sum(stat.num_inserts for stat in metadata.stats)
            if self.operation != "upsert" and inserted != len(taken):
                self._oracle.report(f"entry {entry.sequence} takes in {inserted} records, its offsets say {len(taken)}")
            self.work["commits of applications"] += 1
            self.work["records taken in"] += len(taken)
            self.commits.append((entry, application, {**before, **offsets}))
        return changes

    def settled(self, entry: Entry) -> None:
        """The table's own idea of how far applications are is that of its log."""
        for application in {of for _, of, _ in self.commits}:
            found = self._oracle.state.progress.get(f"ingest.{application}")
            told = _offsets(found.value) if found is not None else {}
            if told != self.held(application):
                self._oracle.report(
                    f"behind entry {entry.sequence} {application} is at {told}, its commits say {self.held(application)}"
                )


class FeedReader:
    """`Reader` of some partitions as one process reaches them: answers fail, readers die or sleep between any two calls."""

    def __init__(self, feed: Feed, world: World, process: Process, partitions: tuple[int, ...]) -> None:
        self._feed = feed
        self._world = world
        self._process = process
        self._places = [(TOPIC, partition) for partition in partitions]
        self._clock = SimulatedClock(world.scheduler, process)
        self._next: dict[Place, int] = {}

    def places(self) -> set[Place]:
        """See `Reader.places`."""
        return self._asked("places", lambda: set(self._places))

    def topic_ids(self) -> dict[str, str]:
        """See `Reader.topic_ids`."""
        return self._asked("ids", lambda: {TOPIC: "one"})

    def kept(self, places: set[Place]) -> dict[Place, Kept]:
        """See `Reader.kept`."""
        return self._asked("offsets", lambda: {place: Kept(0, len(self._feed.records[place])) for place in places})

    def assign(self, points: Mapping[Place, int]) -> None:
        """See `Reader.assign`."""
        self._next = dict(points)

    def read(self, limits: Limits, goes_on: Callable[[], bool], patience_s: float) -> Batch | None:
        """See `Reader.read`."""
        fault = self._feed.faults.before(self._process, "read")
        if not self._fresh(1):
            self._clock.sleep(patience_s)
        found = self._fresh(limits.rows)
        self._feed.faults.after(self._process, fault)
        if not found or not goes_on():
            return None
        for record in found:
            self._next[record.place] = record.offset + 1
        return Batch(tuple(found), dict(self._next), self._clock.monotonic_s())

    def lag(self, committed: Mapping[Place, int]) -> dict[Place, int]:
        """See `Reader.lag`."""
        return {place: len(self._feed.records[place]) - offset for place, offset in committed.items()}

    def probe(self) -> None:
        """See `Reader.probe`."""

    def close(self) -> None:
        """See `Reader.close`."""

    def _fresh(self, rows: int) -> list[Received]:
        ahead = [self._feed.records[place][start : start + rows] for place, start in sorted(self._next.items())]
        # A batch may end in any partition.
        return [record for records in ahead for record in records][:rows]

    def _asked(self, what: str, answer: Callable[[], T]) -> T:
        fault = self._feed.faults.before(self._process, "ask", what)
        told = answer()
        self._feed.faults.after(self._process, fault)
        return told


def _offsets(text: str) -> dict[Place, int]:
    """Offsets as a commit carries them, read by code of our own."""
    document = json.loads(text)
    return {(topic, int(name)): offset for topic, found in document.items() for name, offset in found.items() if name != "id"}


def _silent() -> TopicUnavailable:
    return TopicUnavailable("the topic does not answer")
