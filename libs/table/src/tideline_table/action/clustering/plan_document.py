"""Clustering groups and strategies as a plan holds them (format reference 6.1)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tideline_table.action.clustering.column_ranges import ColumnRange, Ranges, union
from tideline_table.action.clustering.execution_strategy import OrderedBy, layout_of
from tideline_table.config import CLUSTERING_SORT_COLUMNS, LAYOUT_STRATEGY
from tideline_table.file_group.slice import FileSlice
from tideline_table.storage import hudi_root

_MB = 1024 * 1024
_RANGE_TEXT = 256
"""Longer texts of a minimum or maximum are cut: they inform a reader of the plan and decide nothing."""


def strategy_params(order: OrderedBy) -> dict[str, str]:
    """Return the parameters of the execution strategy.

    Apache Hudi reads the sort columns and takes the layout from its own options.
    """
    if not order.columns:
        return {}  # Apache Hudi would look for a column with an empty name.
    layout = {} if layout_of(order) == "linear" else {LAYOUT_STRATEGY.key: layout_of(order)}
    return {CLUSTERING_SORT_COLUMNS.key: ",".join(order.columns), **layout}


def group_document(
    group: Sequence[FileSlice], root: str, target_bytes: int | None, order: OrderedBy, ranges: Ranges
) -> dict[str, Any]:
    """Return a group (HoodieClusteringGroup) with its metrics. `target_bytes` None: one output file.

    Numeric minima and maxima and null counts of the sort columns are metrics, which are numbers. The texts of all minima and
    maxima and the strategy parameters of the group are extra metadata. They describe base files; rows of log files are not
    included.
    """
    size = sum(s.total_bytes for s in group)
    logs = [log for s in group for log in s.log_files]
    megabytes = float(max(1, round(size / _MB)))
    columns = {name: _whole_range(group, name, ranges) for name in order.columns}
    known = {name: found for name, found in columns.items() if found is not None}
    return {
        "slices": [
            {
                "dataFilePath": f"{hudi_root(root)}/{s.path}" if s.base_file else "",
                "deltaFilePaths": [f"{hudi_root(root)}/{path}" for path in s.log_paths],
                "fileId": s.group.file_id,
                "partitionPath": s.group.partition_path,
                "bootstrapFilePath": "",
                "version": 1,
            }
            for s in group
        ],
        "metrics": {
            "TOTAL_LOG_FILES": float(len(logs)),
            "TOTAL_LOG_FILES_SIZE": float(sum(log.size_bytes for log in logs)),
            "TOTAL_IO_READ_MB": megabytes,
            "TOTAL_IO_WRITE_MB": megabytes,
            "TOTAL_IO_MB": 2 * megabytes,
            **{key: value for name, found in known.items() for key, value in _metrics(name, found).items()},
        },
        "numOutputFileGroups": 1 if target_bytes is None else max(1, math.ceil(size / target_bytes)),
        "extraMetadata": _extra(known, order) or None,
        "version": 1,
    }


def _whole_range(group: Sequence[FileSlice], column: str, ranges: Ranges) -> ColumnRange | None:
    """Return the range over the base files of a group; None if one of them has no known range."""
    found = [ranges.get(s.group, {}).get(column) for s in group if s.base_file]
    known = [f for f in found if f is not None]
    return union(known) if len(known) == len(found) else None


def _metrics(column: str, found: ColumnRange) -> dict[str, float]:
    metrics = {f"COLUMN_NULLS.{column}": float(found.nulls)} if found.nulls >= 0 else {}
    if isinstance(found.minimum, int | float):
        metrics |= {f"COLUMN_MIN.{column}": float(found.minimum), f"COLUMN_MAX.{column}": float(found.maximum)}
    return metrics


def _extra(known: dict[str, ColumnRange], order: OrderedBy) -> dict[str, str]:
    texts = {}
    for name, found in known.items():
        texts[f"tideline.column.min.{name}"] = str(found.minimum)[:_RANGE_TEXT]
        texts[f"tideline.column.max.{name}"] = str(found.maximum)[:_RANGE_TEXT]
    return {**texts, **strategy_params(order)} if texts else {}
