"""The tables that a service keeps open. The registry finds them; they are identified by base path and by uid."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from tideline_locks import OnUnreachable, open_hudi_lock
from tideline_locks.table_lock import LockProviders, check_unreachable
from tideline_runtime.contract import ServiceContext
from tideline_runtime.logging import get_logger
from tideline_runtime.looks import UNSEEN_REST_AFTER_S, Looks
from tideline_runtime.news import News
from tideline_runtime.policy import LivePolicies, Policies, TablePolicy
from tideline_runtime.registry import TableRegistry
from tideline_runtime.resting import Closed, Resting
from tideline_runtime.search_health import SearchHealth
from tideline_runtime.settings import ServiceSettings
from tideline_runtime.shard_leases import open_shards
from tideline_runtime.shards import ShardLost, Shards, StaticShards, holds
from tideline_runtime.storage_requests import StorageRequests
from tideline_runtime.table_source import JobFacts, NamedTable, TableFacts, TableSource, Trouble, open_table_source
from tideline_table.clock import Clock
from tideline_table.config import LOCK_UNREACHABLE, Options
from tideline_table.coordination import observed_uid
from tideline_table.errors import Recovery, TableFrozen, TableUpgraded, TidelineError, UnsupportedTable
from tideline_table.log import entry_path
from tideline_table.storage import LogOnlyStorage, ReadOnlyStorage, Storage, exists, open_storage
from tideline_table.table import Table, read_identity, share_table, upgraded_sharing, why_refused

_log = get_logger(__name__)
_UNNAMED = NamedTable()
LEAST_REST_S = 600.0
"""A table with work before this time stays open: opening it again takes ten requests."""
OPENING_S = 2.0
"""Time for which a visit opens tables that rest and that the service has not seen yet."""
FROZEN_CHECK_S = 300.0
"""Time after which it is checked again whether writers refuse an open table: five requests."""


class _OnlyHudis(UnsupportedTable):
    """A table that Tideline's writers never wrote."""


def open_tables(
    settings: ServiceSettings, context: ServiceContext, options: Mapping[str, object] | None = None, *, observes: bool = False
) -> OpenTables:
    """Return the tables that a service's settings select, with the policies of the setting `policy_file`.

    `options` are engine options for all tables. With `observes`, tables that only Apache Hudi writes are among them. Raises
    `InvalidOption` for options that are wrong for every table, `InvalidSetting` for settings of tables, shards and HudiTable
    resources, and `PolicyRefused` for a policy file that is not valid.
    """
    check_unreachable(settings.locks, OnUnreachable(Options(options)[LOCK_UNREACHABLE]))
    shards = open_shards(settings, context)
    source = open_table_source(settings, context, shards)
    requests = StorageRequests(context.metrics, settings.prices)
    registry = TableRegistry(
        settings.tables,
        context.clock,
        rescan_s=settings.tables_rescan_s,
        shards=shards,
        metrics=context.metrics,
        storage_of=requests.open,
        source=source,
        beat=context.health.beat,
    )
    writer_id = context.name_of_instance(settings)
    search_health = SearchHealth(context.health, context.metrics, settings.tables_unready_after_s)
    policies = LivePolicies(settings.policy_file, context.clock, context.metrics)
    locks = LockProviders(settings.locks, context.clock)
    service = str(settings.section or "").replace("_", "-")
    found = OpenTables(
        registry, context.clock, writer_id, locks, options, source, search_health, policies, service, shards, requests, observes
    )
    news = None if observes else News(settings, context.clock)
    found.looks = Looks(context.clock, news=news, rescan_s=settings.tables_rescan_s, audit_s=settings.audit_interval_s)
    return found


