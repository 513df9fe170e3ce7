"""Compare the metadata table with the table log and with the files on storage."""

from __future__ import annotations

from collections.abc import Iterator

from tideline_table.errors import CorruptMetadata, ObjectNotFound, TidelineError
from tideline_table.file_group.slice import join_path
from tideline_table.hudi import properties as p
from tideline_table.hudi.format import TableFormat
from tideline_table.hudi.instant import Action, Instant, State
from tideline_table.hudi.properties import parse_properties, read_properties
from tideline_table.log.metadata import INSTANT_DIGITS, MetadataPartition, MetadataTable
from tideline_table.log.state import TableState
from tideline_table.metadata_table.files import files_of, with_change_files
from tideline_table.metadata_table.finding import Finding, FindingKind, gone, without_leaving
from tideline_table.metadata_table.kinds import kind_of
from tideline_table.metadata_table.layout import (
    FIRST_LOG_VERSION,
    PROPERTIES_PATH,
    file_path,
    folder_of,
    instant_of,
    log_name,
    metadata_properties,
    timeline_folder,
)
from tideline_table.metadata_table.partition import Source, mapping_of
from tideline_table.metadata_table.reading import live, read_files, read_group, recorded_group, recorded_names, slice_files
from tideline_table.metadata_table.records import FilesRecords
from tideline_table.reader.read_plan import LogRule
from tideline_table.storage import Storage


def check_metadata(storage: Storage, form: TableFormat, state: TableState, rule: LogRule | None = None) -> list[Finding]:
    """Return all differences between metadata table, table log and storage; none if the table has no metadata table and names none.

    `rule` merges the log files of the table. With a record index, the keys of all files are read. Lists each partition folder
    once and reads the newest slice of the metadata table. Files that a pending clean deletes may be gone. It may report what
    other processes changed since the last entry of `state`: compare again on a newer state then.
    """
    advertised = read_properties(storage).get(p.METADATA_PARTITIONS, "")
    known = state.metadata
    if known is None:
        return [_not_known(advertised)] if advertised else []
    findings = []
    if advertised != ",".join(sorted(known.names)):
        findings.append(Finding(FindingKind.NOT_ADVERTISED, p.PROPERTIES_PATH, f"{p.METADATA_PARTITIONS}={advertised}"))
    source = Source(storage, form, state, rule or LogRule())
    findings += _timeline(source, known)
    findings += _own_properties(source)
    findings += without_leaving(_contents(source, known.files), state)
    lost = {found.path for found in findings if found.kind is FindingKind.GONE}
    for part in known.partitions[1:]:
        findings += (found for found in _partition(source, part) if found.kind is not FindingKind.GONE or found.path not in lost)
    return findings


def _not_known(advertised: str) -> Finding:
    return Finding(FindingKind.ADVERTISED_WITHOUT_TABLE, p.PROPERTIES_PATH, f"{p.METADATA_PARTITIONS}={advertised}")


def _timeline(source: Source, known: MetadataTable) -> Iterator[Finding]:
    form, state, folder = source.form, source.state, timeline_folder(source.form)
    sizes = {instant_of(form, found.path): found.size_bytes for found in source.storage.list_folder(folder).objects}
    there = sizes.keys()
    created = {part.first_base for part in known.partitions}
    compactions = {at for part in known.partitions for at in (part.base, part.older_base)} - created
    for time in sorted(known.instants):
        action = Action.COMMIT if time in compactions else Action.DELTA_COMMIT
        if Instant(time, action, State.COMPLETED) not in there:
            yield Finding(FindingKind.MISSING_FILE, f"{folder}/{time}.{action}", "no completed timeline file")
        elif not sizes[Instant(time, action, State.COMPLETED)]:
            yield Finding(FindingKind.DAMAGED_FILE, f"{folder}/{time}.{action}", "an empty completed timeline file")
    dropped = {a.instant for a in state.actions.values() if a.action is Action.INDEXING and a.state is State.ROLLED_BACK}
    for instant in sorted(found for found in there if found is not None):
        # The instants of a dropped partition are those of its indexing action.
        if instant.time > max(known.instants) and instant.time[:INSTANT_DIGITS] not in dropped:
            path = f"{folder}/{instant.time}"
            yield Finding(FindingKind.FOREIGN_FILE, path, f"a {instant.action} that is newer than the table log")


def _own_properties(source: Source) -> Iterator[Finding]:
    try:
        found = parse_properties(source.storage.read(PROPERTIES_PATH), PROPERTIES_PATH)
    except ObjectNotFound:
        yield Finding(FindingKind.MISSING_FILE, PROPERTIES_PATH, "no properties")
        return
    except CorruptMetadata as error:
        yield Finding(FindingKind.DAMAGED_FILE, PROPERTIES_PATH, error.found)
        return
    for key, value in metadata_properties(source.form, read_properties(source.storage)).items():
        if found.get(key) != value:
            yield Finding(FindingKind.DAMAGED_FILE, PROPERTIES_PATH, f"{key}={found.get(key, '')}, expected {value}")


def _partition(source: Source, part: MetadataPartition) -> Iterator[Finding]:
    """Compare a partition of records with what the data files say."""
    storage = source.storage
    there = slice_files(storage, part)
    for name in there.foreign:
        yield Finding(FindingKind.FOREIGN_FILE, file_path(name, part.name), "a file of another writer")
    try:
        names = recorded_names(storage, source.form, part)
        for found in there.groups:
            for version, name in found.versions.items():
                if version != FIRST_LOG_VERSION and name not in names:
                    yield Finding(FindingKind.FOREIGN_FILE, file_path(name, part.name), "a log file that no instant records")
        held: dict[bytes, bytes] = {}
        for group in range(part.file_groups):
            held |= mapping_of(read_group(storage, part, group, recorded_group(source.form, part, group, names)))
    except ObjectNotFound as error:
        yield Finding(FindingKind.MISSING_FILE, error.path, f"no file of {part.name}")
    except TidelineError as error:
        yield Finding(FindingKind.DAMAGED_FILE, folder_of(part.name), f"{error.found}, expected {error.expected}")
    else:
        try:
            yield from kind_of(part.name).differences(source, held)
        except ObjectNotFound as error:
            yield gone(error)


def _contents(source: Source, known: MetadataPartition) -> Iterator[Finding]:
    storage, form = source.storage, source.form
    there = slice_files(storage, known)
    for name in there.foreign:
        yield Finding(FindingKind.FOREIGN_FILE, file_path(name), "a file of another writer")
    for delta in sorted(known.deltas, key=lambda found: found.version):
        if delta.version and delta.version not in there.groups[0].versions:
            yield Finding(FindingKind.MISSING_FILE, file_path(log_name(form, known.base, delta)), "no log file of a delta commit")
    try:
        listed = read_files(storage, known, there)
    except ObjectNotFound as error:
        yield Finding(FindingKind.MISSING_FILE, error.path, f"no file of {known.name}")
    except TidelineError as error:
        yield Finding(FindingKind.DAMAGED_FILE, folder_of(known.name), f"{error.found}, expected {error.expected}")
    else:
        yield from _compared(storage, with_change_files(files_of(source.state), storage), listed)


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
    # A data file whose size on storage differs is a finding of the comparison of data files.
    if listed != wanted:
        return Finding(FindingKind.WRONG_SIZE, path, f"{listed} bytes listed, {wanted} in the log, {stored} on storage")
    return None
