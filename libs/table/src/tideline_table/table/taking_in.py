"""A table of Apache Hudi gets a log that begins with the state of its timeline; one that was shared before goes on with its log."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, tzinfo
from itertools import count

from tideline_table.coordination.completion import wait_past
from tideline_table.coordination.shared.adoption import check_followed, check_written
from tideline_table.coordination.shared.follower import LogFollower
from tideline_table.coordination.shared.hudi_rules import BUCKET_FOLDER, Bucketing, check_version
from tideline_table.coordination.shared.leaving import check_still_shared
from tideline_table.coordination.shared.metadata import follow_step, keep_only, turn_off_metadata
from tideline_table.coordination.timeline import kept_partitions
from tideline_table.errors import UnsupportedTable, WriteConflict, WritesMissed
from tideline_table.hudi import properties as p
from tideline_table.hudi.format import TableFormat
from tideline_table.hudi.formats import created_format, declared_version, has_version
from tideline_table.hudi.instant import Action, State, next_instant, time_from_instant
from tideline_table.hudi.listing import ListedTimeline
from tideline_table.hudi.properties import CREATE_SCHEMA, change_properties, read_properties
from tideline_table.hudi.write_stats import SCHEMA_KEY, CommitMetadata
from tideline_table.hudi.zone import timeline_zone
from tideline_table.hudi_written import hudi_written_state
from tideline_table.index.bucket import BucketIndex
from tideline_table.log.adopted import AdoptedTable
from tideline_table.log.body import Bare, Published
from tideline_table.log.checkpoint import CHECKPOINT_FOLDER, write_checkpoint
from tideline_table.log.entry import BODY_FOLDER, LEAVING_PATH, LOG_FOLDER
from tideline_table.log.progress import archived_progress
from tideline_table.log.sharing import Sharing
from tideline_table.log.state import TableState
from tideline_table.log.table_log import Draft
from tideline_table.log.timeline_files import timeline_files
from tideline_table.table.bucket_adoption import BucketAdoption
from tideline_table.table.definition import fixed_properties
from tideline_table.table.facade import Table
from tideline_table.table.identity import change_declared, create_identity, read_identity

_LOGGER = logging.getLogger(__name__)
OPERATION = "UPSERT"
"""Operation of the empty commit from which a table is shared. Apache Hudi would archive a commit of an unknown operation without
its metadata, and its list of archived commits would then fail."""
_UNSHARABLE = frozenset({Action.LOG_COMPACTION, Action.RESTORE, Action.INDEXING})


def bucketing(table: Table) -> Bucketing:
    """Return what shows a bucket index of Apache Hudi's writers."""
    return Bucketing.shown_by(table.state, read_properties(table.storage), table.storage.list_folder(BUCKET_FOLDER).folders)


def take_in(table: Table, sharing: Sharing, adoption: BucketAdoption, writers: Collection[str] | None) -> None:
    """Begin the log of a table that only Apache Hudi wrote. The caller holds the lock of its writers."""
    storage = table.storage
    if read_identity(storage) is not None:
        raise UnsupportedTable(
            "a table that another process has just shared", expected="an exclusive table", remedy="open it again"
        )
    # Delete what an attempt that died has left.
    for folder in (LOG_FOLDER, BODY_FOLDER, CHECKPOINT_FOLDER):
        storage.delete_below(folder)
    storage.delete(LEAVING_PATH)
    table.refresh()
    index = adoption.find() if adoption.applies(bucketing(table)) else None
    found = _checked_state(table)
    if index is not None:
        adoption.keep_rules()
        named = index.properties
        change_properties(storage, lambda found: {**found, **named})
    state = TableState()

    def append(draft: Draft) -> None:
        entry = table.timeline.log.append(draft, state.sequence + 1)
        if entry is None:
            raise _lost_to_another(table.base_path, draft)
        state.apply(entry)

    _append_state(table, found, commit_body(found.schema_json, sharing, writers), append)
    write_checkpoint(storage, state)
    kept = index.text if isinstance(index, BucketIndex) else table.definition.kept_index
    create_identity(storage, table.clock, kept, declared_version(table.definition.version))


