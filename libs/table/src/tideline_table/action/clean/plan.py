"""Cleaning (format reference 14): decide which file slices no retained query reads, and delete the files that a plan names."""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Any

from tideline_table.action.decision import Due, NotDue, obstacle
from tideline_table.config import (
    CLEAN_FILE_VERSIONS_RETAINED,
    CLEAN_HOURS_RETAINED,
    CLEAN_MAX_SHARE,
    CLEAN_POLICY,
    CLEANER_COMMITS_RETAINED,
    Options,
)
from tideline_table.coordination.leases import Lease, kept_since, oldest
from tideline_table.errors import CleanRefused, CorruptMetadata
from tideline_table.file_group.slice import FileGroupId, FileSlice
from tideline_table.hudi.file_names import parse_base_file_name, parse_log_file_name
from tideline_table.hudi.instant import WRITE_ACTIONS, Action, instant_from_time
from tideline_table.log.action import ActionRecord
from tideline_table.log.hidden import hidden_files
from tideline_table.log.plan import CleanPlanned
from tideline_table.log.savepoint import Saved, kept_slices
from tideline_table.log.state import TableState
from tideline_table.log_format.key_index import forget_index
from tideline_table.storage import Storage, checked_path, hudi_root, root_spellings

OPERATION = "CLEAN"
SAVED_KEY = "savepointed_timestamps"
"""Key of extra metadata. With it, Hudi's incremental cleaning finds the slices that deleted savepoints had kept."""
MOST_FILES = 100_000
"""About as many files one plan names: what is left is for the next. A plan of millions would not fit into memory."""
BATCH_FILES = 200
"""Before each batch of so many deletions, the files that must stay are looked up again."""


class CleaningPolicy(enum.StrEnum):
    """What a clean keeps, by Apache Hudi's names."""

    COMMITS = "KEEP_LATEST_COMMITS"
    HOURS = "KEEP_LATEST_BY_HOURS"
    VERSIONS = "KEEP_LATEST_FILE_VERSIONS"


def earliest_retained(state: TableState, retained: int) -> ActionRecord | None:
    """Return the earliest instant whose snapshot stays readable, None if nothing may be cleaned yet.

    It is the first to begin among the last `retained` writes to complete (or the last one before a pending write that began
    earlier): a running query may still read what a long write replaced just now. If writes never overlap, it is Hudi's choice, too.
    """
    completed = state.completed_writes()
    if len(completed) <= retained:
        return None
    earliest = min(sorted(completed, key=lambda a: a.sequence)[len(completed) - retained :], key=lambda a: a.instant)
    return _before_pending(state, completed, earliest)


def earliest_since(state: TableState, moment: datetime) -> ActionRecord | None:
    """Return the earliest instant that queries as of `moment` or later need, None if no write began or completed since then.

    It is the first to begin among the writes that began or completed since, or the last one before a pending write that began
    earlier. If writes never overlap `moment` or each other, it is Hudi's choice, too.
    """
    completed, since = state.completed_writes(), instant_from_time(moment)
    recent = [a for a in completed if a.instant >= since or (a.since and datetime.fromisoformat(a.since) >= moment)]
    return _before_pending(state, completed, recent[0]) if recent else None


def _before_pending(state: TableState, completed: Sequence[ActionRecord], earliest: ActionRecord) -> ActionRecord | None:
    pending = [a.instant for a in state.pending() if a.action in WRITE_ACTIONS]
    if pending and earliest.instant > pending[0]:
        before = [a for a in completed if a.instant < pending[0]]
        return before[-1] if before else None
    return earliest


@dataclass(frozen=True, slots=True)
class Retained:
    """What a clean keeps besides savepoints and pending plans: an earliest instant, or a number of slices of each file group."""

    policy: CleaningPolicy
    text: str
    """The option that says so, for reasons."""
    earliest: ActionRecord | None = None
    versions: int = 0
    held_by: Lease | None = None
    """The reader lease that lets the clean keep more than the policy says."""
    pending: str = ""
    """The instant of the oldest pending write of a shared table, which may append to slices of then. `earliest` is before it."""

    def doomed(self, state: TableState, group: FileGroupId) -> list[FileSlice]:
        """Return the slices of a file group that are not kept."""
        if self.earliest is not None:
            return list(_doomed(state, group, self.earliest.instant))
        found = list(_doomed_versions(state, group, self.versions))
        since = min(filter(None, (self.held_by.instant if self.held_by is not None else "", self.pending)), default="")
        if not since or not found:
            return found
        kept = kept_since(state.slices.get(group, {}), state.replaced.get(group), since)
        return [file_slice for file_slice in found if file_slice.base_instant not in kept]


