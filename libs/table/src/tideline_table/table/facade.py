"""`Table`: one open table."""

from __future__ import annotations

import socket
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

import pyarrow as pa
import pyarrow.compute as pc

from tideline_table.clock import Clock, SystemClock
from tideline_table.config import READ_OPERATION_FIELD, Options
from tideline_table.errors import InstantNotFound, ObjectNotFound, SchemaMismatch, UnsupportedTable
from tideline_table.file_group.savepoint import Saved
from tideline_table.file_group.slice import FileSlice
from tideline_table.file_group.state import TableState
from tideline_table.index.simple import SimpleIndex
from tideline_table.merge import MergeMode
from tideline_table.reader.log_index import LogIndexes
from tideline_table.reader.read_plan import LogRule
from tideline_table.schema import arrow_from_avro, avro_with_meta_fields, with_meta_fields
from tideline_table.schema.identity import SchemaVersions
from tideline_table.schema.meta_fields import OPERATION_FIELD
from tideline_table.storage import ObjectStat, Storage, open_storage
from tideline_table.table.changes import PointKind, Stretch, changed_rows, stretch_of
from tideline_table.table.declared_merging import check_defaults
from tideline_table.table.definition import WRITABLE_VERSION, TableDefinition, TableType
from tideline_table.table.exclusive import check_no_intruder, check_not_upgraded, properties_in
from tideline_table.table.foreign import foreign_state, visible_instants
from tideline_table.table.identity import TableIdentity, check_stands, read_identity, replace_identity
from tideline_table.table.images import Images, images_of
from tideline_table.table.query import KeyRanges, Snapshot, sorted_keys, without_logs
from tideline_table.timeline.instant import Action
from tideline_table.timeline.listing import TimelineFolders
from tideline_table.timeline.properties import CREATE_SCHEMA
from tideline_table.timeline.sharing import Sharing
from tideline_table.transaction import ActiveTimeline, NoLock, OpenPeerLock, SharedTimeline, TableLock
from tideline_table.transaction.adoption import peer_savepoints
from tideline_table.transaction.intents import IntentBoard, NoIntents
from tideline_table.transaction.peer_rules import check_lazy, check_version, read_properties

READABLE_VERSIONS = (6, 8, 9)
COMPLETION_TIMES_SINCE = 8
"""From this table version on Hudi orders incremental queries by completion times."""


