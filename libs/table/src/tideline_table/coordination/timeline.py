"""The port through which everything else reads and changes the timeline of a table, whichever engines write the table.

Three implementations hold the rules of a table by who writes it: `ExclusiveTimeline` (only Tideline), `shared.SharedTimeline`
(Apache Hudi too) and `HudiTimeline` (only Apache Hudi). No other module asks which of them a table has.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import ClassVar, TypeVar, overload

import pyarrow as pa

from tideline_table.config import SHARED_METADATA, Options, column_list
from tideline_table.coordination.capabilities import Capabilities
from tideline_table.coordination.replica import LogReplica
from tideline_table.coordination.reserve import release_reserve
from tideline_table.errors import StorageFull, UnsupportedTable
from tideline_table.file_group.slice import FileSlice
from tideline_table.hudi.instant import Action
from tideline_table.hudi.listing import ListedTimeline
from tideline_table.hudi.write_stats import WriteStat
from tideline_table.hudi_written import visible_instants
from tideline_table.log.action import ActionRecord
from tideline_table.log.entry import Entry
from tideline_table.log.known_statistics import StatisticsSource
from tideline_table.log.metadata import FILES, RECORD_INDEX
from tideline_table.log.savepoint import Saved, Savepoint
from tideline_table.log.state import TableState
from tideline_table.log.table_log import Draft
from tideline_table.metadata_table import LogRecords
from tideline_table.reader.log_blocks import VisibleInstants
from tideline_table.reader.read_plan import LogRule
from tideline_table.storage import Folder

Facts = TypeVar("Facts")
Decide = Callable[[TableState], Draft]
"""A pure decision on fresh state: return the transition to append, or raise the error that forbids it."""


def kept_partitions(options: Options) -> tuple[str, ...]:
    """Return the partitions that Tideline's writers keep, `files` first; none if they turn the metadata table off."""
    if options[SHARED_METADATA] == SHARED_METADATA.default:
        return ()
    return tuple(dict.fromkeys((FILES, *column_list(options[SHARED_METADATA]))))


def holds_keys_once(state: TableState, options: Options) -> bool:
    """Return whether a table has a record index: then no key may be in two places.

    In a table that Apache Hudi also writes, whether Tideline's writers keep one (`tideline.shared.metadata`).
    """
    if state.sharing is not None:
        return RECORD_INDEX in kept_partitions(options)
    return state.metadata is not None and state.metadata.partition(RECORD_INDEX) is not None


