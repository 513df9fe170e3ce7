"""Tasks of a log compaction, one for each slice.

Fold its log, write the result as one log file, and prove that both say the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import pyarrow as pa
import pyarrow.compute as pc

from tideline_table.action.receipt import Prover
from tideline_table.action.side_by_side import MemoryBudget
from tideline_table.config import Options
from tideline_table.errors import VerificationFailed
from tideline_table.file_group.slice import FileSlice, LogFile, join_path
from tideline_table.hudi.file_names import parse_log_file_name, token_behind
from tideline_table.hudi.format import TableFormat
from tideline_table.hudi.write_stats import WriteStat
from tideline_table.reader.file_slice import MergedLog, merged_log, read_slice
from tideline_table.reader.read_plan import LogRule
from tideline_table.row_digest import RowDigest, digest_rows, seed_of
from tideline_table.schema.arrow import one_chunk
from tideline_table.schema.meta_fields import MetaField, with_meta_fields
from tideline_table.storage import Storage, task_storage
from tideline_table.writer.marker import create_marker, log_marker
from tideline_table.writer.merged_log_file import write_merged_log

_MEMORY_PER_LOG = 10
"""Memory of decoded log rows, compared with their compressed size."""


@dataclass(frozen=True, slots=True)
class LogCompactionTask:
    """One slice of a plan, ready to ship to executors. `file_slice` has the log files to merge, in merge order."""

    base_path: str
    instant: str
    number: int
    file_slice: FileSlice
    rule: LogRule
    schema: pa.Schema
    avro_schema: str
    format: TableFormat
    attempt: int = 0
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def version(self) -> int:
        """The version of the log file that the task writes: that of the last one that it merges."""
        return self.file_slice.log_files[-1].version

    @property
    def path(self) -> str:
        """The path of that log file."""
        group = self.file_slice.group
        last = parse_log_file_name(self.file_slice.log_files[-1].name)
        assert last is not None, "the plan names log files"
        token = token_behind(last.write_token, self.attempt, self.instant)
        base = self.file_slice.base_instant
        return join_path(group.partition_path, self.format.log_file_name(group.file_id, base, self.instant, self.version, token))


def merge_log(task: LogCompactionTask, storage: Storage | None = None, memory: MemoryBudget | None = None) -> WriteStat:
    """Write the log file of one task; waits for its share of `memory`, if given.

    Raises `UnsupportedTable`, before it writes, for logs that cannot be merged without base rows, and `VerificationFailed` if
    the file does not say what the merged files say.
    """
    storage = storage or task_storage(task.base_path)
    if memory is None:
        return _merge_log(task, storage)
    stored_bytes = sum(storage.stat(path).size_bytes for path in task.file_slice.log_paths)
    with memory.hold(_MEMORY_PER_LOG * stored_bytes):
        return _merge_log(task, storage)


def _merge_log(task: LogCompactionTask, storage: Storage) -> WriteStat:
    schema, read, options = with_meta_fields(task.schema), task.file_slice, Options(task.options)
    proof = Prover.begin("logcompaction", task.instant, task.number, schema, task.rule.merging.ordering_field, options)
    log = merged_log(storage, read, schema, task.rule)
    path = task.path
    create_marker(storage, task.instant, path, log_marker(task.format))
    # A partial record shows values of other files, too, and statistics have to cover the rows that readers see.
    keys = [rows.column(MetaField.RECORD_KEY) for rows in log.parts]
    shown = [read_slice(storage, read, schema, task.rule, keys=one_chunk(each)) for each in keys]
    written = write_merged_log(storage, path, log, read.group.partition_path, task.avro_schema, task.instant, options, shown)
    count = log.padded.num_rows
    stat = WriteStat(
        file_id=read.group.file_id,
        partition_path=read.group.partition_path,
        path=path,
        prev_commit=read.base_instant,
        num_writes=count,
        file_size_bytes=written.size_bytes,
        num_updates=count,
        num_deletes=log.deleted.num_rows,
        base_file=read.base_file,
        log_files=(*(log.name for log in read.log_files), path.rsplit("/", 1)[-1]),
        log_version=task.version,
        log_files_compacted=len(read.log_files),
        statistics=written.statistics,
        record=written.record,
    )
    return _proven(task, storage, schema, log, stat, proof)


def _proven(
    task: LogCompactionTask, storage: Storage, schema: pa.Schema, log: MergedLog, stat: WriteStat, proof: Prover
) -> WriteStat:
    """Read the file back as readers do, and compare its rows and its deletions with those of the merged files."""
    written = LogFile(stat.path.rsplit("/", 1)[-1], stat.file_size_bytes, task.instant, task.version, record=stat.record)
    # What the query of the table does not see yet is visible here.
    rule = replace(task.rule, visible=None)
    again = merged_log(storage, replace(task.file_slice, base_file="", log_files=(written,)), schema, rule)
    digest = proof.digest(log.padded)
    columns, found = ([(part.column_names, part.num_rows) for part in each.parts] for each in (log, again))
    if proof.digest(again.padded) != digest or columns != found:
        raise proof.differs(log.padded, again.padded, [stat.path])
    if _deletions(log, seed_of(task.instant)) != _deletions(again, seed_of(task.instant)):
        raise VerificationFailed(
            f"logcompaction {task.instant}: task {task.number} changed deletions: {log.deleted.num_rows} were read and "
            f"{again.deleted.num_rows} are in {stat.path}, or their ordering values differ",
            expected="a file with exactly the deletions that were read",
            remedy="nothing was committed and the table is as before; report it",
        )
    (proven,) = proof.proven([stat], [digest])
    return proven


def _deletions(log: MergedLog, seed: int) -> RowDigest:
    """Return the digest of the deletions: keys, whether they are purged, and the ordering values of those that are not."""
    columns = {"key": log.deleted.column("key"), "purged": pa.array(log.purged)}
    if "ordering" in log.deleted.column_names:
        ordering = log.deleted.column("ordering")
        columns["ordering"] = pc.if_else(pa.array(log.purged), pa.scalar(None, ordering.type), ordering)
    return digest_rows(pa.table(columns), list(columns), seed)
