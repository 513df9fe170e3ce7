"""State of a table that others wrote: from its timeline files and a listing of its partitions (format reference 4, 11)."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from tideline_table.errors import CorruptMetadata, UnsupportedTable
from tideline_table.file_group.names import parse_base_file_name, parse_log_file_name
from tideline_table.file_group.slice import FileGroupId, FileSlice, join_path
from tideline_table.file_group.state import CLUSTER, ActionRecord, TableState
from tideline_table.storage import Folder, Storage
from tideline_table.timeline.instant import WRITE_ACTIONS, Action, Instant, State, parse_timeline_file_name, timeline_file_name
from tideline_table.timeline.plans import decode_document
from tideline_table.timeline.write_stats import SCHEMA_KEY, CommitMetadata

PARTITION_METAFILE = ".hoodie_partition_metadata"
_ORDER = (State.NONE, State.REQUESTED, State.INFLIGHT, State.COMPLETED)


def timeline_instants(storage: Storage) -> list[Instant]:
    """Each instant at its highest state, in order. Compaction counts as the commit that it becomes."""
    best: dict[tuple[str, Action], Instant] = {}
    for found in storage.list_folder(".hoodie").objects:
        instant = parse_timeline_file_name(found.path.rsplit("/", 1)[-1])
        if instant is None:
            continue
        known = best.get((instant.time, instant.action))
        if known is None or _ORDER.index(known.state) < _ORDER.index(instant.state):
            best[instant.time, instant.action] = instant
    for action, completed_as in ((Action.COMPACTION, Action.COMMIT), (Action.LOG_COMPACTION, Action.DELTA_COMMIT)):
        for time, _ in [k for k in best if k[1] is action and (k[0], completed_as) in best]:
            del best[time, action]
    return sorted(best.values())


def foreign_state(storage: Storage) -> TableState:
    """The committed file slices of a copy-on-write table. Raises `UnsupportedTable` when log files are found."""
    state = TableState()
    instants = timeline_instants(storage)
    for number, instant in enumerate(instants):
        if instant.action is Action.SAVEPOINT and instant.time in state.actions:
            continue  # it shares the instant of the commit that it protects
        operation = ""
        if instant.state is State.COMPLETED and instant.action in WRITE_ACTIONS:
            operation = _fold_commit(storage, state, instant)
        elif instant.state is State.COMPLETED and instant.action is Action.CLEAN:
            _fold_clean(storage, state, instant)
        elif instant.action is Action.REPLACE_COMMIT and instant.state is not State.COMPLETED:
            operation = _fold_pending_replace(storage, state, instant)
        state.actions[instant.time] = ActionRecord(instant.time, instant.action, instant.state, operation, number, number, "")
        state.last_instant = instant.time
    committed = {a.instant for a in state.completed_writes()}
    pending = {a.instant for a in state.pending()}
    first = _first_write(instants, committed)
    for partition, level in _partitions(storage):
        for found in level.objects:
            name = found.path.rsplit("/", 1)[-1]
            if name.endswith(".crc"):
                continue
            if parse_log_file_name(name) is not None:
                raise UnsupportedTable(
                    f"log file {found.path}", expected="base files only: merge-on-read tables cannot be read yet"
                )
            base = parse_base_file_name(name)
            if base is None or not (base.instant in committed or (base.instant < first and base.instant not in pending)):
                continue
            group = FileGroupId(partition, base.file_id)
            state.slices.setdefault(group, {})[base.instant] = FileSlice(group, base.instant, name, found.size_bytes, -1)
    return state


def _fold_commit(storage: Storage, state: TableState, instant: Instant) -> str:
    path = f".hoodie/{timeline_file_name(instant)}"
    metadata = CommitMetadata.from_bytes(storage.read(path), path)
    for partition, file_ids in (metadata.replaced or {}).items():
        for file_id in file_ids:
            state.replaced[FileGroupId(partition, file_id)] = instant.time
    state.schema_json = metadata.extra.get(SCHEMA_KEY) or state.schema_json
    return metadata.operation


def _first_write(instants: Sequence[Instant], committed: AbstractSet[str]) -> str:
    """Where the active timeline begins: older base files belong to archived commits (11.1). Savepointed commits outlive archival."""
    saved = {i.time for i in instants if i.action is Action.SAVEPOINT}
    return min(committed - saved, default=min(committed, default=""))


def _fold_clean(storage: Storage, state: TableState, instant: Instant) -> None:
    path = f".hoodie/{timeline_file_name(instant)}"
    content = storage.read(path)
    retained = decode_document(content, path).get("earliestCommitToRetain") if content else ""
    state.last_clean_retained = max(state.last_clean_retained, str(retained or ""))


def _fold_pending_replace(storage: Storage, state: TableState, instant: Instant) -> str:
    path = f".hoodie/{timeline_file_name(Instant(instant.time, instant.action, State.REQUESTED))}"
    content = storage.read(path)
    plan = decode_document(content, path) if content else {}
    if plan.get("operationType") != CLUSTER:
        return str(plan.get("operationType") or "")
    if not isinstance(plan.get("clusteringPlan"), dict):
        raise CorruptMetadata(f"timeline file {path} has no clustering plan", expected="a plan")
    state.plans[instant.time] = {"plan": plan}
    return CLUSTER


def _partitions(storage: Storage, path: str = "") -> list[tuple[str, Folder]]:
    """Folders that hold a partition metafile, at any depth."""
    level = storage.list_folder(path)
    names = {o.path.rsplit("/", 1)[-1] for o in level.objects}
    found = [(path, level)] if any(n.startswith(PARTITION_METAFILE) for n in names) else []
    for folder in level.folders:
        if folder != ".hoodie":
            found += _partitions(storage, join_path(path, folder))
    return found
