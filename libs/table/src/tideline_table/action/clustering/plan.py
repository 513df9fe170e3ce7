"""Clustering: rewrite small files of a partition into fewer, larger, sorted files (RFC-19).

The plan names every input slice, the number of output files and the sort columns. Execution leaves no choice and can be repeated,
because output file ids derive from the plan. Each task proves before its commit that it kept the rows: equal counts and key hashes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from types import MappingProxyType

import numpy as np
import pyarrow as pa

from tideline_table.action.clustering.column_ranges import Ranges, ReadRanges, no_ranges
from tideline_table.action.clustering.curve import check_columns
from tideline_table.action.clustering.execution_strategy import STRATEGIES as EXECUTION_STRATEGIES
from tideline_table.action.clustering.execution_strategy import OrderedBy
from tideline_table.action.clustering.plan_document import group_document, strategy_params
from tideline_table.action.clustering.plan_strategy import STRATEGIES as PLAN_STRATEGIES
from tideline_table.action.clustering.plan_strategy import Group, PlanContext, PlanStrategy
from tideline_table.action.decision import Due, NotDue, Trigger, obstacle, small_file_limit, taken_groups, within
from tideline_table.config import (
    CLUSTERING_BEGIN_PARTITION,
    CLUSTERING_END_PARTITION,
    CLUSTERING_EXECUTION_STRATEGY,
    CLUSTERING_GROUP_MIN_BYTES,
    CLUSTERING_GROUP_ORDER,
    CLUSTERING_LOOKBACK_PARTITIONS,
    CLUSTERING_MAX_GROUP_BYTES,
    CLUSTERING_MAX_GROUPS,
    CLUSTERING_MIN_INPUT_FILES,
    CLUSTERING_PARTITION_FILTER,
    CLUSTERING_PARTITION_REGEX,
    CLUSTERING_PARTITION_SELECTED,
    CLUSTERING_PLAN_STRATEGY,
    CLUSTERING_QUIET_S,
    CLUSTERING_SKIP_LATEST_PARTITIONS,
    CLUSTERING_SMALL_FILE_LIMIT,
    CLUSTERING_SORT_COLUMNS,
    CLUSTERING_TARGET_FILE_SIZE,
    CLUSTERING_YIELDS,
    LAYOUT_STRATEGY,
    Options,
    column_list,
)
from tideline_table.coordination.priority import planned_update_strategy
from tideline_table.errors import InvalidOption
from tideline_table.file_group.slice import FileSlice, SliceVersion
from tideline_table.hudi.instant import CLUSTER, State
from tideline_table.index.java_pattern import java_pattern
from tideline_table.log.action import ActionRecord
from tideline_table.log.packed import PART_GROUPS
from tideline_table.log.part_summary import PartSummary
from tideline_table.log.plan import PRIORITY_KEY, ClusteringPlanned
from tideline_table.log.state import TableState

_HOURS = 24
_MOST_CANDIDATES = 100_000
"""Candidates that a plan weighs: many times those that it names, and little memory."""
_CHOOSING = (
    CLUSTERING_PARTITION_SELECTED,
    CLUSTERING_PARTITION_REGEX,
    CLUSTERING_PARTITION_FILTER,
    CLUSTERING_LOOKBACK_PARTITIONS,
    CLUSTERING_SKIP_LATEST_PARTITIONS,
    CLUSTERING_BEGIN_PARTITION,
    CLUSTERING_END_PARTITION,
)


def filtered_partitions(partitions: Collection[str], options: Options, mode: str, hour: int) -> frozenset[str]:
    """Return the partition paths that a plan considers.

    First the selected paths or those that match the regular expression, then those of `mode` (empty: as the options say). Days are
    ordered by their paths. `hour` is the present hour of the day in UTC, for DAY_ROLLING. Raises `InvalidOption` for an invalid
    regular expression.
    """
    chosen = sorted(_preselected(partitions, options))
    match mode or options[CLUSTERING_PARTITION_FILTER]:
        case "RECENT_DAYS":
            chosen = _days(chosen, options)[::-1][: options[CLUSTERING_LOOKBACK_PARTITIONS] or None]
        case "OLDEST_DAYS":
            chosen = _days(chosen, options)[: options[CLUSTERING_LOOKBACK_PARTITIONS] or None]
        case "SELECTED_PARTITIONS":
            first, last = options[CLUSTERING_BEGIN_PARTITION], options[CLUSTERING_END_PARTITION]
            chosen = [path for path in chosen if first <= path and (not last or path <= last)]
        case "DAY_ROLLING":
            chosen = chosen[hour::_HOURS]
    return frozenset(chosen)


def filter_text(options: Options, mode: str) -> str:
    """Return what chooses partitions, for a reason: the mode of the plan strategy, and the options that were given."""
    given = options.given()
    named = [f"{option.key}={given[option.key]}" for option in _CHOOSING if option.key in given]
    return "the partition filter (" + ", ".join([mode] * bool(mode) + named) + ")"


def _preselected(partitions: Collection[str], options: Options) -> Collection[str]:
    if options[CLUSTERING_PARTITION_SELECTED]:
        return set(column_list(options[CLUSTERING_PARTITION_SELECTED])).intersection(partitions)
    if not options[CLUSTERING_PARTITION_REGEX]:
        return partitions
    try:
        # The subset that Apache Hudi reads alike, and that takes no exponential time.
        pattern = java_pattern(options[CLUSTERING_PARTITION_REGEX])
    except InvalidOption as error:
        raise InvalidOption(f"option {CLUSTERING_PARTITION_REGEX.key!r}: {error.found}", expected=error.expected) from None
    return [path for path in partitions if pattern.fullmatch(path)]


def _days(paths: list[str], options: Options) -> list[str]:
    return paths[: max(0, len(paths) - options[CLUSTERING_SKIP_LATEST_PARTITIONS])]


def plan_clustering(
    state: TableState,
    root: str,
    options: Options,
    schema: pa.Schema,
    reserved: Collection[str] = (),
    trigger: Trigger | None = None,
    *,
    read_ranges: ReadRanges = no_ranges,
    hour: int = 0,
    quiet_since: str = "",
) -> Due | NotDue:
    """Decide whether a clustering is due, and plan it (HoodieRequestedReplaceMetadata).

    The plan strategy names the candidates and groups them. File groups under another pending plan and file ids in `reserved`
    are left out. Without a `trigger`, a plan is due as soon as a partition has enough candidates. With one, its thresholds and
    its bound apply, too, and no other clustering may be pending. A plan with groups that lost `tideline.clustering.yields`
    times gets priority over writers. `hour`: the present hour of the day in UTC. Without `read_ranges`, a strategy that groups
    by column ranges groups by age, and the plan has no metrics of columns. Raises `SchemaMismatch` for sort columns that the
    table does not have, `InvalidOption` for an unknown strategy.
    """
    if (forbidden := not_now(state, trigger)) is not None:
        return forbidden
    order = checked_order(options, schema)
    strategy = PLAN_STRATEGIES.load(options[CLUSTERING_PLAN_STRATEGY])
    every: list[str] | None = None
    partitions: frozenset[str] | None = None
    if strategy.partition_filter or any(option.key in options.given() for option in _CHOOSING):
        every = state.partition_paths()
        partitions = filtered_partitions(every, options, strategy.partition_filter, hour)
    if every and not partitions:
        return NotDue(
            f"{filter_text(options, strategy.partition_filter)} leaves none of {len(every)} partition(s)",
            "other values of these options",
        )
    min_files = 1 if strategy.single_output else options[CLUSTERING_MIN_INPUT_FILES]
    needed = max(min_files, trigger.min_files if trigger is not None else 0)
    candidates = _candidates(state, options, strategy, reserved, partitions, needed)
    busy = busy_partitions(state, [path for path, found in candidates.items() if len(found) >= needed], quiet_since)
    if busy and not any(len(found) >= needed for path, found in candidates.items() if path not in busy):
        return not_quiet(busy, options)
    quiet = ((path, found) for path, found in candidates.items() if path not in busy)
    partition, found = max(quiet, key=lambda item: len(item[1]), default=("", []))
    if len(found) < needed:
        reason = _too_few(state, options, needed, partition, len(found))
        if partitions is not None and every is not None and len(partitions) < len(every):
            by = f"{filter_text(options, strategy.partition_filter)} leaves {len(partitions)} of {len(every)} partitions"
            reason = replace(reason, reason=f"{reason.reason}; {by}")
        return reason
    if min_files < needed:
        candidates = _candidates(state, options, strategy, reserved, partitions, min_files)
        busy = busy_partitions(state, candidates, quiet_since)
    candidates = {path: found for path, found in candidates.items() if path not in busy}
    limit = trigger.max_bytes if trigger is not None else None
    groups = _groups(state, options, strategy, candidates, min_files, read_ranges, limit)
    if not groups and limit is not None:
        return NotDue(f"no group with enough files has {limit} bytes or less", "a larger budget")
    if not groups:
        return NotDue(
            f"plan strategy {options[CLUSTERING_PLAN_STRATEGY]!r} and {CLUSTERING_MAX_GROUP_BYTES.key}="
            f"{options[CLUSTERING_MAX_GROUP_BYTES]} leave no group with enough files",
            f"a larger {CLUSTERING_MAX_GROUP_BYTES.key}",
        )
    why = f"{len(found)} candidates in partition {partition!r}, {_writes_since_plan(state)} writes since the last plan"
    ranges = read_ranges([s for group in groups for s in group], order.columns)
    return due_plan(state, root, options, groups, why, order, ranges, splits=not strategy.single_output)


def checked_order(options: Options, schema: pa.Schema) -> OrderedBy:
    """Return the order of rows that the options ask for.

    Raises `SchemaMismatch` for sort columns that the table does not have, `InvalidOption` for an unknown strategy.
    """
    columns = tuple(dict.fromkeys(column_list(options[CLUSTERING_SORT_COLUMNS])))
    order = OrderedBy(EXECUTION_STRATEGIES.name_of(options[CLUSTERING_EXECUTION_STRATEGY]), columns, options[LAYOUT_STRATEGY])
    execution = EXECUTION_STRATEGIES.load(order.strategy)
    check_columns(order.columns, schema, on_a_curve=False)
    execution.check(order, schema)
    return order


def free_slices(state: TableState, reserved: Collection[str], visible: Iterable[FileSlice]) -> Iterator[FileSlice]:
    """Yield those of the visible slices that no pending plan takes and that no writer has reserved."""
    taken = taken_groups(state)
    return (s for s in visible if s.group not in taken and s.group.file_id not in reserved)


def due_plan(
    state: TableState,
    root: str,
    options: Options,
    groups: Sequence[Sequence[FileSlice]],
    reason: str,
    order: OrderedBy,
    ranges: Ranges = MappingProxyType({}),
    *,
    splits: bool = True,
) -> Due:
    """Return the plan that clusters these groups of slices, each into files of its own in the given order, for the reason `why`.

    Without `splits`, each group becomes one file, whatever its size. `ranges` are those of the sort columns, as far as they are
    known.
    """
    losses = max(state.clustering_losses.get(s.group, 0) for group in groups for s in group)
    target = options[CLUSTERING_TARGET_FILE_SIZE] if splits else None
    execution = EXECUTION_STRATEGIES.load(order.strategy)
    document = {
        "operationType": CLUSTER,
        "clusteringPlan": {
            "inputGroups": [group_document(group, root, target, order, ranges) for group in groups],
            "strategy": {
                "strategyClassName": execution.class_name or order.strategy,
                "strategyParams": {**strategy_params(order), **planned_update_strategy(options)},
                "version": 1,
            },
            "extraMetadata": {PRIORITY_KEY: "true"} if losses >= options[CLUSTERING_YIELDS] else {},
            "version": 1,
            "preserveHoodieMetadata": True,
        },
        "extraMetadata": {CLUSTERING_PLAN_STRATEGY.key: PLAN_STRATEGIES.name_of(options[CLUSTERING_PLAN_STRATEGY])},
        "version": 1,
    }
    # Plans name no group under compaction, so two fields describe the version.
    read = {s.group: SliceVersion(s.version.base_instant, s.version.log_files) for group in groups for s in group}
    return Due(ClusteringPlanned(document, read), reason)


def _candidates(
    state: TableState,
    options: Options,
    strategy: PlanStrategy,
    reserved: Collection[str],
    partitions: Collection[str] | None,
    least: int,
) -> dict[str, list[FileSlice]]:
    """Return the candidates by partition (None: of all), at most about `_MOST_CANDIDATES`: those of the fullest partitions.

    In a table with many file groups, partitions with fewer than `least` may be missing.
    """
    context, ordered = PlanContext(state, options, {}), sorted(partitions or ())

    def has_enough(part: PartSummary, crowd: int) -> bool:
        at = bisect_left(ordered, part.first)
        is_chosen = partitions is None or (at < len(ordered) and ordered[at] <= part.last)
        return is_chosen and crowd >= least and strategy.may_hold(part, options)

    free = free_slices(state, reserved, state.each_latest(has_enough if least <= PART_GROUPS else None))
    chosen = (s for s in free if (partitions is None or s.group.partition_path in partitions) and strategy.is_candidate(s, context))
    found: dict[str, list[FileSlice]] = {}
    held = 0
    for partition, slices in groupby(chosen, lambda s: s.group.partition_path):
        found[partition] = list(slices)
        held += len(found[partition])
        if held > _MOST_CANDIDATES:
            fullest = sorted(found, key=lambda path: (-len(found[path]), path))
            found = {path: found[path] for path in sorted(fullest[: max(1, len(fullest) // 2)])}
            held = sum(map(len, found.values()))
    return found


def _groups(
    state: TableState,
    options: Options,
    strategy: PlanStrategy,
    candidates: Mapping[str, Sequence[FileSlice]],
    min_files: int,
    read_ranges: ReadRanges,
    limit: int | None,
) -> list[Group]:
    """Return the groups of the plan: with enough files and bytes, in the chosen order, at most as many and as large as allowed."""
    if limit is not None:
        smallest = int(CLUSTERING_MAX_GROUP_BYTES.minimum or 0)
        options = options.merged({CLUSTERING_MAX_GROUP_BYTES.key: max(smallest, min(limit, options[CLUSTERING_MAX_GROUP_BYTES]))})
    enough = {partition: slices for partition, slices in candidates.items() if len(slices) >= min_files}
    ranges = read_ranges([s for slices in enough.values() for s in slices], strategy.columns(options))
    context = PlanContext(state, options, ranges)
    groups: list[Group] = []
    for partition in sorted(enough, key=lambda p: (-len(enough[p]), p)):
        groups += [tuple(g) for g in strategy.groups(enough[partition], context) if len(g) >= min_files]
    groups = [g for g in groups if _bytes(g) >= options[CLUSTERING_GROUP_MIN_BYTES]]
    match options[CLUSTERING_GROUP_ORDER]:
        case "bytes":
            groups.sort(key=lambda g: -_bytes(g))
        case "files":
            groups.sort(key=lambda g: -len(g))
        case "oldest":
            groups.sort(key=lambda g: min(s.base_instant for s in g))
        case "random":  # another order for each plan, and the same one if the plan is decided again on the same state
            groups = [groups[at] for at in np.random.default_rng(state.sequence).permutation(len(groups))]
    return list(within(groups, limit, _bytes))[: options[CLUSTERING_MAX_GROUPS]]


def _bytes(group: Group) -> int:
    return sum(s.total_bytes for s in group)


def not_now(state: TableState, trigger: Trigger | None) -> NotDue | None:
    """Return the reason why a clustering has to wait, None if it need not. One with a `trigger` was not requested by a user."""
    forbidden = obstacle(state)
    if trigger is None or forbidden is not None:
        return forbidden
    pending = state.pending_clusterings()
    if pending:
        return NotDue(f"clustering {pending[0].instant} is pending", f"the end of clustering {pending[0].instant}")
    commits = _writes_since_plan(state, counts_lost=trigger.counts_lost)
    if commits >= trigger.min_commits:
        return None
    return NotDue(
        f"{commits} of {trigger.min_commits} commits since the last plan",
        f"{trigger.min_commits - commits} more write(s), or a smaller planner setting clustering_min_commits",
    )


def busy_partitions(state: TableState, partitions: Iterable[str], since: str) -> set[str]:
    """Return those of the partitions that have files of a write, or of a compaction of writes, after the instant `since`."""
    written = {a.instant for a in state.actions.values() if since and a.instant > since and not a.is_clustering}
    slices = state.latest_slices(partitions=partitions) if written else []
    return {s.group.partition_path for s in slices if written & {s.base_instant, *(log.instant for log in s.log_files)}}


def not_quiet(busy: Collection[str], options: Options) -> NotDue:
    """Return the reason why partitions with candidates are not clustered yet."""
    found = f"{len(busy)} partition(s) with candidates were written within {options[CLUSTERING_QUIET_S]:g} s, {min(busy)!r} is one"
    return NotDue(
        f"{found}: a job of Apache Hudi fails that updates a file group under a pending clustering",
        f"a pause of the writes, or a smaller {CLUSTERING_QUIET_S.key}",
    )


def _writes_since_plan(state: TableState, *, counts_lost: bool = False) -> int:
    plans = (a for a in state.actions.values() if a.is_clustering and (counts_lost or not _is_lost(a)))
    since = max((a.started_sequence for a in plans), default=0)
    return sum(1 for a in state.completed_writes() if a.sequence > since and not a.is_clustering)


def _is_lost(clustering: ActionRecord) -> bool:
    return clustering.state is State.ROLLED_BACK or bool(clustering.fenced_by)


def _too_few(state: TableState, options: Options, needed: int, partition: str, most: int) -> NotDue:
    limit = CLUSTERING_SMALL_FILE_LIMIT
    until = f"{needed - most} more small file(s) in partition {partition!r}" if most else f"{needed} small files in one partition"
    until += ", or a smaller planner setting clustering_min_files"
    if PLAN_STRATEGIES.name_of(options[CLUSTERING_PLAN_STRATEGY]) == "size":
        until += f", or a larger {limit.key}"
        reason = f"no partition has {needed} or more files below {limit.key}={small_file_limit(options)}"
    else:
        reason = f"no partition has {needed} or more candidates of plan strategy {options[CLUSTERING_PLAN_STRATEGY]!r}"
    pending = ", ".join(a.instant for a in state.pending_clusterings())
    return NotDue(f"{reason} besides those of pending plans (pending: {pending})" if pending else reason, until)
