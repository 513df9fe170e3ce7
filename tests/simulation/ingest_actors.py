"""Applications that take a topic in: the production service, killed, asleep and started twice."""

from __future__ import annotations

from functools import partial

from tests.simulation.actors import Cluster, pause, read_once
from tests.simulation.feed import PARTITIONS, TOPIC, Feed, FeedReader
from tests.simulation.scheduler import Process
from tests.simulation.service_lives import context_of, live

from tideline_ingest.errors import TopicUnavailable
from tideline_ingest.ingestion import IngestService
from tideline_ingest.settings import IngestSettings
from tideline_table.errors import ProgressMoved


def producer(cluster: Cluster, process: Process) -> None:
    """Sends records to the topic, a few at a time."""
    world = cluster.world
    choose = world.chooser(process.name)
    while not world.is_over():
        for _ in range(choose.randrange(1, 6)):
            cluster.feed.send(choose.choice(PARTITIONS))
        pause(cluster, choose, choose.choice((1, 10, 60)))


def ingester(cluster: Cluster, process: Process) -> None:
    """One instance of an application, life after life. Which application it is follows from its name."""
    world = cluster.world
    choose = world.chooser(process.name)
    application, partitions = _applications(cluster.feed)[int(process.actor[-1]) % len(_applications(cluster.feed))]
    while not world.is_over():
        settings = _settings(cluster, application, partitions, choose.choice((1, 3, 8)))
        context = context_of(cluster, process, "ingest", world.is_over)
        reader = FeedReader(cluster.feed, world, process, partitions)
        service = IngestService(settings, context, storage=world.storage(process), reader=reader)
        live(cluster, service, context, settings, choose, (ProgressMoved, TopicUnavailable))
        pause(cluster, choose, 20)


def finish(cluster: Cluster) -> None:
    """Nothing goes wrong any more: fresh applications come to the end of the topic, and the table holds each record once."""
    world, oracle, feed = cluster.world, cluster.oracle, cluster.feed
    feed.faults.calm()
    for application, partitions in _applications(feed):
        process = Process(f"{application}-last", "last")
        world.scheduler.spawn(process.name, process, partial(_take_in_the_rest, cluster, process, application, partitions))
        world.scheduler.run()
        for partition in partitions:
            held, end = feed.held(application).get((TOPIC, partition), 0), len(feed.records[TOPIC, partition])
            if held != end:
                oracle.report(f"{application} took in partition {partition} up to {held} of {end}")
    model = oracle.model_at(oracle.state.sequence)
    found = {key: value for key, value in model.items() if key.startswith("F")}
    if found != feed.rows:
        odd = sorted(k for k in found.keys() | feed.rows.keys() if found.get(k) != feed.rows.get(k))
        oracle.report(f"of the topic the table holds {found.get(odd[0])} at {odd[0]} instead of {feed.rows.get(odd[0])}")


def _take_in_the_rest(cluster: Cluster, process: Process, application: str, partitions: tuple[int, ...]) -> None:
    world = cluster.world
    settings = _settings(cluster, application, partitions, 50)
    reader = FeedReader(cluster.feed, world, process, partitions)
    service = IngestService(
        settings, context_of(cluster, process, "ingest", lambda: False), storage=world.storage(process), reader=reader
    )
    service.start()
    while any(cluster.feed.held(application).get((TOPIC, p), 0) < len(cluster.feed.records[TOPIC, p]) for p in partitions):
        service.tick()
    service.stop()
    read_once(cluster, f"{process.name}.1", world.chooser(process.name), cluster.open_once(process))


def _applications(feed: Feed) -> list[tuple[str, tuple[int, ...]]]:
    return [(f"app{p}", (p,)) for p in PARTITIONS] if feed.is_shared_out else [("app", PARTITIONS)]


def _settings(cluster: Cluster, application: str, partitions: tuple[int, ...], batch_rows: int) -> IngestSettings:
    return IngestSettings.load(
        environment={},
        application_id=application,
        table=cluster.world.disk.root,
        brokers="none:1",
        topics=(TOPIC,),
        partitions=partitions,
        operation=cluster.feed.operation,
        batch_rows=batch_rows,
        locks="storage:",
        options={name: str(value).lower() for name, value in cluster.options.items()},
    )
