"""Copy and checkpoint cover every field of `TableState`: a field that either of them forgets fails here."""

import dataclasses
import json

import pytest

from tideline_table.file_group.slice import FileGroupId, FileSlice, LogFile
from tideline_table.hudi.instant import CLUSTER, Action, State
from tideline_table.hudi.write_stats import CommitMetadata
from tideline_table.log.action import ActionRecord
from tideline_table.log.body import Published
from tideline_table.log.checkpoint import CHECKPOINT_FOLDER, read_opening, write_checkpoint
from tideline_table.log.entry import Entry
from tideline_table.log.metadata import Delta, MetadataPartition, MetadataTable
from tideline_table.log.plan import ClusteringPlanned
from tideline_table.log.progress import Progress
from tideline_table.log.savepoint import Savepoint
from tideline_table.log.sharing import HudiLockKind, Sharing
from tideline_table.log.state import TableState
from tideline_table.log.undo import Rewritten
from tideline_table.storage import MemoryStorage

WRITTEN, PLANNED, GONE = "20260101000000001", "20260101000000002", "20260101000000000"
GROUP, RETIRED = FileGroupId("day=1", "a-0"), FileGroupId("", "b-0")
FILES_PARTITION = MetadataPartition("files", GONE, f"{WRITTEN}001", 5, 1, (Delta(WRITTEN, 6),), f"{GONE}010", (Delta(GONE, 0),))
FIELDS = tuple(f for f in dataclasses.fields(TableState) if f.compare)


def full_state():
    """A state with something in each field."""
    log = LogFile(f".a-0_{WRITTEN}.log.1_0-1-2", 9, PLANNED, 1, deletes_keys=False)
    plan = ClusteringPlanned({"clusteringPlan": {"inputGroups": [{"slices": [{"partitionPath": "day=1", "fileId": "a-0"}]}]}})
    return TableState(
        sequence=7,
        last_instant=PLANNED,
        actions={
            WRITTEN: ActionRecord(WRITTEN, Action.COMMIT, State.COMPLETED, "UPSERT", 3, 2, "w", "2026-01-01T00:00:00+00:00"),
            PLANNED: ActionRecord(PLANNED, Action.REPLACE_COMMIT, State.REQUESTED, CLUSTER, 4, 4, "p", fenced_by="x"),
        },
        slices={
            GROUP: {GONE: FileSlice(GROUP, GONE, "a", 5, 1), WRITTEN: FileSlice(GROUP, WRITTEN, "b", 6, 2, (log,))},
            RETIRED: {WRITTEN: FileSlice(RETIRED, WRITTEN, "c", 7, 3)},
        },
        replaced={RETIRED: PLANNED},
        plans={PLANNED: plan},
        clustering_losses={GROUP: 2},
        schema_json='"long"',
        progress={"topic": Progress("41", WRITTEN)},
        schemas={GONE: '"int"', WRITTEN: '"long"'},
        identified_schemas=('{"version_id": 1}', '{"version_id": 2}'),
        last_clean_retained=GONE,
        whole_since=GONE,
        archived_before=GONE,
        archived_sequence=1,
        excess={GROUP, RETIRED},
        savepoints={WRITTEN: Savepoint(WRITTEN, 6, "2026-01-01", "u", "c", {"topic": Progress("41", WRITTEN)})},
        rewritten=(Rewritten(1, 2, PLANNED),),
        sharing=Sharing(HudiLockKind.STORAGE, 7),
        bucket_numbers={WRITTEN: 8},
        bucket_rules={WRITTEN: "^a,4;.*,8"},
        ring_resizes={WRITTEN: ("day=1", "")},
        ring_clusterings={WRITTEN},
        metadata=MetadataTable((FILES_PARTITION,), 10),
        eager_rollback=GONE,
        unlocked={WRITTEN: "Spark SQL (0.x)"},
        reappended={WRITTEN: PLANNED},
        writers={"Spark SQL (0.x)": "", "Hudi streamer (1.x)": WRITTEN},
    )


