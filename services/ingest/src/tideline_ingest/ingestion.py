"""The tick: read a batch that starts at the table's offsets, and write its rows and the new offsets in one commit."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from tideline_events.kafka_options import accepted_options
from tideline_ingest.choice import is_registered
from tideline_ingest.dead_letters import DeadLetters
from tideline_ingest.errors import OffsetsLost
from tideline_ingest.intake import Intake, TableIntake
from tideline_ingest.metrics import BATCH_TIME, COMMITS, GAPS, LAG, MOVED, RECORDS, VALUE_BYTES, WRITE_TIME
from tideline_ingest.offsets import Offsets, Place, starting_points
from tideline_ingest.schema_registry import SchemaRegistry
from tideline_ingest.settings import IngestSettings
from tideline_ingest.topic_reader import Limits, TopicReader
from tideline_locks import open_hudi_lock
from tideline_locks.table_lock import LockProviders
from tideline_runtime.contract import ServiceContext
from tideline_runtime.errors import InvalidSetting
from tideline_runtime.logging import get_logger
from tideline_runtime.policy import LivePolicies
from tideline_runtime.storage_requests import StorageRequests
from tideline_table.action import write_rows
from tideline_table.config import PRIORITY_WAIT_S, SCHEMA_EVOLUTION, SET_NULL_FOR_MISSING_COLUMNS
from tideline_table.errors import InvalidOption, ProgressMoved
from tideline_table.log import ProgressStep
from tideline_table.storage import Storage, open_storage
from tideline_table.table import Table, check_stands
from tideline_table.writer import Operation

_log = get_logger(__name__)


def progress_key(application_id: str) -> str:
    """Return the key under which the table keeps the offsets of an application."""
    return f"ingest.{application_id}"


def client_options(settings: IngestSettings) -> dict[str, str]:
    """Return the options of librdkafka for the clients of an application."""
    given = {name: secret.get_secret_value() for name, secret in settings.kafka_options.items()}
    return {**given, "bootstrap.servers": settings.brokers, "client.id": "tideline-ingest"}


def _usual_options(settings: IngestSettings) -> dict[str, str]:
    evolves = {SCHEMA_EVOLUTION.key: "evolve"} if settings.unknown_fields == "evolve" else {}
    return {SET_NULL_FOR_MISSING_COLUMNS.key: "true", **evolves}


class IngestService:
    """One ingest application. After each error it drops the offsets that it holds and reads them from the table again.

    `storage` and `reader`, if given, are used instead of those that the settings name.
    """

    _table: Table
    """Set by `start`, like `_intake`."""
    _intake: TableIntake

    def __init__(
        self,
        settings: IngestSettings,
        context: ServiceContext,
        *,
        storage: Storage | None = None,
        reader: TopicReader | None = None,
    ) -> None:
        self._settings = settings
        self._context = context
        self._instance = f"ingest-{settings.application_id}-{uuid.uuid4().hex[:12]}"
        self._key = progress_key(settings.application_id)
        self._locks = LockProviders(settings.locks, context.clock)
        self._client = client_options(settings)
        self._registry: SchemaRegistry | None = None
        self._storage = storage
        self._policies = LivePolicies(settings.policy_file, context.clock, context.metrics)
        self._requests = StorageRequests(context.metrics, settings.prices)
        self._reader = reader
        self._dead_letters: DeadLetters | None = None
        self._held: str | None = None
        """The progress value in the table. The next commit replaces it."""
        self._offsets: Offsets | None = None
        """The next offsets. None means that they must be read from the table first."""
        self._places: set[Place] = set()
        self._rescan_s = 0.0
        context.metrics.expose(COMMITS, MOVED, GAPS, VALUE_BYTES)

    def start(self) -> None:
        """Open the table, check that the settings fit the table, and create the clients of Kafka and of the schema registry.

        Raises the errors of `Table.open`, `Table.check_writable` and `TableIntake`, `FeedingRefused` where the policy lets no
        ingestion write, and `InvalidSetting` for options that a client refuses.
        """
        settings, clock = self._settings, self._context.clock
        table = Table.open(
            settings.table,
            options={**_usual_options(settings), **settings.options},
            clock=clock,
            writer_id=self._instance,
            storage=self._requests.counted(self._storage or open_storage(settings.table)),
            hudi_lock=open_hudi_lock,
        )
        table.check_writable(keyed=settings.operation == "upsert")
        self._locks.attach(table)
        self._table = table
        self._check_policy()
        if self._registry is None and settings.schema_registry and is_registered(settings):
            self._registry = SchemaRegistry.of(settings, self._context.health.beat)
        self._intake = TableIntake(settings, table, self._registry)
        if self._reader is None:
            group = f"tideline-ingest-{settings.application_id}"
            with self._accepted_options():
                self._reader = TopicReader(
                    self._client, settings.topics, settings.partitions, group, settings.kafka_timeout_s, clock
                )
        self._context.health.require("kafka", self._reader.probe)
        if settings.poison == "dead_letter" and self._dead_letters is None:
            with self._accepted_options():
                self._dead_letters = DeadLetters(
                    self._client, settings.dead_letter_topic, settings.application_id, settings.kafka_timeout_s
                )

    def tick(self) -> float | None:
        """Ingest one batch, if records arrive within the poll interval.

        Raises `ProgressMoved` if another instance of the application committed first, `PoisonRecord` and `OffsetsLost` as the
        settings say, `TopicUnavailable`, and the errors of `TableIntake.take` and of a write.
        """
        assert self._reader is not None
        try:
            if self._offsets is None or self._has_new_places():
                self._find_offsets()
            settings = self._settings
            limits = Limits(settings.batch_rows, settings.batch_bytes, settings.batch_wait_s)
            batch = self._reader.read(limits, self._goes_on, settings.poll_interval_s)
            if batch is not None and self._goes_on() and self._is_of_known_topics():
                with self._context.metrics.timed(WRITE_TIME):
                    intake = self._intake.take(batch)
                    if intake.batch is not batch:
                        self._reader.assign(intake.batch.next)
                    self._commit(intake)
                self._context.metrics.observe(BATCH_TIME, self._context.clock.monotonic_s() - batch.began_s)
            self._observe_lag()
        except ProgressMoved:
            self._offsets = None
            self._context.metrics.increment(MOVED)
            raise
        except Exception:
            # The error may have occurred after the commit point, so the next tick reads the offsets from the table.
            self._offsets = None
            raise
        return 0.0

    def stop(self) -> None:
        """Close the connections. The next instance reads an uncommitted batch again."""
        if self._reader is not None:
            self._reader.close()
        if self._dead_letters is not None:
            self._dead_letters.close()
        if self._registry is not None:
            self._registry.close()
        self._locks.close()

    @contextmanager
    def _accepted_options(self) -> Iterator[None]:
        """Translate the refusal of `kafka_options` by a client into `InvalidSetting`."""
        name = "ingest.kafka_options"
        try:
            with accepted_options(self._client, name):
                yield
        except InvalidOption as error:
            raise InvalidSetting(
                error.found, name=name, origin=self._settings.origin("kafka_options"), expected=error.expected, remedy=error.remedy
            ) from None

    def _check_policy(self) -> None:
        table = self._table
        policy = self._policies.current().of(table.storage.root, table.uid)
        policy.check_feeding(created_here=table.sharing is None or (table.identity is not None and table.identity.is_created_here))

    def _goes_on(self) -> bool:
        self._context.health.beat()
        return not self._context.stopping.is_set()

    def _has_new_places(self) -> bool:
        assert self._reader is not None
        now_s = self._context.clock.monotonic_s()
        if now_s < self._rescan_s:
            return False
        self._rescan_s = now_s + self._settings.topic_rescan_s
        return self._reader.places() != self._places

    def _is_of_known_topics(self) -> bool:
        """Return whether the records read belong to the topics of the known offsets; if not, find the offsets again.

        Kafka looks offsets up by topic name, so a recreated topic that has grown past the offset answers like the old one. If
        the id of a topic is unchanged after a read, all records of the read are of that topic.
        """
        assert self._reader is not None
        assert self._offsets is not None
        if not self._offsets.renewed(self._reader.topic_ids()):
            return True
        self._find_offsets()
        return False

    def _find_offsets(self) -> None:
        """Continue from the offsets in the table, in all partitions that exist now. Raises `OffsetsLost` and `TopicUnavailable`."""
        assert self._reader is not None
        settings = self._settings
        record = self._table.refresh().progress.get(self._key)
        held = Offsets.from_text(record.value) if record else None
        self._places = self._reader.places()
        # Read ids before offsets: outdated ids are noticed at the first batch, but ids newer than the offsets never would be.
        topic_ids = self._reader.topic_ids()
        kept = self._reader.kept(self._places)
        # Records of partitions that another application reads now are not lost.
        own = held.only(settings.partitions) if held else None
        points, lost = starting_points(
            own, kept, topic_ids, at_end=settings.start_at == "latest", over_gaps=settings.on_lost_offsets == "continue"
        )
        self._held = record.value if record else None
        self._offsets = (held or Offsets()).moved(points, topic_ids)
        self._rescan_s = self._context.clock.monotonic_s() + settings.topic_rescan_s
        for gap in lost:
            self._report_gap(gap)
        if held is None and settings.start_at == "latest":
            # Commit the start offsets. Otherwise a restart before the first commit would skip records.
            self._write(None)
        self._reader.assign(points)
        _log.info("offsets found", table=self._table.uid, application=settings.application_id, offsets=self._offsets.to_text())

    def _commit(self, intake: Intake) -> None:
        assert self._offsets is not None
        if intake.rejected:
            assert self._dead_letters is not None
            self._dead_letters.write(intake.rejected)
            for rejected in intake.rejected:
                topic, partition = rejected.record.place
                _log.warning("dead letter", topic=topic, partition=partition, offset=rejected.record.offset, reason=rejected.reason)
        self._offsets = self._offsets.moved(intake.batch.next)
        self._write(intake)

    def _write(self, intake: Intake | None) -> None:
        """Commit rows and offsets together.

        Raises `ProgressMoved` if another instance committed first, `TableFrozen` if the table was replaced, `FeedingRefused` if
        the policy changed. All write nothing.
        """
        assert self._offsets is not None
        self._context.health.beat()
        self._check_policy()
        check_stands(self._table.storage, self._table.identity)
        value = self._offsets.to_text()
        committed = write_rows(
            self._table,
            intake.rows if intake else self._table.schema.empty_table(),
            Operation(self._settings.operation),
            removed=intake.removed if intake else None,
            progress=ProgressStep(self._key, self._held, value),
            # A waiting write sends no liveness beats. A batch that has to wait longer fails and is read again.
            options={PRIORITY_WAIT_S.key: min(self._table.options[PRIORITY_WAIT_S], self._settings.live_deadline_s / 3)},
        )
        self._held = value
        metrics, records = self._context.metrics, intake.batch.records if intake else ()
        metrics.increment(COMMITS)
        metrics.increment(VALUE_BYTES, sum(len(r.value or b"") for r in records))
        if intake is not None:
            for kind, count in (
                ("row", intake.rows.num_rows),
                ("tombstone", intake.deletions),
                ("superseded", intake.superseded),
                ("dead_letter", len(intake.rejected)),
            ):
                metrics.increment(RECORDS, count, kind=kind)
        _log.info(
            "committed",
            table=self._table.uid,
            instant=committed.instant,
            sequence=committed.sequence,
            records=len(records),
            attempts=committed.attempts,
        )

    def _observe_lag(self) -> None:
        assert self._reader is not None
        assert self._offsets is not None
        for (topic, partition), behind in self._reader.lag(self._offsets.next).items():
            self._context.metrics.set(LAG, behind, topic=topic, partition=str(partition))

    def _report_gap(self, gap: OffsetsLost) -> None:
        self._context.metrics.increment(GAPS)
        _log.error("records lost, continuing without them", exc_info=gap)
