"""Opening of a `Storage` from a base path."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

from tideline_table.errors import UnsafePath, UnsupportedTable
from tideline_table.storage.local import LocalStorage
from tideline_table.storage.object_store import ObjectStorage
from tideline_table.storage.port import Storage, checked_path

SUPPORTED = "a local path, a file: URI or s3://bucket/path"
_OBJECT_SCHEMES = ("s3", "s3a")
"""Two names of one scheme: Hadoop's s3a:// is s3:// in other tools."""
_URI = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/")
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")


def open_storage(base_path: str, options: Mapping[str, str] | None = None) -> Storage:
    """Open the storage of `base_path`: a local path, a `file:` URI or `s3://bucket/path` (S3 names are not decoded).

    `options` override the environment settings of an object store (`tideline_table.storage.object_store`). With equal environments,
    a path opens the same location in every process. Raises `UnsupportedTable` for a scheme without an adapter.
    """
    place = _object_place(base_path)
    if place is not None:
        return ObjectStorage(*place, options)
    return LocalStorage(_local_folder(base_path))


def task_storage(base_path: str) -> Storage:
    """Open the storage of `base_path` for a task of a table service.

    Tasks that a process runs one after the other share that of a local path, which remembers folders that it has made durable.
    """
    return open_storage(base_path) if _object_place(base_path) is not None else _local_storage(_local_folder(base_path).absolute())


@functools.lru_cache(maxsize=8)
def _local_storage(folder: Path) -> LocalStorage:
    return LocalStorage(folder)


def root_uri(base_path: str) -> str:
    """Return the absolute URI `open_storage(base_path).root` without accessing the storage."""
    place = _object_place(base_path)
    if place is not None:
        return f"s3://{'/'.join(part for part in place if part)}"
    return LocalStorage(_local_folder(base_path)).root


def hudi_root(root: str) -> str:
    """Return `root` as Apache Hudi writes it in plans: Hadoop's paths are no URIs, and have no escapes."""
    return unquote(root) if root.startswith("file:") else root


def root_spellings(root: str) -> tuple[str, ...]:
    """Return `root` and the other ways in which plans of Apache Hudi, and of this and earlier releases, write it.

    With a metadata table they name files below the base path as its writer was given it: without the scheme of a local disk, or
    with the name that its client of an object store has for the scheme.
    """
    if root.startswith("file:"):
        plain = hudi_root(root)
        return tuple(dict.fromkeys((root, plain, plain.removeprefix("file:"))))
    scheme, separator, rest = root.partition("://")
    if scheme in _OBJECT_SCHEMES:
        return root, *(f"{other}{separator}{rest}" for other in _OBJECT_SCHEMES if other != scheme)
    return (root,)


def _object_place(base_path: str) -> tuple[str, str] | None:
    """Return bucket and prefix, or None for a path that is not in an object store."""
    scheme = _URI.match(base_path)
    if scheme is None or scheme.group(1).lower() not in _OBJECT_SCHEMES:
        return None
    bucket, _, prefix = base_path[scheme.end() :].removeprefix("/").partition("/")
    if "@" in bucket:
        # The error does not repeat the path, because the part before the @ is a secret.
        raise UnsupportedTable(
            "a base path with credentials in it",
            expected="s3://bucket/path",
            remedy="set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
        )
    if not _BUCKET.fullmatch(bucket):
        raise UnsupportedTable(f"base path {base_path!r}", expected="s3://bucket/path with a bucket name of 3 to 63 characters")
    try:
        return bucket, checked_path(prefix.rstrip("/"))
    except UnsafePath as error:
        raise UnsupportedTable(f"base path {base_path!r}", expected=error.expected) from None


def _local_folder(base_path: str) -> Path:
    if not base_path:
        raise UnsupportedTable("an empty base path", expected=SUPPORTED)
    scheme = base_path.partition(":")[0].lower()
    folder = unquote(urlsplit(base_path).path) if scheme == "file" else base_path
    try:
        is_possible = b"\x00" not in os.fsencode(folder)
    except UnicodeEncodeError:
        is_possible = False
    if not is_possible:
        raise UnsupportedTable(f"base path {base_path!r}", expected="characters that a file system can store")
    if scheme == "file":
        return Path(folder)
    if _URI.match(base_path):
        raise UnsupportedTable(
            f"base path {base_path!r} with scheme {scheme!r}",
            expected=SUPPORTED,
            remedy="other object stores have no adapter in this release: use their S3 interface, or mount them",
        )
    return Path(os.path.expanduser(base_path))
