"""State of a table that others wrote: from its timeline files and a listing of its partitions (format reference 4, 11, 16.3)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from typing import Any

from tideline_table.errors import CorruptMetadata, StorageError, UnsupportedTable
from tideline_table.file_group.action import CLUSTER, ActionRecord
from tideline_table.file_group.cleaned import CleanedFile, cleaned_files, first_whole
from tideline_table.file_group.content import compacted_groups
from tideline_table.file_group.partition_listing import list_partitions
from tideline_table.file_group.slice import FileGroupId
from tideline_table.file_group.state import TableState
from tideline_table.reader.log_blocks import VisibleInstants
from tideline_table.schema.identity import history_texts
from tideline_table.storage import Storage
from tideline_table.table.foreign.slices import (
    CommittedInstants,
    ListedGroups,
    listed_groups,
    slices_by_completion,
    slices_by_name,
    tried_again,
)
from tideline_table.timeline.commit_avro import read_commit_metadata
from tideline_table.timeline.history import read_history
from tideline_table.timeline.instant import WRITE_ACTIONS, Action, Instant, State
from tideline_table.timeline.listing import TimelineFolders, TimelineListing, list_timeline
from tideline_table.timeline.plans import decode_document
from tideline_table.timeline.progress import progress_in
from tideline_table.timeline.properties import TYPE
from tideline_table.timeline.write_stats import LATEST_SCHEMA_KEY, SCHEMA_KEY, CommitMetadata

SCHEMA_FOLDER = ".hoodie/.schema"
SCHEMA_FILE_SUFFIX = ".schemacommit"
_REMOVING = frozenset({Action.CLEAN, Action.ROLLBACK, Action.RESTORE})
_LISTINGS = 5
_COPY_ON_WRITE = "COPY_ON_WRITE"


def foreign_state(storage: Storage, properties: Mapping[str, str] | None = None) -> TableState:
    """The committed file slices of a table with these properties (without them: layout 1), and the actions of its active timeline.

    `ActionRecord.since` of a completed action is its completion time, as an instant; layout 1 does not tell it, so there it is the instant.
    Raises `CorruptMetadata` for timeline files that cannot be understood, `UnsupportedTable` for another timeline layout or log files in a
    copy-on-write table, `StorageError` when others kept removing files while the table was listed.
    """
    folders = TimelineFolders.from_properties(properties or {})
    state = _listed_state(storage, folders)
    if (properties or {}).get(TYPE) == _COPY_ON_WRITE:
        logs = (path for file_slice in state.every_slice() for path in file_slice.log_paths)
        for path in logs:
            raise UnsupportedTable(f"log file {path} in a {_COPY_ON_WRITE} table", expected="base files only")
    return state


def _listed_state(storage: Storage, folders: TimelineFolders) -> TableState:
    listing = list_timeline(storage, folders)
    for _ in range(_LISTINGS):
        groups = listed_groups((partition, level.objects) for partition, level in list_partitions(storage))
        # What a clean or rollback removes between the two listings would be missing without a trace.
        after = list_timeline(storage, folders)
        if _removals(after) == _removals(listing):
            return _state(storage, folders, listing, groups)
        listing = after
    raise StorageError("files kept disappearing while the table was listed", remedy="read it again")


def _removals(listing: TimelineListing) -> frozenset[Instant]:
    return frozenset(i for i in listing.instants if i.action in _REMOVING)


def _state(storage: Storage, folders: TimelineFolders, listing: TimelineListing, groups: ListedGroups) -> TableState:
    state = TableState()
    cleaned: list[CleanedFile] = []
    named: set[str] = set()
    ambiguous = tried_again(groups)
    for number, instant in enumerate(listing.instants):
        if instant.action is Action.SAVEPOINT and instant.time in state.actions:
            continue  # it shares the instant of the commit that it protects
        operation = _fold(storage, state, listing, instant, named if instant.time in ambiguous else None)
        if instant.state is State.COMPLETED and instant.action is Action.CLEAN:
            cleaned += _fold_clean(storage, state, listing, instant)
        state.actions[instant.time] = ActionRecord(
            instant.time, instant.action, instant.state, operation, number, number, "", listing.completion.get(instant.time, "")
        )
        state.last_instant = max(state.last_instant, instant.time)
    completed = frozenset(a.instant for a in state.completed_writes())
    state.identified_schemas = _identified_schemas(storage, listing, state.identified_schemas)
    state.archived_before = _first_write(listing.instants, completed)
    committed = CommittedInstants(completed, state.archived_before, frozenset(a.instant for a in state.pending()))
    if folders.layout == 1:
        state.slices = slices_by_name(groups, committed, frozenset(a.instant for a in state.pending_compactions()), named)
    else:
        times = _completion(storage, folders, listing, groups, committed)
        state.slices = slices_by_completion(groups, committed, state.groups_under_compaction(), times, named)
    begun = {group: slices.keys() for group, slices in state.slices.items()}
    state.whole_since = first_whole(cleaned, begun, state.replaced)
    state.last_clean_retained = max(state.last_clean_retained, state.whole_since)
    return state


def visible_instants(state: TableState) -> VisibleInstants:
    """Which instants in the headers of log blocks count, by the state of a table that others wrote."""
    completed = frozenset(a.instant for a in state.completed_writes())
    return VisibleInstants(completed, state.archived_before, frozenset(a.instant for a in state.pending()))


def _fold(storage: Storage, state: TableState, listing: TimelineListing, instant: Instant, named: set[str] | None) -> str:
    """Take in what an instant's files say; returns its operation where it has one. Adds the files that a commit names to `named`."""
    if instant.state is State.COMPLETED and instant.action in WRITE_ACTIONS:
        path = listing.path(instant)
        metadata = read_commit_metadata(storage.read(path), path)
        if named is not None:
            named.update(stat.path for stat in metadata.stats)
        return _fold_commit(state, instant, metadata)
    if instant.action in (Action.REPLACE_COMMIT, Action.COMPACTION) and instant.state is not State.COMPLETED:
        return _fold_plan(storage, state, listing, instant)
    return ""


