"""Clustering groups on the executors.

A large group is several tasks that exchange rows by Spark's shuffle (`tideline_table`: `ranges`).

Rows pass through the JVM as bytes of Arrow streams, so that it needs no type for them and no order: both are those of the engine.
"""

from __future__ import annotations

import logging
import math
import pickle
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from pyspark import RDD, Broadcast, SparkContext
from pyspark.serializers import CPickleSerializer, pack_long

from tideline_spark.jobs import outcome_of, results_of, run_each
from tideline_table.action import (
    ClusteredGroup,
    ClusteringTask,
    RangeSplit,
    Sent,
    cluster_group,
    is_split,
    ranged_rows,
    sample_slice,
    split_ranges,
    whole_group,
    write_range,
)
from tideline_table.config import Options
from tideline_table.errors import TidelineError

_LOGGER = logging.getLogger(__name__)
_READER_BYTES = 64 * 1024 * 1024
"""Input of a task that reads small slices."""


@dataclass(frozen=True, slots=True)
class _Slice:
    """One slice of a split group; `group` is the number of the group in the plan."""

    group: int
    task: ClusteringTask
    """The group with this slice only."""
    number: int
    slices: int


@dataclass(frozen=True, slots=True)
class _Range:
    """One range of a split group, the work of one task behind the exchange."""

    group: int
    number: int


_Work = _Range | ClusteringTask
_Splits = dict[int, RangeSplit]


def cluster_on_executors(context: SparkContext, tasks: Sequence[ClusteringTask]) -> list[ClusteredGroup]:
    """Run the groups of a plan, large ones as several tasks each; return results in order of the groups.

    Raises the `TidelineError` of the first task that has one, and what Spark raises. Spark retries transient errors before that.
    """
    large = {t.number: t for t in tasks if is_split(t.input_bytes, t.output_files, Options(t.options))}
    if not large:
        return run_each(context, tasks, cluster_group)
    splits = _split(context, large)
    for number, task in large.items():
        fields = {"group": number, "rows": splits[number].rows, "slices": len(task.inputs), "ranges": task.output_files}
        _LOGGER.info("a large group is split by ranges of its sort order", extra=fields)
    works: list[_Work] = [_Range(number, at) for number, task in large.items() for at in range(task.output_files)]
    works += [task for task in tasks if task.number not in large]
    with _shared(context, splits) as shared:
        found = list(zip(works, results_of(_exchanged(context, large, shared, works)), strict=True))
    results = {work.number: result for work, result in found if isinstance(work, ClusteringTask)}
    for number, task in large.items():
        ranges = [result for work, result in found if isinstance(work, _Range) and work.group == number]
        results[number] = whole_group(task, splits[number], ranges)
    return [results[task.number] for task in tasks]


def _split(context: SparkContext, groups: Mapping[int, ClusteringTask]) -> _Splits:
    """Return the ranges of each group, from samples that one job reads."""
    slices = _slices(groups)
    samples = list(zip(slices, run_each(context, slices, _sampled, _readers(context, groups)), strict=True))
    return {number: split_ranges(task, [s for of, s in samples if of.group == number]) for number, task in groups.items()}


def _slices(groups: Mapping[int, ClusteringTask]) -> list[_Slice]:
    return [
        _Slice(number, replace(task, inputs=(file_slice,)), at, len(task.inputs))
        for number, task in groups.items()
        for at, file_slice in enumerate(task.inputs)
    ]


def _readers(context: SparkContext, groups: Mapping[int, ClusteringTask]) -> int:
    """Return the number of tasks that read the slices of the groups: a task costs as much as a slice of a few MiB."""
    slices = sum(len(task.inputs) for task in groups.values())
    by_size = math.ceil(sum(task.input_bytes for task in groups.values()) / _READER_BYTES)
    return min(slices, max(context.defaultParallelism, by_size))


@contextmanager
def _shared(context: SparkContext, splits: _Splits) -> Iterator[Broadcast[_Splits]]:
    shared = context.broadcast(splits)
    try:
        yield shared
    finally:
        shared.destroy()


def _exchanged(
    context: SparkContext, groups: Mapping[int, ClusteringTask], splits: Broadcast[_Splits], works: Sequence[_Work]
) -> list[Any]:
    """Run one job: its first stage reads the slices, its second one has a task for each of `works`; return their outcomes in order.

    PySpark's `RDD.partitionBy` would collect up to a thousand pieces in memory before it passes them on, so the exchange is
    built from its parts: a stream of partition numbers and values in turn.
    """
    places = {work: at for at, work in enumerate(works) if isinstance(work, _Range)}
    slices = _slices(groups)
    sent: Any = context.parallelize(slices, _readers(context, groups)).mapPartitions(partial(_framed, splits, places))
    sent._bypass_serializer = True  # noqa: SLF001 - see above
    jvm: Any = context._jvm  # noqa: SLF001
    pairs = jvm.PairwiseRDD(sent._jrdd.rdd()).asJavaPairRDD()  # noqa: SLF001
    by_work = jvm.PythonRDD.valueOfPair(pairs.partitionBy(jvm.PythonPartitioner(len(works), 0)))
    received: RDD[Any] = RDD(by_work, context, CPickleSerializer())
    return received.mapPartitionsWithIndex(partial(_worked, splits, works)).collect()


def _sampled(piece: _Slice) -> Any:
    return sample_slice(piece.task, piece.number, piece.slices)


def _framed(splits: Broadcast[_Splits], places: Mapping[_Range, int], slices: Iterable[_Slice]) -> Iterator[bytes]:
    """Yield partition numbers and pickled values in turn."""
    for piece in slices:
        rows = ranged_rows(splits.value[piece.group], piece.task, piece.number)
        while (found := outcome_of(partial(next, rows, None))) is not None:
            # Every range learns of an error, so that none is written without these rows.
            sent = [(at, found) for at in range(piece.task.output_files)] if isinstance(found, TidelineError) else [found]
            for number, value in sent:
                yield pack_long(places[_Range(piece.group, number)])  # type: ignore[no-untyped-call]
                yield pickle.dumps(value)


def _worked(
    splits: Broadcast[_Splits],
    works: Sequence[_Work],
    index: int,
    received: Iterable[Sent | TidelineError],
) -> Iterator[Any]:
    work = works[index]
    if isinstance(work, _Range):
        yield outcome_of(lambda: write_range(splits.value[work.group], work.number, _without_errors(received)))
    else:
        yield outcome_of(lambda: cluster_group(work))


def _without_errors(received: Iterable[Sent | TidelineError]) -> Iterator[Sent]:
    for sent in received:
        if isinstance(sent, TidelineError):
            raise sent
        yield sent
