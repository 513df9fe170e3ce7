"""Every operation of a writer beside a clustering, named after the thread that tells of one that slipped past."""

from __future__ import annotations

import pytest
from tests.plans import schedule_clustering
from tests.regression.place import Place
from tests.unit.table.tables import cluster, contents, write

from tideline_table.action import delete_partitions, run_clustering
from tideline_table.action.clustering.execute import cluster_group
from tideline_table.action.write.transaction import WriteTransaction
from tideline_table.errors import WriteConflict
from tideline_table.hudi.instant import State
from tideline_table.table import TableType
from tideline_table.writer import Operation

A, B, C, N = ("a", "p", 1, "first"), ("b", "p", 1, "first"), ("c", "q", 1, "first"), ("n", "p", 2, "new")
BESIDE_CLUSTERING = {
    Operation.UPSERT: ("a", 2, [("a", "p", 2, "new"), B, C]),
    Operation.DELETE: ("a", 2, [B, C]),
    Operation.INSERT: ("n", 1, [A, B, C, N]),
    Operation.BULK_INSERT: ("n", 1, [A, B, C, N]),
    Operation.INSERT_OVERWRITE: ("n", 1, [C, N]),
    Operation.INSERT_OVERWRITE_TABLE: ("n", 1, [N]),
    Operation.DELETE_PARTITION: ("", 1, [C]),
}
"""Operation → the key that it writes to p, its attempts when a clustering of p completes right before its commit, the rows that it
leaves."""
ADDS_ONLY = {Operation.INSERT, Operation.BULK_INSERT}


def run_operation(table, operation, key, **options):
    if operation is Operation.DELETE_PARTITION:
        return delete_partitions(table, ["p"], options=options)
    return write(table, [(key, "p", 2, "new")], operation, **options)


@pytest.fixture(params=[TableType.COW, TableType.MOR])
def two_small_files(request):
    place = Place(request.param)
    for row in (A, B, C):
        write(place.other, [row])
    return place


@pytest.mark.parametrize("operation", BESIDE_CLUSTERING)
def test_hudi_18830_every_operation_under_an_inflight_clustering(two_small_files, operation):
    """Who rewrites or replaces what the clustering reads wins; what only adds rows lets it pass. No row is lost or comes back."""
    place = two_small_files
    key, _, expected = BESIDE_CLUSTERING[operation]
    at = schedule_clustering(place.other)
    written = []

    def run(tasks):
        results = [cluster_group(task, place.storage) for task in tasks]
        written.append(run_operation(place.open("writer"), operation, key))
        return results

    if operation in ADDS_ONLY:
        assert run_clustering(place.other, run=run).instant == at
    else:
        with pytest.raises(WriteConflict):
            run_clustering(place.other, run=run)
        assert place.other.refresh().actions[at].state is State.ROLLED_BACK
    assert [committed.attempts for committed in written] == [1]
    assert contents(place.open("reader")) == expected
    schedule_clustering(place.other, {"tideline.clustering.min.input.files": 1})
    assert cluster(place.other)
    assert contents(place.open("reader")) == expected


@pytest.mark.parametrize("planned", ["before the write begins", "while it runs"])
@pytest.mark.parametrize("operation", BESIDE_CLUSTERING)
def test_hudi_18830_every_operation_while_a_clustering_completes(two_small_files, operation, planned, monkeypatch):
    """Who read what is replaced by now begins again; who replaces everything replaces what the clustering wrote, too."""
    place = two_small_files
    key, attempts, expected = BESIDE_CLUSTERING[operation]
    commit, clustered = WriteTransaction.commit, []

    def late(self, *arguments, **more):
        if not clustered:
            clustered.append(schedule_clustering(place.other) if planned == "while it runs" else at)
            assert cluster(place.other).instant == clustered[0]
        return commit(self, *arguments, **more)

    at = schedule_clustering(place.other) if planned == "before the write begins" else ""
    writer = place.open("writer")
    monkeypatch.setattr(WriteTransaction, "commit", late)
    committed = run_operation(writer, operation, key)
    assert clustered
    assert committed.attempts == attempts
    assert contents(place.open("reader")) == expected
    replaced = place.other.refresh().replaced
    assert {s.group for s in place.other.slices()}.isdisjoint(replaced)


@pytest.mark.parametrize("operation", BESIDE_CLUSTERING)
def test_hudi_18830_no_operation_slips_past_a_clustering_that_goes_first(two_small_files, operation):
    """With the guard of RFC-19 on: what replaces file groups is held back as an update of them is."""
    place = two_small_files
    key, _, expected = BESIDE_CLUSTERING[operation]
    at = schedule_clustering(place.other)
    guarded = {"tideline.clustering.update.strategy": "reject", "tideline.write.conflict.retries": 0}
    if operation in ADDS_ONLY:
        run_operation(place.open("writer"), operation, key, **guarded)
    else:
        with pytest.raises(WriteConflict, match=f"is under clustering {at}, which goes first"):
            run_operation(place.open("writer"), operation, key, **guarded)
        assert contents(place.open("reader")) == [A, B, C]
    assert cluster(place.other).instant == at
    if operation not in ADDS_ONLY:
        run_operation(place.open("writer"), operation, key, **guarded)
    assert contents(place.open("reader")) == expected
