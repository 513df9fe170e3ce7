"""Sharing of a table with Apache Hudi's writers, whether Tideline or Apache Hudi created it."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from tideline_table.config import INSTANT_SKEW_S
from tideline_table.coordination import OpenHudiTableLock
from tideline_table.coordination.completion import wait_past
from tideline_table.coordination.shared.hudi_rules import (
    check_not_ahead,
    check_rings,
    check_version,
)
from tideline_table.coordination.shared.metadata import (
    check_kept,
)
from tideline_table.coordination.shared.partition_numbers import adopted_rules, check_numbers
from tideline_table.errors import InvalidOption, TableFrozen, UnsupportedTable
from tideline_table.file_group.slice import FileGroupId
from tideline_table.hudi import properties as p
from tideline_table.hudi.file_names import is_ring_file_id, parse_log_file_name
from tideline_table.hudi.instant import Action, State, time_from_instant
from tideline_table.hudi.properties import change_properties, read_properties
from tideline_table.hudi.zone import is_local
from tideline_table.index.bucket import RESIZING
from tideline_table.log.body import Bare
from tideline_table.log.sharing import HudiLockKind, Sharing
from tideline_table.log.state import TableState
from tideline_table.log.table_log import Draft
from tideline_table.merge import MergeMode
from tideline_table.schema.avro import check_writable_types
from tideline_table.storage import Storage
from tideline_table.table.bucket_adoption import BucketAdoption
from tideline_table.table.bucket_numbers import is_behind, is_resize_pending
from tideline_table.table.definition import TableDefinition
from tideline_table.table.facade import Table
from tideline_table.table.key_index import BucketIndex, wrong_index
from tideline_table.table.store_probe import probe_conditional_put, probe_versioned_put
from tideline_table.table.taking_in import OPERATION, bucketing, commit_body, go_on, take_in


def share_table(
    table: Table,
    sharing: Sharing,
    open_lock: OpenHudiTableLock,
    index: BucketIndex | None = None,
    writers: Collection[str] | None = None,
) -> Table:
    """Share `table` with Apache Hudi's writers, beginning with an empty commit; return it, opened again.

    A table made by Tideline keeps its log, and other Tideline writers must open it again. A table made by Apache Hudi gets a log
    that begins with the state of its timeline, and loses its metadata table, except for the partitions of
    `tideline.shared.metadata`. If Apache Hudi's writers use the bucket index, its number and hash fields are found in the rows,
    its partition rules in their folder, or `index` names them; all record keys are read, and the table keeps them from then
    on. With `writers` the table begins on probation: no plan is published until each of them (`writer_names`), and each new one,
    was seen with the lock; None: the caller vouches for all. A table that was shared until Apache Hudi gave it another version is
    shared in that version, with its lock, its log and its uid. Raises `UnsupportedTable` for versions and types that cannot
    be written, for stores that ignore the conditions of puts and for Hudi actions that must end first, `InvalidOption` for a table
    shared by another lock and for a bucket index that the rows leave open, `ClockSkew` while its last instant is ahead of the
    clock.
    """
    named = _named_index(table, index)
    known = upgraded_sharing(table)
    sharing = known or sharing
    if table.sharing == sharing:
        return table
    if table.sharing is not None:
        raise InvalidOption(
            f"lock {sharing.lock} {sharing.place}".rstrip() + f", {sharing.expire_min} min",
            expected=f"that of the table: {table.sharing.lock} {table.sharing.place}".rstrip()
            + f", {table.sharing.expire_min} min",
            remedy="tideline share PATH prints its options; for another lock, stop all writers, leave it and share it again",
        )
    if table.capabilities.keeps_log:
        table.check_writable(keyed=False)  # completes what a resize of buckets left
    _check_kind(table)
    lock = open_lock(table.storage, sharing, table.timeline.log.writer_id, table.clock, table.options)
    probe_conditional_put(table.storage)
    if sharing.lock is HudiLockKind.STORAGE:
        # If the store ignored the condition, both sides could hold the lock.
        probe_versioned_put(table.storage)
    table.refresh()
    _check_zone(table)
    check_not_ahead(table.state, table.clock, table.options)
    _check_ours(table, table.state)
    if table.capabilities.keeps_log:
        _check_late_rows(table.definition, table.state)
    if table.capabilities.keeps_log and table.definition.buckets is not None:
        table.definition.buckets.check_shareable(table.definition.name)
    adoption = BucketAdoption(table, named)
    if not table.capabilities.keeps_log and known is None and adoption.applies(bucketing(table)):
        # Reading all keys may take longer than the lock is valid. Under the lock, only what was written since is read.
        adoption.find()
    with lock.hold():
        if known is not None:
            go_on(table)
        elif table.capabilities.keeps_log:
            _share_ours(table, sharing, writers)
            if table.timeline.format.has_completion_times:
                wait_past(table.clock, table.state.last_instant)
        else:
            take_in(table, sharing, adoption, writers)
    return Table.open(
        table.base_path,
        options=table.options.given(),
        hudi_lock=open_lock,
        clock=table.clock,
        writer_id=table.timeline.log.writer_id,
        storage=table.storage,
    )


def _named_index(table: Table, index: BucketIndex | None) -> BucketIndex:
    """Return the bucket index that the caller names for a table that Apache Hudi created."""
    named = BucketIndex() if index is None else index
    if not isinstance(named, BucketIndex):
        raise wrong_index(named)
    if named.says_where and table.capabilities.keeps_log:
        raise InvalidOption(
            "buckets of a table that has a Tideline log", expected="a table that Apache Hudi created: this one keeps its index"
        )
    return named


def upgraded_sharing(table: Table) -> Sharing | None:
    """Return how a table was shared when Apache Hudi gave it another version; None for any other table, and for writable ones."""
    replica = table.timeline.replica
    # Without a uid, a process died before the log of a first sharing had an identity: the next one begins it again.
    return None if table.capabilities.keeps_log or not replica.uid else replica.state.sharing


def _check_zone(table: Table) -> None:
    """Raise `UnsupportedTable` if Hudi's writers took instants in a zone east of UTC, which would follow those of the shared table.

    Sharing changes the timeline to UTC: zones of JVMs differ, and with summer time they repeat an hour. Instants of zones west
    of UTC lie before.
    """
    if table.capabilities.keeps_log or not is_local(table.definition.properties) or not table.state.last_instant:
        return
    last = time_from_instant(table.state.last_instant)
    ahead = last - table.clock.now()
    if ahead.total_seconds() > table.options[INSTANT_SKEW_S]:
        raise UnsupportedTable(
            f"the last instant {table.state.last_instant} of table {table.definition.name!r} lies "
            f"{ahead.total_seconds() / 3600:.2f} h ahead of UTC: {p.TIMEZONE} is LOCAL, and a writer's zone is east of UTC",
            expected="instants in UTC, which a shared table has: zones of several machines, and summer time, break their order",
            remedy=f"stop its writers until {last:%Y-%m-%d %H:%M:%S} UTC and share it then, which sets {p.TIMEZONE}=UTC",
        )


def _check_ours(table: Table, state: TableState) -> None:
    """Raise `UnsupportedTable` for what only Tideline keeps up: a metadata table, clusterings of hash rings.

    In version 6 also log compactions. Later both sides find a merged log file by the plan and by the headers of its blocks.
    """
    name = table.definition.name
    if state.metadata is not None:
        raise UnsupportedTable(
            f"table {name!r} has a metadata table that follows the table log",
            expected="none: Apache Hudi's writers of a shared table would have to keep it, too",
            remedy="drop it first: tideline metadata drop PATH",
        )
    for pending in (a for a in state.pending() if a.is_clustering and not a.is_by_hudi):
        if any(is_ring_file_id(group.file_id) for group in state.planned_groups(pending.instant)):
            raise UnsupportedTable(
                f"clustering {pending.instant} of table {name!r} with consistent hashing is pending",
                expected="none: Apache Hudi's writers would go on with the hash rings that it replaces",
                remedy=f"run it: tideline run clustering PATH, or cancel it: tideline job cancel PATH {pending.instant}",
            )
    if table.timeline.format.has_completion_times:
        return
    planned = next((a.instant for a in state.pending() if a.action is Action.LOG_COMPACTION and not a.is_by_hudi), None)
    merged = next((s.group for s in state.each_latest() if any(log.merges_earlier for log in s.log_files)), None)
    if planned is not None or merged is not None:
        raise UnsupportedTable(
            f"log compaction {planned} of table {name!r} is pending"
            if planned is not None
            else f"file group {merged.file_id if merged else ''} of table {name!r} has a log file that a log compaction wrote",
            expected="none in a shared table: with Apache Hudi's log compactions its log files would have two orders",
            remedy=f"cancel it: tideline job cancel PATH {planned}"
            if planned is not None
            else "compact the table: tideline run compaction PATH",
        )


def _check_late_rows(definition: TableDefinition, state: TableState) -> None:
    """Raise `UnsupportedTable` if a log file follows one that deletes keys: a late row in it is shown by Tideline's rule only.

    By Apache Hudi's rule, from which a shared table is read, the row is compared with what was deleted.
    """
    if not definition.has_logs or definition.merge_mode is not MergeMode.EVENT_TIME:
        return
    for found in state.each_latest():
        if any(log.deletes_keys for log in found.log_files[:-1]):
            raise UnsupportedTable(
                f"file group {found.group.file_id} of table {definition.name!r} with a log file behind deletions that are not "
                "compacted",
                expected="none: a late row behind a deletion is a row to Tideline, and Apache Hudi's rule would hide it or show "
                "the deleted one",
                remedy="compact the table first: tideline run compaction PATH",
            )


def why_unsharable(table: Table) -> str:
    """Return what about an open table, as opposed to its present writers, makes `share_table` refuse it; empty for nothing."""
    try:
        table.timeline.check_not_upgraded()
        _check_kind(table)
        if not table.capabilities.keeps_log:
            shown = bucketing(table)
            shown.refuse_other_engines()
            adopted_rules(table.storage, table.timeline.format)
            if shown.ring:
                check_rings(table.state)
    except (TableFrozen, UnsupportedTable) as error:
        return f"{error.found}; expected {error.expected}"
    return ""


def _check_kind(table: Table) -> None:
    table.definition.check_writable(keyed=False)
    check_writable_types(table.view().schema_json, table.definition.name)
    if not table.definition.has_meta_fields:
        raise UnsupportedTable(
            f"table {table.definition.name!r} has no meta fields",
            expected=f"{p.POPULATE_META_FIELDS}=true: without them, Tideline's services do not work on a shared table",
            remedy="write its rows into a new table with meta fields, and share that",
        )
    properties, merger = read_properties(table.storage), table.definition.merging.merger
    if merger is not None and merger.strategy_id != properties.get(p.MERGE_STRATEGY):
        raise UnsupportedTable(
            f"table {table.definition.name!r}, whose rows merger {merger.name!r} merges, which stands for no merger of Apache Hudi",
            expected=f"a merger whose strategy_id is the {p.MERGE_STRATEGY} of the table",
            remedy="give the merger the strategy_id of the Java class that does the same, and create the table with it",
        )
    check_version(properties, table.definition.format)
    _check_resized(table, table.state, properties)
    check_kept(properties, table.definition.format, table.options)
    check_numbers(table.storage, properties)
    if not table.capabilities.keeps_log:
        _check_moved_plans(table.storage, table.state, is_by_writes=table.definition.format.has_completion_times)


def _check_moved_plans(storage: Storage, state: TableState, *, is_by_writes: bool) -> None:
    """Raise `UnsupportedTable` for log files behind a pending compaction that are named by the rule of another version.

    An upgrade from version 6 leaves them named after that compaction: no reader takes their rows before it has completed. A
    downgrade leaves them named after their writes, which are no slices then.
    """
    for at in (a.instant for a in state.pending() if a.action is Action.COMPACTION):
        planned = state.planned_groups(at)
        for partition in sorted({group.partition_path for group in planned}):
            for path in (found.path for found in storage.list_folder(partition).objects):
                log = parse_log_file_name(path.rpartition("/")[2])
                if log is None or FileGroupId(partition, log.file_id) not in planned:
                    continue
                if log.instant == at if is_by_writes else log.instant > at:
                    raise UnsupportedTable(
                        f"log file {path}, written behind the plan of compaction {at} before an upgrade or downgrade of the table",
                        expected="none: by the rules of this version it is no log file of the slice that the compaction begins",
                        remedy=f"run it with Apache Hudi (call run_compaction(op => 'run', timestamp => {at}, …)), then share",
                    )


def _check_resized(table: Table, state: TableState, properties: Mapping[str, str]) -> None:
    """Raise `UnsupportedTable` if a resize of buckets is pending, or the properties lack the numbers of the last one.

    A resize changes the properties after it began in the log, and completes them after its commit. In a shared table it could not.
    """
    declared = TableDefinition.from_properties(properties)
    is_ours = table.identity is not None and table.definition.buckets is not None
    if (
        RESIZING in properties
        or (is_ours and is_resize_pending(state))
        or (table.identity is not None and is_behind(declared, table.identity, state))
    ):
        raise UnsupportedTable(
            "a table whose buckets are being resized, or were when the process died",
            expected="properties with the numbers of buckets: the end of the resize writes them, or the next write after it",
            remedy="wait for the resize and for overwrites of the table; if a process died: tideline run rollback PATH",
        )


def _share_ours(table: Table, sharing: Sharing, writers: Collection[str] | None) -> None:
    action = table.write_action()
    body = commit_body(table.schema_json, sharing, writers)

    def begin(state: TableState) -> Draft:
        _check_ours(table, state)
        _check_late_rows(table.definition, state)
        return Draft(table.timeline.mint(state), action, State.NONE, State.INFLIGHT, OPERATION, Bare())

    begun = table.timeline.append(begin)

    def complete(state: TableState, properties: Mapping[str, str]) -> Draft:
        # Created or resized meanwhile: the commit is rolled back later.
        _check_ours(table, state)
        _check_late_rows(table.definition, state)
        # No resize changes properties that were read in a state without one until the entry after that state.
        _check_resized(table, state, properties)
        return Draft(begun.instant, action, State.INFLIGHT, State.COMPLETED, OPERATION, body)

    table.timeline.append(complete, lambda _: read_properties(table.storage))
    index = table.definition.buckets
    if index is not None:
        # A table of an earlier release lacks what keeps rules of Hudi's writers out.
        kept = index.properties
        change_properties(table.storage, lambda found: {**kept, **found})
    if (rings := table.rings()) is not None:
        rings.store.delete_uncommitted(rings.resizes)
        rings.for_writing(set(table.state.partition_paths()))


def resume_services(table: Table) -> tuple[str, ...]:
    """Say that every writer of a shared table takes its lock now, by an empty commit. Return the writes that had proved another.

    Ends its probation, too. Does nothing for a table without such writes and writers. Raises `UnsupportedTable` for a table that
    is not shared.
    """
    if table.sharing is None:
        raise UnsupportedTable(
            f"table {table.definition.name!r} is not shared",
            expected="a table that Apache Hudi writes, too",
            remedy="share it first",
        )
    table.check_writable(keyed=False)
    table.timeline.catch_up()
    state = table.refresh()
    found = tuple(state.unlocked)
    if found or state.probation:
        _share_again(table, table.sharing)
    return found


def _share_again(table: Table, sharing: Sharing) -> None:
    action, body = table.write_action(), commit_body(table.schema_json, sharing)
    begun = table.timeline.append(
        lambda state: Draft(table.timeline.mint(state), action, State.NONE, State.INFLIGHT, OPERATION, Bare())
    )
    table.timeline.append(lambda _: Draft(begun.instant, action, State.INFLIGHT, State.COMPLETED, OPERATION, body))
    table.refresh()
