"""Requests to the storage of tables, counted by kind for the metrics of a service, and by table for the costs of each."""

from __future__ import annotations

from collections.abc import Mapping

from tideline_runtime.metrics import OVERFLOW, PROCESSOR_PRICE, REQUEST_PRICE, STORAGE_REQUESTS, Count, Metrics
from tideline_runtime.prices import processor_price, request_price
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


MAX_TABLES = 100_000
"""Places whose requests are counted apart; those of all further ones are counted together, under `OVERFLOW`."""


class StorageRequests:
    """Opens storages whose requests are counted in `metrics`. Every kind is shown from the start, with 0, and its price."""

    def __init__(self, metrics: Metrics, prices: Mapping[str, float]) -> None:
        # One counter for all storages: looking up its labels costs more than counting.
        by_kind = {kind: metrics.counting(STORAGE_REQUESTS, kind=kind) for kind in dict.fromkeys(KINDS.values())}
        self._count = {operation: by_kind[kind] for operation, kind in KINDS.items()}
        self._by_table = metrics.requests_by_table
        for kind in by_kind:
            metrics.set(REQUEST_PRICE, request_price(prices, kind), kind=kind)
        metrics.set(PROCESSOR_PRICE, processor_price(prices))

    def open(self, base_path: str) -> Storage:
        """Open the storage of `base_path` as `open_storage` does, with its errors."""
        return self.counted(open_storage(base_path))

    def counted(self, storage: Storage) -> Storage:
        """Return `storage` with its requests counted."""
        is_known = storage.root in self._by_table or len(self._by_table) < MAX_TABLES
        of_table = self._by_table.setdefault(storage.root if is_known else OVERFLOW, {})
        return _Counted(storage, self._count, of_table)


class _Counted(StorageWrapper):
    def __init__(self, inner: Storage, count: dict[str, Count], of_table: dict[str, int]) -> None:
        super().__init__(inner)
        self._count = count
        self._of_table = of_table

    def on_request(self, kind: str, path: str) -> None:  # noqa: ARG002 - of the interface
        self._count[kind]()
        charged = KINDS[kind]
        # Two threads may count one request less: this figure is for costs.
        self._of_table[charged] = self._of_table.get(charged, 0) + 1
