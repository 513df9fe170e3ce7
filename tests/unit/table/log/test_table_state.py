import json

import pytest
from tests.unit.table.tables import History, base_stat, instant

from tideline_table.errors import CorruptMetadata, IllegalTransition, UnsupportedTable
from tideline_table.file_group.slice import FileGroupId
from tideline_table.hudi.instant import Action, State
from tideline_table.log.entry import Entry, entry_path

A, B = FileGroupId("p", "a-0"), FileGroupId("p", "b-0")


@pytest.fixture
def history():
    return History()


def snapshot(state):
    return (
        state.sequence,
        state.last_instant,
        dict(state.actions),
        {g: dict(s) for g, s in state.slices.items()},
        dict(state.replaced),
        dict(state.plans),
        dict(state.clustering_losses),
        state.last_clean_retained,
        set(state.excess),
    )


def visible(state, as_of=""):
    return {s.group.file_id: s.base_instant for s in state.latest_slices(as_of)}


def test_a_commit_is_visible_when_completed(history):
    history.begin(instant(1))
    assert visible(history.state) == {}
    history.complete(instant(1), base_stat("a-0", instant(1)), schema="S")
    assert visible(history.state) == {"a-0": instant(1)}
    assert history.state.schema_json == "S"
    record = history.state.actions[instant(1)]
    assert (record.started_sequence, record.sequence, record.state) == (1, 2, State.COMPLETED)


def test_time_travel_over_updates_and_replacements(history):
    history.commit(instant(1), base_stat("a-0", instant(1)), base_stat("b-0", instant(1)))
    history.commit(instant(2), base_stat("a-0", instant(2)))
    history.plan_clustering(instant(3), [A, B])
    history.start_clustering(instant(3))
    history.complete(instant(3), base_stat("c-0", instant(3)), replaced={"p": ["a-0", "b-0"]})
    assert visible(history.state) == {"c-0": instant(3)}
    assert visible(history.state, instant(3)) == {"c-0": instant(3)}
    assert visible(history.state, instant(2)) == {"a-0": instant(2), "b-0": instant(1)}
    assert visible(history.state, instant(1)) == {"a-0": instant(1), "b-0": instant(1)}
    assert visible(history.state, instant(0)) == {}
    assert history.state.latest_slice(A) is None
    assert [s.group for s in history.state.latest_slices(partitions=["q"])] == []


def test_completion_order_is_the_sequence(history):
    history.begin(instant(1))
    history.commit(instant(2), base_stat("b-0", instant(2)))
    history.complete(instant(1), base_stat("a-0", instant(1)))
    first, second = (history.state.actions[instant(n)] for n in (1, 2))
    assert second.sequence < first.sequence
    assert [a.instant for a in history.state.completed_writes()] == [instant(1), instant(2)]


ILLEGAL = [
    (State.NONE, State.COMPLETED),
    (State.REQUESTED, State.COMPLETED),
    (State.COMPLETED, State.INFLIGHT),
    (State.COMPLETED, State.ROLLED_BACK),
    (State.INFLIGHT, State.REQUESTED),
    (State.ROLLED_BACK, State.INFLIGHT),
    (State.NONE, State.NONE),
]


@pytest.mark.parametrize(("before", "after"), ILLEGAL)
def test_steps_outside_of_the_life_cycle(history, before, after):
    at = instant(1)
    if before is State.REQUESTED:
        history.plan_clustering(at, [A])
    elif before is not State.NONE:
        history.begin(at)
        if before is State.COMPLETED:
            history.complete(at)
        elif before is State.ROLLED_BACK:
            history.fence(instant(2), at)
            history.finish_rollback(instant(2), at)
    action = history.state.actions[at].action if at in history.state.actions else Action.COMMIT
    seen = snapshot(history.state)
    with pytest.raises(IllegalTransition):
        history.step(at, action, before, after, {"metadata": {}})
    assert snapshot(history.state) == seen


def test_a_step_must_start_from_the_known_state(history):
    history.begin(instant(1))
    with pytest.raises(IllegalTransition, match="expected a step from inflight"):
        history.step(instant(1), Action.COMMIT, State.NONE, State.INFLIGHT)
    with pytest.raises(IllegalTransition, match="expected a step of commit"):
        history.step(instant(1), Action.CLEAN, State.INFLIGHT, State.COMPLETED, {"metadata": {"partitionMetadata": {}}})


