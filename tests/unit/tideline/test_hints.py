"""Hints that a writer gives of its commits."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest
from tests.unit.services.fleet import Fleet

import tideline
from tideline_events import HINTS, TIMELINE, Publisher, open_event_log
from tideline_mirror.mirroring import MirrorService
from tideline_mirror.settings import MirrorSettings

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.int64())])


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    with closing(Fleet(tmp_path)) as made:
        yield made


def written(table: tideline.Table, *ids: int) -> None:
    table.upsert(pa.table({"id": ids, "v": ids}, SCHEMA))


def test_a_hint_of_a_writer_names_its_table_to_the_mirror(fleet: Fleet) -> None:
    table = tideline.create(fleet.path("t"), schema=SCHEMA, key="id")
    service, _ = fleet.service(MirrorService, MirrorSettings, "mirror")
    service.tick()
    written(table, 1)
    with tideline.events.hints(f"sqlite://{fleet.folder}/state/events.db") as hints:
        hints.give(table)
    (told,) = fleet.events(HINTS.name)
    assert (told.table_uid, told.base_path, told.reason) == (table.inspect.uid, table.path, "committed")
    service.tick()
    assert {event.table.uid for event in fleet.events(TIMELINE.name)} == {table.inspect.uid}


def test_a_writer_does_not_wait_for_the_event_log(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hints that wait are one for each table."""
    answers = threading.Event()
    log = open_event_log(f"sqlite://{fleet.folder}/state/events.db")
    opened = log.publisher

    def held(writer_id: str) -> Publisher:
        assert answers.wait(60)
        return opened(writer_id)

    monkeypatch.setattr(log, "publisher", held)
    one, two = (tideline.create(fleet.path(name), schema=SCHEMA, key="id") for name in ("one", "two"))
    hints = tideline.events.Hints(log)
    hints.give(one)
    for _ in range(3):
        hints.give(two)
    answers.set()
    hints.close()
    told = [event.table_uid for event in fleet.events(HINTS.name)]
    assert told[0] == one.inspect.uid
    assert 2 <= len(told) <= 3
    assert set(told) == {one.inspect.uid, two.inspect.uid}


def test_an_event_log_that_fails_costs_hints_and_no_commit(fleet: Fleet, caplog: pytest.LogCaptureFixture) -> None:
    table = tideline.create(fleet.path("t"), schema=SCHEMA, key="id")
    (fleet.folder / "file").write_text("no folder")
    with tideline.events.hints(f"sqlite://{fleet.folder}/file/events.db") as hints:
        written(table, 1)
        hints.give(table)
    assert table.read().num_rows == 1
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == ["1 hints are lost"]
