"""`Table`: one open table and its queries."""

from __future__ import annotations

import socket
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, tzinfo
from functools import partial
from operator import attrgetter, is_

import pyarrow as pa
import pyarrow.compute as pc

from tideline_table.clock import Clock, SystemClock
from tideline_table.config import INDEX_TYPE, READ_OPERATION_FIELD, Options
from tideline_table.coordination import (
    ActiveTimeline,
    LogReplica,
    NoLock,
    NoReservations,
    OpenHudiTableLock,
    Reservations,
    TableLock,
)
from tideline_table.coordination.capabilities import Capabilities
from tideline_table.coordination.other_writers import check_not_upgraded, properties_in
from tideline_table.coordination.timeline import holds_keys_once, kept_partitions
from tideline_table.errors import InstantNotFound, ObjectNotFound, TableNotFound, UnsupportedTable
from tideline_table.file_group.slice import FileSlice
from tideline_table.hudi.file_names import FIXED_ID
from tideline_table.hudi.format import Feature
from tideline_table.hudi.formats import check_readable
from tideline_table.hudi.instant import Action
from tideline_table.hudi.point import Point, is_sequence, parse_as_of, parse_point
from tideline_table.hudi.zone import timeline_zone
from tideline_table.index.ring_store import RingStore
from tideline_table.index.scope import RECORD_INDEX, with_kept_type
from tideline_table.index.simple import SimpleIndex
from tideline_table.log.action import ActionRecord
from tideline_table.log.sharing import Sharing
from tideline_table.log.state import TableState
from tideline_table.merge import Merging
from tideline_table.metadata_table import LogRecords, RecordIndex
from tideline_table.reader.log_index import LogIndexes
from tideline_table.reader.read_plan import LogRule
from tideline_table.schema import avro_with_meta_fields, with_meta_fields
from tideline_table.schema.avro import VARIANT, VECTOR, check_writable_types
from tideline_table.schema.identity import SchemaVersions
from tideline_table.schema.meta_fields import OPERATION_FIELD
from tideline_table.storage import Folder, ObjectStat, Storage, open_storage
from tideline_table.table.added_rows import AddedRows
from tideline_table.table.bucket_numbers import check_index, complete_ended_resize
from tideline_table.table.changes import (
    InstantRange,
    PointKind,
    changed_rows,
    check_kept,
    holds_archived_files,
    newest_point,
    range_of,
    rule_at,
    sequence_of,
    slices_at,
    with_archived,
    writes_after,
)
from tideline_table.table.data_skipping import DataSkipping
from tideline_table.table.definition import TableDefinition, TableView
from tideline_table.table.identity import TableIdentity, check_stands, read_identity, replace_identity
from tideline_table.table.images import Images, images_of, operations_of
from tideline_table.table.opening import open_timeline
from tideline_table.table.pruning import pruning_of
from tideline_table.table.query import KeyRanges, Snapshot, sorted_keys, without_logs
from tideline_table.table.remains import check_no_remains
from tideline_table.table.rings import TableRings


