"""Plan strategies: which file slices of a partition are candidates, and which of them one group rewrites together (RFC-19).

A strategy is pure: it takes slices and the ranges of their columns and returns groups. `STRATEGIES` has the built-in ones. A
package adds others as entry points of the group `tideline.clustering.plan`, each a `PlanStrategy`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tideline_table.action.clustering.column_ranges import ColumnRange, Ranges
from tideline_table.action.decision import small_file_limit
from tideline_table.config import (
    CLUSTERING_EARLIEST_COMMIT,
    CLUSTERING_MAX_GROUP_BYTES,
    CLUSTERING_PLAN_STRATEGY,
    LAYOUT_STRATEGY,
    Options,
    column_list,
)
from tideline_table.config import CLUSTERING_SORT_COLUMNS as SORT_COLUMNS
from tideline_table.file_group.slice import FileSlice
from tideline_table.log.part_summary import PartSummary
from tideline_table.log.state import TableState
from tideline_table.plugin import Strategies
from tideline_table.schema.meta_fields import MetaField

Group = tuple[FileSlice, ...]


@dataclass(frozen=True, slots=True)
class PlanContext:
    """What a strategy may consult: the table's state, the options, and the ranges of the columns that the strategy named."""

    state: TableState
    options: Options
    ranges: Ranges

    def range_of(self, file_slice: FileSlice, column: str) -> ColumnRange | None:
        """Return the range of a column in the base file of a slice, None if unknown."""
        return self.ranges.get(file_slice.group, {}).get(column)


@dataclass(frozen=True, slots=True)
class PlanStrategy:
    """A plan strategy. `hoodie.clustering.plan.strategy.class` names it."""

    is_candidate: Callable[[FileSlice, PlanContext], bool]
    """Return whether a slice is a candidate. Called without ranges."""
    groups: Callable[[Sequence[FileSlice], PlanContext], Sequence[Group]]
    """Return groups of the candidates of one partition. Each slice is in at most one group."""
    columns: Callable[[Options], tuple[str, ...]] = lambda _options: ()
    """Return the columns whose ranges `groups` consults."""
    partition_filter: str = ""
    """A partition filter mode that overrides the option; empty: none."""
    may_hold: Callable[[PartSummary, Options], bool] = lambda *_: True
    """Return whether file groups with this summary may have candidates."""
    single_output: bool = False
    """Whether each group becomes one file, whatever the target size, and may consist of one slice."""


def is_small(file_slice: FileSlice, context: PlanContext) -> bool:
    """Return whether the base file and log files of a slice together are small."""
    return file_slice.total_bytes < small_file_limit(context.options)


def has_small(part: PartSummary, options: Options) -> bool:
    """Return whether one of the file groups may be small."""
    return part.small(small_file_limit(options)) != 0


def by_size(slices: Sequence[FileSlice], context: PlanContext) -> list[Group]:
    """Return groups of consecutive slices, oldest first, of up to `hoodie.clustering.plan.strategy.max.bytes.per.group`."""
    return _bounded(sorted(slices, key=_age), context.options[CLUSTERING_MAX_GROUP_BYTES])


def by_key_range(slices: Sequence[FileSlice], context: PlanContext) -> list[Group]:
    """Return groups of slices that are neighbours by their smallest record key; slices without known keys follow, by age."""
    known = [(found, s) for s in slices if (found := context.range_of(s, MetaField.RECORD_KEY)) is not None]
    ordered = [s for _, s in sorted(known, key=lambda pair: (pair[0].minimum, pair[0].maximum, pair[1].group))]
    rest = [s for s in slices if context.range_of(s, MetaField.RECORD_KEY) is None]
    limit = context.options[CLUSTERING_MAX_GROUP_BYTES]
    return _bounded(ordered, limit) + _bounded(sorted(rest, key=_age), limit)


def by_overlap(slices: Sequence[FileSlice], context: PlanContext) -> list[Group]:
    """Return groups of slices whose ranges of the sort columns overlap, directly or through others of the group.

    Slices that overlap with no other one stay as they are, and so does a group whose slices are all outputs of one clustering,
    which has sorted them. Slices without known ranges (log files only, no statistics) are grouped by age.
    """
    columns = overlap_columns(context.options)
    known = [s for s in slices if all(context.range_of(s, c) is not None for c in columns)]
    grouped = frozenset(s.group for s in known)
    limit = context.options[CLUSTERING_MAX_GROUP_BYTES]
    groups = [part for found in _components(known, columns, context) for part in _bounded(found, limit)]
    unknown = sorted((s for s in slices if s.group not in grouped), key=_age)
    return [g for g in groups if not _is_clustered(g, context.state)] + _bounded(unknown, limit)


def overlap_columns(options: Options) -> tuple[str, ...]:
    """Return the columns that must all overlap: the first sort column of a linear order, all of a curve, else the record key."""
    columns = column_list(options[SORT_COLUMNS])
    if not columns:
        return (MetaField.RECORD_KEY.value,)
    return columns[:1] if options[LAYOUT_STRATEGY].lower() == "linear" else columns


def one_each(slices: Sequence[FileSlice], context: PlanContext) -> list[Group]:
    """Return a group for each slice that no clustering has sorted yet."""
    return [(s,) for s in sorted(slices, key=_age) if not _is_clustered((s,), context.state)]


