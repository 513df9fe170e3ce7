"""What became visible on the event log, judged record by record by the table log and the contract of events."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from tests.simulation.disk import Disk
from tests.simulation.oracle import Oracle

from tideline_events import DEAD_LETTER, TABLES, TIMELINE, Record, TableRecord, Transition, decode
from tideline_events.envelope import read_envelope
from tideline_table.hudi.instant import WRITE_ACTIONS, Action, State
from tideline_table.log.body import Published
from tideline_table.log.entry import Entry
from tideline_table.log.retention import trimmed_to


class TopicLedger:
    """Follows one table's records.

    The mirror promises each entry once and in order; what was trimmed before it came may be missing.
    """

    def __init__(self, disk: Disk, oracle: Oracle, uid: str) -> None:
        self.uid = uid
        self.last = 0
        """The last sequence in the topic."""
        self._disk = disk
        self._oracle = oracle
        self.work: Counter[str] = Counter()
        self._ids: set[str] = set()

    def heard(self, record: Record) -> None:
        """`record` became visible."""
        if record.topic == DEAD_LETTER.name:
            self._oracle.report(f"a dead letter: {decode(record)}")
        elif record.topic == TABLES.name:
            self._move_cursor(record)
        elif record.topic == TIMELINE.name:
            event = decode(record)
            assert isinstance(event, Transition)
            told = read_envelope(record).id
            if told in self._ids:
                self._oracle.report(f"the event of entry {event.sequence} became visible twice")
            self._ids.add(told)
            self.follow("the topic", self.last, [event])
            self.last = max(self.last, event.sequence)

    def emptied(self) -> None:
        """The topic is lost: the mirror begins again where the log does."""
        self.last = 0
        self._ids.clear()
        self.work["event logs lost"] += 1

    def follow(self, who: str, last: int, events: Sequence[Transition]) -> None:
        """Events that come to `who` behind entry `last` are the table's next entries.

        Of those between the log has none any more.
        """
        entries = self._oracle.entries
        for event in events:
            at = event.sequence
            if at <= last:
                self._oracle.report(f"{who} has entry {at} behind entry {last}")
            if at > last + 1:
                self.work[f"gaps in {who}"] += 1
                if trimmed_to(self._disk) < at - 1:
                    self._oracle.report(f"{who} has entry {at} behind entry {last}, and the log has those between")
            if at > len(entries) or event.table_uid != self.uid or not _tells_of(event, entries[at - 1]):
                self._oracle.report(f"{who} has an event {at} that is not what the log has there: {event}")
            last = max(last, at)
        self.work[f"events in {who}"] += len(events)

    def _move_cursor(self, record: Record) -> None:
        event = decode(record)
        assert isinstance(event, TableRecord)
        if event.sequence != self.last:
            self._oracle.report(f"the cursor moves to {event.sequence}, the topic is at {self.last}")


def _tells_of(event: Transition, entry: Entry) -> bool:
    """Whether an event says what the entry says, read without the code that made it."""
    is_clustering = entry.operation == "CLUSTER" and entry.action is Action.REPLACE_COMMIT
    extra = dict(entry.body.metadata.extra) if isinstance(entry.body, Published) and entry.action in WRITE_ACTIONS else {}
    replaced = int(extra.pop("tideline.replaced.rows", "0"))
    return (
        (event.instant, event.writer_id, event.to_state) == (entry.instant, entry.writer_id, entry.after)
        and event.from_state == (None if entry.before is State.NONE else entry.before)
        and event.action == ("clustering" if is_clustering else entry.action)
        and event.time.isoformat(timespec="microseconds") == entry.recorded
        and (
            event.rows_deleted is None
            if replaced < 0 or entry.after is not State.COMPLETED
            else (event.rows_deleted or 0) >= replaced
        )
        # What a clustering keeps in its commit is no checkpoint of a writer.
        and dict(event.checkpoint) == {name: value for name, value in extra.items() if name != "schema" and not is_clustering}
    )
