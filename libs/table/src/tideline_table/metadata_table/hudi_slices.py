"""The newest slices of a partition of a metadata table that Apache Hudi keeps, and the blocks that readers merge.

Format reference of versions 8 and 9: 4, 8.5.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from itertools import pairwise

import pyarrow as pa
import pyarrow.compute as pc

from tideline_table.errors import CorruptMetadata
from tideline_table.hudi.file_names import LogFileName, parse_base_file_name, parse_log_file_name
from tideline_table.hudi.format import TableFormat
from tideline_table.hudi.properties import METADATA_FOLDER
from tideline_table.log_format.block import BlockType, HeaderKey, LogBlock, read_content
from tideline_table.log_format.delete_block import read_deletes
from tideline_table.log_format.hfile import HFile, open_hfile
from tideline_table.log_format.scan import scan_log
from tideline_table.metadata_table.layout import file_path, folder_of
from tideline_table.schema.meta_fields import MetaField
from tideline_table.storage import Storage


@dataclass(slots=True)
class HudiSlice:
    """The newest slice of a file group."""

    partition: str
    instant: str
    base_file: str
    """Empty if the group got no record before its first compaction."""
    logs: list[str] = field(default_factory=list)
    """In the order in which readers merge them."""
    base_bytes: int = 0

    @property
    def base_path(self) -> str:
        """The path of the base file below the table."""
        return file_path(self.base_file, self.partition)

    def blocks(self, storage: Storage, valid: AbstractSet[str], *, rolls_back: bool) -> list[LogBlock]:
        """Return the log blocks of `valid` instants, the oldest first: records in an HFile, or deletions.

        `rolls_back`: in layout 1 a block takes back the blocks of an instant before it; in layout 2 files are deleted.

        Raises `CorruptMetadata` for a damaged file, `ObjectNotFound` for a missing one.
        """
        found: list[LogBlock] = []
        for name in self.logs:
            path = file_path(name, self.partition)
            scanned = scan_log(storage, path)
            if scanned.gaps:
                raise CorruptMetadata(f"{path} with a damaged block ({scanned.gaps[0].reason})", expected="intact blocks")
            for block in scanned.blocks:
                if block.type is BlockType.COMMAND and rolls_back:
                    found = [before for before in found if before.instant != block.target_instant]
                    continue
                if block.type not in (BlockType.HFILE, BlockType.DELETE) or HeaderKey.COMPACTED_BLOCK_TIMES in block.header:
                    raise CorruptMetadata(f"{path} with a block of type {block.type.name}", expected="blocks of one delta commit")
                found.append(block)
        # Nothing tells an archived delta commit of layout 1 from one that failed, and one of layout 2 may be pending in the table.
        first = min(valid, default="")
        if any(block.instant < first and (rolls_back or _says_something(storage, block)) for block in found):
            raise CorruptMetadata(
                f"a log file in {folder_of(self.partition)} of an instant before {first}", expected="instants of its timeline"
            )
        return [block for block in found if block.instant in valid]


def _says_something(storage: Storage, block: LogBlock) -> bool:
    # The first log file of a group holds no deletions, and may stay for long.
    return block.type is not BlockType.DELETE or read_deletes(storage, block).num_rows > 0


@dataclass(frozen=True, slots=True)
class Change:
    """What one base file or log block says of the wanted keys."""

    path: str
    instant: str
    """Of the delta commit; empty for a base file, which has records of many."""
    schema_json: str
    updates: Sequence[tuple[bytes, bytes]] = ()
    deletes: Sequence[bytes] = ()


def newest_slices(storage: Storage, form: TableFormat, done: Mapping[str, str], partition: str) -> dict[str, HudiSlice]:
    """Return the newest slice of each file group of a partition by its file id.

    `done` has the completed instants of the metadata table with their completion times. Raises `CorruptMetadata` for log files
    that its timeline does not explain.
    """
    return {file_id: held[-1] for file_id, held in _every_slice(storage, form, done, partition)[0].items()}


def changes_of(
    storage: Storage, slice_: HudiSlice, keys: Sequence[bytes], valid: AbstractSet[str], *, rolls_back: bool
) -> Iterator[Change]:
    """Yield what the base file and then the blocks of `valid` instants say of `keys` (ascending). Errors as `HudiSlice.blocks`."""
    if slice_.base_file:
        hfile = open_hfile(storage, slice_.base_path, slice_.base_bytes)
        schema = hfile.file_info.get("schema", b"").decode("utf-8", "replace")
        yield Change(slice_.base_path, "", schema, _entries(hfile, keys))
    for block in slice_.blocks(storage, valid, rolls_back=rolls_back):
        if block.type is BlockType.DELETE:
            gone = read_deletes(storage, block).column(MetaField.RECORD_KEY).to_pylist()
            yield Change(block.path, block.instant, "", deletes=[key.encode() for key in gone])
        else:
            hfile = HFile(read_content(storage, block, BlockType.HFILE))
            yield Change(block.path, block.instant, block.schema_json, _entries(hfile, keys))


def _entries(hfile: HFile, keys: Sequence[bytes]) -> list[tuple[bytes, bytes]]:
    wanted = pa.array(keys, pa.binary())
    found: list[tuple[bytes, bytes]] = []
    for batch in hfile.blocks_of(keys):
        held = batch.filter(pc.is_in(batch.column("key"), value_set=wanted))
        found += zip(held.column("key").to_pylist(), held.column("value").to_pylist(), strict=True)
    return found


def files_of_older_slices(
    storage: Storage, form: TableFormat, done: Mapping[str, str], partition: str, until: str
) -> tuple[list[str], dict[str, str]]:
    """Return the paths of the files behind the newest two slices, and the instants of log files that none but the newest have.

    By name. A slice that was the newest one at the time `until` is not behind them. As `newest_slices`.
    """
    slices, instants = _every_slice(storage, form, done, partition)
    older = [one for held in slices.values() for one, later in pairwise(held[:-1]) if later.instant < until]
    gone = {name for one in older for name in (one.base_file, *one.logs) if name}
    merged = {name for held in slices.values() for one in held[:-1] for name in one.logs}
    return [file_path(name, partition) for name in sorted(gone)], {name: at for name, at in instants.items() if name not in merged}


def _every_slice(
    storage: Storage, form: TableFormat, done: Mapping[str, str], partition: str
) -> tuple[dict[str, list[HudiSlice]], dict[str, str]]:
    """Return the slices of each file group, the oldest first, and the instants of log files by their names."""
    bases: dict[str, dict[str, str]] = {}
    logs: dict[str, list[tuple[LogFileName, str]]] = {}
    sizes: dict[str, int] = {}
    for found in storage.list_folder(folder_of(partition)).objects:
        name = found.path.rpartition("/")[2]
        base, log = parse_base_file_name(name), parse_log_file_name(name)
        if base is not None:
            bases.setdefault(base.file_id, {})[base.instant] = name
            sizes[name] = found.size_bytes
        elif log is not None:
            logs.setdefault(log.file_id, []).append((log, name))
    if not form.has_completion_times:
        ids = sorted({*bases, *logs})
        return {file_id: _by_base(partition, done, bases.get(file_id, {}), logs.get(file_id, []), sizes) for file_id in ids}, {}
    first = min(done)
    oldest = min(
        (first, *(at for held in bases.values() for at in held), *(log.instant for held in logs.values() for log, _ in held))
    )
    archived = _archived(storage, form, oldest, first) if oldest < first else {}
    for log, name in (one for held in logs.values() for one in held):
        if log.instant < first and log.instant not in archived:
            raise CorruptMetadata(f"{name} of an instant that is not in the archive", expected="log files of its timeline")
    known = {**archived, **done}
    committed = {file_id: {at: name for at, name in held.items() if at in known} for file_id, held in bases.items()}
    ids = sorted({*committed, *logs})
    slices = {file_id: _slices(form, known, partition, committed.get(file_id, {}), logs.get(file_id, [])) for file_id in ids}
    for held in (one for of_group in slices.values() for one in of_group):
        held.base_bytes = sizes.get(held.base_file, 0)
    return slices, {name: log.instant for held in logs.values() for log, name in held}


def _by_base(
    partition: str,
    done: Mapping[str, str],
    bases: Mapping[str, str],
    logs: list[tuple[LogFileName, str]],
    sizes: Mapping[str, int],
) -> list[HudiSlice]:
    """Return the newest slice of a file group in layout 1, where log files are named after their slice."""
    first = min(done)
    at = max((instant for instant in bases if instant in done or instant < first), default="")
    later = sorted((log.instant, log.version, log.write_token, name) for log, name in logs if log.instant >= at)
    base = bases.get(at, "")
    return [HudiSlice(partition, at, base, [name for *_, name in later], sizes.get(base, 0))]


def _archived(storage: Storage, form: TableFormat, first: str, before: str) -> dict[str, str]:
    """Return the archived instants of the metadata table with their completion times: log files of older slices may stay longer."""
    history = replace(form, history_folder=f"{METADATA_FOLDER}/{form.history_folder}")
    return {a.time: a.completion or a.time for a in history.archived_instants(storage, first, before) if a.time < before}


def _slices(
    form: TableFormat, done: Mapping[str, str], partition: str, bases: Mapping[str, str], logs: list[tuple[LogFileName, str]]
) -> list[HudiSlice]:
    begun = sorted(bases)
    members: dict[str, list[str]] = {instant: [] for instant in begun}
    for log, name in sorted(logs, key=lambda one: (one[0].instant, one[0].version, one[0].write_token)):
        if log.instant not in done:
            continue
        base_instant = form.slice_of(log, begun, lambda instant: done[instant])
        if base_instant not in members:
            bisect.insort(begun, base_instant)
            members[base_instant] = []
        members[base_instant].append(name)
    return [HudiSlice(partition, at, bases.get(at, ""), members[at]) for at in begun] or [HudiSlice(partition, "", "")]