def retained_by(state: TableState, options: Options, now: datetime, leases: Iterable[Lease] = ()) -> Retained | NotDue:
    """Return what the policy in `options` and the live `leases` keep at the time `now`, or why nothing may be cleaned."""
    policy, completed = CleaningPolicy(options[CLEAN_POLICY]), state.completed_writes()
    lease = oldest(leases)
    if policy is CleaningPolicy.VERSIONS:
        versions = options[CLEAN_FILE_VERSIONS_RETAINED]
        pending = min((a.instant for a in state.pending() if state.sharing and a.action in WRITE_ACTIONS), default="")
        return Retained(policy, f"{CLEAN_FILE_VERSIONS_RETAINED.key}={versions}", versions=versions, held_by=lease, pending=pending)
    if policy is CleaningPolicy.COMMITS:
        retained = options[CLEANER_COMMITS_RETAINED]
        text = f"{CLEANER_COMMITS_RETAINED.key}={retained}"
        if len(completed) <= retained:
            more = f"{retained + 1 - len(completed)} more write(s), or a smaller {CLEANER_COMMITS_RETAINED.key}"
            return NotDue(f"{text} keeps all {len(completed)} completed writes readable", more)
        earliest = earliest_retained(state, retained)
    else:
        hours = options[CLEAN_HOURS_RETAINED]
        text = f"{CLEAN_HOURS_RETAINED.key}={hours}"
        earliest = earliest_since(state, now - timedelta(hours=hours))
        if earliest is None and not any(a.action in WRITE_ACTIONS for a in state.pending()):
            return NotDue(f"no write began or completed in the last {hours} hours, so {text} names no first instant to keep")
    if earliest is None:
        return NotDue("every file is still read by a pending write", "the end of that write")
    if lease is None or lease.instant >= earliest.instant:
        return Retained(policy, text, earliest)
    before = [a for a in completed if a.instant <= lease.instant]
    if not before:
        return NotDue(f"{lease.text}, which is older than every write on the timeline", "the end of that lease")
    return Retained(policy, text, before[-1], held_by=lease)


def plan_clean(
    state: TableState,
    root: str,
    options: Options,
    saved: Saved = MappingProxyType({}),
    now: datetime | None = None,
    leases: Sequence[Lease] = (),
) -> Due | NotDue:
    """Decide whether there is anything to delete, and plan it (HoodieCleanerPlan). The cost grows with groups of excess slices.

    Slices that the `saved` savepoints or the live `leases` keep are left out. `now` is needed for a policy by time. Raises
    `CleanRefused` if the plan would delete more than `tideline.clean.max.deleted.share` allows.
    """
    forbidden = obstacle(state, Action.CLEAN) or _hidden_write(state)
    if forbidden is not None:
        return forbidden
    kept = retained_by(state, options, now or datetime.now(UTC), leases)
    if isinstance(kept, NotDue):
        return kept
    doomed, freed = doomed_slices(state, kept, saved)
    if not doomed:
        held = f"; {kept.held_by.text}" if kept.held_by is not None else ""
        return NotDue(
            f"{kept.text} keeps every file readable, or a pending plan or a pending write needs it{held}",
            f"a write that replaces files, or the end of pending work, or a smaller retention ({CLEAN_POLICY.key})",
        )
    check_share(state, freed, options)
    why = f"{len(state.completed_writes())} completed writes, {kept.text}"
    return Due(CleanPlanned(_document(state, root, kept, doomed, saved)), f"{why}; {kept.held_by.text}" if kept.held_by else why)


def _hidden_write(state: TableState) -> NotDue | None:
    """Return the reason while no reader reads files with acknowledged rows: a clean would delete these rows."""
    hidden = next(iter(hidden_files(state)), None)
    if hidden is None:
        return None
    found = f"write {hidden.instant} of Apache Hudi is hidden behind {hidden.behind}, and a clean may delete its rows"
    return NotDue(found, "its rows are appended again: tideline reappend PATH")


def doomed_slices(state: TableState, kept: Retained, saved: Saved) -> tuple[dict[str, list[FileSlice]], int]:
    """Return slices that nothing keeps, by partition path, up to about `MOST_FILES` files, and the bytes of all such slices.

    Only groups with more than one slice or replaced ones are looked at.
    """
    # Also a log compaction that can only give way: the clean spares the files of its plan, and no later one would know them.
    needed = {*state.groups_under_clustering(), *state.groups_under_compaction(), *state.groups_under_log_compaction()}
    doomed: dict[str, list[FileSlice]] = {}
    files = freed = 0
    for group in sorted(state.excess.difference(needed)):
        protected = kept_slices(state.slices.get(group, {}), state.replaced.get(group), saved) if saved else ()
        for file_slice in kept.doomed(state, group):
            if file_slice.base_instant not in protected:
                freed += file_slice.total_bytes
                if files < MOST_FILES:
                    doomed.setdefault(group.partition_path, []).append(file_slice)
                    files += len(file_slice.paths)
    return doomed, freed


