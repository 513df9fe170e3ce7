"""Reading and writing objects piece by piece: ranged reads for Arrow, uploads in parts."""

from __future__ import annotations

import contextlib
import io
import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, NotModifiedError, PreconditionError
from obstore.store import S3Store

from tideline_table.errors import ObjectExists, StorageError, StorageRefused
from tideline_table.storage.object_errors import translated_error

T = TypeVar("T")

_REFUSALS = (AlreadyExistsError, PreconditionError, NotModifiedError)
"""What the store's 412, 409 and 304 become."""
FAILURES = (BaseError, OSError, ValueError)
"""What obstore raises."""

PART_BYTES = 8 * 1024 * 1024
"""Size of an uploaded part; S3 takes 10,000 of them."""
_PARTS_WAITING = 2
_PARTS_AT_ONCE = 4
_TAIL_BYTES = 128 * 1024
"""What the first request of a reader brings along from the end of the object: most Parquet footers are smaller."""


@dataclass(frozen=True, slots=True)
class ObjectKey:
    """One key of a bucket; `path` is what the table calls it."""

    store: S3Store
    bucket: str
    key: str
    path: str

    def asked(self, ask: Callable[[], T]) -> T:
        """What `ask` answers; what obstore raises becomes an error of the storage port."""
        try:
            return ask()
        except _REFUSALS:
            raise ObjectExists(self.path) from None
        except FAILURES as error:
            raise self.translated(error) from None

    def translated(self, error: Exception) -> Exception:
        """`error` as one of the storage port."""
        return translated_error(error, self.path, self.bucket)


class RangedObject(io.RawIOBase):
    """Random access to one object. Raises `ObjectNotFound` when it is made."""

    def __init__(self, place: ObjectKey) -> None:
        super().__init__()
        self._place = place
        self._at = 0
        self._size, self._tail = self._opened()

    def _opened(self) -> tuple[int, bytes]:
        store, key = self._place.store, self._place.key
        try:
            found = self._place.asked(lambda: obstore.get(store, key, options={"range": {"suffix": _TAIL_BYTES}}))
            return int(found.meta["size"]), self._place.asked(lambda: bytes(found.bytes()))
        except StorageRefused:
            raise
        except StorageError:
            # The end of an empty object is a range that stores refuse, each in its own way.
            if self._place.asked(lambda: obstore.head(store, key))["size"]:
                raise
            return 0, b""

    def readable(self) -> bool:
        """True."""
        return True

    def seekable(self) -> bool:
        """True."""
        return True

    def tell(self) -> int:
        """Position in bytes."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move to an offset from the start, the position or the end."""
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def size(self) -> int:
        """Size of the object in bytes."""
        return self._size

    def read(self, size: int = -1) -> bytes:
        """Up to `size` bytes from the position, fewer at the end."""
        end = self._size if size is None or size < 0 else min(self._size, self._at + size)
        if end <= self._at:
            return b""
        tail_start = self._size - len(self._tail)
        if self._at >= tail_start:
            found = self._tail[self._at - tail_start : end - tail_start]
        else:
            place, start = self._place, self._at
            found = place.asked(lambda: bytes(obstore.get_range(place.store, place.key, start=start, end=end)))
        self._at += len(found)
        return found


class MultipartSink(io.RawIOBase):
    """Bytes for a new object. Nothing is visible before `complete`; `abort` leaves nothing behind.

    Up to one part is kept and sent as a plain put; behind that a thread uploads parts while the caller writes on.
    """

    def __init__(self, place: ObjectKey) -> None:
        super().__init__()
        self._place = place
        self._part = bytearray()
        self._written = 0
        self._parts: queue.Queue[bytes | None] = queue.Queue(_PARTS_WAITING)
        self._failed: list[BaseException] = []
        self._aborted = False
        self._uploader: threading.Thread | None = None

    def writable(self) -> bool:
        """True."""
        return True

    def tell(self) -> int:
        """Bytes written so far."""
        return self._written

    def write(self, data: object) -> int:
        """Take all of `data`."""
        view = memoryview(data).cast("B")  # type: ignore[arg-type]
        self._part += view
        self._written += len(view)
        while len(self._part) > PART_BYTES:
            self._send(bytes(self._part[:PART_BYTES]))
            del self._part[:PART_BYTES]
        return len(view)

    def close(self) -> None:
        """Nothing: Arrow's Parquet writer closes its sink, but only the end of the context publishes the object."""

    def complete(self) -> None:
        """Publish the object."""
        if self._uploader is None:
            place = self._place
            place.asked(lambda: obstore.put(place.store, place.key, bytes(self._part), use_multipart=False))
            return
        self._send(bytes(self._part))
        self._finish()
        if self._failed:
            failure = self._failed[0]
            raise self._place.translated(failure) if isinstance(failure, Exception) else failure

    def abort(self) -> None:
        """Forget everything."""
        self._aborted = True
        if self._uploader is not None:
            self._finish()

    def _send(self, part: bytes) -> None:
        if self._uploader is None:
            self._uploader = threading.Thread(target=self._upload, name="upload", daemon=True)
            self._uploader.start()
        while not self._failed:
            with contextlib.suppress(queue.Full):
                self._parts.put(part, timeout=0.2)
                return

    def _finish(self) -> None:
        assert self._uploader is not None
        while self._uploader.is_alive():
            with contextlib.suppress(queue.Full):
                self._parts.put(None, timeout=0.2)
                break
        self._uploader.join()

    def _upload(self) -> None:
        try:
            place = self._place
            obstore.put(
                place.store, place.key, self._queued(), use_multipart=True, chunk_size=PART_BYTES, max_concurrency=_PARTS_AT_ONCE
            )
        except BaseException as error:  # noqa: BLE001 - the writing thread raises it
            self._failed.append(error)

    def _queued(self) -> Iterator[bytes]:
        while (part := self._parts.get()) is not None:
            if self._aborted:
                break
            yield part
        if self._aborted:
            # obstore takes back the parts that it has sent when their source fails.
            raise StorageError(f"writing {self._place.path!r} was given up")
