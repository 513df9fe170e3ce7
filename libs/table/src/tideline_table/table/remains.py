"""What shows that there is a table although `hoodie.properties`, identity or log is missing: listings on rare paths."""

from __future__ import annotations

from collections.abc import Sequence

from tideline_table.clock import Clock, SystemClock
from tideline_table.coordination import LogReplica
from tideline_table.coordination.shared.leaving import is_leaving
from tideline_table.errors import TableIncomplete
from tideline_table.file_group.partition_listing import PARTITION_METAFILE
from tideline_table.file_group.slice import join_path
from tideline_table.hudi import properties as p
from tideline_table.hudi.file_names import parse_base_file_name, parse_log_file_name
from tideline_table.hudi.formats import UPGRADED, WRITTEN
from tideline_table.hudi.listing import list_timeline, timeline_listing
from tideline_table.log.checkpoint import CHECKPOINT_FOLDER, POINTER, RESTORE_LOG
from tideline_table.log.entry import IDENTITY_PATH, LEAVING_PATH, LOG_FOLDER, TIDELINE_FOLDER, entry_path, sequence_in
from tideline_table.log.state import TableState
from tideline_table.storage import ObjectStat, Storage
from tideline_table.table.definition import TableDefinition, fixed_properties
from tideline_table.table.identity import TableIdentity, create_identity, read_identity

_FOLDERS_READ = 64
"""The most folders that a search for data files lists. The first partition of a table has some."""
_ENTRIES_OF_SHARING = 2
"""A table that begins to be shared gets its identity after so many entries of its log."""


def check_no_remains(storage: Storage, base_path: str) -> None:
    """Raise `TableIncomplete` if files of a table without `hoodie.properties` are here. A creation that did not end leaves none."""
    found = _log_remains(storage, counts_late=True) or _traces(storage)
    if found:
        raise TableIncomplete(
            f"a table at {base_path!r} without {p.PROPERTIES_PATH}: there is {found}",
            expected=f"{p.PROPERTIES_PATH}, which names the keys, the type and the version of the table",
            remedy="restore that file from a copy, or as it was created; for another table, choose another path",
        )


def check_log_stands(replica: LogReplica) -> None:
    """Raise `TableIncomplete` if the loaded log is empty, and the timeline or data files show that it was not always."""
    if replica.state.sequence:
        return
    found = _traces(replica.storage)
    # A writer may have begun the first write during the search.
    if found and not replica.refresh():
        raise TableIncomplete(
            f"the table log in {LOG_FOLDER} is empty, and there is {found}",
            expected=f"{entry_path(1)} or a checkpoint: the log says what the table holds",
            remedy=RESTORE_LOG,
        )


def check_identity_stands(replica: LogReplica) -> None:
    """Raise `TableIncomplete` for a table without an identity that has a table log: `table.json` was lost. Usually one listing.

    A process that died while it shared the table leaves the first entries without an identity. Sharing begins them again. A table
    that was shared, or is returned, since it was opened has lost nothing: it is opened again.
    """
    level = replica.storage.list_folder(TIDELINE_FOLDER)
    folders = {join_path(TIDELINE_FOLDER, name) for name in level.folders}
    if any(found.path in (LEAVING_PATH, IDENTITY_PATH) for found in level.objects):
        return
    if folders.isdisjoint((LOG_FOLDER, CHECKPOINT_FOLDER)) or not _log_remains(replica.storage):
        return
    replica.load()
    if not _begins_sharing(replica.state):
        raise TableIncomplete(
            f"a table log of {replica.state.sequence} entries without {IDENTITY_PATH}",
            expected="that file, which says that the log decides what the table holds",
            remedy="restore it from a copy, or give the table a new identity: tideline adopt PATH",
        )


def renew_identity(storage: Storage, clock: Clock | None = None) -> TableIdentity | None:
    """Create the identity of a table whose log has none, for its present place; return None if it was not lost.

    Raises the errors of `TableDefinition.read` and `TableDefinition.index_text`.
    """
    if read_identity(storage) is not None or is_leaving(storage) or not _log_remains(storage):
        return None
    definition = TableDefinition.read(storage, storage.root)
    return create_identity(storage, clock or SystemClock(), definition.index_text, fixed_properties(definition.properties))


def _begins_sharing(state: TableState) -> bool:
    return state.sequence < _ENTRIES_OF_SHARING or (state.sequence == _ENTRIES_OF_SHARING and state.sharing is not None)


def _traces(storage: Storage) -> str:
    """Return a timeline file or a data file of a table, in words; empty if there is none."""
    level = storage.list_folder(WRITTEN.timeline_folder)
    paths = timeline_listing(WRITTEN, (found.path for found in level.objects)).paths
    if not paths and UPGRADED.timeline_folder.rpartition("/")[2] in level.folders:
        paths = list_timeline(storage, UPGRADED).paths
    if paths:
        return f"timeline file {min(paths.values())}"
    found = _data_file(storage)
    return f"data file {found}" if found else ""


def _is_late(found: Sequence[ObjectStat]) -> bool:
    """Return whether the files of the log are one entry behind its beginning, or those of checkpoints only name the newest one.

    A process that adopted a step was suspended while the table was returned to Apache Hudi's writers (`tideline leave`), and died.
    """
    if [stat.path for stat in found] == [POINTER]:
        return True
    if not found[0].path.startswith(LOG_FOLDER):
        return False
    names = [stat.path.rpartition("/")[2] for stat in found]
    return len(names) == 1 and (sequence_in(names[0].removesuffix(".json")) or 0) > 1


def _log_remains(storage: Storage, *, counts_late: bool = False) -> str:
    """Return a file of a log in words; empty if there is none, or only what came late (`_is_late`) and `counts_late` is not set."""
    for folder, what in ((LOG_FOLDER, "the table log"), (CHECKPOINT_FOLDER, "its checkpoints")):
        found = storage.list_folder(folder).objects
        if found and (counts_late or not _is_late(found)):
            return f"{found[-1].path} of {what}"
    return ""


def _data_file(storage: Storage) -> str:
    waiting = [""]
    for _ in range(_FOLDERS_READ):
        if not waiting:
            break
        folder = waiting.pop()
        level = storage.list_folder(folder)
        for path in (found.path for found in level.objects):
            name = path.rpartition("/")[2]
            if name.startswith(PARTITION_METAFILE) or parse_base_file_name(name) or parse_log_file_name(name):
                return path
        # Names with a backslash are no paths of the storage port, so no partition can be there.
        waiting += [join_path(folder, name) for name in reversed(level.folders) if name != ".hoodie" and "\\" not in name]
    return ""