def test_the_sequence_has_no_gaps(history):
    entry = history.entry(instant(1), Action.COMMIT, State.NONE, State.INFLIGHT)
    history.state.apply(entry)
    for again in (entry, Entry(**{f: getattr(entry, f) for f in entry.__slots__} | {"sequence": 3, "instant": instant(2)})):
        with pytest.raises(CorruptMetadata, match="expected entry 2"):
            history.state.apply(again)


def test_rollback_request_is_the_fence(history):
    history.begin(instant(1))
    history.fence(instant(2), instant(1))
    assert history.state.actions[instant(1)].fenced_by == instant(2)
    seen = snapshot(history.state)
    for after in (State.COMPLETED, State.INFLIGHT):
        with pytest.raises(IllegalTransition, match=f"rollback {instant(2)} was requested"):
            history.step(instant(1), Action.COMMIT, State.INFLIGHT, after, {"metadata": {}})
    assert snapshot(history.state) == seen
    history.finish_rollback(instant(2), instant(1))
    assert history.state.actions[instant(1)].state is State.ROLLED_BACK
    assert list(history.state.pending()) == []


def test_one_rollback_per_target(history):
    history.begin(instant(1))
    history.fence(instant(2), instant(1))
    with pytest.raises(IllegalTransition, match="began first"):
        history.fence(instant(3), instant(1))


@pytest.mark.parametrize("target", [instant(9), "", instant(1)])
def test_rollback_of_what_is_not_pending(history, target):
    history.commit(instant(1), base_stat("a-0", instant(1)))
    body = {"target": target, "target_action": "commit", "plan": {}}
    with pytest.raises(IllegalTransition, match="pending instant"):
        history.step(instant(2), Action.ROLLBACK, State.NONE, State.INFLIGHT, body, "ROLLBACK")


def test_rollback_needs_the_action_of_its_target(history):
    history.begin(instant(1))
    with pytest.raises(CorruptMetadata, match="as action"):
        history.step(instant(2), Action.ROLLBACK, State.NONE, State.INFLIGHT, {"target": instant(1), "plan": {}}, "ROLLBACK")


def test_clustering_losses_count_per_group_until_a_win(history):
    history.commit(instant(1), base_stat("a-0", instant(1)), base_stat("b-0", instant(1)))
    for n in (2, 4):
        history.plan_clustering(instant(n), [A, B] if n == 2 else [A])
        history.fence(instant(n + 1), instant(n))
        history.finish_rollback(instant(n + 1), instant(n))
    assert history.state.clustering_losses == {A: 2, B: 1}
    history.plan_clustering(instant(6), [A])
    history.start_clustering(instant(6))
    history.complete(instant(6), base_stat("c-0", instant(6)), replaced={"p": ["a-0"]})
    assert history.state.clustering_losses == {B: 1}


def test_groups_under_clustering_and_priority(history):
    history.commit(instant(1), base_stat("a-0", instant(1)), base_stat("b-0", instant(1)))
    history.plan_clustering(instant(2), [A])
    history.plan_clustering(instant(3), [B], priority=True)
    assert history.state.groups_under_clustering() == {A: instant(2), B: instant(3)}
    assert not history.state.has_priority(instant(2))
    assert history.state.has_priority(instant(3))
    history.fence(instant(4), instant(3))
    assert history.state.groups_under_clustering() == {A: instant(2)}


def cleaned(retained, **names):
    parts = {p: {"successDeleteFiles": list(files)} for p, files in names.items()}
    return {"earliestCommitToRetain": retained, "partitionMetadata": parts}


def test_cleaning_forgets_files_and_empty_groups(history):
    for n in (1, 2, 3):
        history.commit(instant(n), base_stat("a-0", instant(n)))
    history.commit(instant(4), base_stat("b-0", instant(4)))
    assert history.state.excess == {A}
    name = base_stat("a-0", instant(1)).path.rsplit("/", 1)[1]
    history.clean(instant(5), {}, cleaned(instant(2), p=[name], q=[base_stat("a-0", instant(2)).path.rsplit("/", 1)[1]]))
    assert sorted(history.state.slices[A]) == [instant(2), instant(3)]
    assert history.state.last_clean_retained == instant(2)
    assert history.state.plans == {}


