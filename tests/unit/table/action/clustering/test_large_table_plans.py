"""A plan of a table whose slices lie in parts names what the same plan of the same slices in a dictionary names, and reads less."""

import dataclasses
import random

import pytest
from tests.unit.table.tables import SCHEMA, History, base_stat, instant, log_stat

from tideline_table.action.clustering import plan
from tideline_table.action.clustering.plan import plan_clustering
from tideline_table.action.compaction.plan import plan_compaction
from tideline_table.action.decision import Due, NotDue, Trigger
from tideline_table.config import Options
from tideline_table.log import packed
from tideline_table.log.packed import PackedSlices, Part

LIMIT = 5000
OPTIONS = {"hoodie.clustering.plan.strategy.small.file.limit": LIMIT}
TRIGGER = Trigger(min_files=4, min_commits=1)


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    monkeypatch.setattr(packed, "PART_GROUPS", 4)


def tables(draw):
    """Return two states of one table: its slices in parts, of which some changed since, and in a dictionary."""
    history, names, crowd = History(), [f"p{n:02d}" for n in range(16)], draw.randrange(2, 7)
    for at, name in enumerate(names, start=1):
        sizes = [draw.choice([900, 4999, 5000, 9000]) for _ in range(draw.randrange(1, crowd + 1))]
        history.commit(instant(at), *(base_stat(f"{name}f{n}-0", instant(at), name, size) for n, size in enumerate(sizes)))
    whole = dataclasses.replace(history.state)
    whole.slices = dict(history.state.slices)
    packed_now = history.state
    later = draw.sample(sorted(whole.slices), 3)
    packed_now.slices = PackedSlices.of({group: held for group, held in whole.slices.items() if group not in later})
    for group in later:
        packed_now.slices[group] = whole.slices[group]
    return packed_now, whole


def outcome(found):
    return found.body.plan if isinstance(found, Due) else found.reason


@pytest.mark.parametrize("order", ["", "bytes", "files", "oldest"])
@pytest.mark.parametrize("seed", range(12))
def test_a_clustering_of_parts_is_that_of_all_slices(seed, order):
    options = Options({**OPTIONS, "tideline.clustering.plan.group.order": order} if order else OPTIONS)
    in_parts, whole = tables(random.Random(seed))
    for trigger in (None, TRIGGER):
        found = [outcome(plan_clustering(state, "memory:/t", options, SCHEMA, trigger=trigger)) for state in (in_parts, whole)]
        assert found[0] == found[1]


def test_a_plan_reads_only_the_parts_with_enough_small_files(monkeypatch):
    history = History()
    stats = [base_stat(f"{name}f{n}-0", instant(1), name, 900) for name in ("a", "b", "c", "d", "e", "f") for n in range(2)]
    stats += [base_stat(f"z{n}-0", instant(1), "z", 900) for n in range(5)]
    history.commit(instant(1), *stats)
    history.state.slices = PackedSlices.of(history.state.slices)
    decoded = []
    whole = Part.rows
    monkeypatch.setattr(Part, "rows", lambda part: decoded.append(part.first.partition_path) or whole(part))
    demanding = Trigger(min_files=6, min_commits=1)
    assert isinstance(plan_clustering(history.state, "memory:/t", Options(OPTIONS), SCHEMA, trigger=demanding), NotDue)
    assert decoded == [], "no partition has six files"
    only_large = Options({**OPTIONS, "tideline.clustering.min.input.files": 4})
    found = plan_clustering(history.state, "memory:/t", only_large, SCHEMA, trigger=TRIGGER)
    assert [s["fileId"] for g in outcome(found)["clusteringPlan"]["inputGroups"] for s in g["slices"]] == [
        f"z{n}-0" for n in range(5)
    ]
    assert set(decoded) <= {"e", "z"}, "parts without a group of z were not read"
    decoded.clear()
    assert isinstance(plan_compaction(history.state, Options(OPTIONS), min_commits=0), NotDue)
    assert decoded == [], "no slice has log files"
    history.commit(instant(2), log_stat("z1-0", instant(1), partition="z"))
    assert outcome(plan_compaction(history.state, Options(OPTIONS), min_commits=0))["operations"][0]["fileId"] == "z1-0"


def test_a_plan_weighs_the_fullest_partitions_if_there_are_too_many_candidates(monkeypatch):
    monkeypatch.setattr(plan, "_MOST_CANDIDATES", 8)
    history = History()
    counts = {"a": 2, "b": 2, "c": 5, "d": 2, "e": 2}
    history.commit(instant(1), *(base_stat(f"{p}{n}-0", instant(1), p, 900) for p, count in counts.items() for n in range(count)))
    found = plan_clustering(history.state, "memory:/t", Options(OPTIONS), SCHEMA)
    groups = [[s["fileId"] for s in g["slices"]] for g in outcome(found)["clusteringPlan"]["inputGroups"]]
    assert groups == [[f"c{n}-0" for n in range(5)]]
