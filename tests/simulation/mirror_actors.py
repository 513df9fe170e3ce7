"""The mirror, and who follows a table by its events: production code over the event log in memory."""

from __future__ import annotations

from contextlib import closing
from functools import cache, partial

from tests.simulation.actors import EXPECTED, Cluster, pause
from tests.simulation.call_faults import CallFaults
from tests.simulation.event_faults import EVENT_FAULTS, ProcessEventLog
from tests.simulation.event_log import Broker
from tests.simulation.oracle import Oracle
from tests.simulation.scheduler import Process, SimulatedClock
from tests.simulation.service_lives import context_of, live
from tests.simulation.topic_ledger import TopicLedger
from tests.simulation.world import World

from tideline_events import (
    CommitLost,
    EventConsumer,
    EventLogUnavailable,
    Hint,
    PublisherFenced,
    PublishUnknown,
    TableIdentity,
    Transition,
    encode,
)
from tideline_events.transitions import backfill
from tideline_mirror.mirroring import MirrorService
from tideline_mirror.settings import MirrorSettings
from tideline_table.table import Table
from tideline_table.table.identity import read_identity

GROUP = "follower"
_LIVES_WITH = (EventLogUnavailable, PublishUnknown, PublisherFenced)


@cache
def _settings(batch_entries: int) -> MirrorSettings:
    return MirrorSettings.load(environment={}, event_log="sqlite:///none", locks="storage:", batch_entries=batch_entries)


def _silent() -> EventLogUnavailable:
    return EventLogUnavailable("the event log does not answer")


class Topics:
    """The event log of one history."""

    def __init__(self, world: World, oracle: Oracle) -> None:
        identity = read_identity(world.disk)
        assert identity is not None
        self.broker = Broker()
        self.faults = CallFaults(world, "events", EVENT_FAULTS, _silent)
        self.ledger = TopicLedger(world.disk, oracle, identity.uid)
        self.seen = 0
        """Up to where the follower keeps what it made of the events: both change together, as in a database."""
        self.batch_entries = self.faults.choose.choice((1, 3, 200))
        self._world = world
        self.broker.on_record = self.ledger.heard
        self.broker.on_loss = self.ledger.emptied
        world.events.on_arrival = self._hint

    def log(self, process: Process) -> ProcessEventLog:
        """The event log as `process` reaches it."""
        return ProcessEventLog(self._world, process, self.broker, self.faults)

    def _hint(self) -> None:
        now = SimulatedClock(self._world.scheduler).now()
        hint = Hint(table_uid=self.ledger.uid, reason="committed", time=now)
        self.broker.append("hints", self.broker.take("hints"), [encode(hint)], now)


def mirror(cluster: Cluster, process: Process) -> None:
    """One shard's mirror, life after life; a second one of the same shard fences it, and comes back fenced itself."""
    choose = cluster.world.chooser(process.name)
    settings = _settings(cluster.topics.batch_entries)
    while not cluster.world.is_over():
        context = context_of(cluster, process, "mirror", cluster.world.is_over)
        live(cluster, MirrorService(settings, context), context, settings, choose, _LIVES_WITH)
        pause(cluster, choose, 60)


def event_follower(cluster: Cluster, process: Process) -> None:
    """Follows the table by events alone and asks its log for what is missing between them."""
    world = cluster.world
    choose = world.chooser(process.name)
    while not world.is_over():
        try:
            _follow(cluster, process)
        except (*EXPECTED, EventLogUnavailable, CommitLost, PublisherFenced):
            pause(cluster, choose, 5)


def finish(cluster: Cluster) -> None:
    """Nothing goes wrong any more: a fresh mirror and a fresh follower come to the end of the log."""
    world, topics = cluster.world, cluster.topics
    topics.faults.calm()
    head = len(cluster.oracle.entries)
    for name, act in (("mirror-last", _mirror_last), ("follower-last", _follow)):
        process = Process(name, name)
        world.scheduler.spawn(name, process, partial(act, cluster, process))
        world.scheduler.run()
    if topics.ledger.last != head:
        cluster.oracle.report(f"the topic ends with entry {topics.ledger.last}, the log with {head}")
    if topics.seen != head:
        cluster.oracle.report(f"the follower saw entry {topics.seen} at last, the log ends with {head}")


def _mirror_last(cluster: Cluster, process: Process) -> None:
    context = context_of(cluster, process, "mirror", lambda: False)
    service = MirrorService(_settings(cluster.topics.batch_entries), context)
    try:
        service.start()
        while service.tick() is not None:
            pass
    finally:
        service.stop()


def _follow(cluster: Cluster, process: Process) -> None:
    """Until the history ends or something fails; what was not kept comes again."""
    world, topics = cluster.world, cluster.topics
    table = cluster.open_once(process)
    log = topics.log(process)
    events = EventConsumer(
        log,
        GROUP,
        backfill=partial(_backfilled, table),
        clock=SimulatedClock(world.scheduler, process),
        seen=lambda: {table.uid: topics.seen},
    )
    with closing(events) as consumer:
        while True:
            before = events.counts
            found = consumer.poll(30.0)
            topics.ledger.follow("the follower", topics.seen, found)
            topics.seen = max([topics.seen, *(event.sequence for event in found)])
            topics.ledger.work["events backfilled"] += events.counts.backfilled - before.backfilled
            topics.ledger.work["events dropped"] += events.counts.duplicates - before.duplicates
            consumer.commit()
            if not found and world.closing:
                return


def _backfilled(table: Table, identity: TableIdentity, first: int, last: int) -> list[Transition]:
    assert identity.uid == table.uid
    return list(backfill(table, first, last))
