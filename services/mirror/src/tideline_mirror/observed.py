"""Tables that only Apache Hudi writes: their steps are published, with sequences that the event log keeps."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from datetime import tzinfo

from tideline_events import TableRecord, Transition
from tideline_events.transitions import table_identity, transition_of
from tideline_mirror.changes import changes_between
from tideline_mirror.metrics import ENTRIES, NAMES
from tideline_mirror.records import record_of
from tideline_runtime.contract import ServiceContext
from tideline_runtime.logging import get_logger
from tideline_runtime.shard_publishers import ShardPublishers
from tideline_table.coordination import check_as_opened, observe
from tideline_table.hudi import ListedTimeline, TableFormat, time_from_instant
from tideline_table.table import Table

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Mirrored:
    """The result of a visit: the record that was published, None for nothing new, and whether there are more steps."""

    record: TableRecord | None = None
    is_behind: bool = False


class ObservedTables:
    """Publishes the steps of observed tables, each once: the cursor is in the record that is published with them.

    Used by the thread that ticks.
    """

    def __init__(self, context: ServiceContext, fleet: str, publishers: ShardPublishers) -> None:
        self._context, self._fleet, self._publishers = context, fleet, publishers
        self._seen: dict[str, tuple[int, frozenset[str], frozenset[str]]] = {}
        """By uid: the number of the publisher, the timeline files whose steps are published, and instants without content yet."""

    def mirror(
        self, table: Table, uid: str, shard: int, number: int, last: Callable[[], TableRecord | None], limit: int
    ) -> Mirrored:
        """Publish the next steps of a table, at most `limit`; `last` reads its last record.

        Costs one listing, and nothing of the event log, while the timeline stays as it is. Raises `TableFrozen` if the table must
        be opened again.
        """
        form = table.definition.format
        listed = ListedTimeline.read(table.storage, form)
        seen = number, frozenset(listed.modified), listed.unwritten
        if self._seen.get(uid) == seen:
            return Mirrored()
        check_as_opened(table.storage, form)
        known, now = last(), self._context.clock.now()
        cursor, sequence = (known.steps, known.sequence) if known is not None else ((), 0)
        found = observe(table.storage, form, listed, cursor, sequence, now, limit)
        if found.missed:
            _log.error(
                "writes were archived before they were published; consumers see a gap, the table is complete",
                table=uid,
                base_path=table.storage.root,
                writes=found.missed,
            )
        table.refresh()
        identity = table_identity(table, uid=uid)
        told = ((transition_of(identity, table.definition, entry, "mirror"), path) for entry, path in found.entries)
        transitions = [_as_listed(transition, path, form, table.zone) for transition, path in told]
        record = record_of(table, identity, sequence + found.missed + len(transitions), known, now, self._fleet)
        record = replace(record, steps=found.cursor)
        if transitions:
            record = replace(record, quiet_since=transitions[-1].time)
        self._seen.pop(uid, None)
        changes = changes_between(known, record, moved_from=None)
        self._publishers.publish_transitions(shard, number, uid, transitions, record, changes)
        if transitions:
            self._context.metrics.increment(ENTRIES, len(transitions), table=uid)
            self._context.metrics.describe(NAMES, table=uid, name=identity.name)
            _log.info("published", table=uid, name=identity.name, entries=len(transitions), sequence=record.sequence)
        if found.is_complete:
            self._seen[uid] = seen
        return Mirrored(record, not found.is_complete)

    def retain(self, uids: Collection[str]) -> None:
        """Forget all other tables."""
        self._seen = {uid: seen for uid, seen in self._seen.items() if uid in uids}


def _as_listed(transition: Transition, path: str, form: TableFormat, zone: tzinfo) -> Transition:
    """Return the event with the timeline file that is there, and with the completion time if the file's name has one."""
    parsed = form.parse_timeline_file_name(path.rpartition("/")[2])
    completed = time_from_instant(parsed[1], zone) if parsed and parsed[1] else transition.completion_time
    return replace(transition, timeline_file=path, completion_time=completed)
