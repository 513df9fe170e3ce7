"""A writer that does on the timeline what Apache Hudi's does: optimistic concurrency control, lazy cleaning of failed writes,
copy-on-write.

It knows no log of Tideline and none of our rules. The order of its steps, what it compares under the lock, and what it leaves
behind are those of the format reference (6.4, 13.1 to 13.3), the conflict rule with what 1.x adds: a rollback of the own
instant. Its base files are made by our writer: their bytes are compared with Hudi's elsewhere.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta

import pyarrow as pa
from tests.simulation.file_contents import base_rows
from tests.simulation.hudi_lock import HudiLock
from tests.simulation.scheduler import SECOND, Process, SimulatedClock
from tests.simulation.shared_world import SharedStorage, SharedWorld
from tests.simulation.signs_of_life import HEARTBEATS, INTERVAL_S
from tests.simulation.visible_files import GroupId

from tideline_table.action.write.run import create_partition, write_context
from tideline_table.errors import ObjectExists, ObjectNotFound, StorageError
from tideline_table.file_group.slice import FileGroupId, FileSlice
from tideline_table.hudi.avro_container import decode_document
from tideline_table.hudi.format import TableFormat
from tideline_table.hudi.instant import WRITE_ACTIONS, Action, Instant, State, instant_from_time, next_instant
from tideline_table.hudi.listing import TimelineListing, timeline_listing
from tideline_table.hudi.plans import ROLLBACK_METADATA, ROLLBACK_PLAN, encode_document
from tideline_table.hudi.write_stats import SCHEMA_KEY, CommitMetadata, WriteStat
from tideline_table.log.timeline_files import EMPTY_REPLACE_REQUEST
from tideline_table.merge import Merging
from tideline_table.table import Table
from tideline_table.writer import FileGroupTask, Operation, prepare_input
from tideline_table.writer.file_group import write_file_group
from tideline_table.writer.marker import forget_markers, marked_files

_SKEW_US = SECOND // 5
"""`hoodie.time.generator.max_expected_clock_skew_ms`."""
_MOST_STARTING_S = 20
"""Who died on the way never looks."""
_DEAD_AFTER = timedelta(seconds=2 * INTERVAL_S)


class HudiFailed(Exception):
    """A job that ended with an error: its instant is left to lazy cleaning."""


class HudiUnsure(HudiFailed):
    """A job that failed at its commit point: its client may have sent what was there already."""


@dataclass(frozen=True, slots=True)
class HudiView:
    """What a write knows of the table from its start on."""

    instant: str
    last_completed: str
    pending: frozenset[str]
    groups: Mapping[GroupId, tuple[str, str]]
    """File group → instant and path of its newest base file."""
    planned: frozenset[GroupId]
    """File groups of pending clusterings: Hudi refuses to update them."""


@dataclass(slots=True)
class HudiWriter:
    """One process of Hudi's."""

    world: SharedWorld
    process: Process
    storage: SharedStorage
    table: Table
    """For its schema and its key generator alone."""
    _documents: dict[str, CommitMetadata] = field(default_factory=dict)

    @property
    def form(self) -> TableFormat:
        """That of the table, which no writer changes."""
        return self.world.form

    # --- a write -----------------------------------------------------------------------------------------------------------------

    @contextmanager
    def begun(self) -> Iterator[HudiView]:
        """An instant with a heartbeat, and the table as it is then. What ends it with an error leaves the instant behind."""
        starting = self.world.peers_starting
        starting.add(self.process.name)
        beating = [True]
        try:
            instant = self._take_instant()
            self.world.scheduler.spawn(f"heartbeat {instant}", self.process, lambda: self._beat(instant, beating))
            view = self._look(instant)
            starting.discard(self.process.name)
            yield view
        finally:
            starting.discard(self.process.name)
            beating.clear()

    def values(self, view: HudiView) -> dict[str, tuple[str, GroupId]]:
        """Every row that the view shows: key → value and where it is."""
        found = {}
        for group, (_, path) in sorted(view.groups.items()):
            for row in base_rows(self.storage.read(path)):
                found[row[0]] = (row[2], group)
        return found

    def write(self, view: HudiView, rows: Mapping[GroupId | str, pa.Table], extra: Mapping[str, str]) -> None:
        """Write rows into their file groups (a partition: into a new one) and commit.

        Raises `HudiFailed`, or what the storage says.
        """
        if view.planned & {at for at in rows if isinstance(at, tuple)}:
            raise HudiFailed("a file group is being clustered")
        self._create(Instant(view.instant, Action.COMMIT, State.INFLIGHT), b"")
        stats = [self._write_group(view, number, at, rows[at]) for number, at in enumerate(sorted(rows, key=str))]
        self._abort_if_silent(view.instant)
        with self._lock():
            self._resolve_conflicts(view, {(s.partition_path, s.file_id) for s in stats})
            metadata = CommitMetadata("UPSERT", tuple(stats), {SCHEMA_KEY: self.table.schema_json, **extra})
            self._let_others_start()
            content = self.form.commit_content(metadata)
            self._transition(Instant(view.instant, Action.COMMIT, State.INFLIGHT), content)
        with suppress(StorageError):
            forget_markers(self.storage, view.instant)
            self.storage.delete(HEARTBEATS + view.instant)

    def _take_instant(self) -> str:
        """By the clock alone, in version 6 without the lock. At one moment with its request: nobody could see what lies between."""
        if not self.form.has_completion_times:
            return self._requested()
        with self._lock():
            return self._requested()

    def _requested(self) -> str:
        clock = SimulatedClock(self.world.scheduler, self.process)
        self.storage.list_folder(self.form.timeline_folder)
        instant = self._time()
        for _ in range(100):
            requested = self.form.timeline_path(Instant(instant, Action.COMMIT, State.REQUESTED))
            try:
                self.storage.at_once((HEARTBEATS + instant, b""), (requested, b""))
            except ObjectExists:
                instant = next_instant(clock.now(), instant)
                continue
            return instant
        raise HudiFailed("no free instant")

    def _time(self) -> str:
        """The clock's; where names say completion times, waits until it is past on all clocks ("true time")."""
        time = instant_from_time(SimulatedClock(self.world.scheduler, self.process).now())
        if self.form.has_completion_times:
            self.world.scheduler.sleep(_SKEW_US)
        return time

    def _beat(self, instant: str, beating: list[bool]) -> None:
        while True:
            self.world.scheduler.sleep(INTERVAL_S * SECOND)
            if not beating:
                return
            with suppress(StorageError):
                self.storage.put(HEARTBEATS + instant, b"")

    def _look(self, instant: str) -> HudiView:
        timeline = self._timeline()
        writes = [i for i in timeline.instants if i.action in WRITE_ACTIONS and i.time != instant]
        completed = [i for i in writes if i.state is State.COMPLETED]
        pending = frozenset(i.time for i in writes if i.state is not State.COMPLETED)
        groups: dict[GroupId, tuple[str, str]] = {}
        replaced: set[GroupId] = set()
        for done in completed:
            metadata = self._metadata(timeline, done)
            for stat in metadata.stats:
                group = (stat.partition_path, stat.file_id)
                groups[group] = max(groups.get(group, ("", "")), (done.time, stat.path))
            replaced |= _replaced(metadata)
        shown = {group: newest for group, newest in groups.items() if group not in replaced}
        return HudiView(instant, max((i.time for i in completed), default=""), pending, shown, self._planned(timeline))

    def _planned(self, timeline: TimelineListing) -> frozenset[GroupId]:
        planned: set[GroupId] = set()
        for pending in timeline.instants:
            if pending.action is Action.REPLACE_COMMIT and pending.state is not State.COMPLETED:
                planned |= self._groups_of_plan(pending.time)
        return frozenset(planned)

    def _groups_of_plan(self, instant: str) -> set[GroupId]:
        try:
            content = self.storage.read(
                self.form.timeline_path(Instant(instant, Action.REPLACE_COMMIT, State.REQUESTED, is_clustering=True))
            )
        except ObjectNotFound:
            return set()
        plan = (decode_document(content, instant) if content else EMPTY_REPLACE_REQUEST).get("clusteringPlan") or {}
        return {(s["partitionPath"], s["fileId"]) for group in plan.get("inputGroups", ()) for s in group["slices"]}

    def _write_group(self, view: HudiView, number: int, at: GroupId | str, rows: pa.Table) -> WriteStat:
        definition = self.table.definition
        prepared = prepare_input(rows, self.table.schema, definition.keygen, Merging(), Operation.UPSERT, combine=True)
        context = write_context(self.table, view.instant, Operation.UPSERT, self.table.options)
        create_partition(self.table, at if isinstance(at, str) else at[0], view.instant)
        if isinstance(at, str):
            task = FileGroupTask(number, at, f"{uuid.uuid4()}-0", None)
        else:
            instant, path = view.groups[at]
            base = FileSlice(FileGroupId(*at), instant, path.rpartition("/")[2], 0, -1)
            task = FileGroupTask(number, *at, base)
        result = write_file_group(context, task, prepared.rows, self.storage)
        assert result.stat is not None
        return result.stat

    def _let_others_start(self) -> None:
        """What another one of Hudi's lost by taking its instant before this commit and looking behind it would be Hudi's own
        loss."""
        starting = self.world.peers_starting
        if starting - {self.process.name}:
            self.world.scheduler.wait_for(lambda: not starting - {self.process.name}, _MOST_STARTING_S * SECOND)

    def _abort_if_silent(self, instant: str) -> None:
        """Whose heartbeat ran out gives up before it takes the lock."""
        if self._is_silent(instant):
            raise HudiFailed(f"the heartbeat of {instant} expired")

    def _resolve_conflicts(self, view: HudiView, own: set[GroupId]) -> None:
        timeline = self._timeline()
        for other in timeline.instants:
            if other.action is Action.ROLLBACK and self._target(timeline, other) == view.instant:
                raise HudiFailed(f"{view.instant} was rolled back by {other.time}")
            if other.action not in WRITE_ACTIONS or other.time == view.instant:
                continue
            groups: set[GroupId] = set()
            if other.state is State.COMPLETED and (other.time > view.last_completed or other.time in view.pending):
                metadata = self._metadata(timeline, other)
                groups = {(s.partition_path, s.file_id) for s in metadata.stats} | _replaced(metadata)
            elif other.state is not State.COMPLETED and other.action is Action.REPLACE_COMMIT:
                groups = self._groups_of_plan(other.time)
            if groups & own:
                raise HudiFailed(f"{view.instant} conflicts with {other.time}")

    # --- lazy cleaning of failed writes
    # ----------------------------------------------------------------------------------------------

    def roll_back_silent(self) -> None:
        """Undo every pending write whose heartbeat ran out, whichever process made it; go on with rollbacks that died."""
        for dead in self._silent_writes(self._timeline()):
            self._roll_back(dead)

    def _silent_writes(self, timeline: TimelineListing) -> list[Instant]:
        pending = [i for i in timeline.instants if i.action is Action.COMMIT and i.state is not State.COMPLETED]
        return [i for i in pending if self._is_silent(i.time)]

    def _is_silent(self, instant: str) -> bool:
        try:
            beaten = self.storage.stat(HEARTBEATS + instant).modified
        except ObjectNotFound:
            return True
        return SimulatedClock(self.world.scheduler, self.process).now() - beaten > _DEAD_AFTER

    def _roll_back(self, dead: Instant) -> None:
        with self._lock():
            timeline = self._timeline()
            if not any(i.time == dead.time and i.state is not State.COMPLETED for i in timeline.instants):
                return
            running = [i for i in timeline.instants if i.action is Action.ROLLBACK and i.state is not State.COMPLETED]
            rollback = next((i.time for i in running if self._target(timeline, i) == dead.time), "")
            if not rollback:
                rollback = self._plan_rollback(dead, timeline)
            inflight = Instant(rollback, Action.ROLLBACK, State.INFLIGHT)
            with suppress(ObjectExists):
                self.storage.put_if_absent(self.form.timeline_path(inflight), b"")
        deleted = sorted(set(marked_files(self.storage, dead.time)))
        for path in deleted:
            self.storage.delete(path)
        with self._lock():
            if not any(i.time == rollback for i in self._timeline().instants if i.state is not State.COMPLETED):
                return  # another process was faster
            for state in (State.INFLIGHT, State.REQUESTED):
                self.storage.delete(self.form.timeline_path(replace(dead, state=state)))
            self._transition(inflight, encode_document(ROLLBACK_METADATA, _rollback_metadata(rollback, dead, deleted)))
        forget_markers(self.storage, dead.time)
        self.storage.delete(HEARTBEATS + dead.time)

    def _plan_rollback(self, dead: Instant, timeline: TimelineListing) -> str:
        clock = SimulatedClock(self.world.scheduler, self.process)
        rollback = next_instant(clock.now(), max(i.time for i in timeline.instants))
        plan = {"instantToRollback": {"commitTime": dead.time, "action": dead.action.value}, "RollbackRequests": [], "version": 1}
        self._create(Instant(rollback, Action.ROLLBACK, State.REQUESTED), encode_document(ROLLBACK_PLAN, plan))
        return rollback

    def _target(self, timeline: TimelineListing, rollback: Instant) -> str:
        path = self.form.timeline_path(replace(rollback, state=State.REQUESTED))
        try:
            content = self.storage.read(path)
        except ObjectNotFound:
            return ""
        return str(decode_document(content, path)["instantToRollback"]["commitTime"]) if content else ""

    # --- the timeline ------------------------------------------------------------------------------------------------------------

    def _lock(self) -> AbstractContextManager[None]:
        return HudiLock(self.world, self.process, self.storage).hold()

    def _timeline(self) -> TimelineListing:
        found = self.storage.list_folder(self.form.timeline_folder).objects
        return timeline_listing(self.form, {o.path: o.modified for o in found})

    def _metadata(self, timeline: TimelineListing, done: Instant) -> CommitMetadata:
        path = timeline.path(done)
        if path not in self._documents:
            self._documents[path] = CommitMetadata.from_bytes(self.storage.read(path), path)
        return self._documents[path]

    def _create(self, instant: Instant, content: bytes) -> None:
        self.storage.put_if_absent(self.form.timeline_path(instant), content)

    def _transition(self, inflight: Instant, content: bytes) -> None:
        """To completed: what was before has to be there, what comes must not."""
        try:
            self.storage.stat(self.form.timeline_path(inflight))
            completed = replace(inflight, state=State.COMPLETED)
            ended = self._time() if self.form.has_completion_times else ""
            self.storage.put_if_absent(self.form.timeline_path(completed, ended), content)
        except ObjectNotFound as error:
            raise HudiFailed(f"{inflight.time} is not inflight any more") from error
        except ObjectExists as error:
            raise HudiUnsure(f"{inflight.time} is completed already") from error


def _replaced(metadata: CommitMetadata) -> set[GroupId]:
    return {(partition, file_id) for partition, ids in (metadata.replaced or {}).items() for file_id in ids}


def _rollback_metadata(rollback: str, dead: Instant, deleted: list[str]) -> dict[str, object]:
    return {
        "startRollbackTime": rollback,
        "timeTakenInMillis": 0,
        "totalFilesDeleted": len(deleted),
        "commitsRollback": [dead.time],
        "partitionMetadata": {},
        "version": 1,
        "instantsRollback": [{"commitTime": dead.time, "action": dead.action.value}],
    }
