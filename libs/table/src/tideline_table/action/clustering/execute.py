"""Execution of one clustering group: read the slices, order the rows, write the output files, prove that no row was lost.

Rows up to `tideline.clustering.memory.limit` are sorted in memory. Beyond, they are sorted in files (`external_sort`).
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from tideline_table.action.clustering.external_sort import (
    SAMPLE_ROWS,
    Sample,
    pieces,
    sample_rows,
    sort_externally,
    sort_rows,
    strided,
)
from tideline_table.action.clustering.outputs import Outputs
from tideline_table.action.clustering.task import ClusteredGroup, ClusteringTask
from tideline_table.action.receipt import Prover
from tideline_table.action.side_by_side import MemoryBudget
from tideline_table.config import CLUSTERING_MEMORY_LIMIT, Options
from tideline_table.errors import VerificationFailed
from tideline_table.reader.base_file import read_footer
from tideline_table.reader.encoded_slice import encoded, encoded_table
from tideline_table.reader.file_slice import scan_slice
from tideline_table.reader.read_plan import LogRule
from tideline_table.row_digest import RowDigest
from tideline_table.schema.meta_fields import MetaField, with_meta_fields
from tideline_table.storage import Storage, task_storage, writing

_MEMORY_PER_LOG = 10
"""Memory of decoded log rows, compared with their compressed size."""
_MEMORY_PER_DECODED = 4
"""Memory of a group, compared with the values of its base files: dictionaries are expanded, and rows are held with a sorted
copy."""


def cluster_group(
    task: ClusteringTask, storage: Storage | None = None, memory: MemoryBudget | None = None, *, one_thread: bool = True
) -> ClusteredGroup:
    """Read the inputs of one group, sort them and write the outputs; prove that no row was added, dropped or given another key.

    Waits for its share of `memory`, if given. `one_thread`: other tasks use the other processors. Raises `VerificationFailed`
    if the written rows are not those read, `StorageFull` if the temporary folder or the table's is full.
    """
    storage = storage or task_storage(task.base_path)
    task = replace(task, rule=replace(task.rule, one_thread=one_thread))
    limit_bytes = Options(task.options)[CLUSTERING_MEMORY_LIMIT]
    footers = [read_footer(storage, s.path, with_dictionaries=True) for s in task.inputs if s.base_file]
    needed_bytes = _MEMORY_PER_DECODED * sum(footer.decoded_bytes for footer in footers)
    needed_bytes += _MEMORY_PER_LOG * sum(max(log.size_bytes, 0) for s in task.inputs for log in s.applied.log_files)
    if needed_bytes > limit_bytes:
        # It may not fit: let no scan decode far ahead.
        task = replace(task, rule=replace(task.rule, scan_bytes=limit_bytes // 16))
    with (memory or MemoryBudget(limit_bytes)).hold(needed_bytes):
        return _cluster_group(
            task, storage, limit_bytes, encoded(task.rule, with_meta_fields(task.schema), footers, task.order.columns)
        )


def _cluster_group(task: ClusteringTask, storage: Storage, limit_bytes: int, in_memory: LogRule) -> ClusteredGroup:
    proof = Prover.begin(
        "clustering",
        task.instant,
        task.number,
        with_meta_fields(task.schema),
        task.rule.merging.ordering_field,
        Options(task.options),
        one_thread=task.rule.one_thread,
    )
    with ExitStack() as files:
        # Half of the limit for the rows, the other half for their sorted copy.
        rows = _held(_scan(replace(task, rule=in_memory), storage), with_meta_fields(task.schema), limit_bytes // 2, in_memory)
        if rows is not None:
            return _in_memory(task, storage, rows, proof)
        folder = files.enter_context(spill_folder())
        return _in_files(task, storage, Path(folder), limit_bytes, proof)


def spill_folder() -> tempfile.TemporaryDirectory[str]:
    """Return a new folder for rows that do not fit into memory. Raises `StorageFull` or `StorageError` if it cannot be made."""
    with writing(tempfile.gettempdir()):
        return tempfile.TemporaryDirectory(prefix="tideline-clustering-")


def _held(batches: Iterable[pa.RecordBatch], schema: pa.Schema, most_bytes: int, rule: LogRule) -> pa.Table | None:
    held: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        held.append(batch)
        size += batch.nbytes
        if size > most_bytes:
            return None
    return encoded_table(held, schema, rule)


def _in_memory(task: ClusteringTask, storage: Storage, rows: pa.Table, proof: Prover) -> ClusteredGroup:
    _check_bucket(task, rows)
    order = task.order.row_order(strided(rows, SAMPLE_ROWS))
    outputs = Outputs(task, storage, rows.num_rows)
    stats = outputs.written([rows if order is None else sort_rows(rows, order)])
    return ClusteredGroup(task.number, rows.num_rows, tuple(proof.check(storage, rows, stats)))


def _in_files(task: ClusteringTask, storage: Storage, folder: Path, limit_bytes: int, proof: Prover) -> ClusteredGroup:
    columns = list(task.order.columns) or [MetaField.RECORD_KEY.value]
    sample = Sample(sample_rows(limit_bytes))
    for rows in pieces(_scan(task, storage, columns), limit_bytes // 8):
        sample.add(rows)
    schema = with_meta_fields(task.schema)
    chosen = sample.table(pa.schema([schema.field(name) for name in columns]))
    order = task.order.row_order(chosen)
    read: list[RowDigest] = []

    def batches() -> Iterator[pa.RecordBatch]:
        for batch in _scan(task, storage):
            read.append(proof.digest(batch))
            _check_bucket(task, pa.Table.from_batches([batch]))
            yield batch

    ordered: Iterable[pa.Table]
    if order is None:
        ordered = (pa.Table.from_batches([batch]) for batch in batches())
    else:
        ordered = sort_externally(batches, order, chosen, folder, limit_bytes)
    stats = Outputs(task, storage, sample.rows).written(ordered)
    after = [proof.read_back(storage, stat.data_path) for stat in stats]
    before, written = sum(read, RowDigest()), sum(after, RowDigest())
    if written != before or before.rows != sample.rows:
        raise VerificationFailed(
            f"clustering {task.instant}: task {task.number} read {sample.rows} and {before.rows} rows and wrote {written.rows}, "
            "and rows changed",
            expected="files that hold exactly the rows that were read",
            remedy="nothing was committed and the table is as before; check memory and disks of the machine",
        )
    return ClusteredGroup(task.number, before.rows, tuple(proof.proven(stats, after)))


def _check_bucket(task: ClusteringTask, rows: pa.Table) -> None:
    if task.buckets is not None:
        partition, file_id = task.inputs[0].group
        task.buckets.in_partition(partition, task.ring).check_members(file_id, rows.column(MetaField.RECORD_KEY))


def _scan(task: ClusteringTask, storage: Storage, columns: list[str] | None = None) -> Iterator[pa.RecordBatch]:
    schema = with_meta_fields(task.schema)
    for file_slice in task.inputs:
        yield from scan_slice(storage, file_slice, schema, task.rule, columns)
