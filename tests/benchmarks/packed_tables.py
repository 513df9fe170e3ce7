"""A table of millions of partitions in minutes: its checkpoint is written without the log entries that would lead to it.

The parts of file slices are made as text for many groups at once; the first and the last are compared with what the engine packs.
What follows (further commits, their checkpoint) is the engine's. Data files exist only where a work looks for them: those of
changed groups, and those that the examination for lost files asks for in this hour and the next. The first commit has no entry and
no metadata on the timeline: it was trimmed, and would name all files.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from tests.unit.table.counting import publish

from tideline_table.file_group.slice import FileGroupId, FileSlice
from tideline_table.hudi.instant import Action, Instant, State, instant_from_time
from tideline_table.hudi.write_stats import CommitMetadata, WriteStat
from tideline_table.log.action import ActionRecord
from tideline_table.log.checkpoint import write_checkpoint
from tideline_table.log.packed import PART_GROUPS, PackedSlices, Part
from tideline_table.log.part_summary import PartSummary, summary_of
from tideline_table.storage import digest_of
from tideline_table.table import Table

ROWS, SIZE_BYTES = 1000, 1 << 20
FURTHER = 3


def make_packed(table: Table, partitions: int, changed: int) -> None:
    """Fill an empty table: 2.5 file groups for each partition, of which `changed` are replaced by each further commit."""
    at = instant_from_time(datetime.now(UTC))
    counts = 2 + np.arange(partitions) % 2
    numbers = np.repeat(np.arange(partitions), counts)
    state, form, writer_id = table.state, table.timeline.format, table.timeline.log.writer_id
    state.slices = PackedSlices(_parts(numbers, at))
    state.sequence, state.last_instant, state.schema_json = 2, at, table.schema_json
    recorded = datetime.now(UTC).isoformat()
    state.actions[at] = ActionRecord(at, Action.COMMIT, State.COMPLETED, "UPSERT", 2, 1, writer_id, recorded)
    for each in (State.REQUESTED, State.INFLIGHT, State.COMPLETED):
        content = form.commit_content(CommitMetadata("UPSERT", (), {})) if each is State.COMPLETED else b""
        table.storage.put(form.timeline_path(Instant(at, Action.COMMIT, each)), content)
    groups = [_group(int(numbers[n]), n) for n in range(changed)]
    _touch(table, [_slice(group, at) for group in groups])
    for _ in range(FURTHER):
        before = state.last_instant
        publish(table, lambda instant, before=before: [_stat(table, group, instant, before) for group in groups], Action.COMMIT)
    write_checkpoint(table.storage, table.state)
    assert isinstance(state.slices, PackedSlices)
    hour = int(time.time() // 3600)
    for turn in (hour, hour + 1):
        _touch(table, list(table.state.latest_among(state.slices.some(turn, 4))))


def _parts(numbers: np.ndarray, at: str) -> Iterator[Part]:
    """Return the parts of the file groups, of which each is in the partition with the number given."""
    for first in range(0, len(numbers), 64 * PART_GROUPS):
        chunk = numbers[first : first + 64 * PART_GROUPS]
        texts = _texts(chunk, first, at)
        for start in range(0, len(chunk), PART_GROUPS):
            held = chunk[start : start + PART_GROUPS]
            raw = f"[{','.join(texts[start : start + PART_GROUPS])}]".encode()
            content = bytes(pa.Codec("zstd").compress(raw, asbytes=True))
            group = _group(int(held[0]), first + start)
            part = Part(group, len(held), len(raw), len(content), digest_of(content), content, summary=_summary(held, at))
            if first + start == 0 or first + start + len(held) == len(numbers):
                _check(part, held, first + start, at)
            yield part


def _texts(chunk: np.ndarray, first: int, at: str) -> list[str]:
    def padded(values: np.ndarray) -> pa.Array:
        return pc.utf8_lpad(pc.cast(pa.array(values), pa.string()), 12, "0")

    file_ids = pc.binary_join_element_wise("00000000-0000-4000-8000-", padded(np.arange(first, first + len(chunk))), "-0", "")
    rest = f'_0-0-0_{at}.parquet",{SIZE_BYTES},{ROWS}]]]'
    joined = pc.binary_join_element_wise('["part=', padded(chunk), '","', file_ids, f'",[["{at}","', file_ids, rest, "")
    return joined.to_pylist()


def _summary(held: np.ndarray, at: str) -> PartSummary:
    names, counts = np.unique(held, return_counts=True)
    groups, size_bytes = len(held), len(held) * SIZE_BYTES
    return PartSummary(
        groups, len(names), groups * ROWS, size_bytes, newest=at, files=groups, total_bytes=size_bytes, all_files=groups,
        all_bytes=size_bytes, most=int(counts.max()), first=_partition(int(names[0])), first_groups=int(counts[0]),
        last=_partition(int(names[-1])), last_groups=int(counts[-1]), sizes=((SIZE_BYTES, groups),),
    )  # fmt: skip


def _check(part: Part, held: np.ndarray, first: int, at: str) -> None:
    """Compare a part with what the engine makes of its slices."""
    slices = {group: {at: _slice(group, at)} for n, number in enumerate(held) if (group := _group(int(number), first + n))}
    rows = [(group, [known[at].to_list()]) for group, known in slices.items()]
    expected = Part.of(rows, slices)
    assert part.rows() == expected.rows()
    assert part.summary == expected.summary == summary_of(slices, {}, {})[0]
    assert list(slices) == sorted(slices)


def _partition(number: int) -> str:
    return f"part={number:012d}"


def _group(partition: int, number: int) -> FileGroupId:
    return FileGroupId(_partition(partition), f"00000000-0000-4000-8000-{number:012d}-0")


def _slice(group: FileGroupId, at: str) -> FileSlice:
    return FileSlice(group, at, f"{group.file_id}_0-0-0_{at}.parquet", SIZE_BYTES, ROWS)


def _stat(table: Table, group: FileGroupId, at: str, before: str) -> WriteStat:
    made = _slice(group, at)
    _touch(table, [made])
    return WriteStat(group.file_id, group.partition_path, str(made.paths[0]), before, ROWS, SIZE_BYTES, ROWS)


def _touch(table: Table, slices: list[FileSlice]) -> None:
    for path in (path for each in slices for path in each.paths):
        place = os.path.join(table.base_path.removeprefix("file:"), str(path))
        os.makedirs(os.path.dirname(place), exist_ok=True)
        with open(place, "wb") as file:
            file.truncate(SIZE_BYTES)