class Table:
    """One open table: its definition, its state as of the last `refresh`, and its queries.

    Safe to share between threads. Writes and table services are functions on this object in packages of `tideline_table.action`.
    """

    def __init__(
        self, definition: TableDefinition, identity: TableIdentity | None, timeline: ActiveTimeline, lock: TableLock, base_path: str
    ) -> None:
        self.storage = timeline.storage
        self.base_path = base_path
        self.clock = timeline.clock
        self.options = timeline.options
        self._declared = definition
        self._viewed: tuple[TableView, int, tuple[TableDefinition, TableIdentity | None, Options]] | None = None
        self.identity = identity
        self.timeline = timeline
        self.lock = lock if timeline.capabilities.queues_writers else NoLock()
        self.reservations: Reservations = NoReservations()
        self._properties_seen: ObjectStat | None = None
        self._log_indexes = LogIndexes(self.storage)
        self.index = SimpleIndex(self.storage, log_indexes=self._log_indexes)
        self.record_index = RecordIndex(self.storage, timeline.records or LogRecords(self.storage, timeline.format))
        self._ring_store = RingStore(self.storage)
        self._found_writable: tuple[object, ...] = (None,) * 5
        self.partitions_made: set[str] = set()
        self._key_ranges = KeyRanges(self.storage)

    @classmethod
    def open(
        cls,
        base_path: str,
        *,
        options: Mapping[str, object] | None = None,
        lock: TableLock | None = None,
        hudi_lock: OpenHudiTableLock | None = None,
        clock: Clock | None = None,
        writer_id: str = "",
        storage: Storage | None = None,
        by_log: bool = False,
    ) -> Table:
        """Open the table at `base_path`.

        An exclusive table that another writer wrote, too, is read by its timeline; `by_log` follows the entries of its log.
        `lock` is for exclusive tables; `hudi_lock` opens the lock that a shared table needs for writing. Raises `TableNotFound`,
        `CorruptMetadata`, `UnsupportedTable` (a version or type that cannot be read), `InvalidOption`.
        """
        checked, storage = Options(options), storage or open_storage(base_path)
        name = writer_id or f"{socket.gethostname()}-{uuid.uuid4().hex[:12]}"
        try:
            definition = TableDefinition.read(storage, base_path)
        except TableNotFound:
            check_no_remains(storage, base_path)
            raise
        check_readable(definition.name, definition.version)
        kept = with_kept_type(definition.kept_index, checked)
        replica = LogReplica(storage, clock or SystemClock(), name, kept, definition.format)
        identity, timeline = open_timeline(definition, read_identity(storage), replica, hudi_lock, by_log=by_log)
        return cls(definition, identity, timeline, lock or NoLock(), base_path)

    @property
    def definition(self) -> TableDefinition:
        """The definition in `hoodie.properties`, with the numbers of buckets that the log says if the table was resized."""
        return self.view().definition

    def view(self, options: Options | Mapping[str, object] | None = None) -> TableView:
        """Return the table as of the last refresh; a mapping overrides the options with which it is open."""
        state, known, of = self.timeline.view(), self._viewed, (self._declared, self.identity, self.options)
        is_current = known is not None and known[0].state is state and known[1:] == (state.sequence, of)
        view = known[0] if known is not None and is_current else self._viewed_now(state)
        if not options:
            return view
        return replace(view, options=options if isinstance(options, Options) else self.options.merged(options))

    def _viewed_now(self, state: TableState) -> TableView:
        declared, identity, options = of = self._declared, self.identity, self.options
        with state.held():
            found = TableView(
                self.base_path,
                identity.uid if identity else "",
                self.storage.root,
                declared.resized(self.timeline.state.bucket_resize()),
                state,
                options,
                self.timeline.capabilities,
                holds_keys_once(state, options),
            )
            self._viewed = found, state.sequence, of
        return found

    def write_options(self, given: Mapping[str, object] | None = None) -> Options:
        """Return the options of a write: those of the table with `given`, and its record index unless an index is named."""
        chosen = self.options.merged(given or {})
        return with_kept_type(RECORD_INDEX if self.has_record_index else "", chosen)

    @property
    def has_record_index(self) -> bool:
        """Whether there is a record index, as of the last refresh: then no key may be in two places (`holds_keys_once`)."""
        return self.view().holds_keys_once

    def rings(self) -> TableRings | None:
        """Return what finds the hash rings of the table as of the last refresh; None without consistent hashing."""
        index = self.definition.ring_index
        return None if index is None else TableRings(self._ring_store, index, dict(self.state.ring_resizes))

    @property
    def capabilities(self) -> Capabilities:
        """What the table can, by who writes it."""
        return self.view().capabilities

    @property
    def sharing(self) -> Sharing | None:
        """How the table is shared with Apache Hudi's writers; None if it is not."""
        return self.timeline.state.sharing

    def hudi_options(self) -> dict[str, str]:
        """Return the options that Apache Hudi's writers of this shared table need."""
        assert self.sharing is not None
        index, kept = self.definition.buckets, self.definition.kept_index
        own = index.properties if index is not None else {INDEX_TYPE.key: kept} if kept else {}
        keeps = self.timeline.format.has_completion_times or not self.definition.has_logs
        metadata = kept_partitions(self.options) if keeps else ()
        given = {key: value for key, value in own.items() if value}
        return {**self.sharing.hudi_options(self.timeline.format, metadata), **given}

    @property
    def opens_fixed_ids(self) -> bool:
        """Whether Tideline gives a new bucket the file id that Apache Hudi's writers give it when they look for no conflicts.

        Such a writer may open the same bucket at the same time, and both must mean one file group. Tideline does not once a commit
        has replaced file groups: Apache Hudi would hide a new file group that has the id of a replaced one.
        """
        state = self.state
        if self.sharing is None or state.replaced or any(a.action is Action.REPLACE_COMMIT for a in state.actions.values()):
            return False
        return any(group.file_id.endswith(FIXED_ID) for group in state.slices)

    @property
    def uid(self) -> str:
        """The table's identity in events; empty for a table without a Tideline log."""
        return self.identity.uid if self.identity else ""

    @property
    def zone(self) -> tzinfo:
        """The zone of the instants: UTC, also in shared tables.

        Of this machine if only Apache Hudi writes the table, and in LOCAL time.
        """
        return UTC if self.capabilities.keeps_log else timeline_zone(self.definition.properties)

    @property
    def state(self) -> TableState:
        """The state as of the last refresh."""
        return self.timeline.view()

    @property
    def schema(self) -> pa.Schema:
        """The table schema without meta fields. Raises `SchemaMismatch` if the table declares none."""
        return self.schema_at("")

    def instant_of(self, as_of: Point) -> str:
        """Return the instant, or the sequence of the table log, that a point in time names; empty for empty text (now).

        Raises `InvalidOption`, also for a sequence of a table without a log.
        """
        if as_of in ("", None):
            return ""
        return (parse_point if self.capabilities.keeps_log else parse_as_of)(as_of, self.zone)

    def point_of(self, point: Point) -> str:
        """Return a point of `incremental` as its text: a sequence, an instant, or empty (no bound). Raises `InvalidOption`."""
        if point in ("", None):
            return ""
        return point if isinstance(point, str) and point in self.state.actions else parse_point(point, self.zone)

    def schema_at(self, as_of: Point) -> pa.Schema:
        """Return the schema as of a point in time (empty: now), without meta fields; errors as `schema` and `instant_of`."""
        instant, view = self.instant_of(as_of), self.view()
        if is_sequence(instant):
            done = range_of(view.state, PointKind.SEQUENCE, "", instant).through
            instant = max((i for i in view.state.schemas if i in done or i not in view.state.actions), default="0")
        return view.schema_of((view.state.schema_at(instant) if instant else "") or view.schema_json)

    @property
    def schema_json(self) -> str:
        """The Avro text of the schema: of the newest commit, else of the creation."""
        return self.view().schema_json

    def write_action(self, *, replaces: bool = False) -> Action:
        """Return the timeline action of a write of rows. `replaces`: the write replaces whole file groups."""
        if replaces:
            return Action.REPLACE_COMMIT
        return Action.DELTA_COMMIT if self.definition.has_logs else Action.COMMIT

    def footer_schema(self) -> str:
        """Return the Avro schema text with meta fields, for base file footers."""
        return avro_with_meta_fields(self.schema_json)

    def refresh(self) -> TableState:
        """Load what any writer committed since the last refresh; return the new state."""
        return self.timeline.refresh_view()

    def check_writable(self, *, keyed: bool = True, stores_rows: bool = True) -> None:
        """Raise if the table cannot be written: version, type, no Tideline log, a copy, or an unknown instant on the timeline.

        An action that `stores_rows` needs columns whose types Tideline writes; what ends or undoes another one does not.
        """
        self.timeline.check_not_upgraded()
        view = self.view()
        definition, is_alone = view.definition, view.capabilities.log_is_truth
        rests_on = (definition, view.schema_json, self.identity, keyed, stores_rows)
        if not all(map(is_, rests_on, self._found_writable)):
            definition.check_writable(keyed=keyed)
            if stores_rows and (VECTOR in view.schema_json or VARIANT in view.schema_json):
                check_writable_types(view.schema_json, definition.name)
            definition.merging.check_defaults(view.schema_json, definition.name)
            if self.identity is not None:
                self.identity.check_place(self.storage.root)
            self._found_writable = rests_on
        if not is_alone:  # an exclusive timeline reads the properties below; those read before may be older than a resize
            check_index(self._declared, self.identity, self.timeline)

        def check_definition(folder: Folder) -> None:
            # Two requests at first, and after each change of `hoodie.properties`.
            found = properties_in(folder)
            if found is None or found != self._properties_seen:
                check_stands(self.storage, self.identity)
                definition = TableDefinition.read(self.storage, self.base_path)
                check_not_upgraded(definition.properties, self.timeline.format)
                if self.identity is not None:
                    self.identity.check_declared(definition.properties)
                definition.check_writable(keyed=keyed)
                check_index(definition, self.identity, self.timeline)
                self._declared, self._properties_seen = definition, found

        self.timeline.check_writable(definition.name, check_definition)
        self.complete_resize()

    def complete_resize(self) -> None:
        """Complete what a resize of buckets left whose process died, if the properties say so. Writers and recovery call it."""
        if self._declared.buckets is not None and complete_ended_resize(self._declared, self.identity, self.timeline):
            self._properties_seen = None  # the next check reads them again

    def adopt(self, *, in_place: bool = False) -> TableIdentity:
        """Give a copied or moved table a new identity at its present base path.

        Raises `UnsupportedTable` for a table without an identity, and `InvalidOption` for a table that is where it was created
        unless `in_place`: its open writers would stop with `TableFrozen`, and events of it would continue under another uid.
        """
        self.identity = replace_identity(self.storage, self.clock, self.identity, self.definition.name, in_place=in_place)
        self.timeline.replica.uid = self.identity.uid
        return self.identity

    def log_rule(self, as_of: str = "", *, merges: bool = True) -> LogRule:
        """Return the rule for reading this table's files. Raises `UnsupportedTable` for log files merged by a rule that is code.

        Without `merges`, no log files are merged, so a table with any merge rule can be read.
        """
        view = self.view()
        definition, identified = view.definition, view.state.identified_schemas
        rule = LogRule(
            # Without logs, the ordering field only says what table services compare.
            merging=Merging(ordering_field=definition.ordering_field),
            visible=self.timeline.visible(),
            as_of=as_of,
            keygen=None if definition.has_meta_fields else definition.keygen,
            path_columns=definition.path_columns or (definition.filling_columns if view.capabilities.has_hudi_files else None),
            versions=SchemaVersions.parsed(identified) if identified else None,
            extension=definition.extension,
        )
        if not merges or not definition.has_logs:
            return rule
        merging = definition.merging
        merging.check_defaults(view.schema_json, definition.name)
        return replace(rule, merging=replace(merging, forgets_deletions=not view.capabilities.has_hudi_files))

    def slices(self, as_of: Point = "") -> list[FileSlice]:
        """Return the slices visible now or at the point in time `as_of` (inclusive).

        Raises `InvalidOption` for text that is no point in time, `InstantNotFound` if cleaning deleted any; for a sequence of the
        table log, at which the writes with greater ones were not complete, the errors of `incremental`.
        """
        state, instant = self.state, self.instant_of(as_of)
        if is_sequence(instant):
            return list(self._at_sequence(instant, read_optimized=False).slices)
        if instant and instant < state.last_clean_retained and instant not in self.timeline.savepoints():
            raise InstantNotFound(
                f"as-of {instant}",
                expected=f"an instant from {state.last_clean_retained} on: what older queries read was cleaned",
                remedy="raise hoodie.cleaner.commits.retained to look back further, or keep a savepoint",
            )
        return state.latest_slices(instant)

    def snapshot(self, as_of: Point = "", *, read_optimized: bool = False) -> Snapshot:
        """Return what a query reads: the slices now or at a point in time (inclusive), without log files if `read_optimized`.

        The schema is the one of that time. Errors as `slices`.
        """
        instant = self.instant_of(as_of)
        if is_sequence(instant):
            return self._at_sequence(instant, read_optimized=read_optimized)
        sequence, slices = self.state.sequence, self.slices(instant)
        chosen = without_logs(slices) if read_optimized else tuple(slices)
        schema = with_meta_fields(self.schema_at(instant), operation=self.options[READ_OPERATION_FIELD] or self._has_operations())
        rule = self.log_rule(instant, merges=any(s.log_files for s in chosen))
        buckets = pruning_of(
            self._declared,
            self.identity,
            self.state,
            instant,
            self.rings,
            self.storage,
            has_hudi_files=self.capabilities.has_hudi_files,
        )
        known = self.timeline.statistics
        # A merger makes values that no file has.
        skipping = DataSkipping(known, self.state, sequence) if known is not None and rule.merging.merger is None else None
        return Snapshot(self.storage, schema, rule, chosen, buckets=buckets, skipping=skipping)

    def _at_sequence(self, sequence: str, *, read_optimized: bool) -> Snapshot:
        current, state = self._merging(), self.state
        done = range_of(state, PointKind.SEQUENCE, "", sequence)
        check_kept(state, PointKind.SEQUENCE, done, at_start=False)
        slices = sorted(slices_at(state, done.through).values(), key=attrgetter("group"))
        schema = with_meta_fields(self.schema_at(sequence), operation=OPERATION_FIELD in current.schema.names)
        rule = replace(rule_at(current, done.through), as_of=max(done.through, default=state.archived_before))
        return replace(current, schema=schema, rule=rule, slices=without_logs(slices) if read_optimized else tuple(slices))

    def _has_operations(self) -> bool:
        """Return whether Hudi writes the operation on each row into a sixth meta field, by the footer of the newest base file."""
        if not self.capabilities.has_hudi_files or not self.definition.has_meta_fields:
            return False
        newest = max((s for s in self.state.each_latest() if s.base_file), key=lambda s: s.base_instant, default=None)
        try:
            return newest is not None and OPERATION_FIELD in self._key_ranges.footer(newest.path).columns
        except ObjectNotFound:
            # Reading the rows raises a better error for the missing file.
            return False

    def scan(
        self,
        columns: Sequence[str] | None = None,
        where: pc.Expression | str | None = None,
        as_of: Point = "",
        *,
        read_optimized: bool = False,
    ) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        """Return the schema and the batches of a snapshot query: all columns, meta fields first, unless `columns` names some.

        `where` is an expression, or SQL text as `tideline_table.reader.parse_where` reads it.
        """
        found = self.snapshot(as_of, read_optimized=read_optimized)
        return found.output(columns), found.scan(columns, where)

    def read(
        self,
        columns: Sequence[str] | None = None,
        where: pc.Expression | str | None = None,
        as_of: Point = "",
        *,
        read_optimized: bool = False,
    ) -> pa.Table:
        """Return the rows of a snapshot query, whole in memory."""
        return self.snapshot(as_of, read_optimized=read_optimized).read(columns, where)

    def look_up(
        self, keys: Iterable[str], columns: Sequence[str] | None = None, as_of: Point = "", where: pc.Expression | str | None = None
    ) -> pa.Table:
        """Return the rows with these record keys, reading only files and blocks that can hold them.

        The record index selects file slices, if there is one; else key ranges and Bloom filters in footers select base files. Key
        indexes select blocks of log files. With a record index that cannot be used, logs a warning and does without.
        """
        wanted = sorted_keys(keys)
        found = self.snapshot(as_of)
        if not len(wanted):
            return found.output(columns).empty_table()
        return self.narrowed(found, wanted).read(columns, where, wanted)

    def narrowed(self, found: Snapshot, wanted: pa.Array) -> Snapshot:
        """Return the part of a snapshot to read for the record keys `wanted` (as `sorted_keys` returns them)."""
        # Apache Hudi writes no key indexes: requests for them would be wasted.
        indexes = None if self.capabilities.has_hudi_files else self._log_indexes
        slices = replace(found, slices=self.timeline.holding(wanted, found.slices)).only(keys=wanted).slices
        if self.has_record_index and self.capabilities.log_is_truth:
            slices = self.record_index.narrowed(self.state, found.slices, slices, wanted)
        return replace(found, slices=self._key_ranges.narrowed(slices, wanted), log_indexes=indexes)

    def incremental(self, since: Point = "", until: Point = "") -> Snapshot:
        """Return a snapshot that reads rows written after `since` (empty: all) up to `until` (inclusive; empty: now), visible then.

        Points are sequences of the table log (`tideline_table.table.changes`), instants, dates or times. Raises `InstantNotFound`,
        `InvalidOption`, `HistoryRewritten`, `HistoryUnavailable` if cleaning or archival removed what the query needs. Without
        meta fields, files are compared (`AddedRows`).
        """
        current, instants = self._merging(), self._range_of(since, until)
        if not self.definition.has_meta_fields and not instants.from_start:
            found = images_of(current=current, state=self.state, kind=self._points, instants=instants)
            return AddedRows(found.after.storage, found.after.schema, found.after.rule, found.after.slices, before=found.before)
        return changed_rows(current=current, state=self.state, kind=self._points, instants=instants)

    def changes(self, since: Point = "", until: Point = "", op: str | Iterable[str] = "") -> Images:
        """Return the net changes after `since` up to `until`, with the rows before and after. Errors as `incremental`.

        `op` chooses operations (`operations_of`); empty: all. Raises `UnsupportedTable` without meta fields.
        """
        self.check_keyed_rows("changes")
        found = images_of(
            current=self._merging(),
            state=self.state,
            kind=self._points,
            instants=self._range_of(since, until),
            has_partial_records=Feature.PARTIAL_RECORDS not in self.definition.format.missing,
        )
        return replace(found, operations=operations_of(op))

    def check_keyed_rows(self, what: str) -> None:
        """Raise `UnsupportedTable` for a table without meta fields, of which `what` is asked."""
        if not self.definition.has_meta_fields:
            raise UnsupportedTable(
                f"{what} of table {self.definition.name!r}, which has no meta fields",
                expected="rows that say their key and which write made them",
                remedy="read the rows that were added, in process: tideline.open(path).incremental(since)",
            )

    def newest_point(self) -> str:
        """Return the end of what `incremental` and `changes` return now: the point to continue from."""
        return newest_point(self.state, self._points)

    def sequence_of(self, point: Point) -> int:
        """Return the table log sequence of a point in a table with a log; errors as `incremental`."""
        return sequence_of(self.state, self.point_of(point))

    def first_write_after(self, point: Point) -> str:
        """Return the oldest instant among the writes completed after a point, as for `incremental`; empty if there is none."""
        instants = self._range_of(point, "")
        return min(instants.through - instants.before, default="")

    def writes_after(self, sequence: int) -> list[ActionRecord]:
        """Return the writes completed after a sequence of the log that do not only move rows, in order. Errors as `incremental`."""
        self._range_of(sequence, "")
        return writes_after(self.state, sequence)

    def _merging(self) -> Snapshot:
        """Return the current snapshot with a rule that merges slices of any instant, also of other buckets before a resize.

        Take it first: the slices that it merges may not be older.
        """
        found = replace(self.snapshot(), rule=self.log_rule(), log_indexes=self._log_indexes)
        found = found if found.rule.merging.merger is None else replace(found, skipping=None)
        return replace(found, buckets=None) if self.state.bucket_numbers or self.state.ring_resizes else found

    def _range_of(self, since: Point, until: Point) -> InstantRange:
        end = self.point_of(until)
        found = range_of(self.state, self._points, self.point_of(since), end)
        if self._points is PointKind.COMPLETION:
            found = with_archived(found, self.state, end, partial(self.timeline.format.archived_instants, self.storage))
        return replace(found, is_whole=self._is_whole()) if found.ends_before_writes else found

    def _is_whole(self) -> bool:
        """Return whether no write was archived. One listing."""
        return not holds_archived_files(self.state) and not self.timeline.format.has_archive(self.storage)

    @property
    def _points(self) -> PointKind:
        if self.capabilities.keeps_log:
            return PointKind.SEQUENCE
        return PointKind.COMPLETION if self.timeline.format.has_completion_times else PointKind.INSTANT
