"""Which partitions a clustering plan considers (`hoodie.clustering.plan.partition.filter.mode`)."""

from __future__ import annotations

from collections.abc import Collection

from tideline_table.config import (
    CLUSTERING_BEGIN_PARTITION,
    CLUSTERING_END_PARTITION,
    CLUSTERING_LOOKBACK_PARTITIONS,
    CLUSTERING_PARTITION_FILTER,
    CLUSTERING_PARTITION_REGEX,
    CLUSTERING_PARTITION_SELECTED,
    CLUSTERING_SKIP_LATEST_PARTITIONS,
    Options,
    column_list,
)
from tideline_table.errors import InvalidOption
from tideline_table.index.java_pattern import java_pattern

_HOURS = 24
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
