"""Who plays in a history, and by which options."""

from __future__ import annotations

from collections.abc import Callable

from tests.simulation import actors, ingest_actors, mirror_actors, service_actors
from tests.simulation.actors import Cluster
from tests.simulation.scheduler import Process
from tests.simulation.signs_of_life import INTERVAL_S
from tests.simulation.world import World


def options_of(world: World) -> dict[str, object]:
    """Options of the table for all actors."""
    choose = world.choose
    options = {
        "tideline.log.retained.entries": 10,
        "tideline.log.retention": 100 if world.is_trimmed else 7 * 24 * 3600,
        "hoodie.parquet.small.file.limit": choose.choice((0, 10**8)),
        "hoodie.cleaner.commits.retained": choose.choice((1, 1, 2, 3)),
        "tideline.log.checkpoint.interval": choose.choice((2, 3, 7, 50)),
        "tideline.clustering.yields": choose.choice((0, 1, 3)),
        "tideline.clustering.min.input.files": choose.choice((1, 2)),
        "hoodie.parquet.compression.codec": "none",
        "hoodie.client.heartbeat.interval_in_ms": INTERVAL_S * 1000,
        # Who waits asks again and again: short waits leave the steps to the work.
        "tideline.write.intent.wait": choose.choice((0, 1, 5)),
        "tideline.write.priority.wait": 10,
        # As soon as a heartbeat may be missed.
        "tideline.clustering.priority.lapse": 0,
        "hoodie.compact.inline.max.delta.commits": choose.choice((1, 2, 4)),
        "hoodie.logfile.data.block.format": choose.choice(("avro", "parquet")),
        "tideline.insert.to.log": choose.random() < 0.5,
        "tideline.log.index.clique.files": choose.choice((0, 2, 8)),
    }
    if world.is_global:
        options |= {
            "hoodie.index.type": "GLOBAL_SIMPLE",
            "hoodie.simple.index.update.partition.path": world.chooser("global").random() < 0.7,
        }
    if world.is_filtered:
        options |= {
            "hoodie.index.type": "GLOBAL_BLOOM" if world.is_global else "BLOOM",
            "hoodie.bloom.index.update.partition.path": world.chooser("filtered").random() < 0.7,
            "hoodie.bloom.index.filter.type": world.chooser("filtered").choice(("SIMPLE", "DYNAMIC_V0")),
        }
    if world.is_merged:
        merging = world.chooser("merged")
        options["hoodie.log.compaction.blocks.threshold"] = merging.choice((2, 2, 3))
        # A compaction that is due at each delta commit would leave no log files to merge.
        options["hoodie.compact.inline.max.delta.commits"] = merging.choice((2, 4, 8))
        options["hoodie.cleaner.commits.retained"] = 1
    if world.is_ringed:
        options["hoodie.clustering.plan.strategy.sort.columns"] = "v"
        options["tideline.clustering.update.strategy"] = world.chooser("rings").choice(
            ("yield", "carry-over", "carry-over", "reject")
        )
    if world.is_carried:
        options |= {"tideline.clustering.update.strategy": "carry-over", "hoodie.parquet.small.file.limit": 0}
        options["tideline.clustering.min.input.files"] = 1
    return options | (_archival_options(world) if world.is_archived else {})


def _archival_options(world: World) -> dict[str, object]:
    return {
        "hoodie.cleaner.commits.retained": 1,
        "hoodie.keep.min.commits": 2,
        "hoodie.keep.max.commits": world.chooser("archival").choice((2, 3)),
        "hoodie.commits.archival.batch": 2,
        # Above the deadline of a healer: it looks whether what it heals was archived only when it took longer.
        "tideline.archive.min.age": 65,
        "tideline.task.max.lifetime": world.task_lifetime_s,
    }


def cast_of(world: World) -> list[tuple[str, Callable[[Cluster, Process], None]]]:
    """Three to six actors, at least two of them writers; more where the table is mirrored or fed."""
    choose = world.choose
    cast = [(f"writer{n}", actors.writer) for n in range(choose.choice((2, 2, 3)))]
    likely = (
        (service_actors.clusterer, 0.8),
        (service_actors.cleaner, 0.6),
        (service_actors.recoverer, 0.5),
        (actors.reader, 0.3),
        (actors.follower, 0.1),
    )
    if world.is_merge_on_read:
        # Clustering takes logs away too: with it in every history compaction would have little to do.
        likely = ((service_actors.compactor, 0.85), (service_actors.clusterer, 0.4), *likely[1:])
    others = [act for act, likelihood in likely if choose.random() < likelihood] or [likely[0][0]]
    if world.is_carried:
        # With two of them, one takes over from the other.
        others = [service_actors.clusterer, *(act for act in others if act is not service_actors.compactor)]
    if world.is_slow and choose.random() < 0.8:
        # Who take clusterings over from each other.
        service = service_actors.compactor if world.is_merge_on_read and choose.random() < 0.6 else service_actors.clusterer
        others = [service, service, service_actors.recoverer]
    if world.is_merged:
        # What rewrites slices whose logs were merged, and what deletes their files.
        service = world.chooser("rewriters").choice((service_actors.compactor, service_actors.clusterer))
        others = [service, service_actors.cleaner]
    if world.keeps_long and service_actors.cleaner not in others:
        others = [service_actors.cleaner, *others[1:]]
    if world.is_bucketed and not world.is_ringed:
        served = service_actors.compactor if world.is_merge_on_read else service_actors.cleaner
        others = [served if act is service_actors.clusterer else act for act in others]
    if world.is_ringed:
        if world.chooser("clusterers").random() < 0.5:
            # Compactions would leave them little to do.
            others = [service_actors.clusterer, *(act for act in others if act is not service_actors.compactor)]
        others = [service_actors.resizer, *others]
    if world.is_resized:
        others = [service_actors.renumberer, *others]
    choose.shuffle(others)
    apart = [
        act
        for act, is_there in (
            (service_actors.log_compactor, world.is_merged),
            (service_actors.keeper, world.is_saved),
            (service_actors.overwriter, world.is_overwritten),
            (service_actors.archiver, world.is_archived),
            (service_actors.archiver, world.is_archived and world.chooser("archivers").random() < 0.3),
        )
        if is_there
    ]
    apart = apart[: 6 - len(cast)]
    cast += [(f"{act.__name__}{n}", act) for n, act in enumerate([*others[: 6 - len(cast) - len(apart)], *apart])]
    if world.is_mirrored:
        mirrors = world.chooser("mirrors").choice((1, 2))
        cast += [(f"mirror{n}", mirror_actors.mirror) for n in range(mirrors)]
        cast.append(("event_follower", mirror_actors.event_follower))
    if world.is_fed:
        cast.append(("producer", ingest_actors.producer))
        cast += [(f"ingester{n}", ingest_actors.ingester) for n in range(world.chooser("ingesters").choice((2, 2, 3)))]
    return cast
