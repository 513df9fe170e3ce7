"""A storage that notes each request with its bytes, and large tables made of log entries alone."""

from __future__ import annotations

import io
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import BinaryIO

import pyarrow as pa

from tideline_table.clock import Clock, ManualClock
from tideline_table.hudi.instant import Action, State
from tideline_table.hudi.write_stats import CommitMetadata, WriteStat
from tideline_table.log.body import Bare, Published
from tideline_table.log.table_log import Draft
from tideline_table.storage import Folder, MemoryStorage, ObjectStat
from tideline_table.table import Table


class _Noted(io.BytesIO):
    def __init__(self, content: bytes, note: Callable[[int], None]) -> None:
        super().__init__(content)
        self._note = note

    def read(self, size: int | None = -1) -> bytes:
        found = super().read(size)
        self._note(len(found))
        return found


class NotingStorage(MemoryStorage):
    """Notes each request: its kind, path and bytes. Lists a folder without a look at all other objects."""

    def __init__(self, clock: Clock | None = None) -> None:
        super().__init__(clock=clock or ManualClock())
        self.requests: list[tuple[str, str, int]] = []
        self._levels: dict[str, list[str]] = {}
        """The paths in each folder, in order."""

    def _note(self, kind: str, path: str, size: int = 0) -> None:
        self.requests.append((kind, path, size))

    @property
    def cost(self) -> tuple[int, int]:
        """The number of requests and their bytes, since `requests` was cleared."""
        return len(self.requests), sum(size for *_, size in self.requests)

    def read(self, path: str) -> bytes:
        content = super().read(path)
        self._note("read", path, len(content))
        return content

    def read_range(self, path: str, start: int, length: int) -> bytes:
        content = super().read_range(path, start, length)
        self._note("read", path, len(content))
        return content

    def open_input(self, path: str) -> pa.NativeFile:
        noted = _Noted(super().read(path), lambda size: self._note("read", path, size))
        return pa.PythonFile(noted, mode="r")

    @contextmanager
    def open_output(self, path: str) -> Iterator[BinaryIO]:
        with super().open_output(path) as sink:
            yield sink
        self._stored(path, len(super().read(path)))

    def stat(self, path: str) -> ObjectStat:
        self._note("stat", path)
        return super().stat(path)

    def put(self, path: str, data: bytes) -> None:
        super().put(path, data)
        self._stored(path, len(data))

    def put_if_absent(self, path: str, data: bytes) -> None:
        super().put_if_absent(path, data)
        self._stored(path, len(data))

    def _stored(self, path: str, size: int) -> None:
        self._note("put", path, size)
        level = self._levels.setdefault(path.rpartition("/")[0], [])
        at = bisect_left(level, path)
        if level[at : at + 1] != [path]:
            level.insert(at, path)

    def delete(self, path: str) -> None:
        self._note("delete", path)
        super().delete(path)
        level = self._levels.get(path.rpartition("/")[0], [])
        at = bisect_left(level, path)
        if level[at : at + 1] == [path]:
            del level[at]

    def list_objects(self, prefix: str, after: str = "") -> Iterator[ObjectStat]:
        self._note("list", prefix)
        below = (paths for folder, paths in list(self._levels.items()) if f"{folder}/".startswith(f"{prefix}/" if prefix else ""))
        return iter([super(NotingStorage, self).stat(path) for path in sorted(chain.from_iterable(below)) if path > after])

    def list_folder(self, path: str, after: str = "") -> Folder:
        level = self._levels.get(path, [])
        held = ((name, self._objects[name]) for name in level[bisect_right(level, after) :])
        objects = tuple(ObjectStat(name, len(content), modified) for name, (content, modified) in held)
        self._note("list", path, 100 * len(objects))
        return Folder((), objects)


def publish(
    table: Table, stats: Callable[[str], Sequence[WriteStat]], action: Action = Action.DELTA_COMMIT, *, keeps: bool = True
) -> str:
    """Append the entries of a write, without its files, which `stats` names for the instant of the write; return the instant.

    Without `keeps`, nothing is kept beside the entries: the caller writes a checkpoint.
    """
    replica = table.timeline.replica
    replica.refresh()
    at = str(int(replica.state.last_instant or "20260101000000000") + 1)
    published = Published(CommitMetadata("UPSERT", tuple(stats(at)), {"schema": table.schema_json}))
    for before, after, body in ((State.NONE, State.INFLIGHT, Bare()), (State.INFLIGHT, State.COMPLETED, published)):
        entry = replica.log.append(Draft(at, action, before, after, "UPSERT", body), replica.state.sequence + 1)
        assert entry is not None
        replica.fold(entry)
        replica.log.materialise(entry)
        if keeps:
            replica.keep_up(entry)
    return at
