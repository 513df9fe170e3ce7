"""The timeline of a table that only Apache Hudi writes: readable, without a table log."""

# ruff: noqa: D102 - the port documents these methods

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NoReturn

import pyarrow as pa

from tideline_table.coordination.capabilities import HUDI_ONLY, Capabilities
from tideline_table.coordination.exclusive import ExclusiveTimeline
from tideline_table.coordination.other_writers import check_no_other_writer, check_not_upgraded
from tideline_table.coordination.replica import LogReplica
from tideline_table.coordination.shared.hudi_rules import check_version
from tideline_table.coordination.shared.leaving import is_leaving, remove_tideline
from tideline_table.coordination.timeline import ActiveTimeline, Decide
from tideline_table.errors import TableFrozen, UnsupportedTable
from tideline_table.file_group.slice import FileSlice
from tideline_table.hudi.format import TableFormat
from tideline_table.hudi.formats import format_of
from tideline_table.hudi.properties import PROPERTIES_FOLDER, read_properties
from tideline_table.hudi_written import hudi_written_state
from tideline_table.log.entry import IDENTITY_PATH
from tideline_table.log.state import TableState
from tideline_table.metadata_table import HudiKeys, HudiStatistics, listed_by_metadata
from tideline_table.storage import Folder, exists


class HudiTimeline(ActiveTimeline):
    """The timeline of a table with these properties, as of the last `refresh_view`. Read-only."""

    def __init__(self, replica: LogReplica, properties: Mapping[str, str], created: TableFormat | None = None) -> None:
        """`created`: the format of a table that had a table log until Apache Hudi wrote it without one or changed its version."""
        super().__init__(replica)
        self._created = created
        self._properties = properties
        self._state = hudi_written_state(replica.storage, properties, listed_by_metadata)
        self._statistics = HudiStatistics(replica.storage, format_of(properties))
        self._keys = HudiKeys(replica.storage, properties, self.options)

    @property
    def statistics(self) -> HudiStatistics:
        """See `ActiveTimeline.statistics`: those in the metadata table."""
        return self._statistics

    def holding(self, keys: pa.Array, slices: Sequence[FileSlice]) -> tuple[FileSlice, ...]:
        """See `ActiveTimeline.holding`: by the record index."""
        return self._keys.holding(keys, self._state, slices)

    @property
    def capabilities(self) -> Capabilities:
        return HUDI_ONLY

    @property
    def state(self) -> TableState:
        """The state as of the last `refresh_view`."""
        return self._state

    def view(self) -> TableState:
        return self._state

    def refresh_view(self) -> TableState:
        """See `ActiveTimeline.refresh_view`; reads the whole timeline and lists the table, by its metadata table if it can."""
        self._state = hudi_written_state(self.storage, self._properties, listed_by_metadata)
        return self._state

    def check_not_upgraded(self) -> None:
        if self._created is None:
            return
        properties = read_properties(self.storage)
        if self.replica.state.sharing is not None:
            check_version(properties, self._created)
        else:
            check_not_upgraded(properties, self._created)
            check_no_other_writer(ExclusiveTimeline(self.replica), self.storage.list_folder(PROPERTIES_FOLDER), repairs=False)
            raise TableFrozen(
                "a table that Apache Hudi had upgraded or written when it was opened, and that is Tideline's again",
                expected="a table that was opened as it is",
                remedy="open it again",
            )

    def check_writable(self, table: str, check_definition: Callable[[Folder], None]) -> NoReturn:  # noqa: ARG002 - the port's
        """Raise `UnsupportedTable`."""
        raise UnsupportedTable(
            f"only Apache Hudi writes table {table!r}",
            expected="a table that Tideline created, or one that is shared",
            remedy="share it: tideline share PATH, which prints the options that Apache Hudi's writers need",
        )

    def _append(self, decide: Decide) -> NoReturn:  # noqa: ARG002 - the port's
        raise _read_only()

    def mint(self, state: TableState) -> NoReturn:  # noqa: ARG002 - the port's
        """Raise `UnsupportedTable`."""
        raise _read_only()

    def mint_above_files(self, state: TableState) -> NoReturn:  # noqa: ARG002 - the port's
        """Raise `UnsupportedTable`."""
        raise _read_only()

    def heal(self, min_age_s: float) -> bool:  # noqa: ARG002 - the port's
        """Do nothing: the table has no log."""
        return False

    def leave(self) -> None:
        """See `ActiveTimeline.leave`; also of a table that Apache Hudi upgraded, whose log has ended."""
        if is_leaving(self.storage) or exists(self.storage, IDENTITY_PATH):
            remove_tideline(self.storage)

    def forget_markers(self, target: str, found: Iterable[str]) -> NoReturn:  # noqa: ARG002 - the port's
        """Raise `UnsupportedTable`."""
        raise _read_only()


def _read_only() -> UnsupportedTable:
    return UnsupportedTable("a step on a table that only Apache Hudi writes", expected="a table with a table log")
