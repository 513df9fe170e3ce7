"""What readers of slices send to the writer of a range, and how the writer keeps it: in memory up to a limit, then in a file.

The writer checks that it has every piece exactly once, because an exchange that loses or repeats one would lose or repeat rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

import pyarrow as pa

from tideline_table.action.clustering.task import ClusteringTask
from tideline_table.errors import VerificationFailed
from tideline_table.row_digest import RowDigest
from tideline_table.storage import writing


@dataclass(frozen=True, slots=True)
class RangePiece:
    """Rows of one slice that belong to one range, as a compressed Arrow stream.

    `number` counts the pieces of this slice and range.
    """

    slice_number: int
    number: int
    rows: int
    size_bytes: int
    """Size in memory."""
    stream: bytes

    @classmethod
    def of(cls, slice_number: int, number: int, rows: pa.Table) -> RangePiece:
        """Return these rows as a piece."""
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, rows.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as stream:
            stream.write_table(rows)
        return cls(slice_number, number, rows.num_rows, rows.nbytes, sink.getvalue().to_pybytes())


@dataclass(frozen=True, slots=True)
class SliceEnd:
    """All rows of a slice were read: how many pieces this range has of it, and the digest of all rows of the slice."""

    slice_number: int
    pieces: int
    read: RowDigest
    proof_s: float = 0.0
    task_s: float = 0.0
    """The share of this range in the time of the reader, and of its digest."""


Sent = RangePiece | SliceEnd


class ReceivedRows:
    """The rows of one range, which arrive in any order and are read in the order of slices and pieces."""

    def __init__(self, folder: Path, schema: pa.Schema, most_bytes: int) -> None:
        self.schema = schema
        self.rows = 0
        self.ends: list[SliceEnd] = []
        self._path = folder / "received"
        self._most_bytes = most_bytes
        self._size_bytes = 0
        self._held: dict[tuple[int, int], bytes] = {}
        self._places: dict[tuple[int, int], tuple[int, int]] = {}
        self._file: BinaryIO | None = None
        self._repeated: list[tuple[int, int]] = []

    def __enter__(self) -> ReceivedRows:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._file is not None:
            self._file.close()

    @property
    def in_memory(self) -> bool:
        """Whether all rows fit into the limit."""
        return self._file is None

    def add(self, sent: Sent) -> None:
        """Take what a reader sent. Raises `StorageFull` or `StorageError` if the disk is full or broken."""
        if isinstance(sent, SliceEnd):
            self.ends.append(sent)
            return
        key = (sent.slice_number, sent.number)
        if key in self._held or key in self._places:
            self._repeated.append(key)
            return
        self.rows += sent.rows
        self._size_bytes += sent.size_bytes
        self._held[key] = sent.stream
        if self._file is not None or self._size_bytes > self._most_bytes:
            self._spill()

    def complete(self, task: ClusteringTask, slices: int) -> RowDigest:
        """Return the digest of all rows of the group.

        Raises `VerificationFailed` unless each slice has sent all pieces exactly once.
        """
        wanted = {(end.slice_number, number) for end in self.ends for number in range(end.pieces)}
        found = {*self._held, *self._places}
        ended = sorted(end.slice_number for end in self.ends)
        if self._repeated or wanted != found or ended != list(range(slices)):
            raise VerificationFailed(
                f"clustering {task.instant}: a range of task {task.number} received {len(found)} of {len(wanted)} pieces of "
                f"{len(ended)} slices, {len(self._repeated)} twice",
                expected=f"every piece of {slices} slices once",
                remedy="nothing was committed; check the logs of its tasks, then run it again",
            )
        return sum((end.read for end in self.ends), RowDigest())

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows, once if they are in memory."""
        for key in sorted({*self._held, *self._places}):
            stream = self._held.pop(key) if key in self._held else self._stored(key)
            yield from pa.ipc.open_stream(stream)

    def _spill(self) -> None:
        with writing(str(self._path)):
            if self._file is None:
                self._file = self._path.open("w+b")
            for key, stream in self._held.items():
                self._places[key] = (self._file.tell(), len(stream))
                self._file.write(stream)
        self._held.clear()

    def _stored(self, key: tuple[int, int]) -> bytes:
        assert self._file is not None
        at, size = self._places[key]
        with writing(str(self._path)):
            self._file.seek(at)
            return self._file.read(size)
