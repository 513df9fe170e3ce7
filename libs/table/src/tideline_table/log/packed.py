"""File slices of a table with many file groups, in little memory: compressed parts, each decoded when one of its groups is needed.

A part holds the slices of neighbouring groups, in order of partition path and file id. Its bytes are in memory, or in a file that a
checkpoint names and that is read when they are asked for. Groups that changed are kept beside the parts until `settle`.
"""

from __future__ import annotations

import json
import threading
from bisect import bisect_left, bisect_right
from collections.abc import Callable, ItemsView, Iterable, Iterator, Mapping, MutableMapping, Sequence, ValuesView
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import pyarrow as pa

from tideline_table.errors import MALFORMED, CorruptMetadata
from tideline_table.file_group.slice import FileGroupId, FileSlice
from tideline_table.log.part_summary import PartSummary, crowds, summary_of
from tideline_table.storage import digest_of

PART_GROUPS = 512
"""File groups of a part. Twice as many are divided."""
_DECODED = 16
"""Parts whose decoded form is kept, for the next group of the same part."""
_READ_BYTES = 8 * 1024 * 1024
"""The most bytes of neighbouring parts that one request reads."""
_CODEC = "zstd"
_BASE_ONLY = 4
"""The fields of a packed slice without log files."""
Held = Mapping[str, FileSlice]
"""The slices of one file group by base instant, oldest first."""
_Rows = dict[FileGroupId, list[Any]]
"""The slices of each group as `FileSlice.to_list` returns them."""
Where = Callable[[PartSummary, int], bool]
"""Whether a caller wants the slices of a part, by its summary and by how full a partition of it may be (`crowds`)."""
Parts = Iterator[PartSummary | dict[FileGroupId, Held]]
"""Neighbouring groups in order, or what is known of them together."""
Load = Callable[[str, int, int], bytes]
"""Reads bytes of a file of parts: its name, the offset, the number of bytes."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where the bytes of a part lie in storage."""

    file: str
    offset: int
    file_bytes: int
    """The size of the whole file."""


@dataclass(slots=True, eq=False)
class Part:
    """The compressed slices of neighbouring groups. `first` is the first of them when the part was made."""

    first: FileGroupId
    groups: int
    raw_bytes: int
    size_bytes: int
    digest: str
    content: bytes | None = None
    """None: not read yet."""
    place: Place | None = None
    """None: not written yet."""
    summary: PartSummary | None = None
    """Of the slices that are visible if no group was replaced or is under compaction. None: an earlier release wrote the part."""

    @classmethod
    def of(cls, rows: Sequence[tuple[FileGroupId, list[Any]]], known: Mapping[FileGroupId, Held | None]) -> Part:
        """Pack the slices of some groups. `known` has those of some of them, which are then not made again."""
        raw = json.dumps([[*group, slices] for group, slices in rows], separators=(",", ":")).encode()
        content = bytes(pa.Codec(_CODEC).compress(raw, asbytes=True))
        summary, _ = summary_of({group: known.get(group) or _slices(group, slices) for group, slices in rows}, {}, {})
        return cls(rows[0][0], len(rows), len(raw), len(content), digest_of(content), content, summary=summary)

    def rows(self) -> _Rows:
        """Return the slices of each group, in order. Raises `CorruptMetadata` if the bytes are not what was packed."""
        assert self.content is not None, "`PackedSlices` reads the bytes first"
        try:
            raw = bytes(pa.Codec(_CODEC).decompress(self.content, self.raw_bytes, asbytes=True))
            return {FileGroupId(partition, file_id): slices for partition, file_id, slices in json.loads(raw)}
        except (*MALFORMED, OSError) as error:
            raise CorruptMetadata(
                f"a part of the file slices from {self.first} on cannot be read: {error}", expected="what its checkpoint wrote"
            ) from error


