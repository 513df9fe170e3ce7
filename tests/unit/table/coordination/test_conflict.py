"""Writes and clusterings of the matrix in `docs/conflicts.md`, case by case."""

import numpy as np
import pytest
from tests.unit.table.tables import History, base_stat, instant, log_stat

from tideline_table.coordination.conflict import SliceGrew, find_conflict
from tideline_table.coordination.write_set import UPDATE_STRATEGIES, InsertedKeys, Overwrite, WriteSet
from tideline_table.errors import TransactionRolledBack, WriteConflict
from tideline_table.file_group.slice import FileGroupId, SliceVersion
from tideline_table.hudi.instant import Action

G, H = FileGroupId("p", "g-0"), FileGroupId("p", "h-0")
OWN, OTHER = instant(10), instant(11)


def hashes(*numbers):
    return np.array(sorted(numbers), dtype=np.uint64)


OWNS = {
    "update": WriteSet(OWN, {G: SliceVersion(instant(1), 0)}),
    "append": WriteSet(OWN, {G: SliceVersion(instant(1), 0)}, appends=frozenset({G})),
    "rejected update": WriteSet(OWN, {G: SliceVersion(instant(1), 0)}, update_strategy=UPDATE_STRATEGIES["reject"]),
    "overwrite": WriteSet(OWN, overwrites=Overwrite(frozenset({"p"}))),
    "insert": WriteSet(OWN, {}, hashes(1, 2, 3)),
    "move": WriteSet(OWN, {G: SliceVersion(instant(1), 0)}, hashes(1, 2, 3)),
    "clustering": WriteSet(OWN, {G: SliceVersion(instant(1), 0)}, update_strategy=None),
}


def same_group_written(history):
    history.commit(OTHER, base_stat("g-0", OTHER))
    return []


def same_group_appended(history):
    history.commit(OTHER, log_stat("g-0", instant(1)))
    return []


def other_group_appended(history):
    history.commit(OTHER, log_stat("h-0", instant(1)))
    return []


def same_group_compaction_planned(history):
    history.plan_compaction(OTHER, [G])
    return []


def other_group_compaction_planned(history):
    history.plan_compaction(OTHER, [H])
    return []


def same_group_compacted(history):
    history.plan_compaction(OTHER, [G])
    history.run_compaction(OTHER, base_stat("g-0", OTHER))
    return []


def other_group_written(history):
    history.commit(OTHER, base_stat("h-0", OTHER))
    return []


def same_key_inserted(history):
    history.commit(OTHER, base_stat("n-0", OTHER))
    return [InsertedKeys(OTHER, hashes(3, 9))]


def other_key_inserted(history):
    history.commit(OTHER, base_stat("n-0", OTHER))
    return [InsertedKeys(OTHER, hashes(4, 9)), InsertedKeys(OTHER, None)]


def same_group_clustered(history):
    history.plan_clustering(OTHER, [G])
    history.start_clustering(OTHER)
    history.complete(OTHER, base_stat("c-0", OTHER), replaced={"p": ["g-0"]})
    return []


def other_group_clustered(history):
    history.plan_clustering(OTHER, [H])
    history.start_clustering(OTHER)
    history.complete(OTHER, base_stat("c-0", OTHER), replaced={"p": ["h-0"]})
    return []


def other_partition_overwritten(history):
    history.begin(OTHER, Action.REPLACE_COMMIT)
    history.complete(OTHER, base_stat("n-0", OTHER), replaced={"q": []})
    return []


def partition_overwritten(history):
    history.begin(OTHER, Action.REPLACE_COMMIT)
    history.complete(OTHER, base_stat("n-0", OTHER), replaced={"p": ["g-0", "h-0"]})
    return []


def clustering_pending(history):
    history.plan_clustering(OTHER, [G])
    return []


def clustering_pending_with_priority(history):
    history.plan_clustering(OTHER, [G], priority=True)
    return []


def clustering_of_another_group_pending_with_priority(history):
    history.plan_clustering(OTHER, [H], priority=True)
    return []


def fenced_clustering_with_priority(history):
    history.plan_clustering(OTHER, [G], priority=True)
    history.fence(instant(12), OTHER)
    return []


