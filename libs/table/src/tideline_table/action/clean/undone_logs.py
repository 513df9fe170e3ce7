"""Change files, and log files that a rollback of Apache Hudi left in a shared table: a clean deletes them with their slice."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from tideline_table.action.clean.plan import file_sizes
from tideline_table.file_group.slice import FileGroupId
from tideline_table.hudi.file_names import CHANGES_SUFFIX, is_log_path, parse_base_file_name, parse_log_file_name
from tideline_table.log.plan import CleanPlanned
from tideline_table.log.state import TableState
from tideline_table.storage import Storage, hudi_root

_LISTED_AT_ONCE = 16


def with_unnamed_logs(storage: Storage, state: TableState, plan: CleanPlanned, *, changes_only: bool) -> CleanPlanned:
    """Return the plan with the files of its slices that the state does not hold: change files, and logs of undone writes.

    Of change files, the plan names those that exist: the metadata table would keep a mark of each other one for ever.

    A rollback before version 8 leaves the log file and appends a block to another one, which a later commit may name. If that one
    alone went, the rows would come back once the file group is no longer known as replaced. No write of today appends to these
    slices: a clean keeps what pending writes have begun on.
    """
    doomed = {of for path in plan.paths if (of := _slice_of(path)) is not None}
    groups = {group for group, _ in doomed}
    whole = {g for g in groups if g in state.replaced and all((g, at) in doomed for at in state.slices.get(g, {}))}
    known, planned = file_sizes(state, groups), dict(plan.plan["filePathsToBeDeletedPerPartition"])
    with ThreadPoolExecutor(_LISTED_AT_ONCE) as pool:
        for (partition, files), folder in zip(planned.items(), pool.map(storage.list_folder, planned), strict=True):
            logs = (found.path for found in folder.objects if is_log_path(found.path) and found.path not in known)
            listed = (path for path in logs if path.endswith(CHANGES_SUFFIX) or not changes_only)
            named = ((path, of) for path in listed if (of := _slice_of(path)) is not None)
            undone = [path for path, of in named if of in doomed or of[0] in whole]
            more = [{"filePath": f"{hudi_root(storage.root)}/{path}", "isBootstrapBaseFile": False} for path in undone]
            planned[partition] = [*files, *more]
    return CleanPlanned({**plan.plan, "filePathsToBeDeletedPerPartition": planned})


def _slice_of(path: str) -> tuple[FileGroupId, str] | None:
    """Return file group and base instant by the name of a data file before version 8."""
    partition, _, name = path.rpartition("/")
    parsed = parse_log_file_name(name) or parse_base_file_name(name)
    return None if parsed is None else (FileGroupId(partition, parsed.file_id), parsed.instant)
