"""What a comparison of the metadata table with the table finds."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tideline_table.errors import ObjectNotFound
from tideline_table.log.state import TableState


class FindingKind(enum.StrEnum):
    """What is wrong with the metadata table, or with the table."""

    NOT_ADVERTISED = "not advertised"
    """The properties of the table do not name it: readers list folders."""
    ADVERTISED_WITHOUT_TABLE = "advertised without table"
    """The properties name one that the table log does not know."""
    MISSING_FILE = "missing file"
    """A file of the metadata table is gone."""
    DAMAGED_FILE = "damaged file"
    """A file of the metadata table cannot be read."""
    FOREIGN_FILE = "foreign file"
    """A file in the metadata table that Tideline did not make."""
    NOT_LISTED = "not listed"
    """A committed file that the metadata table does not list: readers lose its rows."""
    LISTED_IN_VAIN = "listed in vain"
    """The metadata table lists a file that is not of the table: readers fail, or read rows that were deleted."""
    WRONG_SIZE = "wrong size"
    """The metadata table has another size than the log, or the file on storage another than both."""
    WRONG_RECORD = "wrong record"
    """A record of the metadata table says something else than the data files: readers may look into the wrong file."""
    GONE = "gone"
    """A committed file that is not on storage. A new metadata table does not bring it back."""
    DAMAGED_DATA = "damaged data"
    """A committed data file that is not what its writer wrote: reads of it fail. A new metadata table does not mend it."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One difference: its kind, the path that it is about, and what was found."""

    kind: FindingKind
    path: str
    found: str

    @property
    def is_repairable(self) -> bool:
        """Whether a new metadata table mends it."""
        return self.kind not in (FindingKind.GONE, FindingKind.DAMAGED_DATA)


def gone(error: ObjectNotFound) -> Finding:
    """Return the finding about a data file that a comparison had to read."""
    return Finding(FindingKind.GONE, error.path, "a committed file that is not on storage")


def without_leaving(findings: Iterable[Finding], state: TableState) -> Iterator[Finding]:
    """Leave out what is said about the absence of files that a pending clean deletes."""
    leaving = state.under_clean()
    return (found for found in findings if found.kind is not FindingKind.GONE or found.path not in leaving)