def go_on(table: Table) -> None:
    """Continue the log of a shared table in the version that Apache Hudi gave it. The caller holds the lock of its writers.

    What the log lacks is adopted step by step, as far as it is still on the timeline. Then an empty commit brings the state of
    the table as its timeline is now, in which log files belong to slices by the rules of the new version. The identity changes
    last: until then every process reads the table by its timeline, and a repeat begins again.
    """
    replica, form = table.timeline.replica, table.definition.format
    check_still_shared(table.storage, replica.uid)
    check_version(properties := read_properties(table.storage), form)
    identity = read_identity(table.storage)
    replica.refresh()
    if identity is None or has_version(form.version, created_format(identity.declared)):
        return  # another process was faster
    kept = fixed_properties(properties) if identity.is_created_here else {}
    follower = LogFollower(replica)
    with suppress(WritesMissed):  # the state has them, as one step
        follower.adopt()
    table.refresh()
    places = count(replica.state.sequence + 1)
    found = _checked_state(table)

    def append(draft: Draft) -> None:
        if follower.append(draft, only_at=next(places)) is None:
            raise _lost_to_another(replica.uid, draft)

    _append_state(table, found, commit_body(found.schema_json), append)
    change_declared(table.storage, identity, kept | declared_version(form.version))
    _LOGGER.warning("table %s is shared in %s now, which Apache Hudi gave it", replica.uid, form.version_text)


def _lost_to_another(name: str, draft: Draft) -> WriteConflict:
    """This process lost the lock unnoticed, and what it found may lack writes: their rows would leave the log."""
    return WriteConflict(f"another process continued the log of {name}", with_instant=draft.instant, remedy="open the table again")


def _checked_state(table: Table) -> TableState:
    """Return the state of the timeline, with the properties as a shared table needs them."""
    storage, form, properties = table.storage, table.timeline.format, read_properties(table.storage)
    listed = ListedTimeline.read(storage, form)
    found = hudi_written_state(storage, properties)
    check_followed(listed)
    check_written(listed, found)
    change_properties(storage, lambda found: {**found, p.TIMEZONE: "UTC"})
    if not keep_only(storage, form, properties, kept_partitions(table.options)):
        turn_off_metadata(storage, properties)
    waiting = [a for a in found.pending() if a.action in _UNSHARABLE and a.instant not in found.plans]
    if waiting:
        raise UnsupportedTable(
            f"{waiting[0].action} {waiting[0].instant} of Apache Hudi is pending",
            expected="none",
            remedy="let Apache Hudi end it first",
        )
    found.schema_json = found.schema_json or properties.get(CREATE_SCHEMA, "")
    return found


def _append_state(table: Table, found: TableState, body: Published, append: Callable[[Draft], None]) -> None:
    """Publish the empty commit whose body has the state `found`, on the timeline and then in the log."""
    storage, form = table.storage, table.timeline.format
    now, known = table.timeline.time.now(), table.timeline.replica.state
    last = max(found.last_instant, known.last_instant, *(a.completion for a in found.actions.values()), "")
    instant = next_instant(now, last)
    ended = next_instant(now, instant) if form.has_completion_times else ""
    if ended:
        wait_past(table.clock, ended)
    adopted = adopted_table(found, form, timeline_zone(table.definition.properties))
    # If the table had a log before, the last progress of an idle ingestion may have left the active timeline.
    adopted = replace(adopted, progress={**archived_progress(form.archived_extra(storage), lambda _: True), **adopted.progress})
    action = table.write_action()
    drafts = (
        Draft(instant, action, State.NONE, State.INFLIGHT, OPERATION, Bare()),
        Draft(instant, action, State.INFLIGHT, State.COMPLETED, OPERATION, replace(body, adopted=adopted), completion=ended),
    )
    for number, draft in enumerate(drafts, 1):
        step = draft.entry(number, table.clock.now())
        follow_step(storage, form, found, step, table.options, table.log_rule(merges=False))
        for path, content in timeline_files(step, form).create:
            storage.put_if_absent(path, content)
        append(draft)


def adopted_table(found: TableState, form: TableFormat, zone: tzinfo = UTC) -> AdoptedTable:
    """Return the state of a Hudi-written table with instants in `zone` as the first commit in its log keeps it."""
    timed = found.actions.values() if form.has_completion_times else ()
    return AdoptedTable(
        actions=tuple(
            (a.instant, a.action.value, a.state.value, a.operation, time_from_instant(a.instant, zone).isoformat())
            for a in found.actions.values()
        ),
        slices=found.slices,
        replaced=found.replaced,
        plans=found.plans,
        schema_json=found.schema_json,
        last_clean_retained=found.last_clean_retained,
        archived_before=found.archived_before,
        whole_since=found.whole_since,
        progress=found.progress,
        completions={a.instant: a.completion for a in timed if a.completion},
    )


def commit_body(schema_json: str, sharing: Sharing | None = None, writers: Collection[str] | None = None) -> Published:
    """Return the body of the empty commit from which a table is shared."""
    extra = {SCHEMA_KEY: schema_json, **({"tideline.shared": json.dumps(sharing.to_json())} if sharing is not None else {})}
    named = None if writers is None else tuple(sorted(set(writers)))
    return Published(CommitMetadata(OPERATION, (), extra), sharing=sharing, writers=named)
