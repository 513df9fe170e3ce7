"""Report what Spark did for one write, from the physical plan and the status tracker."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession

Plan = Any
"""A physical plan node in the JVM."""
_ADAPTIVE = "AdaptiveSparkPlanExec"
"""The node that holds the current plan of adaptive execution."""


@dataclass(frozen=True, slots=True)
class WriteReport:
    """The plan of one attempt and counts of its nodes."""

    plan: str
    source_evaluations: int
    """How often the plan evaluates the source."""
    exchanges: int
    """Shuffles, except those inside the source."""
    broadcasts: int
    """Broadcasts, except those inside the source."""
    python_maps: int
    """Nodes that pass rows to Python, except those inside the source."""
    jobs: int = 0
    """Spark jobs that ran; 0 before the execution."""

    def __str__(self) -> str:
        return (
            f"source evaluations: {self.source_evaluations}\nexchanges: {self.exchanges}\nbroadcasts: {self.broadcasts}\n"
            f"Python maps: {self.python_maps}\nSpark jobs: {self.jobs}\n\n{self.plan}"
        )


def report_of(source: DataFrame, write: DataFrame, key_scans: int, jobs: int = 0) -> WriteReport:
    """Return the report on `write`, the plan of a write of `source` that reads the table's keys with `key_scans` scans."""
    inner = Counter(_kinds(_physical(source)))
    outer = Counter(_kinds(_physical(write)))
    evaluations = (outer["leaf"] - key_scans) // max(1, inner["leaf"])
    own = {kind: outer[kind] - evaluations * inner[kind] for kind in ("exchange", "broadcast", "python")}
    physical = _physical(write)
    final = physical.executedPlan() if _name(physical) == _ADAPTIVE else physical
    plan = str(final.toString())
    return WriteReport(plan, evaluations, own["exchange"], own["broadcast"], own["python"], jobs)


def jobs_with_tag(spark: SparkSession, tag: str) -> int:
    """Return how many Spark jobs ran under a job tag."""
    jvm_context: Any = spark.sparkContext._jsc  # noqa: SLF001 - PySpark's tracker knows job groups only
    return len(jvm_context.sc().statusTracker().getJobIdsForTag(tag))


def _physical(df: DataFrame) -> Plan:
    return df._jdf.queryExecution().executedPlan()  # noqa: SLF001 - PySpark shows plans as text only


def _name(plan: Plan) -> str:
    return str(plan.getClass().getSimpleName())


def _kinds(plan: Plan) -> Iterator[str]:
    name = _name(plan)
    if name == _ADAPTIVE:
        yield from _kinds(plan.executedPlan())
        return
    if name.endswith("QueryStageExec"):
        yield from _kinds(plan.plan())
        return
    children = plan.children()
    if name == "BroadcastExchangeExec":
        yield "broadcast"
    elif name == "ShuffleExchangeExec":
        yield "exchange"
    elif name in ("MapInArrowExec", "MapInPandasExec", "ArrowEvalPythonExec", "BatchEvalPythonExec"):
        yield "python"
    if name == "ReusedExchangeExec":
        return  # computed once already
    if not children.size():
        yield "leaf"
    for position in range(children.size()):
        yield from _kinds(children.apply(position))