class ActiveTimeline(ABC):
    """The timeline of one table as this process knows it. Thread-safe."""

    rule: LogRule = LogRule()
    """How the log files of an exclusive table are merged: partitions of its metadata table depend on its rows."""
    records: LogRecords | None = None
    """The records that this process wrote to the record index of an exclusive table, for its look-ups."""

    beats_through_rollback: ClassVar[bool] = False
    """Whether a writer keeps its heartbeat while it rolls itself back.

    If not, a process that adopts the rollback cannot take it for the rollback of a live write (`shared.eager_rollback`).
    """

    def __init__(self, replica: LogReplica) -> None:
        """`replica`: this process's copy of the table log."""
        self.replica, self.log, self.format = replica, replica.log, replica.log.format
        self.storage, self.options = replica.storage, replica.options
        self.clock, self.time = replica.clock, replica.time
        self.settled: dict[str, str] = {}
        """Timeline files that the last check of other writers found to be of completed steps of the log, with their instants."""
        self.whole_look: tuple[float, int] = (0.0, 0)
        """When the last check of all names on the timeline was (monotonic), and of how many; checks between look at new ones."""
        self.newest_settled = ""
        """The last instant of `settled`."""

    # --- reading ---------------------------------------------------------------------------------------------------------

    @property
    def state(self) -> TableState:
        """The state on which steps are decided, as of the last refresh."""
        return self.replica.state

    def refresh(self) -> list[Entry]:
        """Read the new entries of the log and return them. Cheaper than `refresh_view`."""
        return self.replica.refresh()

    def head_sequence(self) -> int:
        """Return the head sequence of the log now: the fencing token of the caller."""
        self.refresh()
        return self.state.sequence

    def refresh_view(self) -> TableState:
        """Refresh and return the state with the steps of all writers, as readers see it."""
        self.refresh()
        return self.state

    def view(self) -> TableState:
        """Return the result of the last `refresh_view`, or a newer state."""
        return self.replica.state

    @property
    @abstractmethod
    def capabilities(self) -> Capabilities:
        """What the table can, by who writes it now."""

    @property
    def statistics(self) -> StatisticsSource | None:
        """The statistics of data files by which queries leave out some; None if there are none for this process."""
        return self.replica.statistics if self.capabilities.log_is_truth else None

    def holding(self, keys: pa.Array, slices: Sequence[FileSlice]) -> tuple[FileSlice, ...]:
        """Return those of `slices`, all of a query, that may hold one of `keys`, by an index that only another writer keeps."""
        del keys
        return tuple(slices)

    @property
    def is_outdated(self) -> bool:
        """Whether Apache Hudi's writers joined since the table was opened, so that it must be opened again."""
        return False

    def visible(self) -> VisibleInstants | None:
        """Return which instants in log block headers are valid; None if all blocks of visible files are."""
        return visible_instants(self.view()) if self.capabilities.has_hudi_files else None

    def savepoints(self) -> Mapping[str, Savepoint]:
        """Return the savepoints by the instant of their write. One request if only the timeline has them."""
        return {instant: Savepoint(instant, 0, "") for instant in ListedTimeline.read(self.storage, self.format).saved}

    def saved(self) -> Saved:
        """Return the saved writes, each with the older instants that a restore to it undoes too (none for Apache Hudi)."""
        return dict.fromkeys(self.savepoints(), frozenset())

    # --- checks ----------------------------------------------------------------------------------------------------------

    def check_not_upgraded(self) -> None:  # noqa: B027 - a table in use shows it otherwise
        """Raise `UnsupportedTable` if the table is only readable because Apache Hudi upgraded it while it was shared."""

    @abstractmethod
    def check_writable(self, table: str, check_definition: Callable[[Folder], None]) -> None:
        """Raise unless this process may take steps on the table named `table` now. Refreshes the state.

        `check_definition` is called with a new listing of the timeline's folder if there is one.
        """

    def check_sole_writer(self, table: str, remedy: str) -> None:  # noqa: B027 - only shared tables refuse
        """Raise `UnsupportedTable` with `remedy` if Apache Hudi must do it instead, because it also writes the table."""

    # --- steps -----------------------------------------------------------------------------------------------------------

    @overload
    def append(self, decide: Decide, *, reserve_kept: int | None = None) -> Entry: ...

    @overload
    def append(
        self, decide: Callable[[TableState, Facts], Draft], facts: Callable[[TableState], Facts], *, reserve_kept: int | None = None
    ) -> Entry: ...

    def append(
        self,
        decide: Callable[..., Draft],
        facts: Callable[[TableState], Facts] | None = None,
        *,
        reserve_kept: int | None = None,
    ) -> Entry:
        """Append the transition that `decide` returns for the freshest state.

        `facts` gathers what the decision needs from storage and clocks; `decide` does no I/O. If another writer appends first, both
        run again on the new state. `reserve_kept` marks a step that frees space: on a full disk, it spends the reserve of the table
        until so many files of it are left.

        Returns when the step is taken. What follows from it may be late, which is a warning. Raises what `facts` and `decide`
        raise, `AppendOutrun` if other writers were always faster, `StorageFull` if the reserve was not enough.
        """

        def decided(state: TableState) -> Draft:
            return decide(state) if facts is None else decide(state, facts(state))

        while True:
            try:
                return self._append(decided)
            except StorageFull:
                if reserve_kept is None or not release_reserve(self.storage, reserve_kept):
                    raise

    @abstractmethod
    def _append(self, decide: Decide) -> Entry:
        """Append what `decide` returns for the freshest state; call it again if another writer was faster."""

    @abstractmethod
    def mint(self, state: TableState) -> str:
        """Return the next instant of the table: the present, or a later one above the last instant. No I/O."""

    @abstractmethod
    def mint_above_files(self, state: TableState) -> str:
        """Mint an instant also above the times of all completed files, for an action that opens slices. Costs a listing.

        Otherwise Apache Hudi 1.x would place log files of the slice before into the new one, which holds their rows already (format
        reference 11.3). Raises `ClockSkew` while the instant is ahead of the store's time: the reverse would happen.
        """

    @abstractmethod
    def heal(self, min_age_s: float) -> bool:
        """Let log and timeline files agree again after a writer died between them; return True if something was missing.

        Leaves steps younger than `min_age_s` to their writer, if it creates the files after the entry (0: none).
        """

    @contextmanager
    def healed(self) -> Iterator[TableState]:
        """Heal, and hold the state until the end: each entry of it has its timeline files, and no other thread adds an entry."""
        with self.replica.mutex:
            self.heal(0.0)
            yield self.view()

    @contextmanager
    def preparing(
        self,
        action: Action,  # noqa: ARG002 - only exclusive tables need it
        instant: str,  # noqa: ARG002
        stats: Sequence[WriteStat],  # noqa: ARG002
    ) -> Iterator[None]:
        """Prepare what the completion of a write adds to the metadata table, beside the caller, until the end of the context.

        The write adds files with `stats`, and replaces no file group. Nothing is written: an append in the context takes what was
        prepared, if it publishes just these files.
        """
        yield

    def catch_up(self) -> None:  # noqa: B027 - only shared tables need it
        """Append to the log what it lacks of other engines' steps, so that they can be rolled back."""

    def tidy_up(self) -> None:  # noqa: B027 - not for tables that are only read
        """Remove what dead processes left and what no rollback of a write removes."""

    def give_up(self, plan: ActionRecord) -> None:  # noqa: B027 - only shared tables need it
        """Remove a plan that names files in use, if a step of another engine explains that. Otherwise keep it for inspection."""

    def leave(self) -> None:
        """Remove what is Tideline's, so that only Apache Hudi writes the table. Goes on where a process that died ended.

        Raises `UnsupportedTable` for an exclusive table, and `WriteConflict` while a step of Tideline is pending.
        """
        raise UnsupportedTable("an exclusive table", expected="a table that Apache Hudi's writers share")

    @abstractmethod
    def forget_markers(self, target: str, found: Iterable[str]) -> None:
        """Delete the markers of the rolled-back write `target`; `found` are the files that its rollback found in them."""
