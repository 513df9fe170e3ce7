"""A table's writes, the mirror, and a consumer to whom records get lost."""

from __future__ import annotations

from contextlib import closing

import pytest
from tests.plans import schedule_clustering
from tests.unit.services.fleet import die, write

from tideline_events import TIMELINE, EventConsumer, Transition, decode
from tideline_events.transitions import backfill
from tideline_mirror.mirroring import MirrorService
from tideline_mirror.settings import MirrorSettings
from tideline_table.action import run_clustering
from tideline_table.coordination import roll_back


class LossySubscription:
    """A real subscription from which the transitions with these sequences never arrive, and `twice` arrive two times."""

    def __init__(self, real, lost, twice):
        self.real, self.lost, self.twice = real, lost, twice

    def poll(self, timeout_s):
        arrived = []
        for record in self.real.poll(timeout_s):
            event = decode(record)
            if isinstance(event, Transition) and event.sequence in self.lost:
                continue
            arrived += [record] * (1 + (isinstance(event, Transition) and event.sequence in self.twice))
        return arrived

    @property
    def generation(self):
        return self.real.generation

    def owns(self, table_uid):
        return self.real.owns(table_uid)

    def commit(self):
        self.real.commit()

    def close(self):
        self.real.close()


def lossy(subscribe, lost, twice):
    return lambda *topics, **how: LossySubscription(subscribe(*topics, **how), lost, twice)


@pytest.mark.parametrize("lost", [(), (1,), (2, 3, 7), (1, 2, 3, 4, 5, 6, 7, 8)])
def test_every_transition_arrives_once_and_in_order(fleet, lost):
    tables = [fleet.create("a"), fleet.create("b")]
    opened = {t.uid: t for t in tables}
    mirror, _ = fleet.service(MirrorService, MirrorSettings, "mirror", batch_entries=3)
    fleet.event_log.subscribe = lossy(fleet.event_log.subscribe, lost, twice=(4, 9))
    events = EventConsumer(
        fleet.event_log,
        "reader",
        backfill=lambda table, first, last: backfill(opened[table.uid], first, last),
        clock=fleet.clock,
        seen=lambda: dict.fromkeys(opened, 0),
    )
    del fleet.event_log.subscribe
    arrived = []
    with closing(events) as consumer:
        for n in range(2):
            for table in tables:
                write(table, 10 * n)
                roll_back(table.timeline, die(table), force=True)
            while mirror.tick() == 0.0:
                arrived += consumer.poll(0)
                consumer.commit()
        for table in tables:
            schedule_clustering(table)
            run_clustering(table)
        while mirror.tick() == 0.0:
            arrived += consumer.poll(0)
        arrived += consumer.poll(0)
        consumer.commit()
    for table in tables:
        own = [e for e in arrived if e.table_uid == table.uid]
        assert [e.sequence for e in own] == list(range(1, table.state.sequence + 1))
        assert [e.sequence for e in own if e.observed_by == "backfill"] == list(lost)
        # What the log gave is what the mirror had published.
        published = {e.sequence: e for e in fleet.events(TIMELINE.name) if e.table_uid == table.uid}
        told = [(e.instant, e.action, e.from_state, e.to_state, e.rows_inserted, e.time, e.timeline_file) for e in own]
        assert told == [
            (e.instant, e.action, e.from_state, e.to_state, e.rows_inserted, e.time, e.timeline_file)
            for _, e in sorted(published.items())
        ]
    assert (events.counts.backfilled, events.counts.missing, events.counts.dead) == (len(lost) * 2, 0, 0)
    assert events.counts.duplicates == sum(2 for n in (4, 9) if n not in lost)


def arrived_in_a_life(fleet):
    """What a member of the group gets that starts, processes everything and ends."""
    events = EventConsumer(fleet.event_log, "reader", clock=fleet.clock)
    found = {}
    with closing(events) as consumer:
        while batch := consumer.poll(0):
            for event in batch:
                found.setdefault(event.table.name, []).append(event.sequence)
            consumer.commit()
    assert (events.counts.missing, events.counts.dead) == (0, 0)
    return found


def test_nothing_is_lost_while_a_consumer_is_down_for_longer_than_events_are_kept(fleet):
    """44 of 44 were, and none counted as missing; the quiet table would never have been complete."""
    busy, quiet = fleet.create("busy"), fleet.create("quiet")
    mirror, _ = fleet.service(MirrorService, MirrorSettings, "mirror")
    for table in (busy, quiet):
        write(table, 0)
    mirror.tick()
    assert arrived_in_a_life(fleet) == {"busy": [1, 2], "quiet": [1, 2]}
    for table in (busy, quiet):
        write(table, 10)
    mirror.tick()
    fleet.clock.advance(TIMELINE.retention_s + 60)
    write(busy, 20)
    write(fleet.create("later"), 0)
    fleet.clock.advance(61)  # tables_rescan_s
    mirror.tick()
    kept = {(event.table.name, event.sequence) for event in fleet.events(TIMELINE.name)}
    assert kept == {("busy", 5), ("busy", 6), ("later", 1), ("later", 2)}
    assert arrived_in_a_life(fleet) == {"busy": [3, 4, 5, 6], "quiet": [3, 4], "later": [1, 2]}
    assert arrived_in_a_life(fleet) == {}
