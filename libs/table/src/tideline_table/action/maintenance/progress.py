"""How far a running rewrite is: the files that its attempt has written, of those that its plan names."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from tideline_table.action.planned_run import attempt_of
from tideline_table.errors import ObjectNotFound
from tideline_table.hudi.file_names import parse_log_file_name
from tideline_table.hudi.instant import State
from tideline_table.log.plan import ClusteringPlanned, CompactionPlanned
from tideline_table.table.facade import Table
from tideline_table.writer.marker import marked_files


@dataclass(frozen=True, slots=True)
class RunProgress:
    """Files of the attempt that runs. A clustering may end below `planned`: a range of keys without rows gets no file."""

    planned: int
    begun: int
    written: int
    written_bytes: int


def run_progress(table: Table, instant: str, sizes: dict[str, int]) -> RunProgress | None:
    """Return how far the attempt at a plan is; None for a plan that no process has begun, and for other actions.

    One listing of the markers, and one request for each marked file that `sizes` does not have: the call adds those that are
    there, because a data file appears at its path when it is whole. Raises `StorageError`.
    """
    planned, record = table.state.plans.get(instant), table.state.actions.get(instant)
    if record is None or record.state is not State.INFLIGHT:
        return None
    if isinstance(planned, ClusteringPlanned):
        groups = (planned.plan.get("clusteringPlan") or {}).get("inputGroups") or ()
        count = sum(int(group.get("numOutputFileGroups") or 0) for group in groups)
    elif isinstance(planned, CompactionPlanned):
        count = len(planned.groups)
    else:
        return None
    own: list[str] = []
    for path in marked_files(table.storage, instant):
        is_carried = isinstance(planned, ClusteringPlanned) and parse_log_file_name(path.rsplit("/", 1)[-1]) is not None
        if is_carried or not (record.is_by_hudi or attempt_of(path) == record.sequence):
            continue
        own.append(path)
        if path not in sizes:
            with suppress(ObjectNotFound):
                sizes[path] = table.storage.stat(path).size_bytes
    written = [sizes[path] for path in own if path in sizes]
    return RunProgress(count, len(own), len(written), sum(written))
