"""Brings the entries of a table in a catalog up to date.

Order: table, partitions, and last what says how far it is registered, so that a sync that ends early is repeated and loses nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, replace

import tenacity

from tideline_catalogs.catalog import Catalog, CatalogMoved, CatalogRefused, Partition, Registered
from tideline_catalogs.registration import (
    LAST_COMPLETED,
    LAST_SYNCED,
    SEQUENCE,
    UID,
    Names,
    is_hudi,
    partition_of,
    path_of,
    registrations,
)
from tideline_table.hudi import WRITE_ACTIONS, Action, State
from tideline_table.table import Table

_ATTEMPTS = 8
_COMMITS = WRITE_ACTIONS | {Action.COMPACTION, Action.LOG_COMPACTION}


@dataclass(frozen=True, slots=True)
class SyncReport:
    """What a sync did to one entry of a catalog; numbers are of partitions."""

    database: str
    name: str
    created: bool = False
    altered: bool = False
    added: int = 0
    moved: int = 0
    dropped: int = 0

    @property
    def changed(self) -> bool:
        """Whether the sync changed anything but the position up to which the table is registered."""
        return self.created or self.altered or bool(self.added or self.moved or self.dropped)

    def to_json(self) -> dict[str, object]:
        """Return the report as JSON values."""
        return {**asdict(self), "changed": self.changed}


def sync_table(catalog: Catalog, table: Table, names: Names, *, create_database: bool = True) -> list[SyncReport]:
    """Register the table as it is now, or bring its entries up to date; return what was done.

    Once an entry is registered, only the partitions are compared that commits since then touched. Raises `CatalogAway`,
    `CatalogRefused`, and `CatalogMoved` if others change the entry all the time.
    """
    database, name = names.of(table.definition.name)
    if database not in catalog.databases():
        if not create_database:
            raise CatalogRefused(f"no database {database!r} in the catalog", expected="one that exists")
        catalog.create_database(database)
    return [_Entry(catalog, table, database, name, number).sync() for number in range(len(registrations(table, name)))]


def drop_table(catalog: Catalog, location: str, name: str, names: Names, uid: str = "") -> list[str]:
    """Drop the entries of a deleted table that lie at `location`; return their names. Entries of other tables stay.

    So do, with `uid`, those of a later table at the same place.
    """
    database, base = names.of(name)
    dropped = []
    for one in (base, f"{base}_ro", f"{base}_rt"):
        found = catalog.table(database, one)
        if found is None or not is_hudi(found.parameters, found.input_format) or not _same_place(found.location, location):
            continue
        if not uid or found.parameters.get(UID, uid) == uid:
            catalog.drop_table(database, one)
            dropped.append(f"{database}.{one}")
    return dropped


class _Entry:
    """One entry of the catalog during a sync: entry `number` of those of the table."""

    def __init__(self, catalog: Catalog, table: Table, database: str, name: str, number: int) -> None:
        self._catalog = catalog
        self._table = table
        self._database = database
        self._name = name
        self._number = number
        self._since: int | None = None
        """The position that the first attempt found. A later attempt compares again what this one may have undone."""
        self._begun = False

    def sync(self) -> SyncReport:
        retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(CatalogMoved),
            wait=tenacity.wait_random_exponential(multiplier=0.05, max=2),
            stop=tenacity.stop_after_attempt(_ATTEMPTS),
            before_sleep=self._begin_again,
            reraise=True,
        )
        return retrying(self._attempt)

    def _begin_again(self, _: object) -> None:
        self._table.refresh()

    def _attempt(self) -> SyncReport:
        wanted = registrations(self._table, self._name)[self._number]
        found = self._catalog.table(self._database, wanted.name)
        report = SyncReport(self._database, wanted.name)
        if found is None:
            begun = {SEQUENCE: "0"} if self._table.uid else {}
            self._catalog.create_table(self._database, replace(wanted, parameters=wanted.parameters | begun))
            report, self._begun, self._since = replace(report, created=True), True, None
            found = replace(wanted, parameters=wanted.parameters | begun)
        self._check(found, wanted)
        position = _number(found.parameters.get(SEQUENCE))
        if found.parameters.get(UID, self._table.uid) != self._table.uid:
            position = None  # of the table that was at this place before
        if not self._begun:
            self._begun, self._since = True, position or None
        if position is not None and position > self._position():
            return report  # registered by one that knows more of the table
        cascade = bool(wanted.partition_keys) and _shape(found) != _shape(wanted)
        if _differs(found, wanted):
            self._catalog.alter_table(self._database, wanted, _expected(found), cascade=cascade)
            report = replace(report, altered=True)
        if wanted.partition_keys:
            report = self._sync_partitions(wanted, report)
        now = self._parameters()
        if report.changed or any(found.parameters.get(key) != value for key, value in now.items() if key != SEQUENCE):
            entry = replace(wanted, parameters=wanted.parameters | now)
            self._catalog.alter_table(self._database, entry, _expected(found), cascade=False)
        return report

    def _check(self, found: Registered, wanted: Registered) -> None:
        name = f"{self._database}.{wanted.name}"
        if not is_hudi(found.parameters, found.input_format):
            raise CatalogRefused(
                f"{name} is a table that is not of Hudi", expected="a free name", remedy="give --name or --database"
            )
        if not _same_place(found.location, wanted.location):
            raise CatalogRefused(
                f"{name} lies at {found.location}", expected=wanted.location, remedy="drop the entry, or give --name or --database"
            )
        keys, expected = ([key.name for key in one.partition_keys] for one in (found, wanted))
        if keys != expected:
            raise CatalogRefused(
                f"{name} is partitioned by {', '.join(keys) or 'nothing'}",
                expected=", ".join(expected) or "nothing",
                remedy="drop the entry: a catalog cannot change it",
            )

    def _sync_partitions(self, wanted: Registered, report: SyncReport) -> SyncReport:
        state = self._table.state
        touched = self._touched()
        live = state.partition_paths() if touched is None else {s.group.partition_path for s in state.latest_slices("", touched)}
        want = {one.values: one for one in (partition_of(self._table, path) for path in sorted(live))}
        among: Collection[tuple[str, ...]] | None = None
        if touched is not None:
            among = {partition_of(self._table, path).values for path in touched}
        have: Mapping[tuple[str, ...], str] = {}
        if not report.created and (among is None or among):
            have = self._catalog.partitions(self._database, wanted.name, among)
        added = [one for values, one in want.items() if values not in have]
        moved = [one for values, one in want.items() if values in have and not _same_place(have[values], one.location)]
        dropped = [values for values in have if values not in want]
        self._apply(wanted, added, moved, dropped)
        return replace(report, added=len(added), moved=len(moved), dropped=len(dropped))

    def _apply(self, wanted: Registered, added: list[Partition], moved: list[Partition], dropped: list[tuple[str, ...]]) -> None:
        if added:
            self._catalog.add_partitions(self._database, wanted, added)
        if moved:
            self._catalog.move_partitions(self._database, wanted, moved)
        if dropped:
            self._catalog.drop_partitions(self._database, wanted, dropped)

    def _touched(self) -> set[str] | None:
        """Return the partitions that commits since the registered position touched; None if only a whole comparison can say."""
        state, since = self._table.state, self._since
        if since is None or not self._table.uid or state.archived_sequence > since:
            return None
        instants = {a.instant for a in state.actions.values() if a.state is State.COMPLETED and a.sequence > since}
        if any(state.actions[one].action in (Action.ROLLBACK, Action.RESTORE) for one in instants):
            return None
        touched = {group.partition_path for group, at in state.replaced.items() if at in instants}
        first = min(instants, default="")
        # What a later one of these commits hid was replaced by it, or has a newer slice: the visible slices tell all partitions.
        changed = state.each_latest(lambda part, _: bool(first) and part.newest >= first)
        return touched | {one.group.partition_path for one in changed if one.base_instant in instants}

    def _position(self) -> int:
        state = self._table.state
        return max((a.sequence for a in state.actions.values() if a.state is State.COMPLETED), default=state.archived_sequence)

    def _parameters(self) -> dict[str, str]:
        state = self._table.state
        commits = [a for a in state.actions.values() if a.state is State.COMPLETED and a.action in _COMMITS]
        found = {SEQUENCE: str(self._position())} if self._table.uid else {}
        if commits:
            found[LAST_SYNCED] = max(a.instant for a in commits)
            if completed := max(a.completion for a in commits):
                found[LAST_COMPLETED] = completed
        return found


def _expected(found: Registered) -> tuple[str, str] | None:
    """Return the parameter that must still have its value: the position, or what Apache Hudi's sync has set."""
    return next(((key, found.parameters[key]) for key in (SEQUENCE, LAST_SYNCED) if key in found.parameters), None)


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() else None


def _shape(table: Registered) -> list[tuple[str, str]]:
    return [(column.name, column.type) for column in table.columns]


def _differs(found: Registered, wanted: Registered) -> bool:
    """Return whether columns, comments, formats or parameters differ. What others added to the entry does not matter."""
    return (
        found.columns != wanted.columns
        or (found.input_format, found.output_format, found.serde) != (wanted.input_format, wanted.output_format, wanted.serde)
        or not wanted.parameters.items() <= found.parameters.items()
        or any(found.serde_parameters.get(key) != value for key, value in wanted.serde_parameters.items() if key != "path")
    )


def _same_place(one: str, other: str) -> bool:
    return path_of(one).rstrip("/") == path_of(other).rstrip("/")