def _fold_commit(state: TableState, instant: Instant, metadata: CommitMetadata) -> str:
    for partition, file_ids in (metadata.replaced or {}).items():
        for file_id in file_ids:
            state.replaced[FileGroupId(partition, file_id)] = instant.time
    state.take_schema(instant.time, metadata.extra.get(SCHEMA_KEY, ""))
    latest = metadata.extra.get(LATEST_SCHEMA_KEY, "")
    if latest and latest not in state.identified_schemas:
        state.identified_schemas += (latest,)
    state.progress |= progress_in(metadata.extra, instant.time)
    return metadata.operation


def _identified_schemas(storage: Storage, listing: TimelineListing, known: tuple[str, ...]) -> tuple[str, ...]:
    """The whole history, with what was before the active timeline and before columns had ids."""
    if not known:
        return ()
    completed = {f"{time}" for time in listing.completion}
    files = [o.path for o in storage.list_folder(SCHEMA_FOLDER).objects if o.path.endswith(SCHEMA_FILE_SUFFIX)]
    # Each file repeats those before; one of a write that did not complete does not count.
    for path in sorted(files, reverse=True):
        instant = path.rsplit("/", 1)[-1].split(".")[0].split("_")[0]
        if instant in completed or not completed:
            return (*reversed(history_texts(storage.read(path), path)), *known)
    return known


def _fold_clean(storage: Storage, state: TableState, listing: TimelineListing, instant: Instant) -> list[CleanedFile]:
    """Take in what a clean retained; the files that went where it names no instant."""
    path = listing.path(instant)
    if not (content := storage.read(path)):
        return []
    document = decode_document(content, path)
    if retained := str(document.get("earliestCommitToRetain") or ""):
        state.last_clean_retained = max(state.last_clean_retained, retained)
        return []
    with _understood(f"timeline file {path} is no clean metadata", "the files that a clean deleted"):
        names = [(p, str(name)) for p, part in document["partitionMetadata"].items() for name in part["successDeleteFiles"]]
        return cleaned_files(names, str(document.get("lastCompletedCommitTimestamp") or instant.time))


def _fold_plan(storage: Storage, state: TableState, listing: TimelineListing, instant: Instant) -> str:
    path = listing.path(Instant(instant.time, instant.action, State.REQUESTED))
    content = storage.read(path)
    plan = decode_document(content, path) if content else {}
    operation = str(plan.get("operationType") or "")
    if instant.action is Action.REPLACE_COMMIT and operation != CLUSTER:
        return operation
    body = {"plan": plan}
    named = compacted_groups if instant.action is Action.COMPACTION else _clustered_groups
    with _understood(f"timeline file {path} has no {instant.action} plan that can be used", "a plan that names file groups"):
        named(body)
    state.plans[instant.time] = body
    return operation


@contextmanager
def _understood(otherwise: str, expected: str) -> Iterator[None]:
    """`CorruptMetadata` for a document of another shape."""
    try:
        yield
    except (KeyError, TypeError, AttributeError) as error:
        raise CorruptMetadata(
            f"{otherwise} ({type(error).__name__}: {error})", expected=expected, remedy="restore the file; nothing was changed"
        ) from None


def _clustered_groups(body: Mapping[str, Any]) -> list[FileGroupId]:
    groups = body["plan"]["clusteringPlan"]["inputGroups"] or ()
    return [FileGroupId(str(s["partitionPath"] or ""), str(s["fileId"])) for group in groups for s in group["slices"]]


def _first_write(instants: Sequence[Instant], committed: AbstractSet[str]) -> str:
    """Where the active timeline begins: older base files belong to archived commits (11.1). Savepointed commits outlive archival."""
    saved = {i.time for i in instants if i.action is Action.SAVEPOINT}
    return min(committed - saved, default=min(committed, default=""))


def _completion(
    storage: Storage, folders: TimelineFolders, listing: TimelineListing, groups: ListedGroups, committed: CommittedInstants
) -> Callable[[str], str]:
    """Completion times; the history is read only for log files that are older than the active timeline."""
    written = {log.parsed.base_instant for group in groups.values() for log in group.log_files}
    archived = [i for i in written if committed.is_archived(i)]
    times = dict(listing.completion)
    if archived:
        times |= {i.time: i.completion for i in read_history(storage, folders.history, min(archived), max(archived))}
    # A history that forgot an instant leaves the instant itself: writes that slices were begun during are long merged by then.
    return lambda instant: times.get(instant, instant)