def is_after_earliest_commit(file_slice: FileSlice, context: PlanContext) -> bool:
    """Return whether a commit after the earliest one wrote the slice, and not a clustering."""
    at = file_slice.base_instant
    record = context.state.actions.get(at)
    return at > context.options[CLUSTERING_EARLIEST_COMMIT] and (record is None or not record.is_clustering)


def has_later(part: PartSummary, options: Options) -> bool:
    """Return whether one of the file groups may have been written after the earliest commit."""
    return part.newest > options[CLUSTERING_EARLIEST_COMMIT]


def _components(slices: Sequence[FileSlice], columns: Sequence[str], context: PlanContext) -> list[list[FileSlice]]:
    """Return the connected components of overlap with at least two slices, each ordered by its first column."""
    boxes = {s.group: [_range(context, s, c) for c in columns] for s in slices}
    ordered = sorted(slices, key=lambda s: (boxes[s.group][0].minimum, boxes[s.group][0].maximum, s.group))
    leader = {s.group: s.group for s in slices}
    active: list[FileSlice] = []
    for current in ordered:
        box = boxes[current.group]
        # A range that ended before this one begins overlaps with no later one either.
        active = [s for s in active if boxes[s.group][0].maximum >= box[0].minimum]
        for other in active:
            if all(own.overlaps(theirs) for own, theirs in zip(box, boxes[other.group], strict=True)):
                _join(leader, other.group, current.group)
        active.append(current)
    found: dict[object, list[FileSlice]] = {}
    for file_slice in ordered:
        found.setdefault(_leader(leader, file_slice.group), []).append(file_slice)
    return [component for component in found.values() if len(component) > 1]


def _range(context: PlanContext, file_slice: FileSlice, column: str) -> ColumnRange:
    found = context.range_of(file_slice, column)
    assert found is not None
    return found


def _leader(leader: dict, item: object) -> object:  # type: ignore[type-arg]
    while leader[item] != item:
        leader[item] = leader[leader[item]]
        item = leader[item]
    return item


def _join(leader: dict, one: object, other: object) -> None:  # type: ignore[type-arg]
    leader[_leader(leader, other)] = _leader(leader, one)


def _is_clustered(group: Group, state: TableState) -> bool:
    instants = {s.base_instant for s in group}
    record = state.actions.get(group[0].base_instant)
    return len(instants) == 1 and record is not None and record.is_clustering and not any(s.log_files for s in group)


def _age(file_slice: FileSlice) -> tuple[str, object]:
    return file_slice.base_instant, file_slice.group


def _bounded(slices: Sequence[FileSlice], max_bytes: int) -> list[Group]:
    groups: list[Group] = []
    current: list[FileSlice] = []
    size = 0
    for file_slice in slices:
        if current and size + file_slice.total_bytes > max_bytes:
            groups.append(tuple(current))
            current, size = [], 0
        current.append(file_slice)
        size += file_slice.total_bytes
    return [*groups, tuple(current)] if current else groups


STRATEGIES = Strategies(
    group="tideline.clustering.plan",
    option=CLUSTERING_PLAN_STRATEGY.key,
    kind=PlanStrategy,
    built_in={
        "size": PlanStrategy(is_small, by_size, may_hold=has_small),
        "recent-days": PlanStrategy(is_small, by_size, partition_filter="RECENT_DAYS", may_hold=has_small),
        "selected-partitions": PlanStrategy(is_small, by_size, partition_filter="SELECTED_PARTITIONS", may_hold=has_small),
        "key-range": PlanStrategy(is_small, by_key_range, columns=lambda _: (MetaField.RECORD_KEY.value,), may_hold=has_small),
        "overlap": PlanStrategy(lambda *_: True, by_overlap, columns=overlap_columns),
        "commit-time": PlanStrategy(is_after_earliest_commit, by_size, may_hold=has_later),
        "single-file": PlanStrategy(is_small, one_each, may_hold=has_small, single_output=True),
    },
    aliases={
        **dict.fromkeys(
            (
                "SparkSizeBasedClusteringPlanStrategy",
                "JavaSizeBasedClusteringPlanStrategy",
                "FlinkSizeBasedClusteringPlanStrategy",
                "SparkStreamCopyClusteringPlanStrategy",
                "SparkRegexMatchPartitionsClusteringPlanStrategy",
            ),
            "size",
        ),
        "SparkRecentDaysClusteringPlanStrategy": "recent-days",
        "JavaRecentDaysClusteringPlanStrategy": "recent-days",
        "FlinkRecentDaysClusteringPlanStrategy": "recent-days",
        "SparkSelectedPartitionsClusteringPlanStrategy": "selected-partitions",
        "CommitBasedClusteringPlanStrategy": "commit-time",
        "SparkSingleFileSortPlanStrategy": "single-file",
    },
    refused=dict.fromkeys(
        (
            "SparkConsistentBucketClusteringPlanStrategy",
            "FlinkConsistentBucketClusteringPlanStrategy",
        ),
        "buckets of a hash ring are split and merged without a plan: tideline resize-buckets PATH",
    ),
)