class Table:
    """One open table: its definition, its state as of the last `refresh`, and everything that reads, writes or maintains it.

    Safe to share between threads. Writing and table services are functions of `tideline_table.table.write` and
    `tideline_table.table.services` on this object.
    """

    def __init__(self, storage: Storage, base_path: str, clock: Clock, writer_id: str, lock: TableLock, options: Options) -> None:
        self.storage = storage
        self.base_path = base_path
        self.clock = clock
        self.lock = lock
        self.intents: IntentBoard = NoIntents()
        self.options = options
        self.definition = TableDefinition.read(storage, base_path)
        self.identity: TableIdentity | None = read_identity(storage)
        self.timeline = ActiveTimeline(storage, clock, writer_id, options)
        self._foreign: TableState | None = None
        self._was_shared = False
        self._properties_seen: ObjectStat | None = None
        self._log_indexes = LogIndexes(storage)
        self.index = SimpleIndex(storage, log_indexes=self._log_indexes)
        self.partitions_made: set[str] = set()
        self._key_ranges = KeyRanges(self.storage)

    @classmethod
    def open(
        cls,
        base_path: str,
        *,
        options: Mapping[str, object] | None = None,
        lock: TableLock | None = None,
        peer_lock: OpenPeerLock | None = None,
        clock: Clock | None = None,
        writer_id: str = "",
        storage: Storage | None = None,
    ) -> Table:
        """Open the table at `base_path`.

        `lock` is for exclusive tables; `peer_lock` opens the one that a shared table needs for writing. Raises `TableNotFound`, `CorruptMetadata`, `UnsupportedTable` (a version or type that cannot be read), `InvalidOption`.
        """
        checked = Options(options)
        name = writer_id or f"{socket.gethostname()}-{uuid.uuid4().hex[:12]}"
        table = cls(storage or open_storage(base_path), base_path, clock or SystemClock(), name, lock or NoLock(), checked)
        if table.definition.version not in READABLE_VERSIONS:
            raise UnsupportedTable(
                f"table {table.definition.name!r} has version {table.definition.version}",
                expected=f"version {', '.join(map(str, READABLE_VERSIONS[:-1]))} or {READABLE_VERSIONS[-1]}",
            )
        if table.has_log:
            table.timeline.load()
            if table.definition.version != WRITABLE_VERSION:
                table._leave_log()
        if table.has_log:
            if table.is_shared:
                table._share(peer_lock)
        else:
            table._foreign = foreign_state(table.storage, table.definition.properties)
        return table

    def _leave_log(self) -> None:
        """Somebody upgraded the table and moved its timeline away: a shared one is read as others' tables are. Raises `UnsupportedTable`."""
        if not self.is_shared:
            raise UnsupportedTable(
                f"table {self.definition.name!r} is Tideline's, yet has version {self.definition.version}",
                expected=f"version {WRITABLE_VERSION}: others changed the table",
                remedy="restore it, or read it with the Apache Hudi release that upgraded it",
            )
        self.identity, self._was_shared = None, True

    def _share(self, peer_lock: OpenPeerLock | None) -> None:
        sharing = self.timeline.state.sharing
        assert sharing is not None
        writer_id = self.timeline.log.writer_id
        opened = peer_lock(self.storage, sharing, writer_id, self.clock, self.options) if peer_lock else None
        # Every step of a shared table takes the lock itself.
        self.lock = NoLock()
        self.timeline = shared = SharedTimeline(self.storage, self.clock, writer_id, self.options, opened)
        shared.load()
        shared.look()

    @property
    def has_log(self) -> bool:
        """Whether the table has a log of Tideline's: as its truth, or where it is shared as the mirror of its timeline."""
        return self.identity is not None

    @property
    def is_exclusive(self) -> bool:
        """Whether all writers are Tideline's: its log is the truth."""
        return self.has_log and not self.is_shared

    @property
    def is_shared(self) -> bool:
        """Whether Apache Hudi's writers and Tideline's write the table, under one lock."""
        return self.sharing is not None

    @property
    def sharing(self) -> Sharing | None:
        """How it is shared."""
        return self.timeline.state.sharing if self.has_log else None

    @property
    def uid(self) -> str:
        """The table's identity in events; empty for a table that others own."""
        return self.identity.uid if self.identity else ""

    @property
    def state(self) -> TableState:
        """The state as of the last refresh."""
        if self._foreign is not None:
            return self._foreign
        return self.timeline.view() if isinstance(self.timeline, SharedTimeline) else self.timeline.state

    @property
    def schema(self) -> pa.Schema:
        """The table schema without meta fields. Raises `SchemaMismatch` for a table that says none."""
        return self.schema_at("")

    def schema_at(self, as_of: str) -> pa.Schema:
        """The schema as of an instant (empty: now), without meta fields; errors as `schema`."""
        text = (self.state.schema_at(as_of) if as_of else "") or self.schema_json
        if not text:
            raise SchemaMismatch("a table without a schema", expected="a commit, or a create schema in hoodie.properties")
        schema = self._arrow_schema(text)
        path_columns = self.definition.path_columns
        # What neither files nor commits know is text, as in Hudi.
        dropped = [] if path_columns is None else [name for name in path_columns.fields if name not in schema.names]
        return pa.schema([*schema, *(pa.field(name, pa.string()) for name in dropped)])

    @property
    def schema_json(self) -> str:
        """The Avro text of the schema: the newest commit's, else that of the creation."""
        return self.state.schema_json or self.definition.properties.get(CREATE_SCHEMA, "")

    @cached_property
    def _schemas(self) -> dict[str, pa.Schema]:
        return {}

    def _arrow_schema(self, text: str) -> pa.Schema:
        if text not in self._schemas:
            self._schemas[text] = arrow_from_avro(text)
        return self._schemas[text]

    def write_action(self, *, replaces: bool = False) -> Action:
        """What a write of rows is on the timeline; `replaces`: it puts them in place of whole file groups."""
        if replaces:
            return Action.REPLACE_COMMIT
        return Action.DELTA_COMMIT if self.definition.type is TableType.MOR else Action.COMMIT

    def footer_schema(self) -> str:
        """The Avro text with meta fields, for base file footers."""
        return avro_with_meta_fields(self.schema_json)

    def refresh(self) -> TableState:
        """See what others did."""
        if self._foreign is None:
            self.timeline.look()
        else:
            self._foreign = foreign_state(self.storage, self.definition.properties)
        return self.state

    def check_writable(self, *, keyed: bool = True) -> None:
        """Raise what forbids writing: version, type, a table that others own, a copy, or a foreign instant on the timeline."""
        if self._was_shared:
            check_version(read_properties(self.storage))
        self.definition.check_writable(keyed=keyed)
        if self.identity is None:
            raise UnsupportedTable(
                f"table {self.definition.name!r} is written by others",
                expected="a table that Tideline created, or one that is shared",
                remedy="share it: tideline share PATH, which prints the options that its other writers need",
            )
        self.identity.check_place(self.storage.root)
        if isinstance(self.timeline, SharedTimeline):
            self._check_shared(self.timeline)
            return
        self._check_exclusive(keyed=keyed)

    def _check_exclusive(self, *, keyed: bool) -> None:
        """One listing, and two requests more at first and whenever `hoodie.properties` changed: somebody upgraded the table or made it anew."""
        folder = self.storage.list_folder(TimelineFolders().active)
        found = properties_in(folder)
        if found is None or found != self._properties_seen:
            check_stands(self.storage, self.identity)
            definition = TableDefinition.read(self.storage, self.base_path)
            check_not_upgraded(definition)
            definition.check_writable(keyed=keyed)
            self.definition, self._properties_seen = definition, found
        check_no_intruder(self.storage, self.timeline, folder)

    def _check_shared(self, timeline: SharedTimeline) -> None:
        check_version(read_properties(self.storage))
        if not timeline.can_write:
            raise UnsupportedTable(
                f"table {self.definition.name!r} is shared with Apache Hudi's writers and was opened without their lock",
                expected="the lock that both sides take",
                remedy="Table.open(path, peer_lock=tideline_locks.open_peer_lock)",
            )
        check_lazy(self.refresh(), self.clock, self.options)

    def adopt(self) -> TableIdentity:
        """Give a copied or moved table an identity of its own at this place."""
        if self.identity is None:
            raise UnsupportedTable(f"table {self.definition.name!r} is written by others", expected="a table that Tideline created")
        self.identity = replace_identity(self.storage, self.clock)
        return self.identity

    def log_rule(self, as_of: str = "", *, merges: bool = True) -> LogRule:
        """How this table's files are read. Raises `UnsupportedTable` where log files are merged by a rule that is code.

        Without `merges` there are none: then tables can be read whatever their rule is.
        """
        identified = self.state.identified_schemas
        rule = LogRule(
            MergeMode.COMMIT_TIME,
            visible=None if self.is_exclusive else visible_instants(self.state),
            as_of=as_of,
            keygen=None if self.definition.has_meta_fields else self.definition.keygen,
            path_columns=self.definition.path_columns or (None if self.is_exclusive else self.definition.filling_columns),
            versions=SchemaVersions.parsed(identified) if identified else None,
        )
        if not merges or self.definition.type is not TableType.MOR:
            return rule
        merging, ordering = self.definition.merging, self.definition.ordering_field
        check_defaults(merging, self.schema_json, self.definition.name)
        return replace(
            rule,
            mode=merging.mode,
            ordering_field=ordering,
            partial=merging.partial,
            deletion=merging.deletion,
            deletions_always_win=merging.deletions_always_win,
        )

    def saved_instants(self) -> frozenset[str]:
        """Writes that a savepoint protects. One request for a table that Apache Hudi writes, too: its savepoints are on the timeline only."""
        return frozenset(self.timeline.state.savepoints) if self.is_exclusive else peer_savepoints(self.storage)

    def saved(self) -> Saved:
        """The same, each with what a restore to it takes back beside newer writes: Apache Hudi's goes by instants alone."""
        return self.timeline.state.saved() if self.is_exclusive else dict.fromkeys(self.saved_instants(), frozenset())

    def slices(self, as_of: str = "") -> list[FileSlice]:
        """Visible file slices now, or at the instant `as_of` (in). Raises `InstantNotFound` when cleaning removed what it needs."""
        state = self.state
        if as_of and as_of < state.last_clean_retained and as_of not in self.saved_instants():
            raise InstantNotFound(
                f"as-of {as_of}",
                expected=f"an instant from {state.last_clean_retained} on: what older queries read was cleaned",
                remedy="raise hoodie.cleaner.commits.retained to look back further, or keep a savepoint",
            )
        return state.latest_slices(as_of)

    def snapshot(self, as_of: str = "", *, read_optimized: bool = False) -> Snapshot:
        """What a query reads: the slices now or at the instant `as_of` (in), without their logs where `read_optimized`.

        Its schema is the one of that time. Raises `InstantNotFound` when cleaning removed what it needs.
        """
        slices = self.slices(as_of)
        chosen = without_logs(slices) if read_optimized else tuple(slices)
        schema = with_meta_fields(self.schema_at(as_of), operation=self.options[READ_OPERATION_FIELD] or self._has_operations())
        return Snapshot(self.storage, schema, self.log_rule(as_of, merges=any(s.log_files for s in chosen)), chosen)

    def _has_operations(self) -> bool:
        """Whether others write what they did to each row into a sixth meta field: only files tell."""
        if self.is_exclusive or not self.definition.has_meta_fields:
            return False
        newest = max((s for s in self.state.latest_slices() if s.base_file), key=lambda s: s.base_instant, default=None)
        try:
            return newest is not None and OPERATION_FIELD in self._key_ranges.footer(newest.path).columns
        except ObjectNotFound:
            # Who reads the rows says it better.
            return False

    def scan(
        self,
        columns: Sequence[str] | None = None,
        where: pc.Expression | None = None,
        as_of: str = "",
        *,
        read_optimized: bool = False,
    ) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        """A snapshot query as its schema and a stream of batches: all columns with meta fields first unless `columns` names them."""
        found = self.snapshot(as_of, read_optimized=read_optimized)
        return found.output(columns), found.scan(columns, where)

    def read(
        self,
        columns: Sequence[str] | None = None,
        where: pc.Expression | None = None,
        as_of: str = "",
        *,
        read_optimized: bool = False,
    ) -> pa.Table:
        """A snapshot query, whole in memory."""
        return self.snapshot(as_of, read_optimized=read_optimized).read(columns, where)

    def look_up(
        self, keys: Iterable[str], columns: Sequence[str] | None = None, as_of: str = "", where: pc.Expression | None = None
    ) -> pa.Table:
        """The rows with these record keys, from what can hold them.

        Base files are told by the key ranges and Bloom filters of their footers, blocks of log files by their key indexes.
        """
        wanted = sorted_keys(keys)
        found = self.snapshot(as_of)
        if not len(wanted):
            return found.output(columns).empty_table()
        return self.narrowed(found, wanted).read(columns, where, wanted)

    def narrowed(self, found: Snapshot, wanted: pa.Array) -> Snapshot:
        """What of a snapshot has to be read for the record keys `wanted` (as `sorted_keys` gives them)."""
        # Others write no indexes: asking for them would only cost requests.
        indexes = self._log_indexes if self.is_exclusive else None
        return replace(found, slices=self._key_ranges.narrowed(found.slices, wanted), log_indexes=indexes)

    def incremental(self, since: str | int = "", until: str | int = "") -> Snapshot:
        """What reads the rows that were written after `since` (empty: all) up to `until` (in; empty: now) and are visible then.

        Points are sequences of the table log or instants; see `tideline_table.table.changes`. Raises `InstantNotFound`, `InvalidOption`,
        `HistoryUnavailable` when cleaning removed what it needs.
        """
        return changed_rows(self.state, self._points, self._merging(), self._stretch(since, until))

    def changes(self, since: str | int = "", until: str | int = "") -> Images:
        """The net changes after `since` up to `until` with the rows before and after. Errors as `incremental`."""
        return images_of(self.state, self._points, self._merging(), self._stretch(since, until))

    def _merging(self) -> Snapshot:
        """A snapshot whose rule reads slices of any time."""
        return replace(self.snapshot(), rule=self.log_rule(), log_indexes=self._log_indexes)

    def _stretch(self, since: str | int, until: str | int) -> Stretch:
        if not self.definition.has_meta_fields:
            raise UnsupportedTable(
                f"table {self.definition.name!r} has no meta fields", expected="rows that say which write made them"
            )
        return stretch_of(self.state, self._points, str(since), str(until))

    @property
    def _points(self) -> PointKind:
        if self.has_log:
            return PointKind.SEQUENCE
        return PointKind.INSTANT if self.definition.version < COMPLETION_TIMES_SINCE else PointKind.COMPLETION
