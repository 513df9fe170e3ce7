"""Compare the metadata table with the table log and with the files on storage."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass

from tideline_table.errors import CorruptMetadata, ObjectNotFound, TidelineError
from tideline_table.file_group.slice import join_path
from tideline_table.hudi import properties as p
from tideline_table.hudi.instant import Action, Instant, State, parse_timeline_file_name
from tideline_table.hudi.properties import parse_properties, read_properties
from tideline_table.log.metadata import CREATION_SUFFIX, MetadataPartition, MetadataTable
from tideline_table.log.state import TableState
from tideline_table.metadata_table.files import files_of
from tideline_table.metadata_table.layout import PROPERTIES_PATH, TIMELINE_FOLDER, log_name, metadata_properties
from tideline_table.metadata_table.reading import live, read_files, slice_files
from tideline_table.metadata_table.records import FilesRecords
from tideline_table.storage import Storage


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
    GONE = "gone"
    """A committed file that is not on storage. A new metadata table does not bring it back."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One difference: its kind, the path that it is about, and what was found."""

    kind: FindingKind
    path: str
    found: str

    @property
    def is_repairable(self) -> bool:
        """Whether a new metadata table mends it."""
        return self.kind is not FindingKind.GONE


def check_metadata(storage: Storage, state: TableState) -> list[Finding]:
    """Return all differences between metadata table, table log and storage; none if the table has no metadata table and names none.

    Lists each partition folder once and reads the newest slice of the metadata table. Concurrent writers may make it report files of
    the very last entry: repeat it then.
    """
    advertised = read_properties(storage).get(p.METADATA_PARTITIONS, "")
    known = state.metadata
    if known is None:
        return [_not_known(advertised)] if advertised else []
    findings = []
    if advertised != ",".join(sorted(known.names)):
        findings.append(Finding(FindingKind.NOT_ADVERTISED, p.PROPERTIES_PATH, f"{p.METADATA_PARTITIONS}={advertised}"))
    findings += _timeline(storage, known)
    findings += _own_properties(storage)
    findings += _contents(storage, state, known.files)
    return findings


def _not_known(advertised: str) -> Finding:
    return Finding(FindingKind.ADVERTISED_WITHOUT_TABLE, p.PROPERTIES_PATH, f"{p.METADATA_PARTITIONS}={advertised}")


def _timeline(storage: Storage, known: MetadataTable) -> Iterator[Finding]:
    there = {parse_timeline_file_name(found.path.rpartition("/")[2]) for found in storage.list_folder(TIMELINE_FOLDER).objects}
    created = {part.created + CREATION_SUFFIX for part in known.partitions}
    compactions = {at for part in known.partitions for at in (part.base, part.older_base)} - created
    for time in sorted(known.instants):
        action = Action.COMMIT if time in compactions else Action.DELTA_COMMIT
        if Instant(time, action, State.COMPLETED) not in there:
            yield Finding(FindingKind.MISSING_FILE, f"{TIMELINE_FOLDER}/{time}.{action}", "no completed timeline file")
    for instant in sorted(found for found in there if found is not None):
        if instant.time > max(known.instants):
            path = f"{TIMELINE_FOLDER}/{instant.time}"
            yield Finding(FindingKind.FOREIGN_FILE, path, f"a {instant.action} that is newer than the table log")


def _own_properties(storage: Storage) -> Iterator[Finding]:
    try:
        found = parse_properties(storage.read(PROPERTIES_PATH), PROPERTIES_PATH)
    except ObjectNotFound:
        yield Finding(FindingKind.MISSING_FILE, PROPERTIES_PATH, "no properties")
        return
    except CorruptMetadata as error:
        yield Finding(FindingKind.DAMAGED_FILE, PROPERTIES_PATH, error.found)
        return
    for key, value in metadata_properties(read_properties(storage)).items():
        if found.get(key) != value:
            yield Finding(FindingKind.DAMAGED_FILE, PROPERTIES_PATH, f"{key}={found.get(key, '')}, expected {value}")


def _contents(storage: Storage, state: TableState, known: MetadataPartition) -> Iterator[Finding]:
    there = slice_files(storage, known)
    for name in there.foreign:
        yield Finding(FindingKind.FOREIGN_FILE, name, "a file of another writer")
    expected = {delta.version for delta in known.deltas if delta.version}
    for version in sorted(expected - set(there.groups[0].versions)):
        yield Finding(FindingKind.MISSING_FILE, log_name(known.base, version), "no log file of a delta commit")
    try:
        listed = read_files(storage, known, there)
    except ObjectNotFound as error:
        yield Finding(FindingKind.MISSING_FILE, error.found, "no base file")
    except TidelineError as error:
        yield Finding(FindingKind.DAMAGED_FILE, error.found, error.expected)
    else:
        yield from _compared(storage, files_of(state), listed)


def _compared(storage: Storage, expected: FilesRecords, listed: FilesRecords) -> Iterator[Finding]:
    partitions = live(listed.partitions)
    for partition in sorted({*expected.files, *listed.files}):
        wanted, found = expected.files.get(partition, {}), live(listed.files.get(partition))
        stored = {o.path.rpartition("/")[2]: o.size_bytes for o in storage.list_folder(partition).objects}
        if wanted and partition not in partitions:
            yield Finding(FindingKind.NOT_LISTED, partition or ".", "a partition with files that the list of partitions lacks")
        for name in sorted({*wanted, *found}):
            finding = _file(join_path(partition, name), wanted.get(name), found.get(name), stored.get(name))
            if finding is not None:
                yield finding


def _file(path: str, wanted: int | None, listed: int | None, stored: int | None) -> Finding | None:
    if wanted is None:
        return Finding(FindingKind.LISTED_IN_VAIN, path, f"{listed} bytes; no committed file has this name")
    if stored is None:
        return Finding(FindingKind.GONE, path, f"{wanted} bytes in the log, none on storage")
    if listed is None:
        return Finding(FindingKind.NOT_LISTED, path, f"a committed file of {wanted} bytes")
    if listed != wanted or stored != wanted:
        return Finding(FindingKind.WRONG_SIZE, path, f"{listed} bytes listed, {wanted} in the log, {stored} on storage")
    return None
