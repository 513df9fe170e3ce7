"""Sharing a table with Apache Hudi's writers: one of ours from now on, or one that Apache Hudi made."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import cast

from tideline_table.errors import InvalidOption, UnsupportedTable
from tideline_table.file_group.adopted import AdoptedTable
from tideline_table.file_group.checkpoint import CHECKPOINT_FOLDER, write_checkpoint
from tideline_table.file_group.state import TableState
from tideline_table.storage import ConditionalStorage
from tideline_table.table.facade import Table
from tideline_table.table.foreign import foreign_state
from tideline_table.table.identity import create_identity, read_identity
from tideline_table.table.store_probe import probe_conditional_put, probe_versioned_put
from tideline_table.timeline.entry import BODY_FOLDER, LOG_FOLDER
from tideline_table.timeline.files import timeline_files
from tideline_table.timeline.instant import Action, State, time_from_instant
from tideline_table.timeline.log import Draft
from tideline_table.timeline.properties import CREATE_SCHEMA
from tideline_table.timeline.sharing import ADOPTED_KEY, SHARING_KEY, PeerLockKind, Sharing
from tideline_table.timeline.write_stats import SCHEMA_KEY, CommitMetadata
from tideline_table.transaction import ActiveTimeline, OpenPeerLock
from tideline_table.transaction.adoption import draft_entry
from tideline_table.transaction.archive import archived_progress
from tideline_table.transaction.peer_rules import check_version, read_properties, turn_off_metadata

OPERATION = "UPSERT"
"""Of the commit of no rows from which on a table is shared. One of an unknown kind Apache Hudi would archive without its metadata, and its list of
archived commits fails over that."""
_UNSHARABLE = frozenset({Action.LOG_COMPACTION, Action.RESTORE, Action.INDEXING})


def share_table(table: Table, sharing: Sharing, open_lock: OpenPeerLock) -> Table:
    """Share `table` from now on; returns it opened anew. An empty commit says from where on.

    A table of ours keeps its log: writers of ours that have it open are told to open it again. One that Apache Hudi made gets a log that
    begins with the state of its timeline, and loses its metadata table. Raises `UnsupportedTable` for versions and types that cannot be written,
    for stores that ignore the conditions of puts and for work of Apache Hudi that has to end first, `InvalidOption` for a table that is shared
    by another lock.
    """
    if table.sharing == sharing:
        return table
    if table.sharing is not None:
        raise InvalidOption(
            f"lock {sharing.lock}, {sharing.expire_min} min", expected=f"that of the table: {table.sharing.to_json()}"
        )
    table.definition.check_writable(keyed=False)
    check_version(read_properties(table.storage))
    if table.has_log:
        table.check_writable(keyed=False)
    lock = open_lock(table.storage, sharing, table.timeline.log.writer_id, table.clock, table.options)
    probe_conditional_put(table.storage)
    if sharing.lock is PeerLockKind.STORAGE:
        # Such a lock is opened on stores of this kind only; without the condition both sides would hold it at once.
        probe_versioned_put(cast("ConditionalStorage", table.storage))
    with lock.hold():
        if table.has_log:
            _share_ours(table, sharing)
        else:
            _take_in(table, sharing)
    return Table.open(
        table.base_path,
        options=table.options.given(),
        peer_lock=open_lock,
        clock=table.clock,
        writer_id=table.timeline.log.writer_id,
        storage=table.storage,
    )


def _share_ours(table: Table, sharing: Sharing) -> None:
    action = table.write_action()
    body = _commit_body(table.schema_json, sharing)
    begun = table.timeline.append(
        lambda state: Draft(table.timeline.mint(state), action, State.NONE, State.INFLIGHT, OPERATION, {})
    )
    table.timeline.append(lambda _: Draft(begun.instant, action, State.INFLIGHT, State.COMPLETED, OPERATION, body))


def _take_in(table: Table, sharing: Sharing) -> None:
    storage, properties = table.storage, read_properties(table.storage)
    if read_identity(storage) is not None:
        raise UnsupportedTable("a table that somebody else just shared", expected="one that is not", remedy="open it again")
    # Of an attempt that died before it came to an end.
    for folder in (LOG_FOLDER, BODY_FOLDER, CHECKPOINT_FOLDER):
        storage.delete_below(folder)
    turn_off_metadata(storage, properties)
    found = foreign_state(storage, properties)
    waiting = [a for a in found.pending() if a.action in _UNSHARABLE]
    if waiting:
        raise UnsupportedTable(
            f"{waiting[0].action} {waiting[0].instant} of Apache Hudi is pending",
            expected="none",
            remedy="let Apache Hudi end it first",
        )
    timeline = ActiveTimeline(storage, table.clock, table.timeline.log.writer_id, table.options)
    instant = timeline.mint(found)
    schema = found.schema_json or properties.get(CREATE_SCHEMA, "")
    adopted = adopted_table(found)
    # Of a log that it had before: what an idle feeder said last may have left the timeline.
    adopted = replace(adopted, progress={**archived_progress(storage, properties, lambda _: True), **adopted.progress})
    body = {**_commit_body(schema, sharing), ADOPTED_KEY: adopted.to_json()}
    drafts = (
        Draft(instant, table.write_action(), State.NONE, State.INFLIGHT, OPERATION, {}),
        Draft(instant, table.write_action(), State.INFLIGHT, State.COMPLETED, OPERATION, body),
    )
    state = TableState()
    for sequence, draft in enumerate(drafts, 1):
        for path, content in timeline_files(draft_entry(draft, sequence, table.clock.now())).create:
            storage.put_if_absent(path, content)
        entry = timeline.log.append(draft, sequence)
        assert entry is not None  # nobody else writes the log of a table without an identity, under this lock
        state.apply(entry)
    write_checkpoint(storage, state)
    create_identity(storage, table.clock)


def adopted_table(found: TableState) -> AdoptedTable:
    """The state of a table that others wrote, as the first entry of its log keeps it."""
    return AdoptedTable(
        actions=tuple(
            (a.instant, a.action.value, a.state.value, a.operation, time_from_instant(a.instant).isoformat())
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
    )


def _commit_body(schema_json: str, sharing: Sharing) -> dict[str, object]:
    extra = {SCHEMA_KEY: schema_json, "tideline.shared": json.dumps(sharing.to_json())}
    metadata = CommitMetadata(OPERATION, (), extra)
    return {"metadata": metadata.to_json(), SHARING_KEY: sharing.to_json()}
