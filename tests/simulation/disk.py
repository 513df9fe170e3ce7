"""The shared disk of a simulation and each process's way to it, on which calls can go wrong."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, BinaryIO, Protocol

import pyarrow as pa
from tests.simulation.faults import SimulatedCrash
from tests.simulation.scheduler import SECOND, Process, Scheduler, SimulatedClock

from tideline_table.errors import ObjectExists, StorageError
from tideline_table.storage import Folder, MemoryStorage, ObjectStat

LOG = ".hoodie/.tideline/log/"


class Watcher(Protocol):
    """Sees every change of the disk at the moment at which it happens."""

    def written(self, path: str, process: Process) -> None: ...

    def deleted(self, path: str, process: Process) -> None: ...

    def lost(self, path: str) -> None: ...

    def reverted(self, path: str) -> None: ...


@dataclass(slots=True)
class _Unsynced:
    """A change that a power failure may still undo; not any more once another process saw it."""

    path: str
    before: tuple[bytes, Any] | None
    process: Process
    seen: bool = False


class Disk(MemoryStorage):
    """One object store; its clock is the true time."""

    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__("memory:/t", SimulatedClock(scheduler))
        self.watcher: Watcher | None = None
        self.unsynced: list[_Unsynced] = []
        self.recent: list[tuple[int, str, tuple[bytes, Any] | None]] = []
        """(time, path, what it was before) of late changes, for listings that lag behind."""
        self.overwrites = False
        """Seeded bug: a conditional put that does not refuse."""
        self._folders: dict[str, Folder] = {}
        """Listings that still hold: every write lists the timeline, and most objects lie elsewhere."""
        self._scheduler = scheduler

    def list_folder(self, path: str, after: str = "") -> Folder:
        listed = self._folders.get(path)
        if listed is None:
            listed = self._folders[path] = self._listed(path)
        folders = (name for name in listed.folders if f"{path}/{name}" > after)
        return Folder(tuple(folders), tuple(o for o in listed.objects if o.path > after)) if after else listed

    def _listed(self, path: str) -> Folder:
        # As the inherited one, in one pass.
        start = f"{path}/" if path else ""
        folders: set[str] = set()
        objects: list[ObjectStat] = []
        for name, (content, modified) in self._objects.items():
            if name.startswith(start):
                head, _, rest = name[len(start) :].partition("/")
                if rest:
                    folders.add(head)
                else:
                    objects.append(ObjectStat(name, len(content), modified))
        return Folder(tuple(sorted(folders)), tuple(sorted(objects, key=lambda s: s.path)))

    def change(self, path: str, process: Process, do: Callable[[], Any], *, unsynced: bool = False) -> Any:
        """Do it, remember what was there before, tell the watcher."""
        before = self._objects.get(path)
        result = do()
        after = self._objects.get(path)
        self._forget_listings(path)
        self.recent.append((self._scheduler.now_us, path, before))
        del self.recent[:-40]
        if unsynced:
            self.unsynced.append(_Unsynced(path, before, process))
        if self.watcher is not None:
            if after is not None and after is not before:
                self.watcher.written(path, process)
            elif after is None and before is not None:
                self.watcher.deleted(path, process)
        return result

    def _forget_listings(self, path: str) -> None:
        while path:
            path = path.rpartition("/")[0]
            self._folders.pop(path, None)

    def look(self, path: str, process: Process, *, below: bool = False) -> None:
        """Another process reads `path` (or lists below it): what was seen cannot be lost any more."""
        for change in self.unsynced:
            if change.process is not process and (change.path.startswith(path) if below else change.path == path):
                change.seen = True

    def lose_unsynced(self, process: Process | None) -> list[str]:
        """Power fails: what `process` (None: anybody) changed, did not sync and nobody saw is as it was before."""
        lost = []
        for change in [c for c in self.unsynced if process is None or c.process is process]:
            self.unsynced.remove(change)
            if change.seen:
                continue
            lost.append(change.path)
            self._forget_listings(change.path)
            if change.before is None:
                self._objects.pop(change.path, None)
                if self.watcher is not None:
                    self.watcher.lost(change.path)
            else:
                self._objects[change.path] = change.before
                if self.watcher is not None:
                    self.watcher.reverted(change.path)
        return lost

    def synced(self, process: Process, path: str) -> None:
        self.unsynced = [c for c in self.unsynced if not (c.process is process and c.path == path)]

    def stale(self, age_us: int) -> Disk:
        """The disk as it was `age_us` ago, as far as remembered."""
        old = Disk(self._scheduler)
        old._objects = dict(self._objects)
        for at, path, before in reversed(self.recent):
            if at < self._scheduler.now_us - age_us:
                break
            if before is None:
                old._objects.pop(path, None)
            else:
                old._objects[path] = before
        return old


class Faults(Protocol):
    """Decides what goes wrong, and does to processes what has to be done to them."""

    def draw(self, process: Process, call: str, path: str) -> str: ...

    def chance(self) -> float: ...

    def between(self, low: float, high: float) -> int: ...

    def kill(self, process: Process) -> None: ...

    def kill_all(self) -> None: ...

    def note(self, process: Process, call: str, path: str, fault: str) -> None: ...

    def later(self, delay_us: int, do: Callable[[], None]) -> None: ...


class _Versioned(bytes):
    """What is put in the place of a certain version."""

    version: str


class ProcessStorage:
    """`Storage` as one process sees it."""

    def __init__(self, disk: Disk, process: Process, scheduler: Scheduler, faults: Faults) -> None:
        self.disk = disk
        self.process = process
        self._scheduler = scheduler
        self._faults = faults

    @property
    def root(self) -> str:
        return self.disk.root

    def read(self, path: str) -> bytes:
        return self._read("read", path, lambda d: d.read(path))

    def read_range(self, path: str, start: int, length: int) -> bytes:
        return self._read("read_range", path, lambda d: d.read_range(path, start, length))

    def stat(self, path: str) -> ObjectStat:
        return self._read("stat", path, lambda d: d.stat(path))

    def open_input(self, path: str) -> pa.NativeFile:
        return self._read("open_input", path, lambda d: d.open_input(path))

    def list_objects(self, prefix: str, after: str = "") -> Iterator[ObjectStat]:
        yield from self._read("list_objects", prefix, lambda d: list(d.list_objects(prefix, after)))

    def list_folder(self, path: str, after: str = "") -> Folder:
        return self._read("list_folder", path, lambda d: d.list_folder(path, after))

    def put(self, path: str, data: bytes) -> None:
        self._write("put", path, data)

    def put_if_absent(self, path: str, data: bytes) -> None:
        self._write("put_if_absent", path, data)

    def read_versioned(self, path: str) -> tuple[bytes, str]:
        found: tuple[bytes, str] = self._read("read_versioned", path, lambda disk: disk.read_versioned(path))
        return found

    def put_if_version(self, path: str, data: bytes, version: str) -> bool:
        content = _Versioned(data)
        content.version = version
        done: bool = self._write("put_if_version", path, content)
        return done

    def delete(self, path: str) -> bool:
        return self._write("delete", path, b"")

    def delete_below(self, folder: str) -> None:
        for found in list(self.list_objects(folder)):
            self.delete(found.path)

    @contextmanager
    def open_output(self, path: str) -> Iterator[BinaryIO]:
        sink = _KeptBytes()
        yield sink
        self._write("open_output", path, sink.getvalue())

    def _read(self, call: str, path: str, do: Callable[[Disk], Any]) -> Any:
        self._scheduler.step()
        fault = self._faults.draw(self.process, call, path)
        self._faults.note(self.process, call, path, fault)
        source = self.disk
        if fault == "stale_listing":
            source = self.disk.stale(self._faults.between(1, 90))
        elif fault:
            self._before(fault, call, path)
        source_lists = call.startswith("list")
        self.disk.look(path, self.process, below=source_lists)
        result = do(source)
        if fault:
            self._after(fault, call, path)
        return result

    def _write(self, call: str, path: str, data: bytes) -> Any:
        self._scheduler.step()
        fault = self._faults.draw(self.process, call, path)
        self._faults.note(self.process, call, path, fault)
        if not fault:
            if self.process.disk_full_calls and call != "delete":
                self.process.disk_full_calls -= 1
                raise StorageError(f"no space left on device at {path!r}")
            return self._do(call, path, data)
        self._before(fault, call, path)
        if fault == "torn_write":
            self._do("put", path, data[: len(data) // 2])
            self._die()
        if fault == "late_write":
            # What was sent when the process died arrives long after, through proxies and retries on the way.
            process = Process(f"{self.process.name} (late)", "network")
            self._faults.later(self._faults.between(1, 200), lambda: self._arrive(process, call, path, data))
            self._die()
        if fault == "refused_without_object":
            raise ObjectExists(path)
        lost = fault == "unsynced_loss"
        result = self._do(call, path, data, unsynced=lost)
        if lost:
            self._scheduler.sleep(self._faults.between(0.001, 3))
            for what in self.disk.lose_unsynced(self.process):
                self._faults.note(self.process, "lost", what, "")
            self._die()
        if fault == "retried_put":
            # The client below sent it twice because the first answer got lost; the second one is refused.
            self._do(call, path, data)
        self._after(fault, call, path)
        return result

    def _arrive(self, process: Process, call: str, path: str, data: bytes) -> None:
        self._faults.note(process, call, path, "arrives late")
        try:
            self.disk.change(path, process, lambda: self._apply(call, path, data))
        except ObjectExists:
            return

    def _do(self, call: str, path: str, data: bytes, *, unsynced: bool = False) -> Any:
        self.disk.look(path, self.process)
        return self.disk.change(path, self.process, lambda: self._apply(call, path, data), unsynced=unsynced)

    def _apply(self, call: str, path: str, data: bytes) -> Any:
        if call == "delete":
            return self.disk.delete(path)
        if call == "put_if_version":
            assert isinstance(data, _Versioned)
            return self.disk.put_if_version(path, bytes(data), data.version)
        if call == "put_if_absent" and not (self.disk.overwrites and path.startswith(LOG)):
            return self.disk.put_if_absent(path, data)
        return self.disk.put(path, data)

    def _before(self, fault: str, call: str, path: str) -> None:
        if fault == "kill_before":
            self._die()
        elif fault == "io_error":
            raise StorageError(f"input/output error at {path!r}")
        elif fault == "lease_expiry":
            self._stall(31, 400)
        elif fault == "no_space":
            self.process.disk_full_calls = self._faults.between(0, 12) // SECOND
            raise StorageError(f"no space left on device at {path!r}")
        elif fault == "pause_before":
            self._stall(63, 140)
        elif fault == "stall_before":
            self._stall(1, 61)
        elif fault == "slow":
            self._scheduler.sleep(self._faults.between(1, 45))
        elif fault == "power_failure":
            self.disk.lose_unsynced(None)
            self._faults.kill_all()
            raise SimulatedCrash

    def _after(self, fault: str, call: str, path: str) -> None:
        if fault == "kill_after":
            self._die()
        elif fault == "reply_lost":
            raise StorageError(f"connection reset at {path!r}")
        elif fault == "pause_after":
            self._stall(63, 140)
        elif fault == "stall_after":
            self._stall(1, 61)
        elif fault == "slow":
            self._scheduler.sleep(self._faults.between(1, 45))

    def _stall(self, low: float, high: float) -> None:
        # The whole process stops: its heartbeats and lease renewals too.
        self.process.stalled_until_us = self._scheduler.now_us + self._faults.between(low, high)
        self._scheduler.sleep(0)

    def _die(self) -> None:
        self._faults.kill(self.process)
        raise SimulatedCrash


class _KeptBytes(io.BytesIO):
    """Its content outlives `close`: Arrow's Parquet writer closes its sink."""

    def close(self) -> None:
        return None