def _document(
    state: TableState, root: str, kept: Retained, doomed: Mapping[str, Sequence[FileSlice]], saved: Saved
) -> dict[str, Any]:
    earliest, completed = kept.earliest, state.completed_writes()
    return {
        "earliestInstantToRetain": None
        if earliest is None
        else {"timestamp": earliest.instant, "action": earliest.action.value, "state": "COMPLETED"},
        "lastCompletedCommitTimestamp": completed[-1].instant if completed else "",
        "policy": kept.policy.value,
        "filesToBeDeletedPerPartition": {},
        "version": 2,
        "filePathsToBeDeletedPerPartition": {
            partition: [{"filePath": f"{hudi_root(root)}/{path}", "isBootstrapBaseFile": False} for s in slices for path in s.paths]
            for partition, slices in doomed.items()
        },
        "partitionsToBeDeleted": [],
        "extraMetadata": {SAVED_KEY: ",".join(sorted(saved))} if saved else {},
    }


def _doomed(state: TableState, group: FileGroupId, earliest: str) -> Iterable[FileSlice]:
    slices = state.slices.get(group, {})
    replaced = state.replaced.get(group)
    if replaced is not None:
        return list(slices.values()) if replaced < earliest else []
    instants = sorted(slices, reverse=True)
    older = [i for i in instants[1:] if i < earliest]
    # The newest slice before the earliest retained instant is read by queries as of that instant.
    if instants[0] >= earliest:
        older = older[1:]
    return [slices[i] for i in older]


def _doomed_versions(state: TableState, group: FileGroupId, versions: int) -> Iterable[FileSlice]:
    slices = state.slices.get(group, {})
    if group in state.replaced:
        return list(slices.values())
    instants = sorted(slices, reverse=True)
    kept = versions
    # A slice without a base file is merged with those below it.
    while kept < len(instants) and not any(slices[i].base_file for i in instants[:kept]):
        kept += 1
    return [slices[i] for i in instants[kept:]]


def check_share(state: TableState, freed: int, options: Options) -> None:
    """Raise `CleanRefused` if a clean that frees so many bytes exceeds the allowed share of the bytes that queries of now read."""
    allowed, live = options[CLEAN_MAX_SHARE], 0
    if not allowed:
        return
    for file_slice in state.each_latest():
        live += file_slice.total_bytes
        if freed <= allowed * live:
            return  # a clean is seldom a large part of the table: the other file groups need no look
    if freed > 0:
        raise CleanRefused(
            f"a clean would delete {freed} bytes of old files, and the table has {live} bytes now",
            expected=f"at most {allowed:g} times as many ({CLEAN_MAX_SHARE.key})",
            remedy="look at the files: tideline plan clean PATH --dry-run --json. To go on: tideline plan clean PATH --option "
            f"{CLEAN_MAX_SHARE.key}=0, then tideline run clean PATH with the same option",
        )


def bytes_of(state: TableState, paths: Collection[str]) -> int:
    """Return how many bytes these files have, as far as the state knows them."""
    sizes = file_sizes(state, groups_of(state, paths))
    return sum(sizes.get(path, 0) for path in paths)


def groups_of(state: TableState, paths: Collection[str]) -> frozenset[FileGroupId]:
    """Return the file groups that may hold these data files: those that their names say.

    Of a file that is not in that one, such as a log file that no commit names, all groups of its partition.
    """
    groups = {group for path in paths if (group := _group_of(path)) is not None}
    held = file_sizes(state, groups)
    return frozenset(groups | state.groups_in(path.rpartition("/")[0] for path in paths if path not in held))


def file_sizes(state: TableState, groups: AbstractSet[FileGroupId]) -> dict[str, int]:
    """Return the size of each data file of these file groups by its path."""
    slices = [s for group in sorted(groups) for s in state.slices.get(group, {}).values()]
    sized = ((s, ([s.size_bytes] if s.base_file else []) + [log.size_bytes for log in s.log_files]) for s in slices)
    return {path: size for s, sizes in sized for path, size in zip(s.paths, sizes, strict=True)}


@dataclass(frozen=True, slots=True)
class CleanResult:
    """The names of the files that a clean deleted, by partition."""

    deleted: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Needed:
    """The paths of files that a clean must keep, by what happens to a plan that names them."""

    refuses: frozenset[str]
    """Files of the latest slices and of savepoints: no plan may name them, so a plan that does is wrong as a whole."""
    spared: frozenset[str] = frozenset()
    """Files that a reader lease or a pending plan needs: the clean leaves them to a later one."""


