"""The examples of a screen each do what they say."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pyarrow as pa
from examples import event_consumer, pipeline
from tests.unit.services.fleet import Fleet, write

import tideline
from tideline_mirror.mirroring import MirrorService
from tideline_mirror.settings import MirrorSettings


def trips(**columns: list[object]) -> pa.Table:
    return pa.table(columns, schema=pa.schema([("id", pa.int64()), ("day", pa.string()), ("fare", pa.float64())]))


def rows(path: Path) -> list[tuple[int, str, int]]:
    return sorted((row["id"], row["day"], row["cents"]) for row in tideline.open(str(path)).read().to_pylist())


def test_the_pipeline_follows_upserts_and_deletions(tmp_path: Path) -> None:
    source, target = tmp_path / "trips", tmp_path / "fares"
    table = tideline.create(str(source), schema=trips(id=[], day=[], fare=[]).schema, key="id", partition="day")
    table.upsert(trips(id=[1, 2, 3], day=["a", "a", "b"], fare=[1.5, 2.0, 0.29]))
    assert pipeline.run(str(source), str(target)) == 3
    assert rows(target) == [(1, "a", 150), (2, "a", 200), (3, "b", 29)]
    table.upsert(trips(id=[2, 4], day=["a", "b"], fare=[7.0, 4.0]))
    table.delete(pa.table({"id": [3], "day": ["b"]}))
    assert pipeline.run(str(source), str(target)) == 3
    assert rows(target) == [(1, "a", 150), (2, "a", 700), (4, "b", 400)]
    assert pipeline.run(str(source), str(target)) == 0
    assert len(list(target.glob(".hoodie/*.commit"))) == 2, "rows and position in one commit, and none without changes"
    # Longer down than the source keeps its history: a restore takes back what the target has.
    saved = table.maintenance.create_savepoint()
    table.upsert(trips(id=[9], day=["a"], fare=[9.0]))
    assert pipeline.run(str(source), str(target)) == 1
    table.maintenance.restore(saved.instant)
    assert pipeline.run(str(source), str(target)) == 3
    assert rows(target) == [(1, "a", 150), (2, "a", 700), (4, "b", 400)]
    assert pipeline.run(str(source), str(target)) == 0


def test_the_consumer_hears_of_each_commit_once(tmp_path: Path) -> None:
    with closing(Fleet(tmp_path)) as fleet:
        table, other = fleet.create("a"), fleet.create("b")
        mirror, _ = fleet.service(MirrorService, MirrorSettings, "mirror")
        heard: list[tuple[str, str, int | None]] = []
        committed = []
        for first in (0, 10):
            committed += [(name, write(opened, first).instant, 5) for name, opened in (("a", table), ("b", other))]
            while mirror.tick() == 0.0:
                pass
            event_consumer.react(
                f"sqlite://{tmp_path}/state/events.db",
                lambda event: heard.append((event.table.name, event.instant, event.rows_inserted)),
                wait_s=0,
            )
            assert sorted(heard) == sorted(committed), "a second run continues where the first one ended"