@dataclass(slots=True)
class OpenTables:
    """The tables of this instance's shards that Tideline writes, including shared ones. Used by one thread.

    A table that cannot be opened, that only Apache Hudi writes, or that is a copy of another table (same uid, another place) is
    skipped. The skip is logged once per reason, and the next visit tries again.
    """

    registry: TableRegistry
    clock: Clock
    writer_id: str
    lock_providers: LockProviders
    options: Mapping[str, object] | None = None
    source: TableSource | None = None
    search_health: SearchHealth | None = None
    policies: LivePolicies | None = None
    service: str = ""
    """Name by which policies give settings to the service."""
    shards: Shards = field(default_factory=StaticShards)
    requests: StorageRequests | None = None
    """None: the requests to storage are not counted."""
    observes: bool = False
    """Whether tables that only Apache Hudi writes are yielded, too. They are not refreshed, because that reads their timeline and
    lists all of their partitions."""
    waits: Callable[[str], str | None] = field(init=False)
    """Asked about a table that is not open and that no event named, by its base path; returns the uid of one that rests."""
    rests_until_s: Callable[[Table], float] | None = None
    """Asked about a table at which the service has looked; returns until when, on the monotonic clock, it has no work on the table
    unless there is news. The table is closed if that is far away. None: the service needs all tables open."""
    closed: Callable[[Table], None] = lambda _: None
    """Called with each table that this object closes for that reason."""
    has_unseen: bool = field(default=False, init=False)
    """Whether the last visit of all tables left some for a later one that this process has not opened yet."""
    _resting: Resting = field(default_factory=Resting, init=False)
    _wanted: tuple[str, ...] = field(default=(), init=False)
    """The tables of the last visit, open or not."""
    _opens_until_s: float | None = field(default=None, init=False)
    """None: no table was opened in this visit because it was its turn."""
    looks: Looks = field(init=False)
    _in_force: Policies = field(default_factory=Policies, init=False)
    _own: dict[str, tuple[Policies, NamedTable, str, TablePolicy]] = field(default_factory=dict, init=False)
    _uids: dict[str, str] = field(default_factory=dict, init=False)
    _by_uid: dict[str, str] | None = field(default=None, init=False)
    """`_uids` the other way round; None after a change."""
    _opened_with: dict[str, tuple[Mapping[str, str], bool]] = field(default_factory=dict, init=False)
    _open: dict[str, Table] = field(default_factory=dict, init=False)
    _refused: dict[str, str] = field(default_factory=dict, init=False)
    _left_alone: set[str] = field(default_factory=set, init=False)
    """The refused tables that only Apache Hudi writes. They are no reason for concern: a fleet may have only such tables."""
    _troubled: dict[str, str] = field(default_factory=dict, init=False)
    _frozen: dict[str, str] = field(default_factory=dict, init=False)
    """Why writers refuse an open table, as of the last check (`FROZEN_CHECK_S`). What only reads it goes on."""
    _checked_at_s: dict[str, float] = field(default_factory=dict, init=False)
    _scanned_places: int | None = field(default=None, init=False)
    """`Looks.places` as it was before the registry's last scan."""
    _unbalanced: TidelineError | None = field(default=None, init=False)
    _unlocked: set[str] = field(default_factory=set, init=False)
    """The refused tables whose locks cannot be used."""

    def __post_init__(self) -> None:
        self.looks, self.waits = Looks(self.clock), self._awaits_news

    def each(self, only: Collection[str] | None = None, first: Callable[[], Iterable[str]] = tuple) -> Iterator[Table]:
        """Yield all tables, refreshed, in order of base path. Skip a table that fails, and one whose shard is lost meanwhile.

        With `only`, yield the known tables with these uids. `first` is called before each table; the known tables with the uids
        that it returns come next, even if they were yielded before. Shards are taken and given back before the first table,
        because no work on any table is in progress then. Raises the errors of `TableRegistry.tables`.
        """
        self._balance()
        if self.policies is not None:
            # One content for the whole visit.
            before, self._in_force = self._in_force, self.policies.current()
            if before.fleet != self._in_force.fleet:
                self._resting.open_once()  # a budget counts what was rewritten within a day: those tables are opened once
        wanted = self._search()
        self._opens_until_s = None
        shared = (self._in_force, self.shards.held(), wanted)
        is_whole, self.has_unseen = not self.has_unseen, self.has_unseen and only is not None
        self._retain(wanted)
        by_uid, is_passed = self._places_by_uid(), False
        if only is None:
            turns = self._resting.awake(wanted, self.looks, self.clock.monotonic_s(), shared if is_whole else None)
        else:
            turns = [by_uid[uid] for uid in only if uid in by_uid]
        for base_path in turns or (None,):  # named tables come also if it is no other table's turn
            named = [(by_uid[uid], True) for uid in first() if uid in by_uid]
            for chosen, is_named in named if base_path is None else (*named, (base_path, only is not None)):
                if self.search_health is not None:
                    # While storage is away, each table takes as long as its retries.
                    self.search_health.health.beat()
                is_passed |= not (is_own := self.owns(chosen))
                table = self._table(chosen, is_named=is_named) if is_own else None
                if table is not None:
                    yield table
        if only is None and not is_passed:
            self._resting.swept(self.clock.monotonic_s(), shared)
        if self.search_health is not None:
            failures = {base_path: why for base_path, why in self._refused.items() if base_path not in self._left_alone}
            self.search_health.opened(len(self._open) + len(self._resting), failures)

    def visit(
        self,
        context: ServiceContext,
        examine: Callable[[Table], None],
        *,
        ends_on: tuple[type[TidelineError], ...] = (),
        only: Collection[str] | None = None,
        first: Callable[[], Iterable[str]] = tuple,
    ) -> TidelineError | None:
        """Call `examine` for each table until the service stops, with a beat before each.

        A failing table does not block the others.

        `only` and `first` are as in `each`.

        An error is logged once per reason. Returns the first error that a retry may cure, which the caller raises at the end of
        its tick; without such an error, the error of `Shards.balance`, if any. Errors of a kind in `ends_on` concern all tables
        and are raised at once, as are errors that are no `TidelineError`, and those of `each`.
        """
        curable: TidelineError | None = None
        for table in self.each(only, first):
            if context.stopping.is_set():
                break
            context.health.beat()
            try:
                examine(table)
                self._let_rest(table)
            except ShardLost as error:
                self.looks.owes(table.base_path)
                _log.info("table left to another instance", table=table.uid, reason=str(error))
            except ends_on:
                self.looks.owes(table.base_path)
                raise
            except TidelineError as error:
                self.looks.owes(table.base_path)
                self._report(table, error)
                if error.recovery is not Recovery.STOP:
                    curable = curable or error
            else:
                self._troubled.pop(table.base_path, None)
        return curable or self._unbalanced

    def owns(self, base_path: str) -> bool:
        """Return whether this instance holds the shard of the table now."""
        return holds(self.shards, base_path)

    def resting(self) -> Mapping[str, str]:
        """Return the base paths of the tables that rest, by uid, as of the last visit."""
        return self._resting.by_uid()

    def known(self) -> dict[str, str]:
        """Return the base paths of the tables that are open or rest, by uid, as of the last visit."""
        return {**self.resting(), **{self._uids[base_path]: base_path for base_path in self._open}}

    def storage(self, base_path: str) -> Storage:
        """Open the storage of a table, with its requests counted."""
        return open_storage(base_path) if self.requests is None else self.requests.open(base_path)

    def opened_apart(self, base_path: str) -> Table:
        """Open a table that rests, to read it once. Thread-safe."""
        options = {**(self.options or {}), **self.own_options(base_path)}
        storage = ReadOnlyStorage(self.storage(base_path))
        return Table.open(base_path, clock=self.clock, options=options, storage=storage, by_log=True)

    def by_uid(self, uid: str) -> Table | None:
        """Return the open table with this uid; None for one that rests, or that this instance does not know."""
        return next((t for t in self._open.values() if t.uid == uid), None)

    def refusals(self) -> dict[str, tuple[str, bool]]:
        """Return by base path why a table cannot be opened or why work on it failed, and whether its locks are the reason.

        Tables that only Apache Hudi writes are left out.
        """
        found = {**self._refused, **self._troubled}
        return {path: (why, path in self._unlocked) for path, why in found.items() if path not in self._left_alone}

    def left_alone(self) -> list[str]:
        """Return the tables that only Apache Hudi writes, as of the last visit, unless this service `observes` them."""
        return sorted(filter(self.owns, self._left_alone))

    @property
    def in_force(self) -> Policies:
        """The policies as of the last visit."""
        return self._in_force

    def common(self) -> tuple[Policies, tuple[int, ...], int]:
        """Return the inputs that all tables share.

        The policies as of the last visit, the shards held, the revision of the table source.

        Decisions about single tables can be summed up only if they were made with equal inputs.
        """
        return self._in_force, self.shards.held(), 0 if self.source is None else self.source.revision

    def policy(self, base_path: str) -> TablePolicy:
        """Return the policy of a table, from the policy file and the source of tables. Raises `ContradictoryRules`."""
        named = _UNNAMED if self.source is None else self.source.named().get(base_path, _UNNAMED)
        uid = self._uids.get(base_path, "")
        known = self._own.get(base_path)
        if known is None or known[0] is not self._in_force or known[1] is not named or known[2] != uid:
            found = self._in_force.of(
                base_path, uid, resource_options=named.options, resource_settings={self.service: named.settings}
            )
            found = known[3] if known is not None and known[3] == found else found
            known = self._own[base_path] = self._in_force, named, uid, found
        return known[3]

    def own_options(self, base_path: str) -> Mapping[str, str]:
        """Return the engine options that policies and the source of tables give this table; they override those of the settings."""
        return self.policy(base_path).options

    def own_settings(self, base_path: str) -> Mapping[str, Any]:
        """Return the settings of this service that policies and the source of tables override for this table, by name."""
        return self.policy(base_path).settings(self.service)

    def show(self) -> None:
        """Report to the source of tables the state of the tables that it names; do nothing without a source."""
        if self.source is not None:
            self.source.show_tables({base_path: self._state_of(base_path) for base_path in self.registry.named()})

    def show_job(self, base_path: str, job: JobFacts) -> None:
        """Report to the source of tables the last application of a table; do nothing without a source."""
        if self.source is not None:
            self.source.show_job(base_path, job)

    def close(self) -> None:
        """Give back the shards; close the lock providers, the news and the source of tables."""
        self.shards.close()
        self.looks.close()
        if self.source is not None:
            self.source.close()
        self.lock_providers.close()

    def _balance(self) -> None:
        self._unbalanced = None
        try:
            self.shards.balance()
        except TidelineError as error:
            # The instance keeps its shards for as long as their leases last.
            self._unbalanced = error

    def _search(self) -> tuple[str, ...]:
        places, scans = self.looks.places(), self.registry.scans
        try:
            # Tables that came or went after the last scan, and before the mirror was heard, make the next one due.
            found = self.registry.tables(rests=places is not None and places == self._scanned_places)
        except TidelineError as error:
            if self.search_health is not None:
                self.search_health.searched(" ".join(str(error).split()))
            raise
        if self.search_health is not None:
            self.search_health.searched(self.registry.search_failure())
        if self.registry.scans != scans:
            self._scanned_places = places
        return found

    def _retain(self, wanted: tuple[str, ...]) -> None:
        """Forget all other tables."""
        if wanted == self._wanted:
            return
        self._wanted, there = wanted, set(wanted)
        self.looks.retain(there)
        self._resting.retain(there)
        opened = (self._open, self._opened_with, self._checked_at_s, self._own, self._uids)
        for known in (*opened, self._refused, self._troubled, self._frozen):
            for base_path in known.keys() - there:
                del known[base_path]
        self._by_uid = None
        self._left_alone &= there

    def _places_by_uid(self) -> Mapping[str, str]:
        if self._by_uid is None:
            self._by_uid = {uid: base_path for base_path, uid in self._uids.items()}
        return self._by_uid

    def _identify(self, base_path: str, uid: str) -> None:
        if self._uids.get(base_path) != uid:
            self._uids[base_path], self._by_uid = uid, None

    def _state_of(self, base_path: str) -> TableFacts | Trouble:
        for reason, texts in (("Refused", self._refused), ("Failed", self._troubled), ("Frozen", self._frozen)):
            if base_path in texts:
                return Trouble(reason, texts[base_path])
        if base_path in self._open:
            return TableFacts.of(self._open[base_path])
        failure = self.registry.failure(base_path)
        return Trouble("Unreachable", failure) if failure else Trouble("NoTable", "no table is at this base path")

    def _table(self, base_path: str, *, is_named: bool) -> Table | None:
        """Return the table, refreshed and opened if necessary; None for a table that is skipped.

        Without `is_named`, this service sends no request for a table if the mirror has told all of it, or before its next look.
        """
        self._resting.look(base_path)
        try:
            table = self._open.get(base_path)
            if table is not None and not is_named and self.looks.rests(table):
                return None
            is_current = table is not None and not is_named and self.looks.is_current(table)
            if table is not None and not is_current and self._is_another(table):
                # The table was dropped and created again at the same place: open the new one.
                table = None
            if table is not None and table.timeline.is_outdated:
                # Since it was opened, the table has become a shared one, whose steps take the lock of Apache Hudi.
                table = None
            if table is not None and self._opened_with.get(base_path) != self._given(base_path):
                table = None
            is_new = table is None
            if table is None:
                is_closed = base_path not in self._open and base_path not in self._refused
                if is_closed and not is_named and (uid := self.waits(base_path)) is not None:
                    self._identify(base_path, uid)
                    self._resting.wait(base_path, uid)
                    return None
                self._resting.wake(base_path)
                self._resting.taken(base_path)
                table = self._open[base_path] = self._opened(base_path)
                self._opened_with[base_path] = self._given(base_path)
                self._checked_at_s.pop(base_path, None)
                self.looks.opened(base_path)
            if not is_current:
                if table.capabilities.keeps_log and not is_new:
                    table.refresh()
                self.looks.looked(base_path)
            self._note_frozen(table)
        except TidelineError as error:
            self._open.pop(base_path, None)
            self._resting.wake(base_path)
            self.registry.doubt(base_path)
            (self._left_alone.add if isinstance(error, _OnlyHudis) else self._left_alone.discard)(base_path)
            if self._refused.get(base_path) != str(error):
                self._refused[base_path] = str(error)
                _log.warning("table skipped", base_path=base_path, reason=str(error))
            return None
        self._refused.pop(base_path, None)
        self._left_alone.discard(base_path)
        return table

    def _let_rest(self, table: Table) -> None:
        """Close a table on which the service has no work before there is news: of a fleet, most tables are such."""
        base_path = table.base_path
        is_open = self._open.get(base_path) is table and table.capabilities.log_is_truth
        if self.rests_until_s is None or self.source is not None or not is_open:
            return
        until_s = self.rests_until_s(table)
        if until_s < self.clock.monotonic_s() + LEAST_REST_S:
            return
        del self._open[base_path], self._opened_with[base_path]
        self.closed(table)
        self._resting.close(base_path, table.uid, Closed(table.state.sequence, until_s, self.policy(base_path)))

    def is_told_to_rest(self, table: Table) -> bool:
        """Return whether the mirror tells that nothing happens to an open table."""
        return self.looks.at_rest(table.base_path) == (table.uid, table.state.sequence)

    def _awaits_news(self, base_path: str) -> str | None:
        """Return the uid of a table that rests and of which the mirror tells no news.

        Without a mirror, one request asks whether a table that was closed has a further entry, and at times one whether it is the
        same. A table that this process has not opened yet, and which rests, is opened when it is its turn.
        """
        closed, now_s = self._resting.taken(base_path), self.clock.monotonic_s()
        if self.rests_until_s is None or self.source is not None:
            return None
        if closed is None:
            told = self.looks.at_rest(base_path, UNSEEN_REST_AFTER_S)
            if told is None:
                return None
            # From the first one on, however long the tables took that are open: each visit opens one at least.
            self._opens_until_s = now_s + OPENING_S if self._opens_until_s is None else self._opens_until_s
            is_unseen = now_s >= self._opens_until_s
            self.has_unseen |= is_unseen
            return told[0] if is_unseen else None
        uid, told = self._uids[base_path], self.looks.at_rest(base_path)
        is_due = now_s >= closed.until_s or self.policy(base_path) is not closed.policy
        if is_due or told not in (None, (uid, closed.sequence)):
            return None
        is_asked = told is None or now_s >= self.looks.audit_at_s(base_path)
        if is_asked and not self.is_unchanged(base_path, uid, closed.sequence):
            return None
        self._resting.keep(base_path, closed)
        if told is None:
            self._resting.untold(base_path)
        return uid

    def is_unchanged(self, base_path: str, uid: str, sequence: int, interval_s: float = 0.0) -> bool:
        """Return whether a closed table, looked at so often, has no further entry and is still the same. One request or two."""
        self.looks.looked(base_path)
        storage = self.storage(base_path)
        if exists(storage, entry_path(sequence + 1)):
            return False
        # Another table at the same place may have fewer entries.
        is_known = not self.looks.takes_identity(base_path, interval_s)
        return is_known or ((found := read_identity(storage)) is not None and found.uid == uid)

    def _is_another(self, table: Table) -> bool:
        """Return whether an open table is not the one at its place any more, if that is to be checked now. One request."""
        is_due = self.looks.takes_identity(table.base_path, self.looks.interval_s(table))
        if not is_due or read_identity(table.storage) == table.identity:
            return False
        self.registry.doubt(table.base_path)
        return True

    def _opened(self, base_path: str) -> Table:
        storage = self.storage(base_path)
        identity = read_identity(storage)
        if identity is None and self.observes:
            self._identify(base_path, observed_uid(storage.root))
            return Table.open(base_path, clock=self.clock, options=self.options, storage=ReadOnlyStorage(storage))
        if identity is None:
            # Checked before opening, because opening lists a table that Apache Hudi owns.
            raise _OnlyHudis(
                "a table without Tideline's log",
                expected="a table that Tideline created or shares with Apache Hudi",
                remedy="tideline share PATH shares the table",
            )
        identity.check_place(storage.root)
        self._identify(base_path, identity.uid)
        own = self.own_options(base_path)
        table = Table.open(
            base_path,
            clock=self.clock,
            writer_id=self.writer_id,
            options={**(self.options or {}), **own} if own else self.options,
            storage=self._refusing(storage) if self.policy(base_path).observes else storage,
            hudi_lock=open_hudi_lock,
            by_log=True,
        )
        sharing = upgraded_sharing(table)
        if sharing is not None and not isinstance(table.storage, ReadOnlyStorage | LogOnlyStorage):
            table = share_table(table, sharing, open_hudi_lock)
            version = table.definition.version
            _log.warning("table has another version now, and is shared in it", base_path=base_path, version=version)
        if not table.capabilities.keeps_log:
            table.check_writable(keyed=False)  # raises with the reason
        try:
            self.lock_providers.attach(table)
        except TidelineError:
            self._unlocked.add(base_path)
            raise
        self._unlocked.discard(base_path)
        return table

    def _refusing(self, storage: Storage) -> Storage:
        # Who publishes a table's log continues that of a shared one, which ends if Apache Hudi archives what was not adopted.
        return LogOnlyStorage(storage) if self.observes else ReadOnlyStorage(storage)

    def _given(self, base_path: str) -> tuple[Mapping[str, str], bool]:
        """Return what a table is opened with: its own options, and whether nothing may be written to it."""
        return self.own_options(base_path), self.policy(base_path).observes

    def _note_frozen(self, table: Table) -> None:
        """Check whether writers refuse the table, if that is shown and due."""
        now_s, known_s = self.clock.monotonic_s(), self._checked_at_s.get(table.base_path)
        if self.source is None or (known_s is not None and now_s - known_s < FROZEN_CHECK_S):
            return
        self._checked_at_s[table.base_path] = now_s
        refused = why_refused(table)
        if refused is None:
            self._frozen.pop(table.base_path, None)
        elif self._frozen.get(table.base_path) != str(refused):
            self._frozen[table.base_path] = str(refused)
            _log.warning("table frozen", base_path=table.base_path, reason=str(refused))

    def _report(self, table: Table, error: TidelineError) -> None:
        is_frozen = isinstance(error, TableFrozen)
        if isinstance(error, TableUpgraded) or (is_frozen and (not table.capabilities.keeps_log or self._is_left(table))):
            self._opened_with.pop(table.base_path, None)  # the next visit opens what is there now
            if table.base_path not in self._troubled:
                _log.info("table is opened again", base_path=table.base_path, reason=str(error))
                self._troubled[table.base_path] = str(error)
                return
        if self._troubled.get(table.base_path) != str(error):
            self._troubled[table.base_path] = str(error)
            _log.error("table failed", table=table.uid, name=table.definition.name, reason=str(error))

    def _is_left(self, table: Table) -> bool:
        """Return whether an open table has no identity any more, or that of another sharing. One request."""
        with suppress(TidelineError):
            found = read_identity(table.storage)
            return found is None or found.uid != table.uid
        return False