def test_a_clean_that_retains_no_instant_tells_by_its_files(history):
    """As Apache Hudi cleans by file versions."""
    for n in (1, 2, 3):
        history.commit(instant(n), base_stat("a-0", instant(n)))
    history.commit(instant(4), base_stat("b-0", instant(4)))
    gone = [base_stat("a-0", instant(n)).path.rsplit("/", 1)[1] for n in (1, 2)]
    history.clean(instant(5), {}, cleaned("", p=gone))
    assert list(history.state.slices[A]) == [instant(3)]
    assert history.state.last_clean_retained == instant(3)
    history.clean(instant(6), {}, cleaned(""))
    assert history.state.last_clean_retained == instant(3)


def test_what_cleaning_removed_stays_removed_when_a_later_clean_keeps_more(history):
    history.commit(instant(1), base_stat("a-0", instant(1)))
    history.clean(instant(5), {}, cleaned(instant(3)))
    history.clean(instant(6), {}, cleaned(instant(2)))
    assert history.state.last_clean_retained == instant(3)


BROKEN_BODIES = [
    (Action.COMMIT, State.COMPLETED, {}),
    (Action.COMMIT, State.COMPLETED, {"metadata": 5}),
    (Action.COMMIT, State.COMPLETED, {"metadata": {"partitionToWriteStats": {"p": [{"path": "x"}]}}}),
    (Action.CLEAN, State.COMPLETED, {}),
    (Action.CLEAN, State.COMPLETED, {"metadata": {"partitionMetadata": {"p": {}}}}),
    (Action.REPLACE_COMMIT, State.INFLIGHT, {"plan": {"clusteringPlan": {"inputGroups": [{"slices": [{}]}]}}}),
    (Action.REPLACE_COMMIT, State.INFLIGHT, {"plan": {"clusteringPlan": {"inputGroups": 5}}}),
    (Action.REPLACE_COMMIT, State.INFLIGHT, {"plan": "text"}),
]


@pytest.mark.parametrize(("action", "after", "body"), BROKEN_BODIES)
def test_a_body_that_cannot_be_understood_changes_nothing(history, action, after, body):
    """A second refresh must not step over the entry that the first one stumbled on."""
    history.step(instant(1), action, State.NONE, State.INFLIGHT)
    seen = snapshot(history.state)
    for _ in range(2):
        with pytest.raises(CorruptMetadata):
            history.step(instant(1), action, State.INFLIGHT, after, body)
        assert snapshot(history.state) == seen


def entry_text(**changes):
    document = {
        "log_format": 1,
        "sequence": 1,
        "append_id": "a",
        "recorded": "2026-01-01T00:00:00+00:00",
        "writer_id": "w",
        "instant": instant(1),
        "action": "commit",
        "before": "none",
        "after": "inflight",
        "operation": "UPSERT",
        "body": {},
    }
    return json.dumps({**document, **changes}).encode()


def test_entries_round_trip():
    history = History()
    history.begin(instant(1))
    history.complete(instant(1), base_stat("é-0", instant(1)))
    for entry in history.entries:
        assert Entry.from_bytes(entry.to_bytes(), "x") == entry
    assert entry_path(7) == ".hoodie/.tideline/log/00000000000000000007.json"


def test_a_newer_log_format_is_refused_by_name():
    with pytest.raises(UnsupportedTable, match="upgrade Tideline"):
        Entry.from_bytes(entry_text(log_format=2), "x")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b"[]",
        b"null",
        b"\xff",
        b"[" * 100_000,
        entry_text(sequence="x"),
        entry_text(sequence=float("inf")),
        entry_text(action="dance"),
        entry_text(before="maybe"),
        entry_text(body=5),
        entry_text(body_reference={"path": "x"}),
        entry_text(body_reference="x"),
    ],
)
def test_broken_entries_are_typed_errors(content):
    with pytest.raises(CorruptMetadata, match="some/entry"):
        Entry.from_bytes(content, "some/entry")


def test_a_table_service_that_began_before_a_column_was_added_does_not_take_it_away(history):
    """A job of Apache Hudi names the schema that it knows."""
    history.begin(instant(1))
    history.complete(instant(1), base_stat("f-0", instant(1)), schema="before")
    history.plan_compaction(instant(2), [FileGroupId("p", "f-0")])
    history.step(instant(2), Action.COMPACTION, State.REQUESTED, State.INFLIGHT, {}, "COMPACT")
    history.begin(instant(3))
    history.complete(instant(3), schema="after")
    history.complete(instant(2), base_stat("f-0", instant(2)), schema="before")
    assert history.state.schema_json == "after"
    assert history.state.schemas == {instant(1): "before", instant(3): "after"}
