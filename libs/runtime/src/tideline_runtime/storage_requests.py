"""Requests to the storage of tables, counted by kind for the metrics of a service."""

from __future__ import annotations

from tideline_runtime.metrics import STORAGE_REQUESTS, Count, Metrics
from tideline_table.storage import Storage, StorageWrapper, open_storage

KINDS = {
    "read": "read",
    "read_range": "read",
    "read_versioned": "read",
    "open_input": "open",
    "stat": "head",
    "put": "write",
    "put_if_absent": "write",
    "put_if_version": "write",
    "open_output": "write",
    "list_objects": "list",
    "list_folder": "list",
    "delete": "delete",
    "delete_below": "delete",
}
"""The kind of each operation of the storage port."""


class StorageRequests:
    """Opens storages whose requests are counted in `metrics`. Every kind is shown from the start, with 0."""

    def __init__(self, metrics: Metrics) -> None:
        # One counter for all storages: looking up its labels costs more than counting.
        by_kind = {kind: metrics.counting(STORAGE_REQUESTS, kind=kind) for kind in dict.fromkeys(KINDS.values())}
        self._count = {operation: by_kind[kind] for operation, kind in KINDS.items()}

    def open(self, base_path: str) -> Storage:
        """Open the storage of `base_path` as `open_storage` does, with its errors."""
        return self.counted(open_storage(base_path))

    def counted(self, storage: Storage) -> Storage:
        """Return `storage` with its requests counted."""
        return _Counted(storage, self._count)


class _Counted(StorageWrapper):
    def __init__(self, inner: Storage, count: dict[str, Count]) -> None:
        super().__init__(inner)
        self._count = count

    def on_request(self, kind: str, path: str) -> None:  # noqa: ARG002 - of the interface
        self._count[kind]()
