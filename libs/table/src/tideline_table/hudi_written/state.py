"""State of a Hudi-written table, from its timeline files and a listing of its partitions (format reference 4, 11, 16.3)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from datetime import tzinfo

from tideline_table.errors import CorruptMetadata, ObjectNotFound, StorageError, TableIncomplete, UnsupportedTable, parsing
from tideline_table.file_group.partition_listing import list_partitions
from tideline_table.file_group.slice import FileGroupId
from tideline_table.hudi.avro_container import decode_document
from tideline_table.hudi.format import TableFormat
from tideline_table.hudi.formats import format_of, moved_to
from tideline_table.hudi.instant import CLUSTER, WRITE_ACTIONS, Action, Instant, State, time_from_instant
from tideline_table.hudi.listing import TimelineListing, list_timeline
from tideline_table.hudi.properties import TYPE
from tideline_table.hudi.write_stats import LATEST_SCHEMA_KEY, SCHEMA_KEY, CommitMetadata
from tideline_table.hudi.zone import timeline_zone
from tideline_table.hudi_written.recorded import RecordedFiles
from tideline_table.hudi_written.slices import ListedGroup, ListedGroups, listed_groups, slices_of, tried_again
from tideline_table.log.action import ActionRecord
from tideline_table.log.cleaned import CleanedFile, cleaned_files, first_whole
from tideline_table.log.plan import Plan, parse_plan
from tideline_table.log.progress import Progress, progress_in
from tideline_table.log.state import TableState
from tideline_table.reader.log_blocks import VisibleInstants
from tideline_table.schema.identity import history_texts
from tideline_table.storage import ObjectStat, Storage

SCHEMA_FOLDER = ".hoodie/.schema"
SCHEMA_FILE_SUFFIX = ".schemacommit"
_REMOVING = frozenset({Action.CLEAN, Action.ROLLBACK, Action.RESTORE})
_LISTINGS = 5
_COPY_ON_WRITE = "COPY_ON_WRITE"


ListFiles = Callable[[Storage, TableFormat, TimelineListing], Sequence[tuple[str, Sequence[ObjectStat]]] | None]
"""Returns the partitions of a table with this timeline, and their files, from another source than folders; None if it cannot."""


def hudi_written_state(
    storage: Storage, properties: Mapping[str, str] | None = None, list_files: ListFiles = lambda *_: None
) -> TableState:
    """Read the committed file slices and the active timeline of a table with these properties (default: layout 1).

    Folders are listed if `list_files` returns nothing.

    Raises `CorruptMetadata` for malformed timeline files, `UnsupportedTable` for another timeline layout, commits with files that
    Hudi's writers do not name so, or log files in a copy-on-write table, `TableIncomplete` for data files without any instant and
    while an upgrade or downgrade moves the timeline, and `StorageError` if other writers kept removing files meanwhile.
    """
    form = format_of(properties or {})
    state = _listed_state(storage, form, timeline_zone(properties or {}), list_files)
    if (properties or {}).get(TYPE) == _COPY_ON_WRITE:
        logs = (path for file_slice in state.every_slice() for path in file_slice.log_paths)
        for path in logs:
            raise UnsupportedTable(f"log file {path} in a {_COPY_ON_WRITE} table", expected="base files only")
    return state


def _listed_state(storage: Storage, form: TableFormat, zone: tzinfo, list_files: ListFiles) -> TableState:
    listing = list_timeline(storage, form, zone)
    for _ in range(_LISTINGS):
        partitions = list_files(storage, form, listing)
        if partitions is None:
            partitions = [(partition, level.objects) for partition, level in list_partitions(storage)]
        groups = listed_groups(partitions)
        # List again if a clean, rollback or restore began or ended meanwhile: the files it deleted would be missing from the state.
        after = list_timeline(storage, form, zone)
        if _removals(after) == _removals(listing):
            _check_not_moved(storage, form, listing)
            _check_not_empty(form, after, groups)
            try:
                return _state(storage, form, listing, groups, zone)
            except ObjectNotFound:  # an archival, or an upgrade, took a timeline file that was listed
                after = list_timeline(storage, form, zone)
        listing = after
    raise StorageError(f"other processes deleted files during each of {_LISTINGS} listings", remedy="read the table again")


def _check_not_moved(storage: Storage, form: TableFormat, listing: TimelineListing) -> None:
    """Raise `TableIncomplete` if an upgrade or downgrade moves the timeline: the properties change last (versions 8 and 9: 9.1).

    Without the instants that were moved, rows of a part of the writes are missing.
    """
    there, other = {i.time for i in listing.instants}, moved_to(form)
    moved = [i for i in list_timeline(storage, other).instants if i.time not in there]
    if moved:
        raise TableIncomplete(
            f"{len(moved)} instant(s) in {other.timeline_folder}, such as {moved[0].action} {moved[0].time}, and the others in "
            f"{form.timeline_folder}: an upgrade or downgrade by Apache Hudi moves the timeline, or died",
            expected=f"all instants in {form.timeline_folder}, as {form.version_text} says",
            remedy="open the table again when Apache Hudi has ended it; if its process died, restore the timeline from a copy, "
            "because a second attempt may lose the rows of what was moved",
        )


def _check_not_empty(form: TableFormat, listing: TimelineListing, groups: ListedGroups) -> None:
    if not listing.instants and groups:
        raise TableIncomplete(
            f"the timeline in {form.timeline_folder} is empty, and there are {len(groups)} file group(s)",
            expected="the instants of the writes: without them no reader knows which files are committed",
            remedy=f"restore {form.timeline_folder} from a copy; write nothing here before",
        )


def _removals(listing: TimelineListing) -> frozenset[Instant]:
    return frozenset(i for i in listing.instants if i.action in _REMOVING)


@dataclass(slots=True)
class _Found:
    """Content of the timeline files, collected before the state is built."""

    actions: dict[str, ActionRecord] = field(default_factory=dict)
    replaced: dict[FileGroupId, str] = field(default_factory=dict)
    plans: dict[str, Plan] = field(default_factory=dict)
    schemas: dict[str, str] = field(default_factory=dict)
    identified_schemas: tuple[str, ...] = ()
    progress: dict[str, Progress] = field(default_factory=dict)
    retained: str = ""
    cleaned: list[CleanedFile] = field(default_factory=list)
    recorded: RecordedFiles = field(default_factory=RecordedFiles)

    @property
    def newest_schema(self) -> str:
        """The schema after the latest write."""
        return next(reversed(self.schemas.values()), "")

    def state(self) -> TableState:
        """Return the state without the file slices and the fields derived from them."""
        return TableState(
            last_instant=max(self.actions, default=""),
            actions=self.actions,
            replaced=self.replaced,
            plans=self.plans,
            schema_json=self.newest_schema,
            progress=self.progress,
            schemas=self.schemas,
        )


def _state(
    storage: Storage, form: TableFormat, listing: TimelineListing, groups: dict[FileGroupId, ListedGroup], zone: tzinfo
) -> TableState:
    found = _Found()
    named: set[str] = set()
    ambiguous, completion = tried_again(groups), listing.completion
    for number, instant in enumerate(listing.instants):
        if instant.action is Action.SAVEPOINT and instant.time in found.actions:
            continue  # a savepoint shares the instant of the commit that it protects
        operation = _fold(storage, found, listing, instant, named if instant.time in ambiguous else None)
        if instant.state is State.COMPLETED and instant.action is Action.CLEAN:
            _fold_clean(storage, found, listing, instant)
        found.actions[instant.time] = ActionRecord(
            instant.time,
            instant.action,
            instant.state,
            operation,
            number,
            number,
            "",
            _iso(ended := completion.get(instant.time, ""), zone),
            completion=ended,
        )
    state = found.state()
    completed = frozenset(a.instant for a in state.completed_writes())
    first = _first_write(listing.instants, completed)
    committed = VisibleInstants(completed, first, frozenset(a.instant for a in state.pending()))
    found.recorded.add_missing(groups, found.replaced, committed)
    times = _completion(storage, form, listing, groups, committed)
    slices = slices_of(groups, form, committed, state.groups_under_compaction(), times, named)
    whole = first_whole(found.cleaned, {group: by_instant.keys() for group, by_instant in slices.items()}, found.replaced)
    return replace(
        state,
        slices=found.recorded.applied_to(slices),
        identified_schemas=_identified_schemas(storage, listing, found.identified_schemas),
        archived_before=first,
        whole_since=whole,
        last_clean_retained=max(found.retained, whole),
    )


def _iso(completed: str, zone: tzinfo) -> str:
    """Return a completion time in `zone` as the log records times; empty for none, and for instants that are no times."""
    try:
        return time_from_instant(completed, zone).isoformat() if completed else ""
    except CorruptMetadata:
        return ""


def visible_instants(state: TableState) -> VisibleInstants:
    """Return which instants in log block headers are valid, by the state of a Hudi-written table."""
    completed = frozenset(a.instant for a in state.completed_writes())
    return VisibleInstants(completed, state.archived_before, frozenset(a.instant for a in state.pending()))


def _fold(storage: Storage, found: _Found, listing: TimelineListing, instant: Instant, named: set[str] | None) -> str:
    """Add the files of an instant to `found`. Return its operation, if any. Adds the files that a commit names to `named`."""
    if instant.state is State.COMPLETED and instant.action in WRITE_ACTIONS:
        path = listing.path(instant)
        metadata = CommitMetadata.from_bytes(storage.read(path), path)
        metadata.require_hudi_names(path)
        found.recorded.add(metadata.stats)
        if named is not None:
            named.update(stat.path for stat in metadata.stats)
        return _fold_commit(found, instant, metadata)
    planned = {Action.REPLACE_COMMIT, Action.COMPACTION} | ({Action.LOG_COMPACTION} if listing.names_completions else set())
    if instant.action in planned and instant.state is not State.COMPLETED:
        return _fold_plan(storage, found, listing, instant)
    return ""


def _fold_commit(found: _Found, instant: Instant, metadata: CommitMetadata) -> str:
    for partition, file_ids in (metadata.replaced or {}).items():
        for file_id in file_ids:
            found.replaced[FileGroupId(partition, file_id)] = instant.time
    schema = metadata.extra.get(SCHEMA_KEY, "")
    if schema and schema != found.newest_schema and not (metadata.is_rewrite and found.schemas):
        found.schemas[instant.time] = schema
    latest = metadata.extra.get(LATEST_SCHEMA_KEY, "")
    if latest and latest not in found.identified_schemas:
        found.identified_schemas += (latest,)
    found.progress |= progress_in(metadata.extra, instant.time)
    return metadata.operation


def _identified_schemas(storage: Storage, listing: TimelineListing, known: tuple[str, ...]) -> tuple[str, ...]:
    """Return the full schema history, including schemas before the active timeline and before columns had ids."""
    if not known:
        return ()
    files = [o.path for o in storage.list_folder(SCHEMA_FOLDER).objects if o.path.endswith(SCHEMA_FILE_SUFFIX)]
    # Each file repeats the history of earlier files. Skip files of writes that did not complete.
    for path in sorted(files, reverse=True):
        instant = path.rsplit("/", 1)[-1].split(".")[0].split("_")[0]
        if instant in listing.completion or not listing.completion:
            return (*reversed(history_texts(storage.read(path), path)), *known)
    return known


def _fold_clean(storage: Storage, found: _Found, listing: TimelineListing, instant: Instant) -> None:
    """Read the earliest instant that a clean retained, or the files that it deleted if it names no instant."""
    path = listing.path(instant)
    if not (content := storage.read(path)):
        return
    document = decode_document(content, path)
    if retained := str(document.get("earliestCommitToRetain") or ""):
        found.retained = max(found.retained, retained)
        return
    with parsing(f"timeline file {path}", "clean metadata with the files that the clean deleted"):
        names = [(p, str(name)) for p, part in document["partitionMetadata"].items() for name in part["successDeleteFiles"]]
        found.cleaned += cleaned_files(names, str(document.get("lastCompletedCommitTimestamp") or instant.time))


def _fold_plan(storage: Storage, found: _Found, listing: TimelineListing, instant: Instant) -> str:
    path = listing.path(Instant(instant.time, instant.action, State.REQUESTED))
    content = storage.read(path)
    plan = decode_document(content, path) if content else {}
    operation = str(plan.get("operationType") or "")
    if instant.action is Action.REPLACE_COMMIT and operation != CLUSTER:
        return operation
    with parsing(f"timeline file {path}", f"a {instant.action} plan that names file groups"):
        if instant.action is Action.REPLACE_COMMIT:
            plan["clusteringPlan"]["inputGroups"]
        found.plans[instant.time] = parse_plan(instant.action, {"plan": plan})
    return operation


def _first_write(instants: Sequence[Instant], committed: AbstractSet[str]) -> str:
    """Return the start of the active timeline; older base files are of archived commits (11.1). Savepoints delay archival."""
    saved = {i.time for i in instants if i.action is Action.SAVEPOINT}
    return min(committed - saved, default=min(committed, default=""))


def _completion(
    storage: Storage, form: TableFormat, listing: TimelineListing, groups: ListedGroups, committed: VisibleInstants
) -> Callable[[str], str]:
    """Return a function from instant to completion time. Reads the history only if log files are older than the active timeline."""
    written = {form.writer_of(log.parsed) for group in groups.values() for log in group.log_files}
    archived = [i for i in written if i in committed and i not in committed.completed]
    times = dict(listing.completion)
    if archived:
        times |= {i.time: i.completion for i in form.archived_instants(storage, min(archived), max(archived))}
    # If the history has no such instant any more, use the instant: slices that began during such an old write are compacted by now.
    return lambda instant: times.get(instant, instant)