def execute_clean(
    storage: Storage,
    plan: Mapping[str, Any],
    still_needed: Iterable[FileSlice],
    look_again: Callable[[AbstractSet[FileGroupId]], Needed] | None = None,
    formerly: Iterable[str] = (),
) -> CleanResult:
    """Delete the files that `plan` names; a missing file counts as deleted.

    A plan may be older than a copy or move of the table: it names files below a base path of `formerly`, and they are deleted here.

    Before it deletes anything, refuses a plan that names a file outside of the table, a file that is no data file, or one that is
    visible now or as of a savepoint (`CorruptMetadata`, `UnsafePath`): a wrong plan must not cost committed rows. `look_again` says
    before each batch of deletions what of the file groups of the batch must stay by then.
    """
    paths = _planned_paths((storage.root, *formerly), plan)
    named = {path for _, path in paths}
    _check_none_needed((path for s in still_needed for path in s.paths), named)
    deleted: dict[str, list[str]] = {}
    for batch in _batches(paths):
        groups = {group for _, path in batch if (group := _group_of(path)) is not None}
        needed = look_again(groups) if look_again is not None else Needed(frozenset())
        _check_none_needed([path for _, path in batch], needed.refuses)
        for partition, path in batch:
            if path in needed.spared:
                continue
            # The index first: without its log file, no later clean would find it.
            forget_index(storage, path)
            storage.delete(path)
            deleted.setdefault(partition, []).append(path.rsplit("/", 1)[-1])
    return CleanResult({partition: tuple(names) for partition, names in deleted.items()})


def _planned_paths(roots: Sequence[str], plan: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the partition and the path of each file that the plan names, all of them data files of the table."""
    spellings = [spelling for place in roots for spelling in root_spellings(place)]
    paths: list[tuple[str, str]] = []
    for partition, files in plan["filePathsToBeDeletedPerPartition"].items():
        for file in files:
            uri = file["filePath"]
            root = next((place for place in spellings if uri.startswith(f"{place}/")), None)
            if root is None:
                raise CorruptMetadata(f"clean plan names {uri!r}", expected=f"files below {roots[0]}")
            path = checked_path(uri[len(root) + 1 :])
            name = path.rsplit("/", 1)[-1]
            if path.startswith(".hoodie/") or (parse_base_file_name(name) is None and parse_log_file_name(name) is None):
                raise CorruptMetadata(f"clean plan names {path}, which is no data file", expected="base and log files only")
            paths.append((partition, path))
    return paths


def _group_of(path: str) -> FileGroupId | None:
    """Return the file group of a base or log file, by its folder and its name; None for another file."""
    folder, _, name = path.rpartition("/")
    parsed = parse_base_file_name(name) or parse_log_file_name(name)
    return FileGroupId(folder, parsed.file_id) if parsed is not None else None


def _check_none_needed(paths: Iterable[str], needed: AbstractSet[str]) -> None:
    found = next((path for path in paths if path in needed), None)
    if found is not None:
        raise CorruptMetadata(
            f"clean plan names {found}, which is the latest slice of its file group or one of a savepoint",
            expected="older slices only, that no savepoint keeps",
        )


def _batches(paths: Sequence[tuple[str, str]]) -> Iterator[Sequence[tuple[str, str]]]:
    return (paths[at : at + BATCH_FILES] for at in range(0, len(paths), BATCH_FILES))


def clean_metadata(
    instant: str, plan: Mapping[str, Any], result: CleanResult, duration_ms: int, retained: str = ""
) -> dict[str, Any]:
    """Return the completed document (HoodieCleanMetadata). `retained` is the earliest readable instant if not that of the plan."""
    earliest = plan["earliestInstantToRetain"]
    first = earliest["timestamp"] if earliest else ""
    return {
        "startCleanTime": instant,
        "timeTakenInMillis": duration_ms,
        "totalFilesDeleted": sum(len(names) for names in result.deleted.values()),
        "earliestCommitToRetain": min(retained, first) if retained and first else first,
        "lastCompletedCommitTimestamp": plan["lastCompletedCommitTimestamp"],
        "partitionMetadata": {
            partition: {
                "partitionPath": partition,
                "policy": plan["policy"],
                "deletePathPatterns": list(names),
                "successDeleteFiles": list(names),
                "failedDeleteFiles": [],
                "isPartitionDeleted": False,
            }
            for partition, names in result.deleted.items()
        },
        "version": 2,
        "bootstrapPartitionMetadata": {},
        "extraMetadata": dict(plan.get("extraMetadata") or {}),
    }
