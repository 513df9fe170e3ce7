"""The partitions of a table on storage, independent of its timeline (format reference 2)."""

from __future__ import annotations

from tideline_table.file_group.slice import join_path
from tideline_table.storage import Folder, Storage

PARTITION_METAFILE = ".hoodie_partition_metadata"


def list_partitions(storage: Storage, path: str = "") -> list[tuple[str, Folder]]:
    """Return the folders below `path`, at any depth, that have a partition metafile, and their content. One listing per folder."""
    level = storage.list_folder(path)
    names = {o.path.rsplit("/", 1)[-1] for o in level.objects}
    found = [(path, level)] if any(n.startswith(PARTITION_METAFILE) for n in names) else []
    for folder in level.folders:
        if folder != ".hoodie":
            found += list_partitions(storage, join_path(path, folder))
    return found