OF_A_RELEASE = {
    "format": 1,
    "sequence": 7,
    "last_instant": PLANNED,
    "actions": [
        [WRITTEN, "commit", "completed", "UPSERT", 3, 2, "w", "2026-01-01T00:00:00+00:00", ""],
        [PLANNED, "replacecommit", "requested", "CLUSTER", 4, 4, "p", "", "x"],
    ],
    "slices": [
        ["day=1", "a-0", [[GONE, "a", 5, 1], [WRITTEN, "b", 6, 2, [[f".a-0_{WRITTEN}.log.1_0-1-2", 9, PLANNED, 1, 2]]]]],
        ["", "b-0", [[WRITTEN, "c", 7, 3]]],
    ],
    "replaced": [["", "b-0", PLANNED]],
    "plans": {PLANNED: {"plan": {"clusteringPlan": {"inputGroups": [{"slices": [{"partitionPath": "day=1", "fileId": "a-0"}]}]}}}},
    "clustering_losses": [["day=1", "a-0", 2]],
    "schema": '"long"',
    "last_clean_retained": GONE,
}
"""A checkpoint as the first release wrote it; `SINCE` are keys that later ones added."""
SINCE = {
    "progress": [["topic", "41", WRITTEN]],
    "schemas": {GONE: '"int"', WRITTEN: '"long"'},
    "whole_since": GONE,
    "archived_before": GONE,
    "savepoints": [[WRITTEN, 6, "2026-01-01", "u", "c", [["topic", "41", WRITTEN]]]],
    "rewritten": [[1, 2, PLANNED]],
    "archived_sequence": 1,
    "sharing": {"lock": "storage", "expire_min": 7},
    "metadata": {
        "created": GONE,
        "partitions": ["files"],
        "max_deltas": 10,
        "base": f"{WRITTEN}001",
        "began": 5,
        "deltas": [[WRITTEN, 6]],
        "older_base": f"{GONE}010",
        "older_deltas": [[GONE, 0]],
    },
    "eager_rollback": GONE,
    "unlocked": {WRITTEN: "Spark SQL (0.x)"},
    "reappended": {WRITTEN: PLANNED},
    "writers": {"Spark SQL (0.x)": "", "Hudi streamer (1.x)": WRITTEN},
    "bucket_numbers": {WRITTEN: 8},
    "bucket_rules": {WRITTEN: "^a,4;.*,8"},
    "ring_resizes": {WRITTEN: ["day=1", ""]},
    "ring_clusterings": [WRITTEN],
}


def checkpoint(state):
    storage = MemoryStorage()
    write_checkpoint(storage, state)
    return storage


def read_back(document):
    storage = checkpoint(TableState(sequence=7))
    storage.put(f"{CHECKPOINT_FOLDER}/{7:020d}.json", json.dumps(document).encode())
    return read_opening(storage).state


def test_the_full_state_has_something_in_each_field():
    state, empty = full_state(), TableState()
    assert [f.name for f in FIELDS if getattr(state, f.name) == getattr(empty, f.name)] == []


def test_a_copy_has_the_same_content_and_a_lock_of_its_own():
    state = full_state()
    copy = state.copy()
    assert copy == state
    assert copy._mutex is not state._mutex


@pytest.mark.parametrize("name", [f.name for f in FIELDS])
def test_no_change_to_a_copy_shows_in_the_original(name):
    state = full_state()
    mutable = getattr(state.copy(), name)
    for value in mutable.values() if isinstance(mutable, dict) else ():
        if isinstance(value, dict):
            value.clear()
    if isinstance(mutable, dict | set | list):
        mutable.clear()
    else:
        hash(mutable)  # nothing in it can change
    assert getattr(state, name) == getattr(full_state(), name)


def test_a_commit_that_a_copy_folds_does_not_show_in_the_original():
    state = TableState()
    begun = Entry(1, "a", "", "w", WRITTEN, Action.COMMIT, State.NONE, State.INFLIGHT, "UPSERT")
    state.apply(begun)
    copy = state.copy()
    body = Published(CommitMetadata("UPSERT", (), {"schema": '"double"'}))
    copy.apply(Entry(2, "b", "", "w", WRITTEN, Action.COMMIT, State.INFLIGHT, State.COMPLETED, "UPSERT", body))
    assert copy.schemas == {WRITTEN: '"double"'}
    assert state.schemas == {}


@pytest.mark.parametrize("name", [f.name for f in FIELDS])
def test_a_checkpoint_keeps_each_field(name):
    found = getattr(read_opening(checkpoint(full_state())).state, name)
    assert (type(found), found) == (type(getattr(full_state(), name)), getattr(full_state(), name))


def test_checkpoints_of_earlier_releases_are_read():
    state = full_state()
    state.identified_schemas = ()
    assert read_back(OF_A_RELEASE | SINCE) == state
    first = read_back(OF_A_RELEASE)
    assert (first.slices, first.excess, first.schemas) == (state.slices, state.excess, {"": '"long"'})
    assert (first.sharing, first.progress, first.rewritten, first.archived_before) == (None, {}, (), "")


@pytest.mark.parametrize("name", sorted(OF_A_RELEASE))
def test_a_checkpoint_without_what_every_release_wrote_is_not_used(name):
    assert read_back({key: value for key, value in OF_A_RELEASE.items() if key != name}) == TableState()
