"""From a base path as people write it to a `Storage`."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import unquote, urlsplit

from tideline_table.errors import UnsupportedTable
from tideline_table.storage.local import LocalStorage
from tideline_table.storage.port import Storage


def open_storage(base_path: str) -> Storage:
    """The storage behind `base_path`: a local path or a `file:` URI.

    Raises `UnsupportedTable` for a scheme that has no adapter yet.
    """
    return LocalStorage(_local_folder(base_path))


def root_uri(base_path: str) -> str:
    """The absolute URI that `open_storage(base_path).root` would have, without touching the storage."""
    return LocalStorage(_local_folder(base_path)).root


def _local_folder(base_path: str) -> Path:
    if not base_path:
        raise UnsupportedTable("an empty base path", expected="a local path or a file: URI")
    split = urlsplit(base_path)
    if split.scheme == "file":
        return Path(unquote(split.path))
    if split.scheme and len(split.scheme) > 1 and ":/" in base_path:
        raise UnsupportedTable(
            f"base path {base_path!r} with scheme {split.scheme!r}",
            expected="a local path or a file: URI",
            remedy="object stores follow in a later release; mount the bucket or use a local path",
        )
    return Path(os.path.expanduser(base_path))