class PackedSlices(MutableMapping[FileGroupId, Held]):
    """File group → its slices, as a dictionary holds them, in order of the groups. Thread-safe.

    A change to what it returns changes nothing in it: assign the changed slices. May read storage; raises what storage raises.
    """

    def __init__(self, parts: Iterable[Part] = (), load: Load | None = None) -> None:
        self._load = load
        self._lock = threading.RLock()
        self._changed: dict[FileGroupId, Held | None] = {}
        """Groups that changed since `settle`; None: deleted."""
        self._decoded: dict[Part, _Rows] = {}
        self._arrange(parts)
        self._length = sum(part.groups for part in self.parts)

    def _arrange(self, parts: Iterable[Part]) -> None:
        self.parts = tuple(parts)
        self._firsts = [part.first for part in self.parts]
        self._newest: Part | None = None

    @classmethod
    def of(cls, slices: Mapping[FileGroupId, Held]) -> PackedSlices:
        """Pack the slices of a table."""
        return cls(_packed([(group, _listed(slices[group])) for group in sorted(slices)], slices))

    def copy(self) -> PackedSlices:
        """Return a copy: changes to one do not show in the other."""
        with self._lock:
            made = PackedSlices(self.parts, self._load)
            made._changed, made._length = dict(self._changed), self._length
            return made

    def __getitem__(self, group: FileGroupId) -> Held:
        with self._lock:
            if group in self._changed:
                changed = self._changed[group]
                if changed is None:
                    raise KeyError(group)
                return changed
            part = self._part_of(group)
            if part is None:
                raise KeyError(group)
            return _slices(group, self._rows(part)[group])

    def __setitem__(self, group: FileGroupId, slices: Held) -> None:
        with self._lock:
            self._length += group not in self
            self._changed[group] = slices

    def __delitem__(self, group: FileGroupId) -> None:
        with self._lock:
            self[group]
            self._length -= 1
            self._changed[group] = None

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[FileGroupId]:
        return (group for group, _ in self._walk())

    def items(self) -> ItemsView[FileGroupId, Held]:
        """See `dict.items`. Iterating decodes one part after the other and keeps none."""
        return _Items(self)

    def values(self) -> ValuesView[Held]:
        """See `dict.values`. Iterating decodes one part after the other and keeps none."""
        return _Values(self)

    def of_partitions(self, partitions: Iterable[str]) -> dict[FileGroupId, Held]:
        """Return the slices of the groups of these partitions. Decodes the parts that hold them."""
        wanted = set(partitions)
        with self._lock:
            found = {g: held for g, held in self._changed.items() if g.partition_path in wanted and held is not None}
            for partition in sorted(wanted):
                first = max(bisect_right(self._firsts, FileGroupId(partition, "")) - 1, 0)
                for part in self.parts[first : bisect_left(self._firsts, FileGroupId(f"{partition}\0", ""))]:
                    for group, rows in self._rows(part).items():
                        if group.partition_path == partition and group not in self._changed:
                            found[group] = _slices(group, rows)
            return found

    def each_part(self, named: Iterable[FileGroupId], where: Where | None) -> Parts:
        """Yield, for each part in order, its groups with all changes, or only its summary if nothing more is wanted.

        Wanted are parts for which `where` says so (None: all), and those whose summary does not hold: a group of them or of a
        neighbour changed, or they have one of the groups `named`.
        """
        with self._lock:
            parts, firsts, changed = self.parts, self._firsts, dict(self._changed)
        fresh: dict[int, list[FileGroupId]] = {}
        for group in changed:
            fresh.setdefault(max(bisect_right(firsts, group) - 1, 0), []).append(group)
        wanted = {bisect_right(firsts, group) - 1 for group in named} | {near for at in fresh for near in (at - 1, at, at + 1)}
        known = [part.summary or PartSummary() for part in parts]
        for at, (part, crowd) in enumerate(zip(parts, crowds(known), strict=True)):
            if where is None or part.summary is None or where(part.summary, crowd):
                wanted.add(at)
        read = 0
        for at in range(max(len(parts), 1)):
            if at not in wanted and at < len(parts):
                yield known[at]
                continue
            if at >= read:
                read = at + max(1, _READ_BYTES // max(parts[at].size_bytes, 1)) if parts else 1
                self._read(parts[near] for near in range(at, min(read, len(parts))) if near in wanted)
            held: dict[FileGroupId, Held] = {}
            if parts:
                held = {group: _slices(group, rows) for group, rows in parts[at].rows().items() if group not in changed}
            held |= {group: now for group in fresh.get(at, ()) if (now := changed[group]) is not None}
            yield {group: held[group] for group in sorted(held)} if at in fresh else held

    def some(self, turn: int, parts: int) -> set[FileGroupId]:
        """Return groups to look at in turn: those written last, and those of `parts` parts, of the next ones at the next `turn`."""
        with self._lock:
            chosen = {self._newest_part(), *(self.parts[(turn * parts + n) % len(self.parts)] for n in range(parts))}
            groups = list(self._changed)[-PART_GROUPS:]
            return {*groups, *(group for part in sorted(chosen, key=lambda part: part.first) for group in self._rows(part))}

    def newest(self, most: int) -> list[FileGroupId]:
        """Return about so many groups: those that changed last, and some of the part that was written last."""
        with self._lock:
            groups = list(islice(reversed(self._changed), most))
            return groups + list(islice(reversed(self._rows(self._newest_part())), most - len(groups))) if self.parts else groups

    def _newest_part(self) -> Part:
        if self._newest is None:
            self._newest = max(reversed(self.parts), key=lambda part: part.summary.newest if part.summary is not None else "")
        return self._newest

    def hold(self, groups: Iterable[FileGroupId] | None = None) -> None:
        """Read the bytes of the parts of these groups (None: of all), so that no later access to them reads storage."""
        with self._lock:
            if groups is None:
                self._read(self.parts)
                return
            parts = {part for group in groups if (part := self._part_of(group)) is not None}
            self._read(sorted(parts, key=lambda part: part.first))

    def settle(self, *, beyond: int = 0) -> None:
        """Pack what changed, if more than `beyond` groups did. Reads no storage: a group is read before it is changed."""
        with self._lock:
            if len(self._changed) <= beyond:
                return
            touched: dict[int, list[FileGroupId]] = {}
            for group in sorted(self._changed):
                touched.setdefault(max(bisect_right(self._firsts, group) - 1, 0), []).append(group)
            parts: list[Part] = []
            for at, part in enumerate(self.parts or (None,)):
                if part is not None and at not in touched:
                    parts.append(part)
                    continue
                rows = dict(self._rows(part)) if part is not None else {}
                for group in touched[at]:
                    rows.pop(group, None)
                    if (held := self._changed[group]) is not None:
                        rows[group] = _listed(held)
                parts += _packed(sorted(rows.items(), key=lambda row: row[0]), self._changed)
            self._arrange(parts)
            self._changed, self._decoded = {}, {}

    def _part_of(self, group: FileGroupId) -> Part | None:
        """Return the part that holds the group if the table has it."""
        at = bisect_right(self._firsts, group)
        return self.parts[at - 1] if at else None

    def _rows(self, part: Part) -> _Rows:
        found = self._decoded.get(part)
        if found is None:
            self._read([part])
            found = part.rows()
            while len(self._decoded) >= _DECODED:
                del self._decoded[next(iter(self._decoded))]
            self._decoded[part] = found
        return found

    def _read(self, parts: Iterable[Part]) -> None:
        """Read the bytes of those of the parts that were not read yet, neighbours by one request."""
        missing = [part for part in parts if part.content is None]
        at = 0
        while at < len(missing):
            run = _neighbours(missing, at)
            at += len(run)
            place = run[0].place
            assert place is not None, "a part without bytes lies in storage"
            assert self._load is not None, "slices that were read from storage know how"
            content = self._load(place.file, place.offset, sum(part.size_bytes for part in run))
            start = 0
            for part in run:
                found = content[start : start + part.size_bytes]
                start += part.size_bytes
                if digest_of(found) != part.digest:
                    raise CorruptMetadata(
                        f"{place.file} of the table log's checkpoints is damaged: a part of {len(found)} bytes has another XXH3",
                        expected=f"{part.digest}, as the checkpoint says",
                    )
                part.content = found

    def _walk(self) -> Iterator[tuple[FileGroupId, Held | list[Any]]]:
        """Yield each group in order, with its slices or their packed form."""
        with self._lock:
            parts, changed = self.parts, dict(self._changed)
        fresh = sorted(group for group, held in changed.items() if held is not None)
        done, read = 0, 0
        for at, part in enumerate(parts):
            if at >= read:
                read = at + max(1, _READ_BYTES // max(part.size_bytes, 1))
                self._read(parts[at:read])
            for group, rows in part.rows().items():
                while done < len(fresh) and fresh[done] < group:
                    yield fresh[done], changed[fresh[done]] or {}
                    done += 1
                if group not in changed:
                    yield group, rows
        for group in fresh[done:]:
            yield group, changed[group] or {}

    def walk(self) -> Iterator[tuple[FileGroupId, Held]]:
        """Yield each group in order with its slices."""
        for group, found in self._walk():
            yield group, _slices(group, found) if isinstance(found, list) else found


class _Items(ItemsView[FileGroupId, Held]):
    _mapping: PackedSlices

    def __iter__(self) -> Iterator[tuple[FileGroupId, Held]]:
        return self._mapping.walk()


class _Values(ValuesView[Held]):
    _mapping: PackedSlices

    def __iter__(self) -> Iterator[Held]:
        return (held for _, held in self._mapping.walk())


def _packed(rows: Sequence[tuple[FileGroupId, list[Any]]], known: Mapping[FileGroupId, Held | None]) -> list[Part]:
    """Return the parts of rows in order: one for less than two full ones."""
    size = len(rows) if len(rows) < 2 * PART_GROUPS else PART_GROUPS
    return [Part.of(rows[at : at + size], known) for at in range(0, len(rows), size)] if rows else []


def _neighbours(parts: Sequence[Part], at: int) -> list[Part]:
    """Return the parts from `at` on that lie one behind the other in one file."""
    run, size_bytes = [parts[at]], parts[at].size_bytes
    for part in parts[at + 1 :]:
        begin = run[0].place
        if begin is None or part.place != replace(begin, offset=begin.offset + size_bytes) or size_bytes > _READ_BYTES:
            break
        run.append(part)
        size_bytes += part.size_bytes
    return run


def _listed(slices: Held) -> list[Any]:
    return [found.to_list() for found in slices.values()]


def _slices(group: FileGroupId, rows: Iterable[Any]) -> dict[str, FileSlice]:
    # The parts have a digest: what is a list of four was the base instant, the base file, its size and its rows.
    return {
        fields[0]: FileSlice(group, *fields) if len(fields) == _BASE_ONLY else FileSlice.from_list(group, fields) for fields in rows
    }
