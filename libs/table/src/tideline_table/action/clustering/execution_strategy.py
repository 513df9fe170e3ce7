"""Execution strategies: the order of the rows that a clustering group becomes.

A strategy makes a `RowOrder` from a sample of the group's rows: a function from rows to sort keys. Rows are sorted by their keys,
ascending, with nulls last. The same keys range-partition a group that is larger than memory. `STRATEGIES` has the built-in
strategies. A package adds others as entry points of the group `tideline.clustering.execution`, each an `ExecutionStrategy`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from tideline_table.action.clustering.curve import CurveOrder, check_columns, hilbert_positions, z_order_positions
from tideline_table.config import CLUSTERING_EXECUTION_STRATEGY
from tideline_table.plugin import Strategies

RowOrder = Callable[[pa.Table], pa.Table]
"""Returns the sort keys of rows, in columns: the first one decides, the next one on ties."""


@dataclass(frozen=True, slots=True)
class OrderedBy:
    """The order that a plan asks for: an execution strategy, the sort columns and the layout. A plain value for executors."""

    strategy: str = "sort-and-size"
    columns: tuple[str, ...] = ()
    layout: str = "linear"

    def row_order(self, sample: pa.Table) -> RowOrder | None:
        """Return the order for a group, of which `sample` has rows with the sort columns; None to keep the order of the rows."""
        return STRATEGIES.load(self.strategy).order(self, sample) if self.columns else None


@dataclass(frozen=True, slots=True)
class ExecutionStrategy:
    """An execution strategy. `hoodie.clustering.execution.strategy.class` names it."""

    order: Callable[[OrderedBy, pa.Table], RowOrder]
    """Return the order of rows for a group, given a sample of its rows that has the sort columns."""
    class_name: str = ""
    """The class of Apache Hudi that executes such a plan; empty: none, so that Apache Hudi cannot execute it."""
    check: Callable[[OrderedBy, pa.Schema], None] = lambda _order, _schema: None
    """Raise `SchemaMismatch` if the strategy cannot order by these columns."""


def by_layout(order: OrderedBy, sample: pa.Table) -> RowOrder:
    """Return the order of `hoodie.layout.optimize.strategy`."""
    columns = list(order.columns)
    match layout_of(order):
        case "z-order":
            return CurveOrder.of(sample.select(columns), z_order_positions)
        case "hilbert":
            return CurveOrder.of(sample.select(columns), hilbert_positions)
    return lambda rows: rows.select(columns)


def layout_of(order: OrderedBy) -> str:
    """Return the layout by its name here: linear, z-order or hilbert."""
    return {"zorder": "z-order"}.get(order.layout.lower(), order.layout.lower())


def check_layout(order: OrderedBy, schema: pa.Schema) -> None:
    """Raise `SchemaMismatch` for columns that the layout cannot order."""
    check_columns(order.columns, schema, on_a_curve=layout_of(order) != "linear")


_RUN = "org.apache.hudi.client.clustering.run.strategy"
STRATEGIES = Strategies(
    group="tideline.clustering.execution",
    option=CLUSTERING_EXECUTION_STRATEGY.key,
    kind=ExecutionStrategy,
    built_in={
        "sort-and-size": ExecutionStrategy(by_layout, f"{_RUN}.SparkSortAndSizeExecutionStrategy", check_layout),
        "single-file-sort": ExecutionStrategy(by_layout, f"{_RUN}.SparkSingleFileSortExecutionStrategy", check_layout),
    },
    aliases={
        **dict.fromkeys(
            (
                "SparkSortAndSizeExecutionStrategy",
                "JavaSortAndSizeExecutionStrategy",
                # Both copy files as bytes where they can, and are used without sort columns.
                "SparkBinaryCopyClusteringExecutionStrategy",
                "SparkStreamCopyClusteringExecutionStrategy",
            ),
            "sort-and-size",
        ),
        "SparkSingleFileSortExecutionStrategy": "single-file-sort",
    },
    refused=dict.fromkeys(
        (
            "SparkConsistentBucketClusteringExecutionStrategy",
            "SingleSparkJobConsistentHashingExecutionStrategy",
        ),
        "buckets of a hash ring are split and merged without a plan: tideline resize-buckets PATH",
    ),
)