def group_cleaned_away(history):
    same_group_clustered(history)
    name = base_stat("g-0", instant(1)).path.rsplit("/", 1)[1]
    metadata = {"earliestCommitToRetain": instant(13), "partitionMetadata": {"p": {"successDeleteFiles": [name]}}}
    history.clean(instant(14), {}, metadata)
    return []


UPDATES = {"update", "rejected update", "append", "move"}
MATRIX = {
    same_group_written: {*UPDATES, "clustering"},
    other_group_written: set(),
    same_group_appended: {*UPDATES, "clustering"},
    other_group_appended: set(),
    same_group_compaction_planned: {*UPDATES, "clustering", "overwrite"},
    other_group_compaction_planned: {"overwrite"},
    same_group_compacted: {*UPDATES, "clustering"},
    same_key_inserted: {"insert", "move"},
    other_key_inserted: set(),
    same_group_clustered: {*UPDATES, "clustering"},
    other_group_clustered: set(),
    partition_overwritten: {*UPDATES, "clustering"},
    other_partition_overwritten: set(),
    clustering_pending: {"rejected update"},
    clustering_pending_with_priority: {*UPDATES, "overwrite"},
    clustering_of_another_group_pending_with_priority: {"overwrite"},
    fenced_clustering_with_priority: set(),
    group_cleaned_away: {*UPDATES, "clustering"},
}


@pytest.fixture
def history():
    history = History()
    history.commit(instant(1), base_stat("g-0", instant(1)), base_stat("h-0", instant(1)))
    history.begin(OWN)
    return history


@pytest.mark.parametrize("own", OWNS)
@pytest.mark.parametrize("other", MATRIX, ids=lambda f: f.__name__)
def test_matrix(history, own, other):
    inserted = other(history)
    conflict = find_conflict(OWNS[own], history.state, inserted)
    if own in MATRIX[other]:
        assert isinstance(conflict, WriteConflict)
        assert isinstance(conflict, SliceGrew) == ((own, other) == ("append", same_group_appended))
        assert conflict.with_instant == ("nothing" if other is group_cleaned_away else OTHER)
    else:
        assert conflict is None


@pytest.mark.parametrize("own", ["insert", "move"])
def test_a_key_that_a_look_up_found_in_files_of_another_write_is_a_conflict(history, own):
    history.commit(OTHER, base_stat("n-0", OTHER))
    looked_up = [InsertedKeys(instant(2), hashes(4, 9)), InsertedKeys(OTHER, None, "p")]
    conflict = find_conflict(OWNS[own], history.state, looked_up)
    assert conflict is not None
    assert conflict.with_instant == OTHER
    assert "of partition 'p'" in str(conflict)


@pytest.mark.parametrize("own", OWNS)
def test_rollback_of_own(history, own):
    history.fence(OTHER, OWN)
    with pytest.raises(TransactionRolledBack, match=OTHER):
        find_conflict(OWNS[own], history.state, [])
    history.finish_rollback(OTHER, OWN)
    with pytest.raises(TransactionRolledBack):
        find_conflict(OWNS[own], history.state, [])


def test_completed_and_unknown_instants_are_not_own(history):
    history.complete(OWN)
    for at in (OWN, instant(99)):
        with pytest.raises(TransactionRolledBack):
            find_conflict(WriteSet(at), history.state, [])


def test_rollback_of_somebody_else_is_nothing(history):
    history.begin(OTHER)
    history.fence(instant(12), OTHER)
    for own in OWNS.values():
        assert find_conflict(own, history.state, []) is None


def test_no_file_stands_before_the_one_that_it_was_made_of() -> None:
    """A write that saw what began after it (threads of one process, or Apache Hudi's in a shared table) would publish rows that
    nobody reads.

    What it appends would be read by the latest query, by queries as of a time in between not.
    """
    history = History()
    history.commit(instant(1), base_stat("g-0", instant(1)))
    history.begin(OWN)
    history.commit(OTHER, base_stat("g-0", OTHER))
    seen = SliceVersion(OTHER, 0)
    for appends in (frozenset[FileGroupId](), frozenset({G})):
        conflict = find_conflict(WriteSet(OWN, {G: seen}, appends=appends), history.state, ())
        assert conflict is not None
        assert conflict.with_instant == OTHER
