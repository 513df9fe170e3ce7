"""Streaming access to objects: ranged reads for Arrow and multipart uploads."""

# ruff: noqa: D102 - the contracts are those of `io.RawIOBase`

from __future__ import annotations

import contextlib
import io
import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, NotModifiedError, PreconditionError
from obstore.store import S3Store

from tideline_table.errors import ObjectExists, StorageError, StorageRefused
from tideline_table.storage.object_errors import is_cut_reply, translated_error

if TYPE_CHECKING:
    from obstore import GetResult

T = TypeVar("T")

_REFUSALS = (AlreadyExistsError, PreconditionError, NotModifiedError)
"""Errors that obstore raises for the status codes 412, 409 and 304."""
FAILURES = (BaseError, OSError, ValueError)
"""Errors that obstore raises."""

PART_BYTES = 8 * 1024 * 1024
"""Size of an uploaded part. S3 allows 10,000 parts per object."""
_CUT_REPLIES = 3
"""Replies to one read that may be cut off."""
_PARTS_WAITING = 2
_PARTS_AT_ONCE = 4
_TAIL_BYTES = 128 * 1024
"""Bytes from the end of the object that a reader gets with its first request. Most Parquet footers are smaller."""


@dataclass(frozen=True, slots=True)
class ObjectKey:
    """One key of a bucket. `path` is its path relative to the storage root."""

    store: S3Store
    bucket: str
    key: str
    path: str

    def asked(self, ask: Callable[[], T]) -> T:
        """Return the result of `ask`. Errors of obstore become errors of the storage port."""
        try:
            return ask()
        except _REFUSALS:
            raise ObjectExists(self.path) from None
        except FAILURES as error:
            raise self.translated(error) from None

    def read(self, ask: Callable[[], T]) -> T:
        """Return the result of `ask`, which only reads: as `asked`, and again after a reply that did not arrive whole."""
        for _ in range(_CUT_REPLIES):
            try:
                return self.asked(ask)
            except StorageError as error:
                if not is_cut_reply(error):
                    raise
        return self.asked(ask)

    def translated(self, error: Exception) -> Exception:
        """Return `error` as an error of the storage port."""
        return translated_error(error, self.path, self.bucket)


class RangedObject(io.RawIOBase):
    """Random access to one object. The constructor raises `ObjectNotFound`."""

    def __init__(self, place: ObjectKey) -> None:
        super().__init__()
        self._place = place
        self._at = 0
        self._size, self._tail = self._opened()

    def _opened(self) -> tuple[int, bytes]:
        store, key = self._place.store, self._place.key
        try:
            return self._place.read(lambda: _size_and_bytes(obstore.get(store, key, options={"range": {"suffix": _TAIL_BYTES}})))
        except StorageRefused:
            raise
        except StorageError:
            # Stores reject a suffix range of an empty object, each with a different error.
            if self._place.read(lambda: obstore.head(store, key))["size"]:
                raise
            return 0, b""

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def size(self) -> int:
        return self._size

    def read(self, size: int = -1) -> bytes:
        end = self._size if size is None or size < 0 else min(self._size, self._at + size)
        if end <= self._at:
            return b""
        tail_start = self._size - len(self._tail)
        if self._at >= tail_start:
            found = self._tail[self._at - tail_start : end - tail_start]
        else:
            place, start = self._place, self._at
            found = place.read(lambda: bytes(obstore.get_range(place.store, place.key, start=start, end=end)))
        self._at += len(found)
        return found


def _size_and_bytes(found: GetResult) -> tuple[int, bytes]:
    return int(found.meta["size"]), bytes(found.bytes())


class MultipartSink(io.RawIOBase):
    """A sink for a new object. Nothing is visible before `complete`; `abort` leaves nothing behind.

    The sink buffers up to one part, which it sends as a plain put. Beyond that, a thread uploads parts while the caller writes.
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
        return True

    def tell(self) -> int:
        return self._written

    def write(self, data: object) -> int:
        view = memoryview(data).cast("B")  # type: ignore[arg-type]
        self._part += view
        self._written += len(view)
        while len(self._part) > PART_BYTES:
            self._send(bytes(self._part[:PART_BYTES]))
            del self._part[:PART_BYTES]
        return len(view)

    def close(self) -> None:
        """Do nothing: Arrow's Parquet writer closes its sink, but the object is published only when the context ends."""

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
        """Discard the object and stop its upload."""
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
            # An error of the source makes obstore abort the upload and delete the parts that it sent.
            raise StorageError(
                f"the upload of {self._place.path!r} was aborted", remedy="the error before it names the cause; retry"
            )
