"""Storage in a bucket of an S3-compatible object store, through obstore.

Credentials, region and endpoint are read from the environment (`AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, `AWS_SESSION_TOKEN`,
`AWS_REGION`, `AWS_ENDPOINT_URL` and other variables of obstore) or from options of the same names. Without credentials there, the
role of the machine or pod provides them. Credentials are never part of a path, an error or a log line.
"""

# ruff: noqa: D102 - the port documents these methods

from __future__ import annotations

import contextlib
import os
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar, cast

import obstore
import pyarrow as pa
from obstore.store import S3Store

from tideline_table.errors import ObjectExists, ObjectNotFound, StorageError, StorageRefused
from tideline_table.storage.object_errors import translated_error
from tideline_table.storage.object_stream import FAILURES, PART_BYTES, MultipartSink, ObjectKey, RangedObject
from tideline_table.storage.port import Folder, ObjectStat, checked_folder, checked_path

DEFAULT_REGION = "us-east-1"
"""The region that obstore uses if none is set."""


def object_store_settings(options: Mapping[str, str] | None = None, environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the settings in `environment` (default: of this process), overridden by `options`.

    Names are in lower case and without `aws_`: `AWS_REGION`, `aws_region` and `region` are the same. Values may be secrets.
    """
    variables = os.environ if environment is None else environment
    found = {_setting(name): value for name, value in variables.items() if name.startswith("AWS_") and value}
    return {**found, **{_setting(name): value for name, value in (options or {}).items()}}


def object_store_endpoint(settings: Mapping[str, str]) -> str:
    """Return the URL in `settings` (of `object_store_settings`) without a slash at its end; empty for that of the cloud."""
    found = settings.get("endpoint_url_s3") or settings.get("endpoint_url") or settings.get("endpoint") or ""
    return found.rstrip("/")


def object_store_region(settings: Mapping[str, str]) -> str:
    """Return the region in `settings` (of `object_store_settings`)."""
    return settings.get("region") or settings.get("default_region") or DEFAULT_REGION


def _setting(name: str) -> str:
    return name.lower().removeprefix("aws_")


if TYPE_CHECKING:
    from obstore.store import ClientConfig, RetryConfig  # these names do not exist at run time

T = TypeVar("T")

_RETRIES: RetryConfig = {
    "max_retries": 6,
    "retry_timeout": timedelta(seconds=60),
    "backoff": {"init_backoff": timedelta(milliseconds=100), "max_backoff": timedelta(seconds=5), "base": 2},
}
"""Retries after 5xx replies and connections that break before a reply. `ObjectKey.read` adds those after replies that are cut
off."""
_TIMEOUTS: ClientConfig = {"connect_timeout": "5s", "read_timeout": "30s", "timeout": "5m"}
_REFUSED_ATTEMPTS = 5
_LIST_PAGE = 1000
_LAST = "\U0010ffff"
"""Sorts after all other names."""


class ObjectStorage:
    """`Storage` below a prefix of a bucket. Safe to share between threads; every other process opens it again by its path."""

    def __init__(self, bucket: str, prefix: str = "", options: Mapping[str, str] | None = None) -> None:
        self._bucket = bucket
        self._prefix = checked_path(prefix)
        self._start = f"{self._prefix}/" if self._prefix else ""
        self._store = _store(bucket, os.getpid(), tuple(sorted(object_store_settings(options).items())))

    @property
    def root(self) -> str:
        return f"s3://{self._bucket}/{self._prefix}".rstrip("/")

    def read(self, path: str) -> bytes:
        return self._read(path, lambda key: bytes(obstore.get(self._store, key).bytes()))

    def read_range(self, path: str, start: int, length: int) -> bytes:
        if length > 0:
            try:
                return self._read(path, lambda key: bytes(obstore.get_range(self._store, key, start=start, length=length)))
            except StorageRefused:
                raise
            except StorageError:
                # S3 reports an error for a range beyond the end of the object.
                if start < self.stat(path).size_bytes:
                    raise
                return b""
        self.stat(path)
        return b""

    def stat(self, path: str) -> ObjectStat:
        """S3 stores modification times in whole seconds."""
        found = self._read(path, lambda key: obstore.head(self._store, key))
        return ObjectStat(path, int(found["size"]), found["last_modified"])

    def put(self, path: str, data: bytes) -> None:
        self._asked(path, lambda key: obstore.put(self._store, key, data, chunk_size=PART_BYTES))

    def put_if_absent(self, path: str, data: bytes) -> None:
        """Uses `If-None-Match: *`; retries a reported conflict if no object exists."""
        for _ in range(_REFUSED_ATTEMPTS):
            try:
                self._asked(path, lambda key: obstore.put(self._store, key, data, mode="create", use_multipart=False))
            except ObjectExists:
                try:
                    self.stat(path)
                except ObjectNotFound:
                    continue
                raise
            return
        raise StorageError(f"the store reports conflicts at {path!r} and holds no object there", remedy="retry")

    def read_versioned(self, path: str) -> tuple[bytes, str]:
        """The version is the entity tag."""

        def ask(key: str) -> tuple[bytes, str]:
            answer = obstore.get(self._store, key)
            return bytes(answer.bytes()), str(answer.meta["e_tag"] or "")

        return self._read(path, ask)

    def put_if_version(self, path: str, data: bytes, version: str) -> bool:
        """Uses `If-Match`, or `If-None-Match: *`."""
        try:
            if not version:
                self.put_if_absent(path, data)
            else:
                self._asked(path, lambda key: obstore.put(self._store, key, data, mode={"e_tag": version}, use_multipart=False))
        except (ObjectExists, ObjectNotFound):
            return False
        return True

    def delete(self, path: str) -> None:
        # S3 does not report whether an object existed; other stores report a missing one.
        with contextlib.suppress(ObjectNotFound):
            self._asked(path, lambda key: obstore.delete(self._store, key))

    def delete_below(self, folder: str) -> None:
        checked_folder(folder)
        keys = [self._start + found.path for found in self._listed(folder)]
        for first in range(0, len(keys), _LIST_PAGE):
            page = keys[first : first + _LIST_PAGE]
            with contextlib.suppress(ObjectNotFound):
                self._place(folder).asked(partial(obstore.delete, self._store, page))

    def list_objects(self, prefix: str, after: str = "") -> Iterator[ObjectStat]:
        checked_path(prefix)
        yield from _without_markers(sorted(self._listed(prefix, after), key=lambda s: s.path))

    def list_folder(self, path: str, after: str = "") -> Folder:
        """One request per 1,000 names. With `after`, also one for each of its folders with very many objects."""
        if after:
            return self._listed_after(path, after)
        key = self._key(path)
        found = self._read(path, lambda _: obstore.list_with_delimiter(self._store, key or None))
        below = f"{key}/" if key else ""
        folders = {str(name) for name in found["common_prefixes"]}
        objects = [
            self._stat_of(meta)
            for meta in found["objects"]
            # Consoles and Hadoop create empty objects as folder markers.
            if str(meta["path"]).startswith(below) and not (meta["size"] == 0 and meta["path"] in folders)
        ]
        names = sorted(folder[len(below) :].rstrip("/") for folder in folders)
        return Folder(tuple(names), tuple(sorted(objects, key=lambda s: s.path)))

    def _listed_after(self, path: str, after: str) -> Folder:
        # The client lists one level only from its beginning; so objects of folders below are passed over here.
        below = self._key(path) + "/" if path else self._start
        folders: dict[str, None] = {}
        objects: list[ObjectStat] = []
        last, size = self._start + after, _LIST_PAGE
        while size == _LIST_PAGE:
            page = self._place(path).read(partial(self._page, below, last))
            size = len(page)
            for meta in page:
                last = str(meta["path"])
                name, is_deeper, _ = last.removeprefix(below).partition("/")
                if not last.startswith(below):
                    continue
                if is_deeper:
                    folders[name] = None
                    last = f"{below}{name}/{_LAST}"
                else:
                    objects.append(self._stat_of(meta))
        held = [o for o in objects if not (o.size_bytes == 0 and o.path.rpartition("/")[2] in folders)]
        return Folder(tuple(name for name in folders if below + name > self._start + after), tuple(held))

    def _page(self, below: str, offset: str) -> list[Any]:
        return list(next(obstore.list(self._store, below.rstrip("/") or None, offset=offset, chunk_size=_LIST_PAGE), ()))

    def open_input(self, path: str) -> pa.NativeFile:
        """The first request also reads the end of the object, so a Parquet footer needs no other."""
        return pa.PythonFile(RangedObject(self._place(path)), mode="r")

    @contextmanager
    def open_output(self, path: str) -> Iterator[BinaryIO]:
        """Small objects need one request; larger ones are uploaded in parts while they are written."""
        sink = MultipartSink(self._place(path))
        try:
            yield cast("BinaryIO", sink)
        except BaseException:
            sink.abort()
            raise
        sink.complete()

    def _key(self, path: str) -> str:
        return f"{self._start}{checked_path(path)}" if path else self._prefix

    def _place(self, path: str) -> ObjectKey:
        return ObjectKey(self._store, self._bucket, self._key(path), path)

    def _asked(self, path: str, ask: Callable[[str], T]) -> T:
        place = self._place(path)
        return place.asked(lambda: ask(place.key))

    def _read(self, path: str, ask: Callable[[str], T]) -> T:
        place = self._place(path)
        return place.read(lambda: ask(place.key))

    def _listed(self, prefix: str, after: str = "") -> list[ObjectStat]:
        key = self._key(prefix)
        below = f"{key}/" if key else ""
        offset = self._start + after if after else None

        def pages() -> list[ObjectStat]:
            listing = obstore.list(self._store, key or None, offset=offset, chunk_size=_LIST_PAGE)
            return [self._stat_of(meta) for page in listing for meta in page if meta["path"].startswith(below)]

        return [found for found in self._place(prefix).read(pages) if found.path > after]

    def _stat_of(self, meta: Any) -> ObjectStat:
        return ObjectStat(str(meta["path"])[len(self._start) :], int(meta["size"]), meta["last_modified"])


def _without_markers(found: list[ObjectStat]) -> Iterator[ObjectStat]:
    """Yield all objects except empty ones that are markers of a folder with objects in it."""
    paths = [one.path for one in found]
    for one in found:
        below = f"{one.path}/"
        at = bisect_left(paths, below) if one.size_bytes == 0 else len(paths)
        if at == len(paths) or not paths[at].startswith(below):
            yield one


@lru_cache(maxsize=64)
def _store(bucket: str, process_id: int, settings: tuple[tuple[str, str], ...]) -> S3Store:
    """Return the client of a bucket. All storages of a process share it to reuse connections; a forked child does not."""
    assert process_id == os.getpid()
    chosen = dict(settings)
    endpoint = object_store_endpoint(chosen)
    client: ClientConfig = {**_TIMEOUTS}
    if endpoint.startswith("http://") or chosen.get("allow_http", "").lower() == "true":
        client["allow_http"] = True
    config = {name: value for name, value in chosen.items() if name in _SETTINGS}
    if endpoint:
        config["endpoint"] = endpoint
    try:
        return S3Store(bucket, config=cast("Any", config), client_options=client, retry_config=_RETRIES)
    except FAILURES as error:
        raise translated_error(error, "", bucket) from None


_SETTINGS = frozenset(
    {
        "access_key_id",
        "secret_access_key",
        "session_token",
        "region",
        "default_region",
        "checksum_algorithm",
        "container_authorization_token_file",
        "container_credentials_full_uri",
        "container_credentials_relative_uri",
        "disable_bulk_delete",
        "imdsv1_fallback",
        "metadata_endpoint",
        "request_payer",
        "role_arn",
        "role_session_name",
        "s3_express",
        "server_side_encryption",
        "skip_signature",
        "sse_bucket_key_enabled",
        "sse_customer_key_base64",
        "sse_kms_key_id",
        "sts_endpoint",
        "token",
        "unsigned_payload",
        "virtual_hosted_style_request",
        "web_identity_token_file",
    }
)
"""Settings of obstore that control authentication and the destination. Settings that weaken conditional puts are excluded."""
